"""The clocks of a connection, on virtual time: silence, signs of life, and standing still."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from raftmq.client.network.channel import open_channel
from raftmq.client.network.conversation import PING
from raftmq.errors import Disconnected, RequestTimedOut
from raftmq.wire.envelopes import encode_response
from raftmq.wire.messages.cluster import ProposeReply
from raftmq.wire.messages.hello import Hello
from tests.simulation.client_network import TranslatedStream
from tests.unit.client.network.memory import propose, puppet_channel


async def test_an_answer_that_comes_too_late(autojump_clock: MockClock) -> None:
    """The wait ends in time; the late answer harms nobody."""
    async with puppet_channel() as (channel, puppet, _):
        begin = trio.current_time()
        with pytest.raises(RequestTimedOut, match="Propose: no answer within 1 s"):
            await propose(channel, timeout_seconds=1)
        assert trio.current_time() - begin == pytest.approx(1)
        request, _ = await puppet.receive()
        await puppet.answer(request.correlation_id, ProposeReply(b""))
        await wait_all_tasks_blocked()
        assert not channel.is_ended


async def test_silence_is_death(autojump_clock: MockClock) -> None:
    """The broker takes everything and says nothing: after 8 s whoever waits hears of it."""
    async with puppet_channel() as (channel, _, _):
        begin = trio.current_time()
        with pytest.raises(Disconnected, match="silent for 8 s"):
            await propose(channel)
        assert trio.current_time() - begin == pytest.approx(8)


async def test_an_idle_channel_pings(autojump_clock: MockClock) -> None:
    """After 2 s without a word."""
    async with puppet_channel() as (_, puppet, _):
        begin = trio.current_time()
        assert await puppet.stream.receive(1000) == PING
        assert trio.current_time() - begin == pytest.approx(2)


async def test_a_broker_that_never_says_hello(autojump_clock: MockClock) -> None:
    """After 8 s of silence there is no channel, and the stream is closed."""
    left, right = memory_stream_pair()
    with pytest.raises(Disconnected, match="silent for 8 s"):
        async with open_channel(TranslatedStream(left), Hello()):
            raise AssertionError("opened")
    with pytest.raises(trio.BrokenResourceError):
        await right.send_all(b"x")


async def test_what_arrived_while_the_process_stood_still_counts(
    autojump_clock: MockClock,
) -> None:
    """The clock jumps by a minute beside an answer: the answer is taken, nobody is dead."""
    async with puppet_channel() as (channel, puppet, _), trio.open_nursery() as nursery:
        for _ in range(20):  # whichever task happens to run first
            nursery.start_soon(propose, channel)
            request, _ = await puppet.receive()
            await wait_all_tasks_blocked()
            await puppet.stream.send(encode_response(request.correlation_id, ProposeReply(b"")))
            autojump_clock.jump(60)
            await wait_all_tasks_blocked()
            assert not channel.is_ended
