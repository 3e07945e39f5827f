"""All brokers that this node may ask something, by id.

Owns which there are; `peer.py` owns the way to each. Addresses come from the metadata: whoever
follows it calls `set_addresses`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import Unreachable
from raftmq.rpc.backoff import Pauses
from raftmq.rpc.limits import Limits
from raftmq.rpc.peer import Dialling, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from raftmq.errors import RaftmqError
    from raftmq.model import Address
    from raftmq.rpc.peer import Dial
    from raftmq.rpc.reply import Answer, Payload
    from raftmq.rpc.sending import RunSync
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import Hello


class Peers:
    """Nothing is dialled before `run`, nor before somebody asks."""

    def __init__(
        self,
        dial: Dial,
        *,
        make_hello: Callable[[], Hello],
        random: Random,
        limits: Limits | None = None,
        pauses: Pauses | None = None,
        on_left: Callable[[int], None] = lambda _broker_id: None,
        run_sync: RunSync = trio.to_thread.run_sync,
    ) -> None:
        """`on_left`: told when the channel with a broker is over, whatever the reason."""
        self._dialling = Dialling(
            dial, make_hello, random, limits or Limits(), pauses or Pauses(), run_sync, on_left
        )
        self._peers: dict[int, Peer] = {}
        self._nursery: trio.Nursery | None = None

    def set_addresses(self, addresses: Mapping[int, Address]) -> None:
        """These are all there are; channels to whoever left or moved end."""
        for broker_id in self._peers.keys() - addresses.keys():
            self._peers.pop(broker_id).close()
        for broker_id, address in addresses.items():
            peer = self._peers.get(broker_id)
            if peer is None:
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
        payload: Payload = (),
        *,
        timeout_seconds: float,
        trace: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask a broker; see `Channel.request`.

        Raises:
            Unreachable: nothing was sent. Definite.
            RaftmqError: see there.
        """
        peer = self._peers.get(broker_id)
        if peer is None:
            await trio.lowlevel.checkpoint()
            raise Unreachable(f"broker {broker_id}: no address is known")
        return await peer.request(body, payload, timeout_seconds=timeout_seconds, trace=trace)

    def ask(
        self,
        broker_id: int,
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> bool:
        """See `Channel.ask`; False if there is no channel now, and then nothing is sent or told."""
        peer = self._peers.get(broker_id)
        return peer is not None and peer.ask(body, on_outcome, timeout_seconds=timeout_seconds)

    def send_one_way(self, broker_id: int, body: Request, payload: Payload = ()) -> bool:
        """False if it is not sent: no such broker, no channel, or too much waits already."""
        peer = self._peers.get(broker_id)
        return peer is not None and peer.send_one_way(body, payload)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for peer in self._peers.values():
                    self._nursery.start_soon(peer.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def _add(self, broker_id: int, address: Address) -> None:
        peer = self._peers[broker_id] = Peer(broker_id, address, self._dialling)
        if self._nursery is not None:
            self._nursery.start_soon(peer.run)
