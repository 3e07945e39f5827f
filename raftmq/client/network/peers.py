"""All brokers that a client can send requests to, by id, with their addresses.

Owns which there are; `peer.py` owns the connection to each. Addresses come from the metadata:
`Cluster` calls `set_addresses`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from raftmq.client.network.peer import Dialling, Peer
from raftmq.errors import Unreachable
from raftmq.rpc.backoff import Pauses
from raftmq.rpc.protocol import RpcLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from random import Random

    from anyio.abc import TaskGroup

    from raftmq.client.network.network import Network
    from raftmq.model import Address
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello


class Peers:
    """Nothing is dialled before `run`, nor before a request needs it."""

    def __init__(
        self,
        network: Network,
        *,
        make_hello: Callable[[], Hello],
        random: Random,
        limits: RpcLimits | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        limits, pauses = limits or RpcLimits(), pauses or Pauses()
        self._dialling = Dialling(network, make_hello, random, limits, pauses)
        self._peers: dict[int, Peer] = {}
        self._tasks: TaskGroup | None = None

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """Replace the list of brokers; connections to brokers that have left or moved end."""
        for broker_id in self._peers.keys() - addresses.keys():
            self._peers.pop(broker_id).close()
        for broker_id, address in addresses.items():
            peer = self._peers.get(broker_id)
            if peer is None:  # a new broker
                self._add(broker_id, address)
            elif peer.address != address:
                peer.move(address)

    def is_connected(self, broker_id: int) -> bool:
        peer = self._peers.get(broker_id)
        return peer is not None and peer.is_connected

    async def request(
        self,
        broker_id: int,
        body: Request,
        payload: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Answer:
        """Send a request to a broker; see `Channel.request`.

        Raises:
            Unreachable: nothing was sent. Definite.
            RaftmqError: see there.
        """
        peer = self._peers.get(broker_id)
        if peer is None:
            # A caller that retries in a loop must not block others
            await anyio.lowlevel.checkpoint()
            raise Unreachable(f"broker {broker_id}: no address is known")
        return await peer.request(body, payload, timeout_seconds=timeout_seconds)

    def send_one_way(self, broker_id: int, body: Request, payload: Sequence[Buffer] = ()) -> bool:
        """False if it is not sent: unknown broker, no connection, or a full queue."""
        peer = self._peers.get(broker_id)
        return peer is not None and peer.send_one_way(body, payload)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with anyio.create_task_group() as self._tasks:
                for peer in self._peers.values():
                    self._tasks.start_soon(peer.run)
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    def _add(self, broker_id: int, address: Address) -> None:
        peer = self._peers[broker_id] = Peer(broker_id, address, self._dialling)
        if self._tasks is not None:  # before `run`, that starts it
            self._tasks.start_soon(peer.run)
