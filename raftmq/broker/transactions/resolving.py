"""Leaders end what is open in their logs, as soon as their metadata show what became of it (0038).

Owns when a leader looks: on each change of the metadata, at the partitions that have something open
of the producer ids in it; after changes that cannot be told any more (a snapshot was installed), at
everything that is open here. It has a task of its own, as the one that opens logs and changes roles
waits for disks. What a replica finds open when it begins to lead it resolves by itself.

A transaction that the metadata show as yet to come is granted by nobody if it stays so: after a
while the metadata are brought up to date, and if it is still to come, it is aborted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn, TypeVar

import trio

from raftmq.errors import RaftmqError
from raftmq.model import TransactionOutcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey, PartitionTransaction

T = TypeVar("T")

logger = logging.getLogger("raftmq.broker")

# A decision reaches a broker within milliseconds: what is decided and open for longer was missed.
LOOK_SECONDS = 1.0
# Metadata that are behind for longer are asked for: a forged epoch must not hold up readers.
AHEAD_SECONDS = 10.0
SLICE = 100  # partitions of one turn; others wait for the loop meanwhile
LOOK_SLICE = 5_000  # partitions and transactions, of which each partition may have as many

UNGRANTED = frozenset({TransactionOutcome.AHEAD, TransactionOutcome.FORGED})
DECIDED = frozenset({TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED})


class TransactionResolving:
    """
    Args:
        catch_up: returns once the image holds all that was decided before the call; raises
            RaftmqError.
    """

    def __init__(
        self,
        replicas: Replicas,
        quorum: MetadataQuorum,
        *,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._replicas, self._quorum, self._catch_up = replicas, quorum, catch_up
        self._seen = 0  # the version up to which everything is resolved

    async def run(self) -> NoReturn:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again)
            await self._follow()
        raise AssertionError("follows for ever")

    # -- following the metadata ------------------------------------------------------------

    async def _follow(self) -> NoReturn:
        while True:
            # Until the next version of the metadata.
            await self._quorum.wait_changed(self._seen)
            delta = self._quorum.delta_since(self._seen)
            if delta.is_complete:
                changed, blocks = delta.transactions()
                found = self._replicas.open_transactions.partitions_of(changed, blocks)
                await self._resolve(found)
            else:  # it does not say what changed
                await self._resolve(self._replicas.open_transactions.all())
            self._seen = delta.image.version

    async def _resolve(self, wanted: list[tuple[PartitionKey, frozenset[int]]]) -> None:
        for at, (key, producer_ids) in enumerate(wanted):
            if at % SLICE == SLICE - 1:  # a pause for other tasks
                await trio.lowlevel.checkpoint()
            replica = self._replicas.find(key)
            if replica is not None:
                await _end_open(replica, producer_ids)

    # -- what was missed, and what nobody has granted --------------------------------------

    async def _look_again(self) -> NoReturn:
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Find what is decided and still open, or to come for too long. In all partitions, not by
        the index: what it lacks would stay open for ever."""
        ungranted, index = [], self._replicas.open_transactions
        indexed, passed = set(index.partitions()), 0
        for replica in list(self._replicas.all()):
            if passed >= LOOK_SLICE:
                passed = 0
                await trio.lowlevel.checkpoint()
            found = replica.open_transactions() if replica.leader is not None else []
            passed += 1 + len(found)
            if found or replica.key in indexed:
                index.put(replica.key, {one.producer_id for one in found})
            if not found:  # most partitions, of which a broker may have thousands
                continue
            now = trio.current_time()
            old = [one for one in found if one.since <= now - LOOK_SECONDS]
            missed = [one for one in old if self._outcome(one) in DECIDED]
            if missed:
                await self._resolve_missed(replica, missed)
            ungranted += [
                (replica, one)
                for one in old
                if one.since <= now - AHEAD_SECONDS and self._is_ahead(one)
            ]
        if ungranted:
            await self._abort_ungranted(ungranted)

    async def _resolve_missed(self, replica: Replica, missed: list[PartitionTransaction]) -> None:
        await _end_open(replica, {one.producer_id for one in missed})
        left = set(replica.open_transactions())  # of a log that cannot be written or read
        caught = [one for one in missed if one not in left]
        # A newer image would have had its turn in a moment: nothing was missed.
        if caught and self._seen == self._quorum.image.version:
            what = "decided transactions were still open: log=%s count=%d first_offset=%d"
            logger.warning(what, replica.log.name, len(caught), caught[0].first_offset)

    async def _abort_ungranted(self, suspected: list[tuple[Replica, PartitionTransaction]]) -> None:
        try:
            await self._catch_up()
        except RaftmqError as error:  # they stay open until the quorum can be asked
            what = "transactions that nobody has granted, as far as is known: count=%d reason=%s"
            logger.info(what, len(suspected), error)
            return
        for replica, one in suspected:
            if self._is_ahead(one) and one in replica.open_transactions():  # else decided meanwhile
                what = "aborted, as nobody has granted it: log=%s producer_id=%d epoch=%d"
                logger.warning(what, replica.log.name, one.producer_id, one.producer_epoch)
                replica.resolve({one.producer_id}, aborts_ahead=True)

    def _is_ahead(self, one: PartitionTransaction) -> bool:
        """Or forged: let in while these metadata did not know its producer id, and too far ahead
        of what they know of it since.
        """
        return self._outcome(one) in UNGRANTED

    def _outcome(self, one: PartitionTransaction) -> TransactionOutcome:
        return self._replicas.outcome(one.producer_id, one.producer_epoch)


async def _end_open(replica: Replica, producer_ids: Collection[int]) -> None:
    while replica.resolve(producer_ids):  # with pauses for other tasks, where there are many
        await trio.lowlevel.checkpoint()
