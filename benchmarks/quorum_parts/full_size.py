"""Directories of voters who hold as much metadata as the quorum is made for.

Owns the shape of that image: 100 topics of 1,000 partitions on six brokers, 1,000 groups that have
committed 1,000 offsets each. The directories look as after a snapshot that stands for everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from immutables import Map

from benchmarks.quorum_parts.cluster import NODES
from raftmq.disk.files import OsFiles
from raftmq.metadata.commands import PartitionId
from raftmq.metadata.image import (
    EMPTY_IMAGE,
    SLOT_COUNT,
    BrokerState,
    CommittedOffset,
    MetadataImage,
    PartitionState,
    SlotState,
    TopicState,
)
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.raft.engine.voter_disks import Enrolment
from raftmq.metadata.raft.journal.journal import start_journal
from raftmq.metadata.raft.net.messages import Standing
from raftmq.metadata.raft.snapshot.contents import take_picture
from raftmq.metadata.raft.snapshot.store import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPICS, PARTITIONS_OF_TOPIC, BROKERS, REPLICAS = 100, 1000, 6, 3
GROUPS, OFFSETS_OF_GROUP = 1000, 1000
INDEX, TERM = 2_000_000, 3


def full_size_image(scale: float) -> MetadataImage:
    topics = [
        TopicState(f"topic-{number:06}-id..".encode()[:16], f"orders-{number}", PARTITIONS_OF_TOPIC)
        for number in range(max(1, int(TOPICS * scale)))
    ]
    groups = max(1, int(GROUPS * scale))
    partitions = {
        PartitionId(topic.topic_id, number): _state(number)
        for topic in topics
        for number in range(PARTITIONS_OF_TOPIC)
    }
    return EMPTY_IMAGE._replace(
        version=INDEX,
        slots=(SlotState(1, 1),) * SLOT_COUNT,
        brokers=Map({broker: _broker(broker) for broker in range(1, BROKERS + 1)}),
        topics=Map({topic.topic_id: topic for topic in topics}),
        topic_ids=Map({topic.name: topic.topic_id for topic in topics}),
        partitions=Map(partitions),
        offsets=Map(
            {f"group-{n}": _offsets(topics[n % len(topics)].topic_id) for n in range(groups)}
        ),
    )


def _broker(broker: int) -> BrokerState:
    return BrokerState(broker, broker, bytes(16), bytes(16), fenced=False)


def _state(number: int) -> PartitionState:
    replicas = tuple((number + place) % BROKERS + 1 for place in range(REPLICAS))
    return PartitionState(replicas, replicas, leader=replicas[0], leader_epoch=number)


def _offsets(topic_id: bytes) -> Map[PartitionId, CommittedOffset]:
    return Map(
        {
            PartitionId(topic_id, number): CommittedOffset(number << 20, 7, "", 1_700_000_000_000)
            for number in range(OFFSETS_OF_GROUP)
        }
    )


def write_directories(directories: dict[int, Path], image: MetadataImage) -> int:
    """One for each voter; how many bytes the snapshot has."""
    machine = MetadataMachine()
    machine.install(INDEX, image)
    enrolled = {node: Enrolment(bytes([node]) * 16, 1) for node in NODES}
    slices = take_picture(machine, enrolled)
    return max(_write(directory, node, slices) for node, directory in directories.items())


def _write(directory: Path, node_id: int, slices: Callable[[], Iterator[bytes]]) -> int:
    files = OsFiles()
    files.make_directory(directory)
    journal = start_journal(
        files,
        directory / "journal",
        cluster_id="benchmark",
        node_id=node_id,
        new_disk_id=bytes([node_id]) * 16,
        voters=NODES,
    )
    journal.setCurrentTerm(TERM, None)
    journal.set_standing(Standing.ESTABLISHED)
    journal.install_base(INDEX, TERM)
    batch = journal.prepare()
    assert batch, "nothing to write"
    batch.write()
    store = SnapshotStore(files, directory, cluster_id="benchmark")
    store.newest()
    return store.write(index=INDEX, term=TERM, slices=slices()).size_bytes
