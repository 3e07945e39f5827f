"""The newest appends of logs that are led here, in memory: followers that keep up read no file.

Owns these bytes and how many there may be of all logs together; the oldest append leaves first,
whichever log it belongs to. A follower that lags further reads the file, as one does whose offset
lies within an append. Consumers and followers out of sync always do: what they get is what the disk
has, so that rot is found by them (decisions 0027, 0037). Pure.

Invariant: appends of a tail follow each other as they do in the log; a log that is cut gets another
tail.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.wire.batch.header import Buffer

TAIL_BYTES_MAX = 32 << 20  # of a directory; two dozen fetches of a follower at their largest
APPEND_COST_BYTES = 512  # of the objects around an append, however short it is
# Shorter appends are kept as one copy: it costs less than to send and to keep their parts.
JOINED_BYTES_MAX = 64 << 10
PIECES_MAX = 64  # of an answer; more cost more to send one by one than to join


class TailAppend(msgspec.Struct, frozen=True):
    """`pieces`: its bytes, as they stand in the log."""

    end_offset: int
    pieces: Sequence[Buffer]
    length: int


class LogTail:
    """One log's part of the memory; see `TailMemory.begin_tail`."""

    __slots__ = ("_appends", "_memory")

    def __init__(self, memory: TailMemory) -> None:
        self._memory = memory
        self._appends: dict[int, TailAppend] = {}  # by base offset

    def append(
        self, base_offset: int, end_offset: int, buffers: Sequence[Buffer], length: int
    ) -> None:
        """`buffers`, of `length` bytes together, were appended to the log. They must not change."""
        held_bytes = length if length < JOINED_BYTES_MAX else _held_bytes(buffers)
        # A view keeps the whole request that it lies in: copied where it is less than half of it.
        if length < JOINED_BYTES_MAX or 2 * length < held_bytes:
            buffers, held_bytes = (b"".join(buffers),), length
        self._appends[base_offset] = TailAppend(end_offset, buffers, length)
        self._memory.add(self, base_offset, held_bytes)

    def read(self, offset: int, bytes_max: int) -> TailAppend | None:
        """Whole appends from `offset` on, `bytes_max` at most, as one; None: read the file."""
        known = self._appends
        first = known.get(offset)
        if first is None or first.length > bytes_max:
            return None
        following = known.get(first.end_offset)
        if following is None:  # the usual case of a follower that keeps up
            return first
        end_offset, pieces, length = first.end_offset, [*first.pieces], first.length
        while following is not None and length + following.length <= bytes_max:
            pieces += following.pieces
            end_offset, length = following.end_offset, length + following.length
            following = known.get(end_offset)
        if len(pieces) > PIECES_MAX:
            pieces = [b"".join(pieces)]
        return TailAppend(end_offset, pieces, length)

    def forget(self, base_offset: int) -> None:
        del self._appends[base_offset]


class TailMemory:
    """The tails of all logs of a directory.

    Attributes:
        held_bytes: by all appends, also of tails that are not read any more.
    """

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._bytes_max, self.held_bytes = bytes_max, 0
        self._line: deque[tuple[LogTail, int, int]] = deque()  # with base offset and bytes held

    def begin_tail(self) -> LogTail:
        """For a log that is led from now on; it holds what is appended to it from now on."""
        return LogTail(self)

    def add(self, tail: LogTail, base_offset: int, held_bytes: int) -> None:
        size = held_bytes + APPEND_COST_BYTES
        self._line.append((tail, base_offset, size))
        self.held_bytes += size
        while self.held_bytes > self._bytes_max:
            oldest, base_offset, size = self._line.popleft()
            oldest.forget(base_offset)
            self.held_bytes -= size


def _held_bytes(buffers: Sequence[Buffer]) -> int:
    """What these keep in memory: views are of one request, all of which they keep."""
    requests = {id(each.obj): each.obj for each in buffers if isinstance(each, memoryview)}
    held_bytes = sum(memoryview(request).nbytes for request in requests.values())
    return held_bytes + sum(len(each) for each in buffers if not isinstance(each, memoryview))
