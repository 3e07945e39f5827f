"""Admission: the check of a request's batches before a leader appends any of them. Pure.

Owns the order of the rules: sequences, fences, transactions, room in the caches (docs/decisions/
0020, 0022, 0038). Kafka: UnifiedLog.analyzeAndValidateProducerState, and the transaction verifier,
which needs a request to the coordinator where this reads the broker's own metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import (
    ConcurrentTransactions,
    InvalidTransaction,
    ProducerFenced,
    TooManyProducers,
    TransactionAborted,
    UnknownProducerId,
)
from raftmq.model import TransactionOutcome
from raftmq.partition.sequences import (
    after,
    check_named,
    check_numbers,
    fenced,
    name_of,
    stands_at,
)
from raftmq.partition.transactions import OPEN_MAX
from raftmq.wire.batch.header import TRANSACTIONAL_BIT, is_named

if TYPE_CHECKING:
    from raftmq.partition.producers import Producers
    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.transactions import OutcomeOf
    from raftmq.wire.batch.header import Account, BatchHeader


class EarlierTransactionDecided(Exception):
    """The producer has an earlier transaction open here, whose marker is due: append that first,
    then check the request again. Nothing was appended."""

    def __init__(self, producer_id: int) -> None:
        super().__init__(producer_id)
        self.producer_id = producer_id


def no_transactions(_producer_id: int, _producer_epoch: int) -> TransactionOutcome:
    """Where there are no metadata: nobody has given out a transaction."""
    return TransactionOutcome.FORGED


class Admission:
    """Checks the batches of one request in their order, before any of them is appended: either
    all of them are accepted or nothing is written.

    Args:
        outcome_of: what the newest metadata of this broker say of a transaction.
        has_acks_all: whether the request is answered once its records are committed.
    """

    def __init__(
        self,
        producers: Producers,
        now: float,
        *,
        outcome_of: OutcomeOf = no_transactions,
        has_acks_all: bool = True,
    ) -> None:
        self._producers, self._now = producers, now
        self._outcome_of, self._has_acks_all = outcome_of, has_acks_all
        self._ahead: dict[int, ProducerState] = {}  # states after the batches accepted so far
        # Unknown producers among them, which are all plain: a batch of an unknown name is refused
        # (`check_named`), and a fence comes alone. So the sum is that of one cache.
        self._new = 0
        self._opened = 0  # transactions that begin with this request

    def original_offset(self, placed: BatchHeader, account: Account | None = None) -> int | None:
        """The offset of the original if the batch is a duplicate; None: it is the next one, and
        will stand where `placed` has it. `account`: generation and digest, of a named producer.

        Raises:
            InvalidRecord, OutOfOrderSequence, DuplicateSequence, InvalidProducerEpoch,
            UnknownProducerId, ProducerFenced, TooManyProducers, InvalidTransaction,
            TransactionAborted, ConcurrentTransactions: nothing of the request may be appended.
            EarlierTransactionDecided: not before its marker.
        """
        check_numbers(placed)
        producer_id = placed.producer_id
        known = self._find(producer_id)
        if placed.attributes & TRANSACTIONAL_BIT:
            original = self._original_in_transaction(known, placed)
        else:
            _check_nothing_open(known, placed)
            if is_named(producer_id):  # they begin with a fence, not with sequence 0
                check_named(known, placed, account)
            original = stands_at(known, placed)
            if original is None and known is None:  # only an unknown producer needs room
                self._check_room(producer_id)
        if original is None:
            self._ahead[producer_id] = after(known, placed, account)
        return original

    def _original_in_transaction(
        self, known: ProducerState | None, placed: BatchHeader
    ) -> int | None:
        """
        1. What no transaction may have.
        2. A duplicate of what stands here, before the outcome: it belongs to its transaction.
        3. Decided, as this broker knows: nothing may be added to it. This holds, too, where the
           producer is forgotten: a late copy would become part of a commit that is not settled.
        4. An earlier transaction of the producer is open here: it ends first.
        5. More open ones than the partition may have.
        6. Open, or not known here yet: if it was decided before, or never given out, the leader
           ends it when it hears of it.
        """
        self._check_allowed(placed)  # case 1
        if known is not None and known.epoch == placed.producer_epoch:  # case 2
            original = known.offset_of(placed.base_sequence, placed.record_count)
            if original is not None and placed.base_sequence != known.next_sequence:
                return original
        self._check_outcome(placed)  # case 3
        self._check_earlier(known, placed)  # case 4
        is_open = known is not None and known.open_offset >= 0
        if not is_open:
            self._opened += 1
            if len(self._producers.transactions.open) + self._opened > OPEN_MAX:  # case 5
                raise TooManyProducers(
                    f"{name_of(placed)}: the partition has {OPEN_MAX} open transactions: end some, "
                    "or let fewer producers write it"
                )
        return stands_at(known, placed)  # case 6

    def _check_allowed(self, placed: BatchHeader) -> None:
        if is_named(placed.producer_id):
            raise InvalidTransaction(
                f"{name_of(placed)}: named producers have no transactions: send without the name"
            )
        # A commit needs to know of each batch that it is committed in its partition.
        if not self._has_acks_all:
            raise InvalidTransaction(f"{name_of(placed)}: transactions need acks=all")

    def _check_outcome(self, placed: BatchHeader) -> None:
        outcome = self._outcome_of(placed.producer_id, placed.producer_epoch)
        if outcome is TransactionOutcome.COMMITTED:
            raise ProducerFenced(f"{name_of(placed)}: the transaction was committed before")
        if outcome is TransactionOutcome.ABORTED:
            raise TransactionAborted(
                f"{name_of(placed)}: the transaction was aborted: by its timeout, an operator, or "
                "another producer that has opened its id"
            )
        if outcome is TransactionOutcome.FORGED:  # it would lock the id's owner out
            raise ConcurrentTransactions(
                f"{name_of(placed)}: this broker knows of no such transaction: send again"
            )

    def _check_earlier(self, known: ProducerState | None, placed: BatchHeader) -> None:
        producer_id = placed.producer_id
        if known is None or known.open_offset < 0:
            return
        transactions = self._producers.transactions
        if known.epoch < placed.producer_epoch:
            is_noted = producer_id in transactions.open  # else it begins in this very request
            if is_noted and transactions.marker_for(producer_id, self._outcome_of) is not None:
                raise EarlierTransactionDecided(producer_id)
            raise ConcurrentTransactions(
                f"{name_of(placed)}: the transaction before, of epoch {known.epoch}, is open here: "
                "send again"
            )
        if transactions.is_doubtful(producer_id):  # its sequence is not known any more
            raise UnknownProducerId(
                f"{name_of(placed)}: batches of the transaction may be among those that cannot be "
                "read here: abort it"
            )

    def fence(
        self, producer_id: int, generation: int, *, partition_count: int = 0
    ) -> ProducerState:
        """The state of a named producer once it is fenced; see `fenced`.

        Raises:
            ProducerFenced, TooManyProducers: nothing may be appended.
        """
        assert is_named(producer_id), producer_id
        known = self._find(producer_id)
        following = fenced(known, generation, partition_count=partition_count)
        if known is None:  # as above
            self._check_room(producer_id)
        return following

    def _find(self, producer_id: int) -> ProducerState | None:
        # First, so that an answer does not depend on when the last cleaning was.
        self._producers.forget_idle(self._now)
        return self._ahead.get(producer_id) or self._producers.get(producer_id)

    def _check_room(self, producer_id: int) -> None:
        self._new += 1
        cache = self._producers.cache_of(producer_id)
        if not cache.has_room(self._new, self._producers.latest, but=self._ahead):
            what = "producer name" if is_named(producer_id) else "producer"
            raise TooManyProducers(
                f"{what} {producer_id} is new, and the partition knows {cache.limits.producers_max}"
                f" that all have appended within {cache.limits.spare_seconds:g} s: let fewer "
                f"{what}s write it, each for longer, or send without "
                f"{'a name' if is_named(producer_id) else 'idempotence'}"
            )


def _check_nothing_open(known: ProducerState | None, placed: BatchHeader) -> None:
    if known is not None and known.open_offset >= 0:
        raise InvalidTransaction(
            f"{name_of(placed)}: the producer has a transaction open, from offset "
            f"{known.open_offset} on: end it before records outside of transactions are sent"
        )
