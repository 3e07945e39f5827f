"""What a broker does for the transactions in partitions that it leads: composition of its parts.

Owns which parts there are: `resolving` ends what is open once it is decided, `deadlines` has it
decided where it takes too long, `partition_requests` tells of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.transactions.deadlines import TransactionDeadlines
from raftmq.broker.transactions.partition_requests import PartitionTransactionRequests
from raftmq.broker.transactions.resolving import TransactionResolving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.broker.transactions.deadlines import Ask
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.rpc.server import Handlers


class LedTransactions:
    """
    Args:
        catch_up: returns once the image holds all that was decided before the call; raises
            RaftmqError.
        ask_end: asks a coordinator, which may be on this broker; raises RaftmqError.
    """

    def __init__(
        self,
        replicas: Replicas,
        quorum: MetadataQuorum,
        *,
        catch_up: Callable[[], Awaitable[None]],
        ask_end: Ask,
    ) -> None:
        self.requests = PartitionTransactionRequests(replicas)
        self._resolving = TransactionResolving(replicas, quorum, catch_up=catch_up)
        self._deadlines = TransactionDeadlines(replicas, quorum, ask_end)

    def handlers(self) -> Handlers:
        return self.requests.handlers()

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._resolving.run)
            nursery.start_soon(self._deadlines.run)
