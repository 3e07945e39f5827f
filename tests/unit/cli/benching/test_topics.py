"""The topic of a bench: made for it, and gone afterwards, however it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio

from raftmq.cli.benching.load import BenchTopic, topic_of
from raftmq.errors import ErrorCode, RaftmqError, ServerError
from tests.unit.client.administration.bureau import LOST, open_bureau

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.administration.admin import Admin

OWN = BenchTopic(None, "raftmq-bench-1", 2, None)


class Desk(NamedTuple):
    """The part of a client that is used."""

    admin: Admin


@pytest.mark.parametrize("error", [ServerError("no"), KeyboardInterrupt()])
async def test_the_bench_fails(autojump_clock: MockClock, error: BaseException) -> None:
    """The topic is deleted nevertheless."""
    async with open_bureau() as (bureau, admin):

        async def run() -> None:
            async with topic_of(Desk(admin), OWN) as name:  # type: ignore[arg-type]
                assert name in bureau.world.topics
                raise error

        with pytest.raises(type(error)):
            await run()
        assert OWN.own_name not in bureau.world.topics


async def test_cancelled_while_it_is_made(autojump_clock: MockClock) -> None:
    """It may be there already: then it is deleted, too."""
    async with open_bureau() as (bureau, admin):
        bureau.leader = -1  # so that it cannot be used yet
        with trio.move_on_after(1.0):
            async with topic_of(Desk(admin), OWN):  # type: ignore[arg-type]
                raise AssertionError("not reached")
        assert OWN.own_name not in bureau.world.topics


async def test_it_may_have_been_made(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer that is lost: what may be there is deleted; one that is not there is no problem."""
    for is_there in (True, False):
        async with open_bureau() as (bureau, admin):
            bureau.errors = [LOST if is_there else ErrorCode.UNKNOWN_SERVER_ERROR]
            with pytest.raises(RaftmqError):
                async with topic_of(Desk(admin), OWN):  # type: ignore[arg-type]
                    raise AssertionError("not reached")
            assert OWN.own_name not in bureau.world.topics
    assert capsys.readouterr().err == ""


async def test_it_is_refused(autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was made, and nothing is deleted."""
    async with open_bureau() as (bureau, admin):
        bureau.errors = [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE]
        with pytest.raises(RaftmqError, match="INVALID_REPLICATION_FACTOR"):
            async with topic_of(Desk(admin), OWN):  # type: ignore[arg-type]
                raise AssertionError("not reached")
        assert len(bureau.errors) == 1
    assert capsys.readouterr().err == ""
