"""The channel of brokers, on trio: as few task switches and system calls as its loop allows.

An answer reschedules the task that waits for it, without a trio.Event in between; requests that one
batch of answers causes leave in one system call; a lone request leaves without the writing task
(decision 0016). What a connection does is decided in `conversation.py`; `connection.py` moves its
bytes.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from raftmq.errors import Unreachable
from raftmq.rpc.channel import Channel, opened
from raftmq.rpc.connection import Connection
from raftmq.rpc.conversation import Call, Conversation, shown_seconds
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from raftmq.errors import RaftmqError
    from raftmq.model import Address
    from raftmq.rpc.network import Network
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello


# -- Waited call ----------------------------------------------------------------------------------
# A request that one trio task waits for.
#
# Owns the waking: an answer reschedules the task directly, without a trio.Event in between, which
# is one turn of the loop less for each request (decision 0016).


class WaitedCall(Call):
    """`wait` is called once, after the call was asked."""

    __slots__ = ("_task",)

    def __init__(self, *, timeout: float) -> None:
        super().__init__(timeout=timeout, now=trio.current_time())
        self._task: trio.lowlevel.Task | None = None

    def settle(self, outcome: Answer | RaftmqError) -> None:
        super().settle(outcome)
        # None where the answer came before `wait`, or the wait was cancelled.
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self, forget: Callable[[Call], None]) -> None:
        """Until the answer, the deadline or the end of the connection; cancelling calls `forget`.

        Only one task may wait.
        """

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            # Cancelled: a late answer must find neither the call nor a task to reschedule.
            self._task = None
            forget(self)
            return trio.lowlevel.Abort.SUCCEEDED

        # `Conversation` settles each call exactly once, which ends this wait.
        self._task = trio.lowlevel.current_task()
        # Until `settle`, or the caller is cancelled.
        await trio.lowlevel.wait_task_rescheduled(give_up)


# -- Channel --------------------------------------------------------------------------------------


class TrioChannel(Channel):
    """See `open_channel`."""

    def __init__(self, stream: trio.abc.Stream, *, name: str, limits: RpcLimits) -> None:
        self._connection = Connection(stream, name=name, limits=limits)
        self._outbox = self._connection.outbox
        conversation = Conversation(
            name, limits, self._outbox, now=trio.current_time(), on_end=self._on_end
        )
        # Set here: the conversation writes into the outbox of the connection, so it is made last.
        # Sent bytes make room for calls that wait in line.
        self._outbox.on_sent = lambda _answers, _held_bytes: conversation.send_next()
        self._connection.on_end = conversation.end
        now = trio.lowlevel.current_clock().current_time  # half the calls of `trio.current_time`
        super().__init__(conversation, now=now, look_by=self._connection.look_by)

    async def wait_ended(self) -> None:
        await self._connection.wait_ended()

    async def run(self) -> None:
        await self._connection.run(self._read, self._look)

    async def request(
        self,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        # A cancelled caller sends nothing.
        await trio.lowlevel.checkpoint_if_cancelled()
        call = WaitedCall(timeout=timeout_seconds)
        self._conversation.ask(call, body, payload, trace=trace)
        # One alarm for all deadlines, moved forward if this call's is the earliest.
        self._look_by(call.deadline)
        # Ends with an answer, at the deadline, or with the connection.
        await call.wait(self._conversation.forget)
        if isinstance(call.outcome, Answer):  # else an error, which the caller gets
            return call.outcome
        assert call.outcome is not None, "woken without an outcome"
        raise call.outcome

    async def _read(self) -> None:
        # Ends when the server hangs up, or `Connection` ends the stream.
        while frames := await self._connection.receive():
            self._outbox.cork()  # requests that these answers cause leave in one system call
            for frame in frames:
                self._conversation.on_frame(frame)
            del frame, frames  # or their payloads would stay in memory until the next answer
            self._outbox.uncork()

    def _look(self, now: float) -> float:
        self._conversation.heard_at = self._connection.heard_at
        return self._conversation.look(now)

    def _on_end(self) -> None:
        told = self._conversation
        self._connection.end(told.reason, is_fault=told.is_fault)


def open_channel(
    stream: trio.abc.Stream,
    hello: Hello,
    limits: RpcLimits | None = None,
    *,
    name: str = "server",
) -> AbstractAsyncContextManager[TrioChannel]:
    """A channel over `stream`; see `opened`."""
    limits = limits or RpcLimits()
    channel = TrioChannel(stream, name=name, limits=limits)
    return opened(channel, hello, hello_seconds_max=limits.hello_seconds_max)


class TrioConnector:
    """The Connector of brokers."""

    logger = logging.getLogger("raftmq.rpc")

    def __init__(
        self,
        network: Network,
        make_hello: Callable[[], Hello],
        limits: RpcLimits | None = None,
    ) -> None:
        self._network, self._make_hello = network, make_hello
        self._limits = limits or RpcLimits()

    @asynccontextmanager
    async def open(self, address: Address, *, name: str) -> AsyncIterator[TrioChannel]:
        stream = await self._dial(address)
        async with open_channel(stream, self._make_hello(), self._limits, name=name) as channel:
            yield channel

    async def _dial(self, address: Address) -> trio.abc.Stream:
        seconds_max = self._limits.hello_seconds_max
        # The network's own timeout for connecting, which is shorter, applies as well.
        with trio.move_on_after(seconds_max):
            return await self._network.dial(address)
        raise Unreachable(f"no connection within {shown_seconds(seconds_max)}")
