"""One end of a simulated connection: a trio stream over two pipes.

Owns what an end knows: whether it is closed, and from when on it sees that the connection is
broken. The two ends learn of a break each in its own time. An end that is gone answers bytes with a
reset, as a kernel does; whether the answer gets through is a matter of the links.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, NamedTuple

import trio

from tests.simulation.disk_faults import PowerCut
from tests.simulation.network_pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.simulation.network_pipe import Link

RECEIVE_BYTES = 65_536


class Process:
    """One incarnation of a node's process: may be paused, and is dead for good."""

    def __init__(self) -> None:
        self.is_dead = False
        self._awake = trio.Event()
        self._awake.set()

    def pause(self) -> None:
        if self._awake.is_set():
            self._awake = trio.Event()

    def resume(self) -> None:
        self._awake.set()

    def die(self) -> None:
        self.is_dead = True
        self.resume()

    async def wait_awake(self) -> None:
        """Returns once the process may run. Raises PowerCut if it never will again."""
        while not (self.is_dead or self._awake.is_set()):
            await self._awake.wait()
        if self.is_dead:
            raise PowerCut("used the network after the crash")


class Connection(NamedTuple):
    """The two ends, that of the dialler first."""

    dialled: SimulatedStream
    accepted: SimulatedStream

    @property
    def is_over(self) -> bool:
        return self.dialled.is_gone and self.accepted.is_gone


class SimulatedStream(trio.abc.Stream):
    """Made in pairs by `connect`."""

    def __init__(
        self, process: Process, *, outgoing: Pipe, incoming: Pipe, silence_seconds_max: float
    ) -> None:
        self.process, self._outgoing, self._incoming = process, outgoing, incoming
        self._silence_seconds_max = silence_seconds_max
        self._peer = self
        self._is_closed = self._was_reset = self._knows_of_reset = False
        self._reset_at = self._given_up_at = math.inf
        self._busy: set[str] = set()

    @property
    def is_gone(self) -> bool:
        """Whether no task will read here any more."""
        return self._is_closed or self.process.is_dead or self.is_broken

    @property
    def is_broken(self) -> bool:
        return self._broken_at <= trio.current_time()

    @property
    def _broken_at(self) -> float:
        return min(self._reset_at, self._given_up_at)

    # trio.abc.Stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with self._exclusive("sending"):
            await trio.lowlevel.checkpoint()
            await self._check_usable()
            rest = memoryview(data)
            while rest:
                await self._wait_space()
                rest = rest[self._outgoing.push(rest) :]
                self._peer_may_be_gone()

    async def wait_send_all_might_not_block(self) -> None:
        with self._exclusive("sending"):
            await trio.lowlevel.checkpoint()
            await self._wait_space()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        bytes_max = RECEIVE_BYTES if max_bytes is None else index(max_bytes)
        if bytes_max < 1:
            raise ValueError("max_bytes must be at least 1")
        with self._exclusive("receiving"):
            await trio.lowlevel.checkpoint()
            return await self._receive(bytes_max)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close now; what was sent arrives, and then the end."""
        if self._is_closed:
            return
        if not self.is_gone:
            self._outgoing.finish()
        self._is_closed = True
        self._notify()
        self._peer._peer_may_be_gone()

    async def _receive(self, bytes_max: int) -> bytes:
        while True:
            await self._check_open()
            self._incoming.absorb(min(trio.current_time(), self._broken_at))
            data = b"" if self._knows_of_reset else self._incoming.take(bytes_max)
            if data or (self._incoming.has_ended and not self._knows_of_reset):
                return data
            await self._check_usable()
            await self._incoming.changed.wait_until(min(self._incoming.next_due, self._broken_at))

    async def _wait_space(self) -> None:
        await self._check_usable()
        while self._outgoing.space <= 0:
            await self._outgoing.changed.wait_until(self._broken_at)
            await self._check_usable()

    async def _check_open(self) -> None:
        await self.process.wait_awake()
        if self._is_closed:
            raise trio.ClosedResourceError("this end of the connection was closed")

    async def _check_usable(self) -> None:
        await self._check_open()
        if self.is_broken:
            self._knows_of_reset = True
            raise trio.BrokenResourceError("the connection was reset")

    @contextmanager
    def _exclusive(self, what: str) -> Iterator[None]:
        if what in self._busy:
            raise trio.BusyResourceError(f"another task is already {what} on this stream")
        self._busy.add(what)
        try:
            yield
        finally:
            self._busy.remove(what)

    # The world

    def on_link_change(self) -> None:
        self._incoming.on_link_change()
        is_whole = self._outgoing.link.is_open and self._incoming.link.is_open
        if not is_whole and self._given_up_at == math.inf:
            self._given_up_at = trio.current_time() + self._silence_seconds_max
        elif is_whole and not self.is_broken:
            self._given_up_at = math.inf
        self._peer_may_be_gone()

    def reset(self, *, after_seconds: float, late_seconds: float) -> None:
        """This end learns of it so much later; what is under way to it may still arrive."""
        self._was_reset = True
        self._incoming.lose_connection(late_seconds=late_seconds)
        self._break_at(trio.current_time() + after_seconds)

    def lose_power(self) -> None:
        """Nothing is said to the peer; its own bytes are answered once the machine is back."""
        self._outgoing.lose_sender()
        self._notify()

    def _peer_may_be_gone(self) -> None:
        """Bytes to a closed end are answered by a reset, if both get through."""
        links = self._outgoing.link, self._incoming.link
        if (
            self._peer.is_gone
            and self._outgoing.holds_unread
            and all(link.is_open for link in links)
            and not self._was_reset
            and self._reset_at == math.inf
        ):
            answered_at = trio.current_time() + links[0].draw_latency() + links[1].draw_latency()
            self._break_at(max(answered_at, self._incoming.last_due))

    def _break_at(self, when: float) -> None:
        self._reset_at = min(self._reset_at, when)
        self._notify()

    def _notify(self) -> None:
        self._outgoing.changed.notify()
        self._incoming.changed.notify()


def connect(
    random: Random,
    processes: tuple[Process, Process],
    links: tuple[Link, Link],
    *,
    window_bytes: int,
    silence_seconds_max: float,
) -> Connection:
    """`links` lead from the first process to the second, and back."""
    there = Pipe(random, links[0], back=links[1], window_bytes=window_bytes)
    back = Pipe(random, links[1], back=links[0], window_bytes=window_bytes)
    ends = [
        SimulatedStream(
            process, outgoing=outgoing, incoming=incoming, silence_seconds_max=silence_seconds_max
        )
        for process, outgoing, incoming in zip(processes, (there, back), (back, there), strict=True)
    ]
    ends[0]._peer, ends[1]._peer = ends[1], ends[0]
    return Connection(*ends)
