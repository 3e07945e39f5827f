"""Data directories of nodes that were killed: real files, written by the real storage.

Three logs: one of many segments, one of one segment, one of which only the end is not yet below the
recovery point; and a voter's journal and snapshot. What was acknowledged is known.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from raftmq.broker.meta import QUORUM_FOLDER
from raftmq.disk.files import OsFiles
from raftmq.metadata.raft.background import JOURNAL_FOLDER
from raftmq.metadata.raft.journal.replay import replay_journal
from raftmq.metadata.raft.snapshot.store import SnapshotStore
from raftmq.partition.storage.directory import open_log_directory
from raftmq.topic_config import TopicConfig
from tests.powercut.faulty_files import RebootedFiles
from tests.unit.metadata.raft.journals import append as append_entries
from tests.unit.metadata.raft.journals import flush, started
from tests.unit.storage.batches import NOW_MS, append, values_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog

T = TypeVar("T")

CLUSTER = "c"
LOGS = {
    "long-01": TopicConfig(segment_bytes=3000, index_interval_bytes=200),
    "short-02": TopicConfig(index_interval_bytes=300),
    "late-03": TopicConfig(index_interval_bytes=400),
}
BATCHES = 40
LATE = 6  # batches behind the recovery point, of the last log


async def at_once(function: Callable[[], T], /) -> T:
    return function()


def value(topic: str, number: int) -> bytes:
    return f"{topic} {number} ".encode() * 6


async def kill_node(root: Path) -> None:
    """Leave in `root` what a killed node leaves: no mark of a clean end, the page cache whole."""
    living = root.with_name(f"{root.name}-living")
    async with open_log_directory(living, run_sync=at_once, now_ms=lambda: NOW_MS) as directory:
        for topic in LOGS:
            log = await directory.open_log(topic, 0, LOGS[topic])
            await _write(directory, log, topic, range(BATCHES))
        await directory.checkpoint()
        await _write(directory, log, topic, range(BATCHES, BATCHES + LATE))
        shutil.copytree(living, root)
    shutil.rmtree(living)
    write_quorum(root)


async def _write(directory: LogDirectory, log: PartitionLog, topic: str, numbers: range) -> None:
    for number in numbers:
        append(log, value(topic, number), epoch=number // 10)
    await directory.flusher.wait_held(log, log.log_end_offset)


def write_quorum(root: Path) -> None:
    files, quorum = OsFiles(), root / QUORUM_FOLDER
    quorum.mkdir()
    journal = started(files, quorum / JOURNAL_FOLDER, term=1)
    for number in range(6):
        append_entries(journal, b"command %d" % number)
        flush(journal)
    SnapshotStore(files, quorum, cluster_id=CLUSTER).newest()
    store = SnapshotStore(files, quorum, cluster_id=CLUSTER)
    store.newest()
    store.write(index=3, term=1, slices=[b"some", b"slices"])


def check_voter(root: Path) -> None:
    """Raises CorruptJournal where a voter would not start."""
    files, quorum = OsFiles(), root / QUORUM_FOLDER
    replay_journal(files, quorum / JOURNAL_FOLDER)
    SnapshotStore(files, quorum, cluster_id=CLUSTER).newest()


class Opened(NamedTuple):
    """Attributes:
    damaged: topics whose logs were found so.
    values: that can be read, by topic.
    """

    damaged: list[str]
    values: dict[str, list[bytes | None]]


async def open_again(root: Path, *, power_cuts: int = 0) -> Opened:
    files = RebootedFiles(power_cuts) if power_cuts else OsFiles()
    async with open_log_directory(
        root, files=files, run_sync=at_once, now_ms=lambda: NOW_MS
    ) as directory:
        logs = {topic: await directory.open_log(topic, 0, LOGS[topic]) for topic in LOGS}
        return Opened(
            [topic for topic, log in logs.items() if log.damage],
            {topic: values_of(log) for topic, log in logs.items()},
        )


def written(topic: str) -> list[bytes | None]:
    count = BATCHES + (LATE if topic == list(LOGS)[-1] else 0)
    return [value(topic, number) for number in range(count)]
