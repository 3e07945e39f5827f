"""The channel of programs, on asyncio or trio: reader, writer and timer around a `Conversation`.

No request has a task of its own. A caller may be cancelled at any time: it never waits for the
stream. A small frame of a lone request leaves in its task, as far as the socket takes it at once;
all else, the rest of that frame too, is the writing task's. So a frame that was begun is written
whole, and its answer is dropped.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import current_token

from raftmq.client.network.outgoing import Outgoing
from raftmq.errors import RemoteProtocolError, Unreachable
from raftmq.rpc.channel import DONE, Channel, opened
from raftmq.rpc.conversation import Call, Conversation, shown_seconds
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Answer
from raftmq.wire.frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from raftmq.client.network.network import AnyioNetwork, Stream
    from raftmq.model import Address
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello


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


# -- Clock ----------------------------------------------------------------------------------------


def loop_clock() -> Callable[[], float]:
    """The clock of the running event loop. `anyio.current_time` looks for the library at each
    reading, and asyncio for its loop, which takes a system call.
    """
    token = current_token()
    clock: Callable[[], float] = token.backend_class.current_time
    return getattr(token.native_token, "time", clock)  # the token of asyncio is its loop


# -- Channel --------------------------------------------------------------------------------------


READ_BYTES = 64 << 10  # many small answers fit; a buffer for each connection stays small
READ_BYTES_MAX = 512 << 10  # while full reads show that much arrives, as in fetches
STREAM_ENDS = (anyio.BrokenResourceError, anyio.ClosedResourceError)
CLOSE_SECONDS_MAX = 1.0  # a broker that does not answer the close must not delay the program's end


class AnyioChannel(Channel):
    """See `open_channel`."""

    def __init__(self, stream: Stream, *, name: str, limits: RpcLimits) -> None:
        self._stream = stream
        self._ended, self._scope = anyio.Event(), anyio.CancelScope()
        self._queued, self._alarm = anyio.Event(), anyio.CancelScope()
        self._read_bytes = READ_BYTES
        self._frames = FrameReader(
            frame_bytes_max=limits.frame_bytes_max, header_bytes_max=limits.header_bytes_max
        )
        self._outgoing = Outgoing(wake=lambda: self._queued.set(), send_now=stream.send_now)
        clock = loop_clock()
        conversation = Conversation(name, limits, self._outgoing, now=clock(), on_end=self._on_end)
        super().__init__(conversation, now=clock, look_by=self._ring_by)

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def request(
        self,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        # A cancelled task must not send anything any more.
        await anyio.lowlevel.checkpoint_if_cancelled()
        settled = anyio.Event()
        call = Call(
            timeout=timeout_seconds,
            now=self._now(),
            on_outcome=lambda _outcome: settled.set(),
        )
        self._conversation.ask(call, body, payload, trace=trace)
        self._ring_by(call.deadline)
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

    async def run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._serve, self._read)
                    tasks.start_soon(self._serve, self._write)
                    tasks.start_soon(self._watch)
        finally:
            self._conversation.end("cancelled")
            # Shielded: the stream must be closed even when this task is cancelled. If it breaks in
            # that, such as in the farewell of TLS to a broker that has gone, it is closed as well.
            with anyio.move_on_after(CLOSE_SECONDS_MAX, shield=True), suppress(*STREAM_ENDS):
                await self._stream.aclose()

    async def _serve(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run the reader or the writer; its end is the channel's end."""
        try:
            await task()
            self._conversation.end("the other side hung up")
        # After invalid bytes the frames that follow cannot be found.
        except RemoteProtocolError as error:
            self._conversation.end(str(error), is_fault=True)
        # The broker is gone, or this side has ended the channel.
        except STREAM_ENDS as error:
            self._conversation.end(str(error) or repr(error))

    async def _read(self) -> None:
        while self._take_in(await self._stream.receive(self._read_bytes)):
            pass  # what was read is let go before the next read: it may be large

    def _take_in(self, data: bytes) -> bool:
        """Handle the answers in `data`; False at the end of the stream."""
        # A full read: more is waiting in the kernel.
        if len(data) == self._read_bytes:
            self._read_bytes = READ_BYTES_MAX
        elif len(data) < READ_BYTES:  # the burst is over
            self._read_bytes = READ_BYTES
        self._conversation.heard_at = self._now()
        for frame in self._frames.receive(data):
            self._conversation.on_frame(frame)
        return bool(data)

    async def _write(self) -> None:
        while True:
            if self._outgoing.is_empty:  # otherwise more was queued during the last write
                self._queued = anyio.Event()
                # Until `Conversation` has queued something.
                await self._queued.wait()
            await self._send(self._outgoing.take(self._now()))
            self._outgoing.on_sent()
            self._conversation.send_next()  # sent bytes make room for calls that wait in line

    async def _send(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            await self._stream.send(buffer)
            self._outgoing.on_write(self._now())

    async def _watch(self) -> None:
        while True:
            with anyio.CancelScope() as self._alarm:
                self._alarm.deadline = self._conversation.look(self._now())
                # Ends at the scope's deadline, which `_ring_by` may bring forward.
                await anyio.sleep_forever()
            # After a pause of the process, answers that have arrived are read before timeouts are
            # applied.
            await anyio.lowlevel.checkpoint()

    def _ring_by(self, deadline: float) -> None:
        """Apply timeouts at that time at the latest."""
        if deadline < self._alarm.deadline:  # else the timer wakes early enough
            self._alarm.deadline = deadline

    def _on_end(self) -> None:
        self._ended.set()
        self._scope.cancel()
        told = self._conversation
        level = logging.WARNING if told.is_fault else logging.INFO
        if told.reason == DONE:  # this side is through with it, as with one for a single request
            level = logging.DEBUG
        logger.log(level, "connection ended: with=%s reason=%s", told.name, told.reason)


@asynccontextmanager
async def open_channel(
    stream: Stream, hello: Hello, limits: RpcLimits | None = None, *, name: str = "server"
) -> AsyncIterator[AnyioChannel]:
    """A channel over `stream`; see `opened`."""
    limits = limits or RpcLimits()
    channel = AnyioChannel(stream, name=name, limits=limits)
    with one_error():
        async with opened(channel, hello, hello_seconds_max=limits.hello_seconds_max):
            yield channel


class AnyioConnector:
    """The Connector of programs."""

    logger = logger

    def __init__(
        self, network: AnyioNetwork, make_hello: Callable[[], Hello], limits: RpcLimits
    ) -> None:
        self._network, self._make_hello, self._limits = network, make_hello, limits

    @asynccontextmanager
    async def open(self, address: Address, *, name: str) -> AsyncIterator[AnyioChannel]:
        stream = await self._dial(address)
        async with open_channel(stream, self._make_hello(), self._limits, name=name) as channel:
            yield channel

    async def _dial(self, address: Address) -> Stream:
        seconds_max = self._limits.hello_seconds_max
        # The network's own timeout for connecting, which is shorter, applies as well.
        with anyio.move_on_after(seconds_max):
            return await self._network.dial(address)
        raise Unreachable(f"no connection within {shown_seconds(seconds_max)}")
