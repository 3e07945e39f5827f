"""The tasks of one connection: reader, writer and timer around `conversation.py`, over a stream.

No request has a task of its own. A channel that has ended stays so; `peer.py` opens the next. A
caller may be cancelled at any time: only the writing task touches the stream, so a frame that was
begun is written whole, and its answer is dropped.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio

from raftmq.client.network.conversation import Conversation
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from raftmq.client.network.network import Stream
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello, HelloReply


logger = logging.getLogger("raftmq.client")


# -- Exception groups -----------------------------------------------------------------------------
# Unwraps a group of one exception: callers catch the error itself. A group of several stays as it
# is: none of them may be lost.


@contextmanager
def one_error() -> Iterator[None]:
    """Around a task group: a group that holds one error becomes that error."""
    try:
        yield
    except BaseExceptionGroup as group:
        found = _only_error(group)
        if found is None:  # several errors: none may be lost
            raise
        context = found.__context__
        try:
            raise found
        finally:
            found.__context__ = context  # which would be the group otherwise
            del found, context  # an error that its own frame holds is freed late


def _only_error(error: BaseException) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) > 1:
            return None
        (error,) = error.exceptions
    return error


# -- Channel --------------------------------------------------------------------------------------


READ_BYTES = 64 << 10  # many small answers fit; a buffer for each connection stays small
READ_BYTES_MAX = 512 << 10  # while full reads show that much arrives, as in fetches
CLOSE_SECONDS_MAX = 1.0  # a broker that does not answer the close must not delay the program's end


class Channel:
    """One connection; see `open_channel`.

    Attributes:
        server: what the broker said of itself; only after Hello.
    """

    server: HelloReply

    def __init__(self, stream: Stream, *, name: str, limits: RpcLimits) -> None:
        self._stream, self._limits = stream, limits
        self._ended, self._scope = anyio.Event(), anyio.CancelScope()
        self._queued, self._alarm = anyio.Event(), anyio.CancelScope()
        self._read_bytes = READ_BYTES
        self._conversation = Conversation(
            name,
            limits,
            now=anyio.current_time(),
            wake=lambda: self._queued.set(),
            on_end=self._on_end,
        )
        self._outgoing = self._conversation.outgoing

    @property
    def is_ended(self) -> bool:
        """No request is sent any more."""
        return self._conversation.is_over

    @property
    def reason(self) -> str:
        """Why it has ended."""
        return self._conversation.reason

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def end(self, reason: str) -> None:
        """End now; queued requests are lost. Does nothing the second time."""
        self._conversation.end(reason)

    async def request(
        self, body: Request, payload: Sequence[Buffer] = (), *, timeout_seconds: float
    ) -> Answer:
        """Send a request, and wait for the answer.

        Args:
            payload: follows the body; its buffers must not change before the answer has come, or,
                where the wait was cancelled, before the channel has ended.
            timeout_seconds: for all of it, including the wait for a place among the requests in
                flight.

        Raises:
            Unreachable: the channel had ended before anything was sent. Definite.
            Disconnected: it ended after that. Indefinite.
            RequestTimedOut: no answer in time. Indefinite.
            MessageTooLarge, UnsupportedVersion: the broker would not accept it. Definite.
            RaftmqError: the broker's error.
        """
        # A cancelled task must not send anything any more.
        await anyio.lowlevel.checkpoint_if_cancelled()
        settled = anyio.Event()
        call = self._conversation.ask(
            body,
            payload,
            timeout_seconds=timeout_seconds,
            now=anyio.current_time(),
            on_outcome=lambda _outcome: settled.set(),
        )
        self._look_by(call.deadline)
        try:
            # Ends with the answer, the timeout (`Conversation.look`), or the end of the channel.
            await settled.wait()
        finally:
            # Cancelled.
            if call.outcome is None:
                self._conversation.forget(call)
        if isinstance(call.outcome, Answer):
            return call.outcome
        assert call.outcome is not None, "woken without an outcome"
        raise call.outcome

    def send_one_way(self, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """Send a request without an answer; False: not sent, as the channel has ended or is full.

        Raises:
            MessageTooLarge, UnsupportedVersion: the broker would not accept it.
        """
        return self._conversation.send_one_way(body, payload)

    async def greet(self, hello: Hello) -> None:
        """The handshake (Hello).

        Raises:
            RaftmqError: refused, no answer in time, disconnected.
        """
        answer = await self.request(hello, timeout_seconds=self._limits.hello_seconds_max)
        self.server = answer.body
        self._conversation.on_hello(self.server)

    async def run(self) -> None:
        """Runs until the channel ends; then the stream is closed."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._serve, self._read)
                    tasks.start_soon(self._serve, self._write)
                    tasks.start_soon(self._watch)
        finally:
            self._conversation.end("cancelled")
            # Shielded: the stream must be closed even when this task is cancelled.
            with anyio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
                await self._stream.aclose()

    async def _serve(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run the reader or the writer; a broken stream ends the channel."""
        try:
            await task()
        # The broker is gone, or this side has ended the channel.
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            self._conversation.end(str(error) or repr(error))

    async def _read(self) -> None:
        while not self.is_ended:
            self._take_in(await self._stream.receive(self._read_bytes))

    def _take_in(self, data: bytes) -> None:
        # A full read: more is waiting in the kernel.
        if len(data) == self._read_bytes:
            self._read_bytes = READ_BYTES_MAX
        elif len(data) < READ_BYTES:  # the burst is over
            self._read_bytes = READ_BYTES
        self._conversation.receive(data, now=anyio.current_time())

    async def _write(self) -> None:
        while True:
            if self._outgoing.is_empty:  # otherwise more was queued during the last write
                self._queued = anyio.Event()
                # Until `Conversation` has queued something.
                await self._queued.wait()
            await self._send(self._outgoing.take(anyio.current_time()))
            self._conversation.on_sent()

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            await self._stream.send(buffer)
            self._outgoing.on_write(anyio.current_time())

    async def _watch(self) -> None:
        while True:
            with anyio.CancelScope() as self._alarm:
                self._alarm.deadline = self._conversation.look(anyio.current_time())
                # Ends at the scope's deadline, which `_look_by` may bring forward.
                await anyio.sleep_forever()
            # After a pause of the process, answers that have arrived are read before timeouts are
            # applied.
            await anyio.lowlevel.checkpoint()

    def _look_by(self, deadline: float) -> None:
        """Apply timeouts at that time at the latest."""
        if deadline < self._alarm.deadline:  # else the timer wakes early enough
            self._alarm.deadline = deadline

    def _on_end(self) -> None:
        self._ended.set()
        self._scope.cancel()
        told = self._conversation
        level = logging.WARNING if told.is_fault else logging.INFO
        logger.log(level, "connection ended: with=%s reason=%s", told.name, told.reason)


@asynccontextmanager
async def open_channel(
    stream: Stream, hello: Hello, limits: RpcLimits | None = None, *, name: str = "server"
) -> AsyncIterator[Channel]:
    """A channel over `stream`, after Hello; the stream is closed on the way out.

    The body is not cancelled when the connection ends: its requests raise.

    Raises:
        RaftmqError: there was no Hello, see `Channel.greet`.
    """
    channel = Channel(stream, name=name, limits=limits or RpcLimits())
    failure: Exception | None = None
    with one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.run)
            try:
                # The Hello's answer, its timeout, or the end of the connection.
                await channel.greet(hello)
                yield channel
            except Exception as error:  # would reach the caller in a group otherwise
                failure = error
            finally:
                channel.end("done")
    if failure is not None:  # raised here, outside of the task group
        raise failure
