"""A2.3, G6, R7: rot that somebody meets is looked at, told, and repaired from another replica."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.replication.rot_watch import LINE_MAX, WAITING_MAX
from raftmq.errors import CorruptRecord, ErrorCode, StorageError
from raftmq.metadata.commands import (
    Done,
    ElectionKind,
    ElectLeader,
    FenceBroker,
    Loss,
    ReportDamage,
)
from raftmq.partition.replica_environment import PartitionKey
from raftmq.wire.messages.corruption import CorruptionVerdict, ReportCorruption
from tests.log_reading import read_slice
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.asking import ask
from tests.unit.broker.hosting import begin, opened, settle, state_of
from tests.unit.broker.rotting import (
    BAD,
    COUNT,
    KEY,
    SIZE,
    batches_of,
    damaged,
    fill,
    filled,
    in_sync,
    report,
    rot,
    until_whole,
)
from tests.unit.storage.batches import append, batch, values_of
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


async def test_a_leader_resigns_and_has_what_is_wrong_from_its_successor(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is cut; the log says what was found where."""
    async with filled(files, 1, 2) as (node, replica):
        rot(files, replica)
        assert (await report(node, leader_epoch=0)).verdict == CorruptionVerdict.ROTTEN
        assert await damaged(node) == [(0, BAD)]
        await until_whole(node)
        assert node.reports.told == [(KEY, Loss.NOTHING)]
        state = state_of(node)
        assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)
        assert node.donor.asked == [BAD]
        assert values_of(replica.log) == [b"%d" % number for number in range(COUNT)]
        await settle()
        fetch = replica.next_fetch()
        assert fetch is not None
        assert fetch.fetch_offset == COUNT
        assert await damaged(node) == []
    [line] = [one for one in caplog.messages if one.startswith("rot found")]
    assert f"log={replica.log.name} offset={BAD} end_offset={BAD + 1} file=/data/" in line
    assert f"position={BAD * SIZE}" in line
    assert "noticed_by=peer test" in line


async def test_the_only_one_leads_on_with_all_that_can_be_read(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has more: not a byte goes, nothing is told, records are taken. It says so once."""
    async with filled(files) as (node, replica):
        before = replica.log.size
        rot(files, replica)
        for _ in range(3):
            assert (await report(node)).verdict == CorruptionVerdict.ROTTEN
            await trio.sleep(60)
        assert (node.reports.told, replica.log.size) == ([], before)
        with pytest.raises(CorruptRecord, match=rf"{BAD} to {BAD} have changed.*, {BAD + 1} comes"):
            read_slice(replica.log, BAD, bytes_max=1)
        replica.append(batch(b"more"), acks=-1)
        assert read_slice(replica.log, BAD + 1, bytes_max=1 << 20).end_offset == COUNT + 1
        assert await damaged(node) == [(0, BAD)]
    assert sum(one.startswith("rot stays") for one in caplog.messages) == 1


async def test_it_resigns_as_soon_as_another_one_can_lead(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One that has caught up by itself, as it had what is rotten here."""
    async with opened(files, FakeCluster(2)) as node:
        replica = await begin(node, 1, 2)
        await in_sync(node, 1)
        await fill(replica)
        node.donor.batches = batches_of(replica)
        rot(files, replica)
        await report(node)
        await trio.sleep(100)
        assert replica.leader is not None
        await in_sync(node, 1, 2)
        await until_whole(node, seconds=20)
        assert node.reports.told == [(KEY, Loss.NOTHING)]
        assert (state_of(node).leader, replica.log.log_end_offset) == (2, COUNT)


async def test_it_leads_on_where_its_successor_went_in_the_same_moment(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """R7: it cannot know; the quorum does, and lets nobody resign to nobody."""
    async with filled(files, 1, 2) as (node, replica):
        rot(files, replica)
        epoch = node.cluster.leader.image.brokers[2].broker_epoch
        async with trio.open_nursery() as nursery:
            nursery.start_soon(report, node)
            await node.cluster.leader.propose(FenceBroker(2, epoch))
        await trio.sleep(60)
        assert (state_of(node).leader, replica.log.log_end_offset) == (1, COUNT)
        assert replica.leader is not None
        assert await damaged(node) == [(0, BAD)]


async def test_elected_uncleanly_it_leads_with_all_that_it_has(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its successor could not be asked, and has lost all: what is behind the rot is not cut."""
    async with filled(files, 1, 2, min_insync_replicas="1") as (node, replica):
        node.donor.batches = {}
        rot(files, replica)
        await report(node)
        await trio.sleep(3)
        epoch = node.cluster.leader.image.brokers[2].broker_epoch
        command = ReportDamage(2, epoch, (KEY,), Loss.RECORDS)
        assert isinstance(await node.cluster.leader.propose(command), Done)
        await trio.sleep(3)
        assert (state_of(node).leader, replica.log.log_end_offset) == (-1, COUNT)
        ordered = await node.cluster.leader.propose(ElectLeader(*KEY, ElectionKind.UNCLEAN))
        assert isinstance(ordered, Done)
        await trio.sleep(60)
        assert replica.leader is not None
        assert replica.log.log_end_offset == COUNT
        assert await damaged(node) == [(0, BAD)]


async def test_a_follower_is_repaired_from_its_leader(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Something on this broker met it; what the leader counts on ends first."""
    async with opened(files, FakeCluster(2)) as node:
        replica = await begin(node, 2, 1)
        for number in range(COUNT):
            append(replica.log, b"%d" % number)
        await node.directory.flusher.wait_durable(replica.log, COUNT)
        node.donor.batches = batches_of(replica)
        rot(files, replica)
        node.rot_watch.doubt(KEY, BAD)
        await settle()
        await until_whole(node)
        assert node.reports.told == [(KEY, Loss.NOTHING)]
        assert (state_of(node).isr, replica.log.log_end_offset) == ((2,), COUNT)


async def test_what_a_killed_leader_had_found_is_repaired_after_its_start(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It died before anybody was told: it does not come back as if nothing was."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2, index_interval_bytes="1")
        await fill(replica)
        batches = batches_of(replica)
        rot(files, replica)
        cluster.depose()
        await report(node)
        left = files.photograph(Random(1), power_lost=False)
    cluster.elect(2)
    async with opened(left, cluster) as node:
        assert node.replicas.damaged() == []
        node.donor.batches = batches
        await node.register()
        await settle()
        await until_whole(node)
        replica = node.replicas.get(*KEY)
        assert (state_of(node).leader, replica.log.log_end_offset) == (2, COUNT)


async def test_a_report_of_nothing_changes_nothing(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is right: whoever complains got it wrong. Said so, and not all the time."""
    async with filled(files, 1, 2) as (node, replica):
        for _ in range(20):
            assert (await report(node)).verdict == CorruptionVerdict.WHOLE
        assert replica.leader is not None
        assert await damaged(node) == []
    assert sum(one.startswith("no rot here") for one in caplog.messages) == 1


async def test_what_is_no_word_about_this_leader_is_refused(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Of another epoch, of an offset or a partition that is not here, of a follower's log."""
    async with filled(files, 1, 2) as (node, replica):
        rot(files, replica)
        for offset, epoch, error in [
            (BAD, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            (COUNT, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        ]:
            reply = await report(node, offset, leader_epoch=epoch)
            assert (reply.error, reply.verdict) == (error, CorruptionVerdict.NOT_LOOKED)
        request = ReportCorruption(b"?" * 16, 0, BAD)
        reply = await ask(node.rot_watch.report, request)
        assert reply.error == ErrorCode.UNKNOWN_TOPIC_ID
        assert replica.log.is_whole


async def test_who_reports_all_the_time_costs_a_tenth_of_a_disk(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One look at a time, with rests; reports of one partition share a look."""
    disk = Disk()
    async with filled(files, run_sync=disk) as (node, _replica):
        disk.seconds, before = 0.1, disk.calls
        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(WAITING_MAX):
                    nursery.start_soon(_complain, node)
        assert disk.calls - before <= 20 + 2 * 4  # checkpoints write, too


async def _complain(node: Node, offset: int = BAD, connection_id: int = 1) -> None:
    while True:
        reply = await report(node, offset, connection_id=connection_id)
        if reply.verdict == CorruptionVerdict.NOT_LOOKED:
            await trio.sleep(0.01)


async def test_each_is_told_of_the_offset_that_it_has_named(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A2.3: others complain of offsets that are sound, before and meanwhile."""
    disk, verdicts = Disk(), {}
    async with filled(files, run_sync=disk) as (node, replica):
        rot(files, replica)
        disk.seconds = 0.1

        async def tell(offset: int) -> None:
            verdicts[offset] = (await report(node, offset, connection_id=offset)).verdict

        async with trio.open_nursery() as nursery:
            for offset in (4, BAD, 5, 0):
                nursery.start_soon(tell, offset)
                await trio.sleep(0.01)
        sound = dict.fromkeys((0, 4, 5), CorruptionVerdict.WHOLE)
        assert verdicts == {**sound, BAD: CorruptionVerdict.ROTTEN}


async def test_who_reports_all_the_time_is_in_nobodys_way(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One connection complains of all that is sound, many times at once: it has one place in the
    line, and whoever comes later is next.
    """
    disk = Disk()
    async with filled(files, run_sync=disk) as (node, replica):
        rot(files, replica)
        disk.seconds = 0.1
        async with trio.open_nursery() as nursery:
            for offset in set(range(COUNT)) - {BAD}:
                nursery.start_soon(_complain, node, offset)
            await trio.sleep(5)
            with trio.fail_after(2.5):  # two looks and a half, and what they rest
                assert (await report(node, connection_id=2)).verdict == CorruptionVerdict.ROTTEN
            nursery.cancel_scope.cancel()


async def test_the_line_at_one_partition_is_short(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Many connections that complain of it leave room for other partitions."""
    async with filled(files) as (node, replica):
        for number in range(LINE_MAX):
            node.rot_watch._begin(replica, 100 + number, "somebody", number)
        assert (await report(node, connection_id=99)).verdict == CorruptionVerdict.NOT_LOOKED
        node.rot_watch._waiting.clear()


async def test_more_than_can_wait_are_told_to_come_again(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Rather than growing a line of partitions."""
    async with filled(files) as (node, _replica):
        for number in range(WAITING_MAX):
            node.rot_watch._waiting[PartitionKey(b"%016d" % number, 0), 0] = None  # type: ignore[assignment]
        assert (await report(node)).verdict == CorruptionVerdict.NOT_LOOKED
        node.rot_watch._waiting.clear()


async def test_who_was_elected_with_damage_keeps_what_stands_before_it(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """G6: nobody has more. It was cut where the rot began, before the damage."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, index_interval_bytes="1")
        await fill(replica)
        rot(files, replica)
        await report(node)
        for number in range(3):
            replica.append(batch(b"%d" % number), acks=-1)
        await replica._directory.flusher.wait_durable(replica.log, COUNT + 3)
        left = files.photograph(Random(1), power_lost=False)
    rot(left, replica, COUNT + 1)
    async with opened(left, cluster) as node:
        await node.register()
        await trio.sleep(30)
        assert state_of(node).leader == -1
        await cluster.leader.propose(ElectLeader(*KEY, ElectionKind.UNCLEAN))
        await trio.sleep(30)
        replica = node.replicas.get(*KEY)
        assert replica.leader is not None
        assert replica.log.log_end_offset == COUNT + 1
        assert [each.offset for each in replica.log.rotten] == [BAD]


async def test_a_look_that_waited_for_a_change_delays_no_other_one(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Rests are for the disk: nine times that wait all looks of this broker stood still."""
    async with filled(files) as (node, replica):
        directory = replica._directory
        async with trio.open_nursery() as nursery:
            async with directory._changing(replica.log):
                nursery.start_soon(report, node, 1)
                await trio.sleep(50)
            await trio.sleep(1)
            began = trio.current_time()
            assert (await report(node)).verdict == CorruptionVerdict.WHOLE
            assert trio.current_time() - began < 1


async def test_a_look_at_a_log_that_fails_says_nothing(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """G4: whole is what was read, and nothing else."""
    async with filled(files) as (node, replica):
        verdicts = []

        async def ask_once() -> None:
            verdicts.append((await report(node)).verdict)

        async with trio.open_nursery() as nursery, replica._directory._changing(replica.log):
            nursery.start_soon(ask_once)
            await trio.sleep(1)
            replica.log.go_offline(StorageError("a disk failed"))
        assert verdicts == [CorruptionVerdict.NOT_LOOKED]


@pytest.mark.parametrize("wait", [300, 307, 314])
async def test_a_rotten_log_that_fails_is_opened_anew_at_once(
    files: SimulatedFiles, autojump_clock: MockClock, wait: float
) -> None:
    """R7: its case waits for another replica meanwhile, for up to 15 s at a time. If it fails
    again soon it waits, as any other.
    """
    async with filled(files, index_interval_bytes="1") as (node, replica):
        rot(files, replica)
        await report(node)
        await trio.sleep(wait)
        old = replica.log
        old.go_offline(StorageError("a disk failed"))
        await trio.sleep(0.2)
        assert replica.log is not old
        assert [each.offset for each in replica.log.rotten] == [BAD]
        old = replica.log
        old.go_offline(StorageError("a disk failed"))
        await trio.sleep(0.05)
        assert replica.log is old
        await trio.sleep(30)
        assert replica.log is not old


async def test_what_an_opening_meets_is_repaired_unasked(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """R7: its headers are read to know the producers again; no reader ever comes there."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 2, 1, index_interval_bytes="1")
        for number in range(COUNT):
            append(replica.log, b"%d" % number)
        await node.directory.flusher.wait_durable(replica.log, COUNT)
        batches = batches_of(replica)
        await node.directory.checkpoint()
        left = files.photograph(Random(1), power_lost=False)
    left.flip_bit(replica.log.segments[0].path, BAD * SIZE + 11, 3)  # in the length
    async with opened(left, cluster) as node:
        node.donor.batches = batches
        await node.register()
        await settle()
        with trio.fail_after(60):
            while batches_of(node.replicas.get(*KEY)) != batches:  # noqa: ASYNC110
                await trio.sleep(0.05)


async def test_own_doubts_wait_for_a_place_in_line(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """R7: an opening may meet several at once, and never meets them again."""
    async with filled(files) as (node, replica):
        rot(files, replica, 1)
        rot(files, replica, 4)
        for offset in range(COUNT):
            node.rot_watch.doubt(KEY, offset)
        await trio.sleep(60)
        assert [each.offset for each in replica.log.rotten] == [1, 4]


async def test_what_was_read_wrong_once_is_read_back(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The file is whole, but an opening could not read what it schedules: nothing is cut. A12.3."""
    async with opened(files, FakeCluster(2)) as node:
        replica = await begin(node, 2, 1)
        append(replica.log, b"a", b"b")
        await node.directory.flusher.wait_durable(replica.log, 1)
        replica.log.schedule.on_unread(0, 1)
        assert replica.has_unread
        node.rot_watch.doubt(KEY, 0)
        await trio.sleep(5)
        assert not replica.has_unread
        assert values_of(replica.log) == [b"a", b"b"]
