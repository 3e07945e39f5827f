"""What simulated programs on the SDK share: connecting, and beginning anew after errors."""

from __future__ import annotations

from random import Random

import trio

from raftmq.client.client import Client
from raftmq.errors import Unreachable
from tests.simulation.brokers.clients import Program
from tests.simulation.brokers.hosts import NAME, now_ms
from tests.simulation.client_network import ClientNetwork

# The SDK is judged at the end, when all is well; then it has to get along within so long.
HEALED_SECONDS_MAX = 30.0  # for a program to get its work done, once everything is repaired
# A world that does not heal is watched for long; it is not worth much of a real machine's time.
REPAIRED_PAUSE_SECONDS = 0.5  # between attempts


class SdkProgram(Program):
    """One client after the other, each for several lives of producers or consumers."""

    async def run(self) -> None:
        while not self.world.is_closing:
            try:
                async with self._client() as client:
                    await self._use(client)
            except Unreachable as error:
                self.trace(f"not connected: {error}")

    async def _use(self, client: Client) -> None:
        """Until the client has been used long enough, or the world closes."""
        raise NotImplementedError

    async def _think(self) -> None:
        await super()._think()
        if self.world.is_repaired:
            await trio.sleep(REPAIRED_PAUSE_SECONDS)

    def trace(self, what: str) -> None:
        self.world.trace(f"{self.name} {what}")

    def _client(self, machine: str = "") -> Client:
        """Without a machine, on that of the program."""
        NAME.set(self.name)
        world = self.world
        return Client(
            [host.address for host in world.hosts],
            client_id=self.name,
            connect_timeout_ms=self._random.choice((500, 3000)),
            network=ClientNetwork(world.network.node(machine or self.name)),
            random=Random(f"{world.seed}/{self.name}/{self._random.random()}"),
            now_ms=now_ms,
        )
