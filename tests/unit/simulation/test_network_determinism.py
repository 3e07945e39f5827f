"""The simulated network decides nothing by chance of its own: a seed is one trace."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.errors import Unreachable
from raftmq.model import Address
from tests.simulation.deterministic import run
from tests.simulation.network import SimulatedNetwork

if TYPE_CHECKING:
    from trio.abc import Stream

NAMES = ["n1", "n2", "n3", "n4"]
FAULTS = 10


class Traffic:
    """Four nodes that gossip while the network misbehaves; `lines` is all that happened."""

    def __init__(self, seed: str) -> None:
        self._seed, self.lines = seed, list[str]()
        self._network = SimulatedNetwork(
            Random(seed), silence_seconds_max=8.0, trace=self.lines.append
        )

    async def tell(self) -> None:
        async with trio.open_nursery() as nursery:
            for name in NAMES:
                node = self._network.node(name)
                await nursery.start(node.serve, self._hear, Address(name, 1))
                for peer in NAMES:
                    nursery.start_soon(self._talk, name, peer)
            await self._disturb(Random(f"{self._seed}/disturb"))
            nursery.cancel_scope.cancel()

    async def _hear(self, stream: Stream) -> None:
        try:
            while data := await stream.receive_some():
                self._write(len(data))
        except trio.BrokenResourceError as error:
            self._write(error)

    async def _talk(self, name: str, peer: str) -> None:
        random = Random(f"{self._seed}/{name}/{peer}")
        while True:
            await trio.sleep(random.random())
            try:
                await self._say_much(name, peer, random)
            except (Unreachable, trio.BrokenResourceError) as error:
                self._write(error)

    async def _say_much(self, name: str, peer: str, random: Random) -> None:
        async with await self._network.node(name).dial(Address(peer, 1)) as stream:
            for _ in range(3):
                await stream.send_all(bytes(random.randrange(1, 20_000)))

    async def _disturb(self, random: Random) -> None:
        network = self._network
        for _ in range(FAULTS):
            await trio.sleep(random.random())
            first, second = random.sample(NAMES, 2)
            random.choice([network.cut, network.cut_both, network.reset])(first, second)
            random.choice([network.heal, network.pause, network.resume])(random.choice(NAMES))

    def _write(self, what: object) -> None:
        self.lines.append(f"{trio.current_time():.6f} {what}")


def trace_of(seed: str) -> list[str]:
    told = Traffic(seed)
    run(seed, told.tell)
    return told.lines


def test_a_seed_is_a_story() -> None:
    """The same faults, bytes, pieces and times for the same seed."""
    first = trace_of("a")
    assert len(first) > 10 * FAULTS
    assert first == trace_of("a") != trace_of("b")
