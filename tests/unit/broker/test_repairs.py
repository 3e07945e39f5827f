"""Replicas whose logs cannot be used come back by themselves, and destroy nothing on the way."""

from __future__ import annotations

import errno
import logging
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.metadata.commands import DeleteTopic, Done, ElectionKind, ElectLeader, Loss
from raftmq.partition.replica_environment import PartitionKey
from raftmq.wire.messages.corruption import DescribeDamage
from tests.simulation.disk import SimulatedFiles
from tests.simulation.disk_faults import Fault
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.asking import ask
from tests.unit.broker.hosting import (
    TOPIC_ID,
    begin,
    create_topic,
    opened,
    register,
    settle,
    state_of,
)
from tests.unit.storage.batches import append, batch, values_of
from tests.unit.storage.directories import ROOT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.broker.hosting import Node

KEY = PartitionKey(TOPIC_ID, 0)
LOG_FILES = "Partition-0/*.log"
FOLDER = ROOT / f"topics/t0-{TOPIC_ID.hex()}/Partition-0"


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


class _Next(Fault):
    """Whichever operation comes next."""

    def strikes(self, operation: str, path: Path) -> bool:
        return operation == self._operation and path.match(self._pattern)


def break_down(
    files: SimulatedFiles, operation: str, pattern: str, *, error: int = errno.EIO
) -> None:
    """It fails again and again, until `_faults` are cleared."""
    files._faults += [_Next(operation, pattern, nth=1, error=error) for _ in range(500)]


async def fail(files: SimulatedFiles, replica: Replica) -> None:
    """Its next sync does."""
    log = replica.log
    files.fail("sync", LOG_FILES)
    append(log, b"lost")
    with pytest.raises(StorageError):
        await log_durable(replica)


async def log_durable(replica: Replica) -> None:
    directory = replica._directory
    await directory.flusher.wait_durable(replica.log, replica.log.log_end_offset)


def shorten(files: SimulatedFiles) -> None:
    """Of what was durable nothing is left."""
    for name in files.names(FOLDER):
        if name.endswith(".log"):
            file = files.open(FOLDER / name)
            file.truncate(0)
            file.sync()


async def until_sound(node: Node, *, seconds: float = 60) -> Replica:
    with trio.fail_after(seconds):
        while (replica := node.replicas.find(KEY)) is None or not replica.log.is_sound:  # noqa: ASYNC110
            await trio.sleep(0.05)
    return replica


# -- a disk that fails -------------------------------------------------------------------------


async def test_a_follower_opens_its_log_anew_and_goes_on(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It holds all that it ever promised; nobody waits for it until it has caught up."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 2, 1)
        before, part = replica.log, replica.follower
        append(before, b"a")
        await log_durable(replica)
        await fail(files, replica)
        await until_sound(node)
        assert replica.log is not before
        assert (values_of(replica.log), node.reports.told) == ([b"a"], [(KEY, Loss.NOTHING)])
        assert replica.follower is not part
        assert replica.next_fetch() is not None
        assert node.followed.replicas[KEY] is replica


async def test_a_leader_hands_over_at_once(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Another one in sync leads; it has lost nothing, and follows as soon as its disk works."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2)
        await fail(files, replica)
        told = await ask(node.rot_watch.describe, DescribeDamage())
        assert [(one.partition, one.offset) for one in told.replicas] == [(KEY.partition, 1)]
        assert told.replicas[0].message.startswith("takes nothing: ")
        await settle()
        assert node.reports.told == [(KEY, Loss.NOTHING)]
        state = state_of(node)
        assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)
        await until_sound(node)
        assert replica.follower is not None
        assert (await ask(node.rot_watch.describe, DescribeDamage())).replicas == ()


async def test_the_only_one_leads_on_in_another_epoch(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its log may lack what it appended in the last one. Nobody has to decide anything."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1)
        replica.append(batch(b"a"), acks=1)
        await log_durable(replica)
        await fail(files, replica)
        await until_sound(node)
        await settle()
        assert replica.leading().leader_epoch == 1
        replica.append(batch(b"b"), acks=1)
        await log_durable(replica)
        assert values_of(replica.log) == [b"a", b"b"]


async def test_what_only_the_page_cache_had_is_told_before_it_is_gone(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A follower has told that it holds it: now it holds nothing that counts."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await begin(node, 2, 1, durability="page_cache")
        await fail(files, node.replicas.get(*KEY))
        await settle()
        assert node.reports.told == [(KEY, Loss.UNSYNCED)]
        replica = await until_sound(node)
        state = state_of(node)
        assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)
        assert replica.follower is not None
        assert replica.follower.leader_epoch == 1


async def test_a_disk_that_goes_on_failing_is_asked_ever_more_rarely(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says so once. When the disk works, all is well within seconds."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1)
        caplog.set_level(logging.INFO)
        break_down(files, "sync", LOG_FILES)
        append(replica.log, b"lost")
        await trio.sleep(120)
        assert 8 <= 500 - len(files._faults) <= 20
        files._faults.clear()
        await until_sound(node, seconds=20)
        told = [record.getMessage() for record in caplog.records]
        assert sum("not repaired yet" in line for line in told) == 1
        assert sum("log is in order" in line for line in told) == 1


async def test_a_full_disk_does_not_make_leaders_change_all_the_time(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It can be opened, and then the next write fails: each time it rests longer."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1)
        break_down(files, "write", LOG_FILES, error=errno.ENOSPC)
        began_at = trio.current_time()
        while trio.current_time() < began_at + 60:
            if replica.leader is not None and replica.log.is_sound:
                with pytest.raises(StorageError):
                    replica.append(batch(b"a"), acks=1)
            await trio.sleep(0.1)
        state = state_of(node)
        assert 4 <= state.leader_epoch <= 12
        files._faults.clear()
        await until_sound(node, seconds=20)
        await settle()
        replica.append(batch(b"a"), acks=1)


# -- what is lost ------------------------------------------------------------------------------


async def test_damage_that_the_registration_tells_is_cut_once_another_one_leads(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The replica is out of the in-sync set, and fetches like any other."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2)
        replica.append(batch(b"a"), acks=1)
        await settle()
    shorten(files)
    async with opened(files, cluster) as node:
        assert node.replicas.damaged() == [KEY]
        await node.register()
        replica = await until_sound(node)
        assert node.replicas.damaged() == []
        assert node.reports.told == []
        state = state_of(node)
        assert (state.leader, state.isr) == (2, (2,))
        fetch = replica.next_fetch()
        assert fetch is not None
        assert fetch.fetch_offset == 0


async def test_the_last_one_keeps_what_it_has_until_somebody_decides(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Nobody else has more: not a byte goes. Elected uncleanly, it leads with what is left."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1)
        replica.append(batch(b"a"), acks=1)
        await settle()
    shorten(files)
    async with opened(files, cluster) as node:
        await node.register()
        await trio.sleep(60)
        replica = node.replicas.get(*KEY)
        assert replica.log.damage
        assert replica.leader is None
        ordered = await cluster.leader.propose(ElectLeader(*KEY, ElectionKind.UNCLEAN))
        assert isinstance(ordered, Done)
        await until_sound(node, seconds=1)
        assert replica.leading().assignment.is_recovering
        replica.append(batch(b"b"), acks=1)


async def test_damage_that_is_found_late_is_told_before_it_is_cut(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The folder was removed by hand; then the log went offline and was opened anew."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 2, 1)
        append(replica.log, b"a")
        await log_durable(replica)
        shorten(files)
        cluster.depose()
        await fail(files, replica)
        await trio.sleep(5)
        assert replica.log.damage
        assert node.reports.told[-1] == (KEY, Loss.RECORDS)
        cluster.elect(1)
        await until_sound(node)
        state = state_of(node)
        assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)
        assert replica.follower is not None
        assert replica.follower.leader_epoch == 1


# -- logs that cannot be opened ----------------------------------------------------------------


async def _with_unreadable_log(
    files: SimulatedFiles,
    replicas: tuple[int, ...],
    number: int,
    judge: Callable[[Node], Awaitable[None]],
) -> None:
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await node.register()
        await register(cluster, 2)
        await create_topic(cluster, replicas)
        await settle()
        replica = node.replicas.get(*KEY)
        if replica.leader is None:
            append(replica.log, b"a")
        else:
            replica.append(batch(b"a"), acks=1)
        await settle()
    break_down(files, "open", LOG_FILES, error=number)
    async with opened(files, cluster) as node:
        await node.register()
        await trio.sleep(60)
        await judge(node)


async def test_what_the_disk_cannot_read_is_fetched_again(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """After several attempts, and only as another one leads: the folder begins anew."""

    async def judge(node: Node) -> None:
        assert (KEY, Loss.RECORDS) in node.reports.told
        files._faults.clear()
        replica = await until_sound(node)
        assert replica.log.log_end_offset == 0

    await _with_unreadable_log(files, (2, 1), errno.EIO, judge)


@pytest.mark.parametrize(
    ("replicas", "number"), [((1,), errno.EIO), ((2, 1), errno.ENOSPC), ((2, 1), errno.EACCES)]
)
async def test_what_may_be_whole_is_kept(
    files: SimulatedFiles, autojump_clock: MockClock, replicas: tuple[int, ...], number: int
) -> None:
    """Nobody else has it, or only room or a right is missing: it is there when the disk works."""

    async def judge(node: Node) -> None:
        files._faults.clear()
        replica = await until_sound(node)
        assert values_of(replica.log) == [b"a"]

    await _with_unreadable_log(files, replicas, number, judge)


async def test_a_topic_may_go_while_its_log_is_repaired(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Nothing is tried any more, and nothing is left on the disk."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        await begin(node, 1)
        break_down(files, "sync", LOG_FILES)
        append(node.replicas.get(*KEY).log, b"lost")
        await settle()
        assert node.repairs.is_watched(KEY)
        assert isinstance(await cluster.leader.propose(DeleteTopic(TOPIC_ID)), Done)
        await settle()
        assert node.replicas.find(KEY) is None
        assert not node.repairs.is_watched(KEY)
        assert not files.exists(FOLDER)
