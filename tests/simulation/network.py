"""The simulated network: links with delays, cuts and resets on MockClock, the fake of TcpNetwork.

Owns nodes, links, listeners and faults; what a connection does is decided in `network_stream.py`
and `network_pipe.py`. Passes the same conformance suite as TcpNetwork
(tests/unit/rpc/test_network.py). All chance comes from the Random handed in; no task runs here
but those of `serve`. Host names are names of nodes.

A node is paused at its border: none of its streams, dials or handlers goes on, but its timers do.
Code that must stand still too awaits `wait_awake`, as a simulated disk may.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from raftmq.errors import Unreachable
from raftmq.model import Address
from raftmq.rpc.protocol import format_address
from raftmq.rpc.sockets import CONNECT_SECONDS_MAX
from tests.simulation.network_pipe import Latency, Link, Signal
from tests.simulation.network_stream import Process, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from raftmq.rpc.network import Handler
    from tests.simulation.network_stream import Connection, SimulatedStream

FIRST_FREE_PORT = 49_152
WINDOW_BYTES = 65_536
PROMPT_SECONDS = 0.05  # the default time until an end notices a reset


class SimulatedNetwork:
    """All nodes, and the links between each two of them.

    Args:
        latency: of every link of which `slow` says nothing else.
        window_bytes: how much of a direction of a connection may be sent and not read yet.
        silence_seconds_max: how long a connection outlives a cut, either way. TcpNetwork's limit
            is raftmq.rpc.sockets.SILENCE_SECONDS_MAX; without one, cut bytes arrive however late.
        trace: told one line for each event but the bytes.
    """

    def __init__(
        self,
        random: Random,
        *,
        latency: Latency | None = None,
        window_bytes: int = WINDOW_BYTES,
        connect_seconds_max: float = CONNECT_SECONDS_MAX,
        silence_seconds_max: float = math.inf,
        trace: Callable[[str], object] | None = None,
    ) -> None:
        self._random, self._latency = random, latency or Latency()
        self._window_bytes, self._silence_seconds_max = window_bytes, silence_seconds_max
        self.connect_seconds_max = connect_seconds_max
        self._trace = trace
        self._nodes: dict[str, NodeNetwork] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._connections: list[tuple[str, str, Connection]] = []
        self._dark: set[str] = set()
        self.changed = Signal()  # a link was cut, healed or lit
        self.listeners: dict[Address, Listener] = {}

    def node(self, name: str) -> NodeNetwork:
        """The living incarnation of a node; after a crash this starts the next one."""
        if name not in self._nodes or self._nodes[name].process.is_dead:
            self._nodes[name] = NodeNetwork(self, name)
            self._dark.discard(name)
            self._links_changed(f"start {name}")
        return self._nodes[name]

    # Faults

    def cut(self, source: str, target: str, *, refuses: bool = False) -> None:
        """One way: what `source` sends is held up until `heal`; with `refuses`, dials fail fast."""
        self._cut(source, target, refuses=refuses)
        self._links_changed(f"cut {source}>{target}")

    def cut_both(self, first: str, second: str, *, refuses: bool = False) -> None:
        self._cut(first, second, refuses=refuses)
        self._cut(second, first, refuses=refuses)
        self._links_changed(f"cut {first}<>{second}")

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut every link between nodes of different groups. Nodes of no group keep theirs."""
        sides = [sorted(group) for group in groups]
        for side in sides:
            for other in sides:
                if side is not other:
                    for source, target in ((a, b) for a in side for b in other):
                        self._cut(source, target)
        self._links_changed(f"partition {sides}")

    def isolate(self, name: str) -> None:
        """Cut a node off from all the others that have been started so far."""
        self.partition([name], [other for other in self._nodes if other != name])

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Mend the links from `source`, to `target`, or both; without either, all."""
        for (start, end), link in self._links.items():
            if source in (None, start) and target in (None, end):
                link.is_cut = link.refuses = False
        self._links_changed(f"heal {source or '*'}>{target or '*'}")

    def heal_both(self, first: str, second: str) -> None:
        self.heal(first, second)
        self.heal(second, first)

    def rejoin(self, name: str) -> None:
        """Mend all links of a node."""
        self.heal(source=name)
        self.heal(target=name)

    def slow(self, source: str, target: str, latency: Latency) -> None:
        """From now on, one way."""
        self.link(source, target).latency = latency

    def reset(
        self,
        first: str,
        second: str,
        *,
        first_seconds: float | None = None,
        second_seconds: float | None = None,
        late_seconds: float = 0.0,
    ) -> None:
        """Break every connection between two nodes; new ones can be dialled at once.

        Args:
            first_seconds: when the ends at `first` learn of it; unless given, soon. math.inf
                makes the connection half-open for good: what that end sends goes nowhere.
            second_seconds: the same for the ends at `second`.
            late_seconds: a part of the bytes under way still arrives, up to so much later, at an
                end that has not learned of the reset by then.
        """
        self._trace_event(f"reset {first}<>{second}")
        after = {first: first_seconds, second: second_seconds}
        for *names, connection in self._living_connections():
            if set(names) == {first, second}:
                for name, end in zip(names, connection, strict=True):
                    seconds = after[name]
                    soon = self._random.uniform(0, PROMPT_SECONDS)
                    end.reset(
                        after_seconds=soon if seconds is None else seconds,
                        late_seconds=late_seconds,
                    )

    def crash(self, name: str, *, power_lost: bool = False) -> None:
        """This incarnation is over: all its operations raise PowerCut.

        A killed process leaves a kernel that closes its connections, so peers learn of it soon.
        A machine without power sends nothing, not even resets, until its node is started again.
        """
        node = self._nodes[name]
        ends = [
            end
            for *names, connection in self._living_connections()
            for at, end in zip(names, connection, strict=True)
            if at == name
        ]
        for end in ends:
            end.lose_power() if power_lost else end.close()
        node.process.die()
        for address in [key for key, found in self.listeners.items() if found.node is node]:
            self.listeners.pop(address).close()
        if power_lost:
            self._dark.add(name)
        self._links_changed(f"{'power off' if power_lost else 'kill'} {name}")

    def pause(self, name: str) -> None:
        self._trace_event(f"pause {name}")
        self._nodes[name].process.pause()

    def resume(self, name: str) -> None:
        self._trace_event(f"resume {name}")
        self._nodes[name].process.resume()

    # For NodeNetwork

    def link(self, source: str, target: str) -> Link:
        if (source, target) not in self._links:
            self._links[source, target] = Link(self._random, self._latency)
            self._darken()
        return self._links[source, target]

    def connect(self, dialler: NodeNetwork, listener: Listener) -> Connection:
        names = dialler.name, listener.node.name
        self._trace_event(f"connect {names[0]}>{names[1]}")
        connection = connect(
            self._random,
            (dialler.process, listener.node.process),
            (self.link(*names), self.link(*reversed(names))),
            window_bytes=self._window_bytes,
            silence_seconds_max=self._silence_seconds_max,
        )
        self._connections = [*self._living_connections(), (*names, connection)]
        return connection

    def _living_connections(self) -> list[tuple[str, str, Connection]]:
        return [found for found in self._connections if not found[2].is_over]

    def _cut(self, source: str, target: str, *, refuses: bool = False) -> None:
        link = self.link(source, target)
        link.is_cut, link.refuses = True, refuses

    def _darken(self) -> None:
        for names, link in self._links.items():
            link.is_dark = not self._dark.isdisjoint(names)

    def _links_changed(self, why: str) -> None:
        self._trace_event(why)
        self._darken()
        for *_, connection in self._living_connections():
            for end in connection:
                end.on_link_change()
        self.changed.notify()

    def _trace_event(self, what: str) -> None:
        if self._trace:
            self._trace(f"{trio.current_time():.6f} {what}")


class NodeNetwork:
    """The Network of one incarnation of a node."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network, self.name, self.process = network, name, Process()

    async def wait_awake(self) -> None:
        """Returns at once, or when a paused node is resumed. Raises PowerCut after a crash."""
        await self.process.wait_awake()

    async def dial(self, address: Address) -> SimulatedStream:
        await trio.lowlevel.checkpoint()
        await self.wait_awake()
        what = f"connect to {format_address(address)}"
        with trio.move_on_after(self._network.connect_seconds_max):
            return await self._connect(address, what)
        await self.wait_awake()
        raise Unreachable(f"{what}: no answer in time")

    async def serve(
        self,
        handler: Handler,
        address: Address,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        await trio.lowlevel.checkpoint()
        await self.wait_awake()
        listener = self._listen(address)
        try:
            task_status.started(listener.address)
            await listener.serve(handler)
        finally:
            if self._network.listeners.get(listener.address) is listener:
                del self._network.listeners[listener.address]
            listener.close()

    async def _connect(self, address: Address, what: str) -> SimulatedStream:
        await self._cross(self.name, address.host, what)
        listener = self._network.listeners.get(address)
        if not listener:
            await self._cross(address.host, self.name, what)
            raise Unreachable(f"{what}: Connection refused", was_refused=True)
        dialled, accepted = self._network.connect(self, listener)
        listener.offer(accepted)
        try:
            await self._cross(address.host, self.name, what)
            await self.wait_awake()
        except BaseException:
            dialled.close()
            raise
        return dialled

    async def _cross(self, source: str, target: str, what: str) -> None:
        """As long as a packet takes, which is sent again until it gets through."""
        link = self._network.link(source, target)
        while not link.is_open:
            if link.refuses:
                await trio.sleep(link.draw_latency())
                raise Unreachable(f"{what}: Connection refused", was_refused=True)
            await self._network.changed.wait_until(math.inf)
        await trio.sleep(link.draw_latency())

    def _listen(self, address: Address) -> Listener:
        what, listeners = f"listen on {format_address(address)}", self._network.listeners
        if address.host != self.name:
            raise Unreachable(f"{what}: Cannot assign requested address")
        if not address.port:
            taken = {port for host, port in listeners if host == self.name}
            free = (port for port in range(FIRST_FREE_PORT, 65_536) if port not in taken)
            address = Address(self.name, next(free))
        if address in listeners:
            raise Unreachable(f"{what}: Address already in use")
        listeners[address] = Listener(self, address)
        return listeners[address]


class Listener:
    """Where a node listens: connections wait here, also while the node is paused."""

    def __init__(self, node: NodeNetwork, address: Address) -> None:
        self.node, self.address = node, address
        self._offered: list[SimulatedStream] = []
        self._changed = Signal()

    def offer(self, stream: SimulatedStream) -> None:
        self._offered.append(stream)
        self._changed.notify()

    def close(self) -> None:
        """Connections that were not accepted yet are ended."""
        for stream in self._offered:
            stream.close()
        self._offered.clear()
        self._changed.notify()

    async def serve(self, handler: Handler) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self.node.wait_awake()
                while self._offered:
                    nursery.start_soon(_handle, handler, self._offered.pop(0))
                await self._changed.wait_until(math.inf)


async def _handle(handler: Handler, stream: SimulatedStream) -> None:
    try:
        await handler(stream)
    finally:
        stream.close()
