"""Coordinator of transaction ids: its parts, and the tasks that run for them.

Owns the composition only. Which slots this broker has, and their lines of commands, are the group
coordinator's (`groups/coordinator.py`): an id belongs to the slot of a group of the same name.
(Kafka: TransactionCoordinator)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.transactions.expiry import TransactionExpiry
from raftmq.broker.transactions.joins import JoinRequests
from raftmq.broker.transactions.requests import TransactionRequests
from raftmq.broker.transactions.settling import Settling
from raftmq.broker.transactions.slots import TransactionSlots

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from raftmq.broker.groups.coordinator import GroupCoordinator
    from raftmq.broker.transactions.settling import Ask
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.rpc.reply import Reply
    from raftmq.rpc.server import Handlers
    from raftmq.wire.messages.producers import InitProducerId


class TransactionCoordinator:
    """
    Args:
        ask_settled: asks a broker, which may be this one; raises RaftmqError.
        without_id: answers InitProducerId of producers without a transaction id.
        timeout_ms_max: the longest timeout of a transaction.
        voters: of the quorum; transactions begin once all of them know how.
        confirmed_ms: the wall clock; None while it is not confirmed, and no id expires.
    """

    def __init__(
        self,
        slots: GroupCoordinator,
        quorum: MetadataQuorum,
        *,
        ask_settled: Ask,
        without_id: Callable[[InitProducerId], Reply | Awaitable[Reply]],
        timeout_ms_max: int,
        voters: Collection[int],
        confirmed_ms: Callable[[], int | None],
    ) -> None:
        self.settling = Settling(slots, quorum, ask_settled)
        owned = TransactionSlots(slots, timeout_ms_max=timeout_ms_max, voters=voters)
        self.requests = TransactionRequests(owned, self.settling, without_id=without_id)
        self.joins = JoinRequests(owned)
        self.expiry = TransactionExpiry(slots, confirmed_ms)

    def handlers(self) -> Handlers:
        return {**self.requests.handlers(), **self.joins.handlers()}

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.settling.run)
            nursery.start_soon(self.requests.run)
            nursery.start_soon(self.expiry.run)
