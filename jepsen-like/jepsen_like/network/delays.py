"""The queue of delayed frames, by due time, bounded by bytes.

Pure. Frames of one link with the same delay leave in the order in which they came. Frames beyond
the bound are dropped, as by a router whose buffer is full.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.network.rules import Link

BYTES_MAX = 64 << 20  # a second of traffic at half a gigabit per second


class Delays:
    """Attributes:
    queued_bytes: of all frames that are on their way.
    """

    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._number = 0  # decides between frames that are due together
        self._heap: list[tuple[float, int, Link, bytes]] = []
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def push(self, link: Link, frame: bytes, *, due: float) -> bool:
        """Whether there was room for it."""
        if self.queued_bytes + len(frame) > self._bytes_max:
            return False
        self._number += 1
        self.queued_bytes += len(frame)
        heappush(self._heap, (due, self._number, link, frame))
        return True

    def pop_due(self, now: float) -> Iterator[tuple[Link, bytes]]:
        while self._heap and self._heap[0][0] <= now:
            _, _, link, frame = heappop(self._heap)
            self.queued_bytes -= len(frame)
            yield link, frame

    def drop(self, link: Link) -> int:
        """Forget what is on its way there: how many frames that were."""
        kept = [entry for entry in self._heap if entry[2] != link]
        dropped = len(self._heap) - len(kept)
        heapify(kept)
        self._heap = kept
        self.queued_bytes = sum(len(frame) for _, _, _, frame in kept)
        return dropped
