"""While nothing comes, and when a command gives up: whether somebody is told why."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.cli.clusters import wait_reason
from raftmq.cli.clusters.wait_reason import (
    FIRST_SECONDS,
    NO_QUORUM,
    SILENT_SECONDS,
    WAY_OUT,
    WaitedFor,
    WaitReason,
)
from raftmq.cli.data.consume_run import Sink, say_if_nothing_comes, waits_for
from raftmq.cli.data.offset_option import From, StartPlace
from raftmq.errors import ErrorCode, InvalidRequest, RaftmqError, RequestTimedOut
from raftmq.wire.bodies import ABSENT
from tests.unit.client.administration.bureau import open_bureau
from tests.unit.client.administration.groups.registry import open_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.client.administration.admin import Admin

TOPIC = WaitedFor(("t",))
QUORUM = WaitedFor(is_quorum_needed=True)


async def watch(
    admin: Admin, wanted: WaitedFor, seconds: float, taken: Callable[[], int | None] = lambda: 0
) -> str:
    """The reason that was found."""
    watched = WaitReason(admin, wanted, taken)
    with trio.move_on_after(seconds):
        await watched.watch()
    return watched.reason


async def test_nobody_leads(autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told once, however long it lasts, and again when it has come back."""
    async with open_bureau() as (bureau, admin), trio.open_nursery() as nursery:
        nursery.start_soon(WaitReason(admin, TOPIC).watch)
        await trio.sleep(3 * SILENT_SECONDS)
        assert capsys.readouterr().err == ""
        for _ in range(2):
            bureau.world.lead("t", 0, -1)
            await trio.sleep(5 * SILENT_SECONDS)
            told = capsys.readouterr().err
            assert told.startswith("raftmq: waiting: ")
            assert "t-0" in told
            assert told.endswith(f"{WAY_OUT}\n")
            assert told.count("\n") == 1
            bureau.world.lead("t", 0, 1)
            await trio.sleep(3 * SILENT_SECONDS)
        nursery.cancel_scope.cancel()


async def test_no_quorum(autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told soon, with the way out."""
    async with open_bureau() as (bureau, admin):
        bureau.controller_id = ABSENT
        assert await watch(admin, TOPIC, 30) == ""  # which can be read nevertheless
        assert capsys.readouterr().err == ""
        assert await watch(admin, QUORUM, FIRST_SECONDS + 1) == NO_QUORUM
        assert capsys.readouterr().err == f"raftmq: waiting: {NO_QUORUM}\n"


async def test_nobody_coordinates(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the coordinator says, or whoever was asked for it; but not that there is no group."""
    async with open_registry() as (registry, admin):
        assert await watch(admin, WaitedFor(group="new"), 30) == ""
        registry.finds = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1000
        assert "'new'" in await watch(admin, WaitedFor(group="new"), FIRST_SECONDS + 3)
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("taken", [partial(next, count()), lambda: None])
async def test_something_comes(
    taken: Callable[[], int | None], autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """From some partition, or nothing is waited for: nobody asks about the others."""
    async with open_bureau() as (bureau, admin):
        bureau.world.lead("t", 0, -1)
        assert await watch(admin, TOPIC, 10 * SILENT_SECONDS, taken) == ""
    assert capsys.readouterr().err == ""


async def test_what_does_not_pass(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that is gone is no reason to wait: that is told elsewhere."""
    async with open_bureau() as (_, admin):
        assert await watch(admin, WaitedFor(("gone",)), 3 * SILENT_SECONDS) == ""
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seconds", [0, 20])
async def test_the_last_error_says_why(
    seconds: float, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same class; however early it comes, and told or not."""
    async with open_bureau() as (bureau, admin):
        bureau.controller_id = ABSENT
        quiet = WaitReason(admin, QUORUM, is_told=False)

        async def work() -> None:
            async with quiet.explained(), trio.open_nursery():
                await trio.sleep(seconds)
                raise RequestTimedOut("group g: nobody has answered")

        with pytest.raises(RequestTimedOut) as raised:
            await work()
        assert str(raised.value) == f"group g: nobody has answered; {NO_QUORUM}"
    assert capsys.readouterr().err == ""


async def test_errors_that_need_no_reason(autojump_clock: MockClock) -> None:
    """What was wrong with the question; and where none is known, at least where to look."""
    async with open_bureau() as (_, admin):
        errors: list[RaftmqError] = [InvalidRequest("no"), RequestTimedOut("late")]
        for error, told in zip(errors, ["no", f"late; {WAY_OUT}"], strict=True):
            with pytest.raises(type(error)) as raised:
                async with WaitReason(admin, TOPIC).explained():
                    raise error
            assert str(raised.value) == told
    assert wait_reason.with_reason("late: dead", "dead") == "late: dead"


async def test_a_consumer_that_gets_nothing(
    autojump_clock: MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    """After a moment it is told, once, from where it reads; not where something has come."""
    sink = Sink()
    await say_if_nothing_comes(sink, waits_for(From(StartPlace.END)))
    told = capfd.readouterr().err
    assert told.startswith("raftmq: waiting for new records, as it reads from the end on")
    assert told.count("\n") == 1
    assert "-o earliest" in told
    assert "there are none yet" in waits_for(From(StartPlace.OFFSET, 7))
    assert "none has passed --tags yet" in waits_for(From(StartPlace.OFFSET, 7), "eu")
    sink.blocks = 1
    await say_if_nothing_comes(sink, "nothing")
    assert capfd.readouterr().err == ""
