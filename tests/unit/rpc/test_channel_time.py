"""The asking side when answers do not come, or nobody waits for them any more."""

from __future__ import annotations

import math
import tracemalloc
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.errors import RequestTimedOut
from raftmq.rpc.conversation import PING
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Reply
from raftmq.wire.envelopes import encode_response
from raftmq.wire.messages.cluster import Propose, ProposeReply
from tests.unit.rpc.puppet import (
    propose_with,
    puppet_channel,
    raised,
)
from tests.unit.rpc.shells import SHELLS
from tests.unit.rpc.talk import (
    BEATEN,
    ECHO,
    beat,
    beating,
    channel_to,
    never,
    propose,
    proposing,
)

if TYPE_CHECKING:
    from raftmq.rpc.channel import Channel
    from raftmq.rpc.context import RequestContext

# Time


@SHELLS
async def test_an_answer_that_comes_too_late(autojump_clock: MockClock, shell: str) -> None:
    """Each request has its own time; the late answer harms nobody."""

    async def handle(command: bytes) -> Reply:
        await trio.sleep(float(command))
        return Reply(ProposeReply(command))

    async with channel_to(proposing(handle), shell=shell) as channel:
        begin = trio.current_time()
        with pytest.raises(RequestTimedOut, match="Propose: no answer within 2 s") as found:
            await propose(channel, b"10", timeout_seconds=2)
        assert trio.current_time() - begin == pytest.approx(2)
        assert not found.value.definite
        assert await propose(channel, b"9", timeout_seconds=10) == b"9"
        await trio.sleep(1)
        assert not channel.is_ended


@SHELLS
async def test_a_shorter_time_than_that_of_others(autojump_clock: MockClock, shell: str) -> None:
    """A hundred wait for an hour, then one for a second: it is told after a second."""
    handlers = proposing(lambda _command: never())
    async with channel_to(handlers, shell=shell) as channel, trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(propose, channel, b"x", 3600.0)
        await wait_all_tasks_blocked()
        begin = trio.current_time()
        assert type(await raised(channel, 1.0)) is RequestTimedOut
        assert trio.current_time() - begin == pytest.approx(1)
        nursery.cancel_scope.cancel()


@SHELLS
async def test_a_place_is_taken_as_soon_as_it_is_free(
    autojump_clock: MockClock, shell: str
) -> None:
    """One may be in flight: of three, the second follows the first answer without a pause."""
    async with (
        channel_to(ECHO, limits=RpcLimits(requests_in_flight_max=1), shell=shell) as channel,
        trio.open_nursery() as nursery,
    ):
        begin = trio.current_time()
        for _ in range(3):
            nursery.start_soon(propose, channel)
    assert trio.current_time() == begin


@SHELLS
async def test_a_long_request_is_no_silence(autojump_clock: MockClock, shell: str) -> None:
    """A MiB every 3 s: the server takes it and has nothing to say, for 15 s."""
    async with puppet_channel(shell) as (channel, puppet), trio.open_nursery() as nursery:
        puppet.caller.send_seconds = 3.0
        begin = trio.current_time()
        nursery.start_soon(propose_with, channel, bytes(4 << 20), 100)
        number = (await puppet.receive()).correlation_id
        assert trio.current_time() - begin == pytest.approx(15)
        await puppet.answer(number, ProposeReply(b""))


@SHELLS
async def test_what_arrived_while_the_process_stood_still_counts(
    autojump_clock: MockClock,
    shell: str,
) -> None:
    """The clock jumps by a minute beside an answer: the answer is taken, nobody is dead."""
    async with puppet_channel(shell) as (channel, puppet), trio.open_nursery() as nursery:
        for _ in range(20):  # whichever task happens to run first
            nursery.start_soon(propose, channel)
            number = (await puppet.receive()).correlation_id
            await wait_all_tasks_blocked()
            await puppet.stream.send(encode_response(number, ProposeReply(b"")))
            autojump_clock.jump(60)
            await wait_all_tasks_blocked()
            assert not channel.is_ended


@SHELLS
async def test_time_in_line_counts(autojump_clock: MockClock, shell: str) -> None:
    """The one place in flight is taken for ever: who waits for it is told in time."""
    limits = RpcLimits(requests_in_flight_max=1)
    handlers = proposing(lambda _command: never())
    async with (
        channel_to(handlers, limits=limits, shell=shell) as channel,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(propose, channel, b"x", math.inf)
        await wait_all_tasks_blocked()
        assert type(await raised(channel, 1.0)) is RequestTimedOut
        nursery.cancel_scope.cancel()


@SHELLS
async def test_an_idle_channel_pings(autojump_clock: MockClock, shell: str) -> None:
    """Nobody asks anything for a minute: both sides stay, and every 2 s there is a sign of life."""
    async with puppet_channel(shell) as (channel, puppet):
        begin = trio.current_time()
        assert await puppet.stream.receive(1000) == PING
        assert trio.current_time() - begin == pytest.approx(2)
        channel.end("test")
    async with channel_to(ECHO, shell=shell) as channel:
        await trio.sleep(60)
        assert await propose(channel) == b"x"


@SHELLS
async def test_silence_is_death(autojump_clock: MockClock, shell: str) -> None:
    """The server takes everything and says nothing: whoever waits hears of it after 8 s."""
    async with puppet_channel(shell) as (channel, _):
        begin = trio.current_time()
        error = await raised(channel)
        assert str(error) == "puppet: no answer to Propose: silent for 8 s"
        assert trio.current_time() - begin == pytest.approx(8)


@SHELLS
async def test_a_server_that_is_only_busy_is_not_dead(
    autojump_clock: MockClock, shell: str
) -> None:
    """It works on as much as it may, for a minute, and reads no ping meanwhile."""

    async def handle(_number: int) -> Reply:
        await trio.sleep(60)
        return Reply(BEATEN)

    async with channel_to(beating(handle), shell=shell) as channel, trio.open_nursery() as nursery:
        for number in range(RpcLimits().requests_in_flight_max):
            nursery.start_soon(ask_beat, channel, number)


async def ask_beat(channel: Channel, number: int) -> None:
    await channel.request(beat(number), timeout_seconds=100)


# Cancellation


@SHELLS
async def test_a_cancelled_request_is_forgotten(autojump_clock: MockClock, shell: str) -> None:
    """Its late answer is dropped, its place is free, and nothing of it is kept."""
    limits = RpcLimits(requests_in_flight_max=1)
    async with puppet_channel(shell, limits) as (channel, puppet):
        with trio.move_on_after(1):
            await propose(channel, b"first")
        first = await puppet.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(propose, channel, b"second")
            second = await puppet.receive()
            await puppet.answer(first.correlation_id, ProposeReply(b"late"))
            await puppet.answer(second.correlation_id, ProposeReply(b"in time"))
        assert not channel._conversation._in_flight
        assert not channel.is_ended


@SHELLS
async def test_who_is_cancelled_in_line_leaves_the_line(
    autojump_clock: MockClock, shell: str
) -> None:
    """It is never sent, and those behind it are."""
    limits = RpcLimits(requests_in_flight_max=1)
    async with puppet_channel(shell, limits) as (channel, puppet), trio.open_nursery() as nursery:
        nursery.start_soon(propose, channel, b"first")
        await wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await propose(channel, b"cancelled")
        nursery.start_soon(propose, channel, b"second")
        for expected in (b"first", b"second"):
            request = await puppet.receive()
            assert isinstance(request.body, Propose)
            assert request.body.command == expected
            await puppet.answer(request.correlation_id, ProposeReply(b""))


@SHELLS
async def test_payloads_that_came_are_let_go(autojump_clock: MockClock, shell: str) -> None:
    """A MiB in either direction, and nobody keeps it until the next one comes."""

    def handle(_context: RequestContext, _body: Propose, payload: bytes) -> Reply:
        return Reply(ProposeReply(b""), (payload,))

    async with channel_to({Propose: handle}, shell=shell) as channel:
        await propose(channel)
        tracemalloc.start()
        await channel.request(Propose(b""), (bytes(1 << 20),), timeout_seconds=1)
        await wait_all_tasks_blocked()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 1 << 19
