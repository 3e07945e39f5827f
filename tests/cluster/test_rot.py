"""A2.3, G6, R7: bytes of closed segments that change under three running brokers.

A byte is changed in a file of the leader's, below its recovery point, where no start looks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

import raftmq
from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptRecord
from raftmq.local.cluster import LocalCluster
from raftmq.local.directory import find_layout
from raftmq.partition.storage.inspect import (
    find_partition_folders,
    list_segments,
    read_recovery_point,
)
from raftmq.partition.storage.segment import BatchStart, walk
from tests.cluster.broker_logs import read_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raftmq.client.administration.results import Health
    from raftmq.client.consumer.consumer import Consumer

pytestmark = pytest.mark.cluster

RECORDS, PER_BATCH = 1000, 10
VALUES = [b"%04d" % number * 25 for number in range(RECORDS)]
SECONDS_MAX = 60.0
FILES = OsFiles(read_only=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster.open(tmp_path / "cluster", brokers=3, port=0) as cluster:
        yield cluster


async def fill(mq: raftmq.Client, topic: str, replicas: int) -> int:
    """One partition in several segments, all in sync; who leads it."""
    await mq.admin.create_topic(
        topic, partitions=1, replication_factor=replicas, config={"segment.bytes": 1 << 14}
    )
    async with mq.producer(acks="all") as p:
        for begin in range(0, RECORDS, PER_BATCH):
            await p.send_columns(topic, values=VALUES[begin : begin + PER_BATCH])
    await until_healthy(mq)
    [described] = (await mq.admin.describe_topic(topic)).partitions
    assert described.leader is not None
    return described.leader


async def until_healthy(mq: raftmq.Client) -> None:
    with anyio.fail_after(SECONDS_MAX):
        while not (await mq.admin.health()).is_healthy:  # noqa: ASYNC110
            await anyio.sleep(0.1)


def flip(root: Path, topic: str, offset: int) -> str:
    """A bit of the batch that holds the offset. Returns the name of the file."""
    [folder] = [each for each in find_partition_folders(FILES, root) if topic in each.parent.name]
    deadline = time.monotonic() + SECONDS_MAX
    while (read_recovery_point(FILES, folder) or 0) < RECORDS:
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.1)
    segment = [each for each in list_segments(FILES, folder) if each.base_offset <= offset][-1]
    assert segment != list_segments(FILES, folder)[-1], "not closed"
    file = FILES.open(segment.path)
    for position, header in walk(file, BatchStart(segment.base_offset, 0), segment.size):
        if header.base_offset <= offset < header.end_offset:
            with segment.path.open("r+b") as raw:
                raw.seek(position + header.size - 7)
                [before] = raw.read(1)
                raw.seek(-1, 1)
                raw.write(bytes([before ^ 4]))
            return segment.path.name
    raise AssertionError(f"offset {offset} is not there")


async def take(c: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with anyio.fail_after(SECONDS_MAX):
        async for batch in c.batches():
            values += batch.values
            if len(values) >= count:
                break
    return values


async def test_what_rots_on_a_leader_is_read_from_another_and_repaired(
    cluster: LocalCluster,
) -> None:
    """Nobody but the operators sees it: a line in the log, and `cluster health` meanwhile."""
    layout = find_layout(cluster.directory)
    async with raftmq.connect(cluster.bootstrap) as mq:
        leader = await fill(mq, "rots", 3)
        before = read_logs(layout.data(leader), "rots")
        name = flip(layout.data(leader), "rots", 333)
        assert read_logs(layout.data(leader), "rots") != before
        seen: list[Health] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, mq, seen)
            async with mq.consumer("rots", start="earliest") as c:
                assert await take(c, RECORDS) == VALUES
            with anyio.fail_after(SECONDS_MAX):
                while not (seen and _ails(seen) and seen[-1].is_healthy):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        ailing = next(each for each in seen if not each.is_healthy)
        [missing] = [one.missing for one in ailing.under_replicated] or [(leader,)]
        assert missing == (leader,)
        assert {one.broker_id for each in seen for one in each.damaged} <= {leader}
        assert [read_logs(layout.data(node), "rots") for node in (1, 2, 3)] == [before] * 3
        lines = layout.log(leader).read_text().splitlines()
        [line] = [line for line in lines if "rot found" in line]
        assert "offset=330 end_offset=340" in line
        assert f"/{name} position=" in line
        [line] = [line for line in lines if "rot is put right" in line]  # and not fetched anew
        assert "offset=330 end_offset=340" in line


async def _watch(mq: raftmq.Client, seen: list[Health]) -> None:
    while True:
        seen.append(await mq.admin.health())
        await anyio.sleep(0.01)


def _ails(seen: list[Health]) -> bool:
    return not all(each.is_healthy for each in seen)


async def test_what_rots_on_the_only_replica_costs_what_it_holds(cluster: LocalCluster) -> None:
    """Before and behind it everything is read and written, also after a kill; health says so."""
    layout = find_layout(cluster.directory)
    async with raftmq.connect(cluster.bootstrap) as mq:
        leader = await fill(mq, "alone", 1)
        flip(layout.data(leader), "alone", 333)
        for _ in range(2):
            async with mq.consumer("alone", start="earliest") as c:
                assert await take(c, 330) == VALUES[:330]
                with pytest.raises(CorruptRecord, match=r"offsets 330 to 339.*340 comes after"):
                    await take(c, 1)
                c.seek("alone", 0, offset=340)
                found = await take(c, RECORDS - 340)
                assert found[: RECORDS - 340] == VALUES[340:]
            health = await mq.admin.health()
            [damaged] = health.damaged
            assert (damaged.topic, damaged.partition, damaged.broker_id) == ("alone", 0, leader)
            assert damaged.offset == 330
            assert not health.is_healthy
            async with mq.producer(acks="all") as p:
                await p.send("alone", b"more")
            cluster.kill(leader)
            cluster.start(leader)
            cluster.wait_ready(leader)
