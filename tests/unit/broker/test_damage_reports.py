"""What is damaged is told until the quorum has applied it, and many partitions at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.replication.replica_repair import TOLD_MAX, DamageReports
from raftmq.errors import ErrorCode, NotController
from raftmq.metadata.commands import Done, Loss, Refused, ReportDamage
from raftmq.partition.replica_environment import PartitionKey

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

    from raftmq.metadata.commands import AnyCommand, AnyResult

KEYS = [PartitionKey(bytes(16), partition) for partition in range(TOLD_MAX + 100)]


class Quorum:
    """Answers what it is told to, one after the other, then Done."""

    def __init__(self, *answers: AnyResult | Exception) -> None:
        self._answers = list(answers)
        self.commands: list[ReportDamage] = []
        self.epoch = 7

    async def propose(self, command: AnyCommand) -> AnyResult:
        assert isinstance(command, ReportDamage)
        self.commands.append(command)
        await trio.sleep(0.1)
        answer = self._answers.pop(0) if self._answers else Done()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def told(quorum: Quorum, *what: tuple[PartitionKey, Loss]) -> None:
    reports = DamageReports(
        1, quorum, broker_epoch=lambda: quorum.epoch, catch_up=trio.lowlevel.checkpoint
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        async with trio.open_nursery() as telling:
            for key, loss in what:
                telling.start_soon(reports.tell, key, loss)
        nursery.cancel_scope.cancel()


async def test_many_are_told_by_few_commands(autojump_clock: MockClock) -> None:
    """A disk that dies takes all logs with it; one command holds so many, and one kind of loss."""
    quorum = Quorum()
    await told(quorum, *((key, Loss.NOTHING) for key in KEYS), (KEYS[0], Loss.RECORDS))
    assert [(len(c.partitions), c.loss) for c in quorum.commands] == [
        (1, Loss.RECORDS),
        (TOLD_MAX, Loss.NOTHING),
        (100, Loss.NOTHING),
    ]
    assert {(c.broker_id, c.broker_epoch) for c in quorum.commands} == {(1, 7)}


async def test_it_is_told_until_it_is_heard(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody leads the quorum; then another process of this broker is registered."""
    stale = Refused(ErrorCode.STALE_BROKER_EPOCH, "epoch 7, registered is 9")
    quorum = Quorum(NotController("nobody leads"), stale)
    began_at = trio.current_time()
    await told(quorum, (KEYS[0], Loss.RECORDS))
    assert len(quorum.commands) == 3
    assert trio.current_time() - began_at < 5
    assert "damage not reported yet" in caplog.text


async def test_nothing_is_told_without_a_registration(autojump_clock: MockClock) -> None:
    """The command belongs to one: it waits."""
    quorum = Quorum()
    quorum.epoch = -1
    reports = DamageReports(
        1, quorum, broker_epoch=lambda: quorum.epoch, catch_up=trio.lowlevel.checkpoint
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        with trio.move_on_after(5):
            await reports.tell(KEYS[0], Loss.RECORDS)
        assert quorum.commands == []
        quorum.epoch = 8
        with trio.fail_after(5):
            await reports.tell(KEYS[0], Loss.RECORDS)
        assert [command.broker_epoch for command in quorum.commands] == [8]
        nursery.cancel_scope.cancel()


async def test_who_gives_up_has_nothing_to_tell(autojump_clock: MockClock) -> None:
    """Nobody led the quorum; what is said anew while a command is away is told again."""
    quorum = Quorum(*(NotController("nobody leads") for _ in range(3)))
    reports = DamageReports(
        1, quorum, broker_epoch=lambda: quorum.epoch, catch_up=trio.lowlevel.checkpoint
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reports.run)
        with trio.move_on_after(0.5):
            await reports.tell(KEYS[0], Loss.NOTHING)
        await trio.sleep(60)
        assert len(quorum.commands) == 1
        with trio.move_on_after(2.25):
            await reports.tell(KEYS[0], Loss.NOTHING)
        assert len(quorum.commands) == 4
        with trio.fail_after(1):
            await reports.tell(KEYS[0], Loss.NOTHING)
        assert len(quorum.commands) == 5
        nursery.cancel_scope.cancel()
