"""One direction of a simulated connection: link state, bytes in flight, windows, arrival times.

Owns when bytes arrive, in which pieces, and how many may be in flight. Nothing here runs by
itself: each call reads the clock. Bytes keep their order; a cut holds them up but loses
none, as TCP's retransmission would have it; what arrives is acknowledged over the link back, so
that a cut there stops the sender once its window is full.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import trio

if TYPE_CHECKING:
    from random import Random

WHOLE_PIECES = 0.7  # how often a piece is as long as it can be; else its length is drawn


class Latency(NamedTuple):
    """Seconds from one node to the other: mostly between the first two, sometimes far above."""

    least: float = 0.0005
    most: float = 0.005
    tail_probability: float = 0.01
    tail_mean: float = 0.1

    def draw(self, random: Random) -> float:
        tail = random.random() < self.tail_probability
        seconds = random.uniform(self.least, self.most)
        return seconds + (random.expovariate(1 / self.tail_mean) if tail else 0.0)


class Link:
    """The way from one node to another; `is_cut` and `is_dark` both stop everything on it.

    Attributes:
        is_cut: the cable is pulled.
        is_dark: one of the two machines has no power.
        refuses: who dials over the cut link is told so at once, as by a firewall.
    """

    def __init__(self, random: Random, latency: Latency) -> None:
        self.latency, self._random = latency, random
        self.is_cut = self.is_dark = self.refuses = False

    @property
    def is_open(self) -> bool:
        return not (self.is_cut or self.is_dark)

    def draw_latency(self) -> float:
        return self.latency.draw(self._random)


class Signal:
    """An event that can happen again and again."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait_until(self, deadline: float) -> None:
        with trio.move_on_at(deadline):
            await self._event.wait()


class Pipe:
    """One direction of a connection; `changed` tells both of its ends that something did."""

    def __init__(self, random: Random, link: Link, *, back: Link, window_bytes: int) -> None:
        self.link, self._back = link, back
        self._random, self._window_bytes = random, window_bytes
        self._waiting: deque[bytes] = deque()  # for the link to open; b"" is the end
        self._travelling: deque[tuple[float, bytes]] = deque()
        self._arrived = bytearray()
        self._unacknowledged = self._read_unacknowledged = 0
        self._is_orphan = False
        self.last_due = 0.0
        self.has_ended = False
        self.changed = Signal()

    @property
    def space(self) -> int:
        return self._window_bytes - self._unacknowledged

    @property
    def holds_unread(self) -> bool:
        return self._unacknowledged > self._read_unacknowledged

    @property
    def next_due(self) -> float:
        return self._travelling[0][0] if self._travelling else math.inf

    # The sender's end

    def push(self, data: memoryview) -> int:
        """Take as much as the window allows; returns how much that was."""
        taken = data[: self.space]
        self._unacknowledged += len(taken)
        if not self._is_orphan:
            self._waiting += self._pieces(bytes(taken))
            self._depart()
        return len(taken)

    def finish(self) -> None:
        """The end arrives after everything that was pushed."""
        if not self._is_orphan:
            self._waiting.append(b"")
            self._depart()

    # The receiver's end

    def absorb(self, until: float) -> None:
        while self.next_due <= until:
            _, data = self._travelling.popleft()
            self._arrived += data
            self.has_ended |= not data

    def take(self, bytes_max: int) -> bytes:
        """Some of what has arrived; b"" when that is nothing."""
        length = self._draw_length(min(len(self._arrived), bytes_max))
        data = bytes(self._arrived[:length])
        del self._arrived[:length]
        self._read_unacknowledged += length
        if length:
            self._acknowledge()
        return data

    # The world

    def on_link_change(self) -> None:
        self.absorb(trio.current_time())
        if self.link.is_open:
            self._depart()
        elif not self._is_orphan:
            self._waiting.extendleft(data for _, data in reversed(self._travelling))
            self._travelling.clear()
        self._acknowledge()

    def lose_sender(self) -> None:
        """The sender's machine is gone, and what it would have sent again; the rest arrives."""
        self._waiting.clear()
        self._is_orphan = True

    def lose_connection(self, *, late_seconds: float) -> None:
        """Without retransmission: only the first few pieces arrive, up to so much later."""
        self.absorb(trio.current_time())
        pieces = [data for _, data in self._travelling] + list(self._waiting)
        self._travelling.clear()
        self._waiting = deque(pieces[: self._random.randint(0, len(pieces))])
        self._is_orphan = True
        self._depart(late_seconds)

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            length = self._draw_length(len(data))
            pieces.append(data[:length])
            data = data[length:]
        return pieces

    def _draw_length(self, length: int) -> int:
        if length < 2 or self._random.random() < WHOLE_PIECES:
            return length
        return self._random.randint(1, length)

    def _depart(self, late_seconds: float = 0.0) -> None:
        while self._waiting and self.link.is_open:
            delay = self.link.draw_latency() + self._random.uniform(0, late_seconds)
            self.last_due = max(self.last_due, trio.current_time() + delay)
            self._travelling.append((self.last_due, self._waiting.popleft()))
        self.changed.notify()

    def _acknowledge(self) -> None:
        if self._back.is_open:
            self._unacknowledged -= self._read_unacknowledged
            self._read_unacknowledged = 0
        self.changed.notify()
