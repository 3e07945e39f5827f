"""What the channels of brokers and of programs have in common; they differ in how they wait.

`TrioChannel` wakes a caller directly and sends with as few system calls and task switches as trio
allows (`trio_channel.py`, decision 0016); `AnyioChannel` runs on the event loop of a program
(`client/network/channel.py`). Each is a shell around a `Conversation`. A channel that has ended
stays ended; `peers.py` opens the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio

from raftmq.rpc.conversation import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from logging import Logger

    from raftmq.errors import RaftmqError
    from raftmq.model import Address
    from raftmq.rpc.conversation import Conversation
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello, HelloReply

ChannelT = TypeVar("ChannelT", bound="Channel")

DONE = "done"  # reason of an end by the side that has opened it


class Channel(ABC):
    """One connection, from the side that asks.

    Attributes:
        hello, server: what both sides have said of themselves; unset before the handshake.
    """

    hello: Hello
    server: HelloReply

    def __init__(
        self,
        conversation: Conversation,
        *,
        now: Callable[[], float],
        look_by: Callable[[float], None],
    ) -> None:
        """`look_by` has timeouts applied at a given time, or earlier."""
        self._conversation, self._now, self._look_by = conversation, now, look_by

    @property
    def is_ended(self) -> bool:
        """No request is sent any more."""
        return bool(self._conversation.reason)

    @property
    def reason(self) -> str:
        """Why it has ended."""
        return self._conversation.reason

    def end(self, reason: str) -> None:
        """End now; queued requests are lost. Does nothing the second time."""
        self._conversation.end(reason)

    async def greet(self, hello: Hello, *, timeout_seconds: float) -> None:
        """The handshake (Hello).

        Raises:
            RaftmqError: refused, no answer in time, disconnected.
        """
        self.hello = hello
        answer = await self.request(hello, timeout_seconds=timeout_seconds)
        self.server = answer.body
        self._conversation.on_hello(self.server)

    def ask(
        self,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
        payload: Sequence[Buffer] = (),
        waits: bool = False,
    ) -> Call:
        """As `request` without a waiting task: `on_outcome` is called once, with the answer or an
        error, from the task that reads the connection or ends it. It must not wait (decision 0016).

        Args:
            payload: see `request`.
            waits: in line, where there is no place in flight; else it is sent ahead of the line.

        Returns:
            For `forget`.

        Raises:
            Unreachable, MessageTooLarge, UnsupportedVersion: see `request`; nothing was sent.
        """
        call = Call(timeout=timeout_seconds, now=self._now(), on_outcome=on_outcome)
        self._conversation.ask(call, body, payload, waits=waits)
        # One alarm for all deadlines, moved forward if this call's is the earliest.
        self._look_by(call.deadline)
        return call

    def forget(self, call: Call) -> None:
        """The outcome of an `ask` is not wanted any more: the call in line is never sent, and an
        answer is dropped.
        """
        self._conversation.forget(call)

    def send_one_way(self, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """Send a request that has no answer; False if not sent: the channel has ended or is full.

        Raises:
            MessageTooLarge, UnsupportedVersion: the server would not take it.
        """
        return self._conversation.send_one_way(body, payload)

    @abstractmethod
    async def request(
        self,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and wait for its answer.

        Args:
            payload: follows the body; its buffers must not change before the answer has come, or,
                where the wait was cancelled, before the channel has ended.
            timeout_seconds: for all of it, including the wait for a place in flight.

        Raises:
            Unreachable: the channel had ended before anything was sent. Definite.
            Disconnected: it ended after that. Indefinite.
            RequestTimedOut: indefinite.
            MessageTooLarge, UnsupportedVersion: the server would not take it. Definite.
            RaftmqError: what the server answered.
        """

    @abstractmethod
    async def run(self) -> None:
        """Until the channel ends; then the stream is closed."""

    @abstractmethod
    async def wait_ended(self) -> None: ...


@asynccontextmanager
async def opened(
    channel: ChannelT, hello: Hello, *, hello_seconds_max: float
) -> AsyncIterator[ChannelT]:
    """The channel, running and after Hello; its stream is closed on the way out.

    The body is not cancelled when the connection ends; its requests raise instead.

    Raises:
        RaftmqError: Hello failed, see `Channel.greet`.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.run)
        try:
            # The Hello's answer, its timeout, or the end of the connection.
            await channel.greet(hello, timeout_seconds=hello_seconds_max)
            yield channel
        except Exception as error:  # the task group would hand it to the caller in a group
            failure = error
        finally:
            channel.end(DONE)
    if failure is not None:
        raise failure


class Connector(Protocol):
    """How channels to brokers are opened, the same for all of them: `TrioConnector` for brokers,
    `AnyioConnector` for programs.

    Attributes:
        logger: of the area that needs the channels.
    """

    logger: Logger

    def open(self, address: Address, *, name: str) -> AbstractAsyncContextManager[Channel]:
        """Dial, and say Hello; closed on the way out.

        Args:
            name: of the broker, in logs and errors.

        Raises:
            RaftmqError: no connection in time, or Hello failed.
        """
