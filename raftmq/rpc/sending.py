"""How pieces leave: small ones joined, large ones as they are, files past this process if possible.

Owns the steps in which a long payload leaves, so that whoever watches sees it move. Never waits for
a disk on the loop: what is not in the page cache is read by a worker thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.files import FileSlice, WouldBlock
from raftmq.rpc.tcp_stream import TcpStream, drop_front

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    import trio

    from raftmq.rpc.reply import Piece
    from raftmq.wire.header import Buffer

    RunSync: TypeAlias = Callable[[Callable[[], bytes]], Awaitable[bytes]]

JOINED_BYTES_MAX = 64 << 10  # copying that much costs less than another system call
STEP_BYTES = 1 << 20
SENDFILE_BYTES_MIN = 128 << 10  # likewise
PROBE_BYTES = 256 << 10  # the kernel reads ahead about as much


class Step(NamedTuple):
    """About STEP_BYTES at most: buffers, and then a part of a file."""

    buffers: list[Buffer]
    file: FileSlice | None = None


def steps(pieces: Iterable[Piece]) -> Iterator[Step]:
    """All bytes of `pieces`, in order."""
    buffers: list[Buffer] = []
    size = 0
    for piece in pieces:
        if isinstance(piece, FileSlice):
            for part in _file_parts(piece):
                yield Step(buffers, part)
                buffers, size = [], 0
            continue
        for buffer in _buffer_parts(piece):
            buffers.append(buffer)
            size += len(buffer)
            if size >= STEP_BYTES:
                yield Step(buffers)
                buffers, size = [], 0
    if buffers:
        yield Step(buffers)


def _buffer_parts(buffer: Buffer) -> Iterable[Buffer]:
    if len(buffer) <= STEP_BYTES:
        return (buffer,)
    view = memoryview(buffer).cast("B")
    return [view[start : start + STEP_BYTES] for start in range(0, len(view), STEP_BYTES)]


def _file_parts(piece: FileSlice) -> Iterator[FileSlice]:
    file, position, length = piece
    for start in range(0, length, STEP_BYTES):
        yield FileSlice(file, position + start, min(STEP_BYTES, length - start))


class Sender:
    """Sends steps over one stream."""

    def __init__(self, stream: trio.abc.SendStream, run_sync: RunSync) -> None:
        self._stream, self._run_sync = stream, run_sync

    async def send(self, step: Step) -> None:
        """Raises what the stream raises; StorageError or EOFError where a file falls short."""
        buffers, file = step
        if file is None:
            await self._send_buffers(_joined(buffers))
        elif not isinstance(self._stream, TcpStream) or not _is_for_sendfile(file):
            await self._send_buffers(_joined([*buffers, await self._read(file)]))
        else:
            await self._stream.send_buffers(_joined(buffers), more=True)
            await self._stream.send_file(file.file.fileno(), file.position, file.length)

    def send_now(self, pieces: Sequence[Piece]) -> tuple[int, list[Buffer]]:
        """Send without waiting for stream or disk: how many bytes left, and what did not."""
        buffers = _buffers_now(pieces) if isinstance(self._stream, TcpStream) else None
        if buffers is None:
            return 0, []
        assert isinstance(self._stream, TcpStream)
        sent = self._stream.send_now(buffers)
        rest = [memoryview(buffer) for buffer in buffers if len(buffer)]
        drop_front(rest, sent)
        return sent, list(rest)

    async def _send_buffers(self, buffers: list[Buffer]) -> None:
        if isinstance(self._stream, TcpStream) and len(buffers) > 1:
            await self._stream.send_buffers(buffers)
            return
        for buffer in buffers:
            await self._stream.send_all(buffer)

    async def _read(self, part: FileSlice) -> bytes:
        file, position, length = part
        try:
            data = file.read_now(position, length)
        except WouldBlock:
            data = await self._run_sync(part.read)
        if len(data) < length:
            raise EOFError(
                f"{file.path} ends at byte {position + len(data)}, before byte {position + length}"
            )
        return data


def _buffers_now(pieces: Sequence[Piece]) -> list[Buffer] | None:
    """All of it in memory; None where a file is better sent by itself, or has to be waited for."""
    buffers: list[Buffer] = []
    read_bytes = sum(piece.length for piece in pieces if isinstance(piece, FileSlice))
    if read_bytes >= SENDFILE_BYTES_MIN:
        return None
    for piece in pieces:
        if not isinstance(piece, FileSlice):
            buffers.append(piece)
            continue
        try:
            data = piece.file.read_now(piece.position, piece.length)
        except WouldBlock:
            return None
        if len(data) < piece.length:
            return None
        buffers.append(data)
    return _joined(buffers)


def _joined(buffers: list[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers; large ones are not copied."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < JOINED_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(small[0] if len(small) == 1 else b"".join(small))
    return joined


def _is_for_sendfile(part: FileSlice) -> bool:
    """Whether it is worth the call, and will not wait for a disk, as far as a few samples tell."""
    if part.length < SENDFILE_BYTES_MIN:
        return False
    last = part.position + part.length - 1
    try:
        for position in (*range(part.position, last, PROBE_BYTES), last):
            part.file.read_now(position, 1)
    except WouldBlock:
        return False
    return True
