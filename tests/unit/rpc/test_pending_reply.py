"""Answers that come later without a task of their own, and questions that nobody waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.errors import Disconnected, NotController, RaftmqError, Unreachable
from raftmq.rpc.reply import Answer, PendingReply, Reply
from raftmq.wire.envelopes import decode_response
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.cluster import Propose, ProposeReply
from tests.unit.rpc.talk import (
    channel_to,
    connected,
    greeted,
    new_server,
    propose,
    proposing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DONE = Reply(ProposeReply(b"done"))


class Desk:
    """A handler whose answers a test gives."""

    def __init__(self) -> None:
        self.pending: list[PendingReply] = []
        self.dropped = 0

    def handle(self, _command: bytes) -> PendingReply:
        self.pending.append(PendingReply(self._on_dropped))
        return self.pending[-1]

    def _on_dropped(self) -> None:
        self.dropped += 1


async def test_what_is_settled_later_is_answered(autojump_clock: MockClock) -> None:
    """In whatever order; an error becomes that error."""
    desk, outcomes = Desk(), dict[bytes, object]()

    async def ask(command: bytes) -> None:
        try:
            outcomes[command] = await propose(channel, command)
        except RaftmqError as error:
            outcomes[command] = type(error)

    async with channel_to(proposing(desk.handle)) as channel, trio.open_nursery() as nursery:
        for command in (b"a", b"b"):
            nursery.start_soon(ask, command)
            await wait_all_tasks_blocked()
        desk.pending[1].settle(NotController("elsewhere"))
        await wait_all_tasks_blocked()
        assert outcomes == {b"b": NotController}
        desk.pending[0].settle(DONE)
        desk.pending[0].settle(DONE)  # once is enough
    assert outcomes[b"a"] == b"done"
    assert desk.dropped == 0


async def test_what_is_settled_at_once_is_answered(autojump_clock: MockClock) -> None:
    """Before the server knows of it."""

    def handle(_command: bytes) -> PendingReply:
        pending = PendingReply()
        pending.settle(DONE)
        return pending

    async with channel_to(proposing(handle)) as channel:
        assert await propose(channel, b"a") == b"done"


async def test_nobody_waits_when_the_connection_has_ended(autojump_clock: MockClock) -> None:
    """Whoever was to answer is told, and may answer all the same."""
    desk = Desk()
    async with channel_to(proposing(desk.handle)) as channel:
        with trio.move_on_after(1):
            await propose(channel, b"a")
    await wait_all_tasks_blocked()
    assert desk.dropped == 1
    desk.pending[0].settle(DONE)
    desk.pending[0].drop()
    assert desk.dropped == 1


async def test_answers_of_one_read_leave_together(autojump_clock: MockClock) -> None:
    """What came at once is answered at once, also what others settle meanwhile."""
    desk = Desk()

    def handle(command: bytes) -> PendingReply | Reply:
        if command == b"last":
            for pending in desk.pending:
                pending.settle(DONE)
            return DONE
        return desk.handle(command)

    async with connected(new_server(proposing(handle))) as stream:
        stranger = await greeted(stream)
        await stranger.send(*map(Propose, (b"a", b"b", b"last")))
        data = await stream.receive_some()
        frames = FrameReader(frame_bytes_max=1 << 20, header_bytes_max=1 << 20).receive(data)
        numbers = [decode_response(frame.header).correlation_id for frame in frames]
        assert numbers == [1, 2, 3]


def asked() -> tuple[list[Answer | RaftmqError], Callable[[Answer | RaftmqError], None]]:
    outcomes: list[Answer | RaftmqError] = []
    return outcomes, outcomes.append


async def test_a_question_for_which_nobody_waits(autojump_clock: MockClock) -> None:
    """The answer is told, once; so is the end of the connection."""
    desk = Desk()
    async with channel_to(proposing(desk.handle)) as channel:
        first, tell_first = asked()
        second, tell_second = asked()
        channel.ask(Propose(b"a"), tell_first, timeout_seconds=5)
        channel.ask(Propose(b"b"), tell_second, timeout_seconds=5)
        await wait_all_tasks_blocked()
        desk.pending[0].settle(DONE)
        await wait_all_tasks_blocked()
        [answer] = first
        assert isinstance(answer, Answer)
        assert answer.body == ProposeReply(b"done")
        assert second == []
        channel.end("enough")
        await wait_all_tasks_blocked()
        assert [type(one) for one in second] == [Disconnected]
        with pytest.raises(Unreachable):
            channel.ask(Propose(b"c"), tell_second, timeout_seconds=5)
    assert len(first) == len(second) == 1


async def test_a_question_that_is_not_answered_in_time(autojump_clock: MockClock) -> None:
    """The clock tells whoever asked."""
    desk = Desk()
    async with channel_to(proposing(desk.handle)) as channel:
        outcomes, tell = asked()
        channel.ask(Propose(b"a"), tell, timeout_seconds=3)
        await trio.sleep(2.5)
        assert outcomes == []
        await trio.sleep(1)
        assert [type(one).__name__ for one in outcomes] == ["RequestTimedOut"]
