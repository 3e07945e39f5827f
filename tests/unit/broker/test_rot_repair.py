"""A2.3, R7: what has rotted is put right with what the leader holds; nothing good is given up."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.replication import rot_watch
from raftmq.metadata.commands import Loss
from raftmq.wire.batch.header import pack_prefix, read_header
from tests.simulation.disk import SimulatedFiles
from tests.unit.broker.hosting import settle, state_of
from tests.unit.broker.rotting import (
    BAD,
    COUNT,
    KEY,
    batches_of,
    filled,
    in_sync,
    report,
    rot,
    until_whole,
)
from tests.unit.storage.batches import values_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node

VALUES = [b"%d" % number for number in range(COUNT)]
RESIGNED = (KEY, Loss.NOTHING)


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


async def test_batch_after_batch(
    files: SimulatedFiles, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much has rotted, no more than a piece of it is in memory."""
    monkeypatch.setattr(rot_watch, "PIECE_BYTES", 1)
    async with filled(files, 1, 2) as (node, replica):
        for offset in (2, 3, 4):
            rot(files, replica, offset)
        await report(node)
        assert replica.log.rotten[0].end_offset == 5
        await until_whole(node)
        assert node.donor.asked == [2, 3, 4]
        assert values_of(replica.log) == VALUES


def of_another_epoch(batch: bytes) -> bytes:
    header = read_header(batch)
    return pack_prefix(header, base_offset=header.base_offset, leader_epoch=1) + batch[16:]


@pytest.mark.parametrize("leader_has", ["other records", "less", "much less"])
async def test_where_the_logs_have_parted_it_is_cut(
    files: SimulatedFiles, autojump_clock: MockClock, leader_has: str
) -> None:
    """As the log of any follower; told before, for it may be elected until then."""
    async with filled(files, 1, 2) as (node, replica):
        if leader_has == "other records":
            node.donor.batches[BAD] = of_another_epoch(node.donor.batches[BAD])
        else:
            end = BAD if leader_has == "less" else 1
            node.donor.batches = {n: node.donor.batches[n] for n in range(end)}
        rot(files, replica)
        await report(node)
        await until_whole(node)
        assert node.reports.told == [RESIGNED, (KEY, Loss.RECORDS)]
        assert values_of(replica.log) == VALUES[:BAD]


async def test_what_the_leader_cannot_read_either_stays(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Everything else is put right, and nothing cut: the leader may rot elsewhere next."""
    async with filled(files, 1, 2) as (node, replica):
        node.donor.unreadable = {BAD}
        for offset in (BAD, 4):
            rot(files, replica, offset)
            await report(node, offset)
        await trio.sleep(60)
        assert [each.offset for each in replica.log.rotten] == [BAD]
        assert (replica.log.log_end_offset, node.reports.told) == (COUNT, [RESIGNED])
        node.donor.unreadable = set()
        await until_whole(node)
        assert values_of(replica.log) == VALUES


async def test_what_arrives_wrong_is_reported_and_not_written(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The leader looks at its own disk then."""
    async with filled(files, 1, 2) as (node, replica):
        good = node.donor.batches[BAD]
        node.donor.batches[BAD] = good[:-1] + bytes([good[-1] ^ 1])
        rot(files, replica)
        before = batches_of(replica)
        await report(node)
        await trio.sleep(3)
        assert {(each.offset, each.leader_epoch) for each in node.donor.reports} == {(BAD, 1)}
        assert batches_of(replica) == before
        node.donor.batches[BAD] = good
        await until_whole(node)


async def test_what_the_leader_has_deleted_is_deleted(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The way out where all have rotted at the same place (`topic trim`)."""
    async with filled(files, 1, 2, min_insync_replicas="1") as (node, replica):
        await in_sync(node, 1)
        await settle()
        await in_sync(node, 1, 2)
        node.donor.start_offset = BAD + 2
        rot(files, replica)
        await report(node)
        await until_whole(node)
        assert node.reports.told == [RESIGNED]
        assert values_of(replica.log) == VALUES[BAD + 2 :]


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_disk_that_fails_meanwhile_is_no_end(
    files: SimulatedFiles, autojump_clock: MockClock, operation: str
) -> None:
    """The log goes offline, comes back with its rot, and that is put right then."""
    async with filled(files, 1, 2, index_interval_bytes="1") as (node, replica):
        rot(files, replica)
        log = replica.log
        files.fail(operation, "00000000000000000000.log")
        await report(node)
        await until_whole(node, seconds=120)
        assert replica.log is not log
        assert values_of(replica.log) == VALUES
        assert _follows(node)


def _follows(node: Node) -> bool:
    return state_of(node).leader == 2 and node.replicas.get(*KEY).follower is not None
