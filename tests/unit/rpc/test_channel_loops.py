"""Each shell on each event loop: asking, ending, and being cancelled."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import anyio
import pytest

from raftmq.errors import (
    Disconnected,
    ErrorCode,
    InconsistentClusterId,
    RequestTimedOut,
    Unreachable,
)
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Answer
from raftmq.wire.messages.cluster import Propose, ProposeReply
from raftmq.wire.messages.hello import Hello
from tests.unit.rpc.puppet import Puppet, propose, puppet_channel, stream_pair
from tests.unit.rpc.shells import in_every_shell, open_channel

if TYPE_CHECKING:
    from raftmq.rpc.channel import Channel
    from tests.unit.rpc.puppet import MemoryStream


async def answer_all(puppet: Puppet, count: int) -> None:
    """Echo `count` requests, the last one first."""
    numbers = [await puppet.receive() for _ in range(count)]
    for request in reversed(numbers):
        assert isinstance(request.body, Propose)
        await puppet.answer(request.correlation_id, ProposeReply(request.body.command))


@in_every_shell
async def test_a_question_and_its_answer(shell: str) -> None:
    """It leaves with one write, payload and all; the channel knows its broker."""
    async with puppet_channel(shell) as (channel, puppet), anyio.create_task_group() as tasks:
        tasks.start_soon(answer_all, puppet, 1)
        assert await propose(channel, b"x", b"records") == b"x"
        assert len(puppet.caller.writes) == 2  # Hello was the first
        assert puppet.caller.writes[1].endswith(b"records")
        assert channel.server.node_id == 7


@in_every_shell
async def test_many_in_flight_answered_out_of_order(shell: str) -> None:
    """A hundred at once leave with few writes, and each gets its own answer."""

    async def ask(number: int) -> None:
        assert await propose(channel, b"%d" % number) == b"%d" % number
        answered.append(number)

    answered: list[int] = []
    async with puppet_channel(shell) as (channel, puppet):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_all, puppet, 100)
            for number in range(100):
                tasks.start_soon(ask, number)
        assert sorted(answered) == list(range(100))
        assert len(puppet.caller.writes) < 10


@in_every_shell
async def test_who_does_not_wait_is_not_waited_for(shell: str) -> None:
    """One-way messages leave in order with the others."""
    async with puppet_channel(shell) as (channel, puppet):
        for command in (b"1", b"2", b"3"):
            assert channel.send_one_way(Propose(command))
        commands = [(await puppet.receive()).body for _ in range(3)]
        assert commands == [Propose(b"1"), Propose(b"2"), Propose(b"3")]


@in_every_shell
async def test_an_outcome_by_callback(shell: str) -> None:
    """Each request in its turn, with its payload; of what is forgotten, one is never sent, and the
    answer to the other one is dropped."""
    outcomes: list[object] = []
    one_at_a_time = RpcLimits(requests_in_flight_max=1)
    async with puppet_channel(shell, one_at_a_time) as (channel, puppet):
        calls = [
            channel.ask(
                Propose(command),
                outcomes.append,
                timeout_seconds=60,
                payload=(b"records",),
                waits=True,
            )
            for command in (b"1", b"2", b"3")
        ]
        channel.forget(calls[1])
        first = await puppet.receive()
        assert puppet.caller.writes[-1].endswith(b"records")
        await puppet.answer(first.correlation_id, ProposeReply(b"1"))
        third = await puppet.receive()
        assert (first.body, third.body) == (Propose(b"1"), Propose(b"3"))
        channel.forget(calls[2])
        await puppet.answer(third.correlation_id, ProposeReply(b"3"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_all, puppet, 1)
            assert await propose(channel, b"4") == b"4"
    [told] = outcomes
    assert isinstance(told, Answer)
    assert told.body == ProposeReply(b"1")


# The end


@in_every_shell
async def test_the_other_side_hangs_up(shell: str) -> None:
    """Three wait: indefinite. Who asks later: nothing was sent."""
    errors: list[Exception] = []

    async def ask() -> None:
        with pytest.raises((Disconnected, Unreachable)) as found:
            await propose(channel)
        errors.append(found.value)

    async with puppet_channel(shell) as (channel, puppet):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
            for _ in range(3):
                await puppet.receive()
            await puppet.stream.aclose()
        await channel.wait_ended()
        await ask()
        assert [type(error) for error in errors] == [Disconnected] * 3 + [Unreachable]
        assert channel.reason == "the other side hung up"
        assert channel.is_ended
    assert puppet.caller.is_closed


@in_every_shell
async def test_a_broken_stream_ends_the_channel(shell: str) -> None:
    """What the stream says of the break is the reason that is told."""

    class Broken:
        async def send(self, _data: object, /) -> None:
            raise anyio.BrokenResourceError("the connection broke: a wire")

        def send_now(self, _data: object, /) -> int:
            return 0

        async def receive(self, _max_bytes: int, /) -> bytes:
            await anyio.sleep_forever()
            return b""

        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()

    with pytest.raises(Disconnected, match="Hello: the connection broke: a wire"):
        async with open_channel(shell, Broken(), Hello()):
            raise AssertionError("opened")


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_stream_that_cannot_take_its_leave(backend: str) -> None:
    """As one of TLS whose other side has gone without a word: the channel ends, and no more."""

    async def use() -> None:
        left, right = stream_pair()
        rude = Rude(left)
        with pytest.raises(RequestTimedOut):
            async with open_channel("anyio", rude, Hello(), RpcLimits(hello_seconds_max=0.01)):
                raise AssertionError("opened")
        assert left.is_closed
        await right.aclose()

    class Rude:
        def __init__(self, stream: MemoryStream) -> None:
            self.send, self.receive, self._stream = stream.send, stream.receive, stream
            self.send_now = stream.send_now

        async def aclose(self) -> None:
            await self._stream.aclose()
            raise anyio.BrokenResourceError("the connection broke: no farewell")

    anyio.run(use, backend=backend)


@in_every_shell
async def test_the_other_side_refuses(shell: str) -> None:
    """There is no channel, but the reason, by itself; the stream is closed."""

    async def refuse(puppet: Puppet) -> None:
        request = await puppet.receive()
        await puppet.answer(request.correlation_id, None, error=ErrorCode.INCONSISTENT_CLUSTER_ID)

    left, right = stream_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refuse, Puppet(right))
        with pytest.raises(InconsistentClusterId, match="told"):
            async with open_channel(shell, left, Hello()):
                raise AssertionError("opened")
    assert left.is_closed
    await right.aclose()


@in_every_shell
async def test_what_the_caller_raises_comes_out_as_it_is(shell: str) -> None:
    """Not in a group, although tasks run beside; the stream is closed."""
    left, right = stream_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Puppet(right).greet)
        with pytest.raises(ZeroDivisionError):
            async with open_channel(shell, left, Hello()):
                raise ZeroDivisionError
    assert left.is_closed
    await right.aclose()


# Cancellation


@in_every_shell
async def test_who_is_cancelled_while_it_waits(shell: str) -> None:
    """Its late answer is dropped, its place is free."""
    async with puppet_channel(shell, RpcLimits(requests_in_flight_max=1)) as (channel, puppet):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(propose, channel, b"first")
            first = await puppet.receive()
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(propose, channel, b"second")
            second = await puppet.receive()
            await puppet.answer(first.correlation_id, ProposeReply(b"late"))
            await puppet.answer(second.correlation_id, ProposeReply(b"in time"))
        assert not channel.is_ended


@in_every_shell
async def test_who_is_cancelled_already_sends_nothing(shell: str) -> None:
    """The first thing that arrives is the next request."""
    async with puppet_channel(shell) as (channel, puppet), anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await propose(channel, b"cancelled")
        tasks.start_soon(propose, channel, b"next")
        request = await puppet.receive()
        assert request.body == Propose(b"next")
        await puppet.answer(request.correlation_id, ProposeReply(b""))


@in_every_shell
async def test_cancelled_at_any_moment(shell: str) -> None:
    """A request is cancelled after each of its first steps in turn; the channel serves the next."""
    async with puppet_channel(shell) as (channel, puppet), anyio.create_task_group() as tasks:
        tasks.start_soon(serve_for_ever, puppet)
        for steps in range(12):
            async with anyio.create_task_group() as askers:
                askers.start_soon(propose, channel, b"x")
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                askers.cancel_scope.cancel()
            assert await propose(channel, b"y") == b"y"
            assert not channel._conversation._in_flight
        tasks.cancel_scope.cancel()


async def serve_for_ever(puppet: Puppet) -> None:
    while True:
        await answer_all(puppet, 1)


@in_every_shell
async def test_a_cancelled_opening_closes_the_stream(shell: str) -> None:
    """The broker never says hello and nobody waits for it: the cancellation goes through."""
    left, right = stream_pair()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_open_for_ever, shell, left)
        await Puppet(right).receive()
        tasks.cancel_scope.cancel()
    assert left.is_closed
    await right.aclose()


async def _open_for_ever(shell: str, stream: MemoryStream) -> None:
    async with open_channel(shell, stream, Hello()):
        raise AssertionError("opened")


@in_every_shell
async def test_payloads_are_let_go(shell: str) -> None:
    """What has been sent and answered is not kept by an idle channel."""

    class Records(bytearray):
        """Can be referred to weakly."""

    records = Records(1 << 20)
    reference = weakref.ref(records)
    async with puppet_channel(shell) as (channel, puppet), anyio.create_task_group() as tasks:
        tasks.start_soon(answer_all, puppet, 1)
        await _ask_with(channel, records)
        del records
        await anyio.wait_all_tasks_blocked()
        gc.collect()
        assert reference() is None


async def _ask_with(channel: Channel, records: bytearray) -> None:
    await channel.request(Propose(b""), (records,), timeout_seconds=30)
