"""The state of a producer's transaction, and what answers of its coordinator mean. Pure.

Kafka: TransactionManager. A transaction is a producer id in one of its epochs; each decision gives
the number of the next one (decision 0038). Sends nothing, waits for nothing: `session.py` does.

Invariants: a commit is asked only where every record was acknowledged; what is asked once is asked
in the same form until it is answered, so no transaction is decided in two ways; nothing gets a
number between the end of a transaction and the answer that names the next one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from raftmq.client.transactions.records import (
    FAILED_SEND,
    GROUP,
    REASONS,
    TIMEOUT,
    TransactionPhase,
    TransactionRecords,
    transaction_aborted,
)
from raftmq.errors import (
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    OutcomeUnknown,
    ProducerFenced,
    RebalanceInProgress,
    TransactionAborted,
    UnknownMemberId,
    UnsupportedVersion,
    error_for,
)
from raftmq.model import AbortReason
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.producers import InitProducerId
from raftmq.wire.messages.transactions import EndTxn

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError
    from raftmq.wire.messages.producers import InitProducerIdReply
    from raftmq.wire.messages.transactions import EndTxnReply, GroupOffsets

# Of an epoch that is over, or of an id that is forgotten.
_OVER = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
_OF_GROUP = (IllegalGeneration, UnknownMemberId, RebalanceInProgress)


class TransactionMachine(TransactionRecords):
    """The transactions of one producer, one after the other.

    Args:
        owner: 16 random bytes of this producer.

    Attributes:
        is_committed: what became of the newest transaction that is over; None: not known.
        abort_reason: why the newest one that is over was aborted, where its coordinator said it.
        last_version, last_count: the highest version that was committed, and its rows; -1: none.
        is_in_doubt: an attempt to commit the present transaction may have been carried out.
    """

    def __init__(
        self,
        transaction_id: str,
        owner: bytes,
        *,
        timeout_ms: int,
        is_ephemeral: bool = False,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(transaction_id, timeout_ms, on_end)
        self._owner, self._is_ephemeral = owner, is_ephemeral
        self.is_committed: bool | None = None
        self.is_in_doubt = False
        self.abort_reason = ""
        self.last_version = self.last_count = ABSENT
        self._opening = 0
        self._version = self._count = ABSENT
        self._asked: EndTxn | None = None
        self._was_asked = False  # the end of the present transaction

    @property
    def is_empty(self) -> bool:
        """Nothing has left under its number, and no end of it was asked."""
        return not self._partitions and not self._was_asked

    @property
    def is_asked(self) -> bool:
        """An end was asked, and is not answered."""
        return self._asked is not None

    # -- opening the id --------------------------------------------------------------------

    def begin_opening(self) -> None:
        """The same opening is asked until it is answered: a repetition changes nothing then."""
        assert self.phase is TransactionPhase.CLOSED, "it is open"
        self._opening += 1

    def open_request(self, timeout_ms: int) -> InitProducerId:
        return InitProducerId(
            timeout_ms,
            self.transaction_id,
            self._owner,
            self._opening,
            self._timeout_ms,
            self._is_ephemeral,
        )

    def on_opened(self, reply: InitProducerIdReply) -> None:
        """Raises the answer's error, or UnsupportedVersion; ProducerFenced for good."""
        if reply.error:
            self._check_fenced(reply.error, reply.message)
            raise error_for(reply.error, reply.message)
        # From before transactions: such a broker gives a producer id to any producer.
        if ABSENT in (reply.producer_id, reply.producer_epoch):
            raise UnsupportedVersion("the coordinator is of an older version: upgrade all nodes")
        self.number = reply.producer_id, reply.producer_epoch
        self._timeout_ms = reply.transaction_timeout_ms or self._timeout_ms
        self.last_version, self.last_count = reply.last_version, reply.last_count
        self.phase, self.error = TransactionPhase.READY, None

    # -- a transaction ---------------------------------------------------------------------

    def _end_request(self, *, is_commit: bool) -> EndTxn:
        assert self.number is not None, "a transaction without a number"
        return EndTxn(self.transaction_id, *self.number, is_commit, self._owner)

    def begin(self, *, version: int = ABSENT, count: int = ABSENT) -> None:
        assert self.phase is TransactionPhase.READY, (
            "another one is not over, or there is no number"
        )
        self.phase, self.error, self.is_committed = TransactionPhase.OPEN, None, None
        self.abort_reason = ""
        self._version, self._count, self._partitions = version, count, {}
        self.latest_at, self.is_in_doubt, self._was_asked = math.inf, False, False

    def set_count(self, count: int) -> None:
        """How many rows the version has, where the program knows that at its end only."""
        self._count = count

    # -- its end ---------------------------------------------------------------------------

    def finish_empty(self) -> None:
        """Nothing has left, and no offsets are committed: there is nothing to decide."""
        assert self.is_empty, "something has left"
        self.phase, self.error = TransactionPhase.READY, None

    def ask_commit(
        self, groups: tuple[GroupOffsets, ...], *, wait_settled: bool, now: float
    ) -> None:
        """All records were acknowledged, and no further ones are taken."""
        assert self.phase is TransactionPhase.OPEN, "only what is whole may be committed"
        self.phase, self._was_asked = TransactionPhase.COMMITTING, True
        self.latest_at = min(self.latest_at, now + self.timeout_seconds)
        self._asked = replace(
            self._end_request(is_commit=True),
            transaction_version=self._version,
            count=self._count,
            partitions=tuple(self._partitions),
            groups=groups,
            wait_settled=wait_settled,
        )

    def ask_abort(self) -> None:
        assert self.phase in (TransactionPhase.OPEN, TransactionPhase.MUST_ABORT), (
            "there is nothing to abort"
        )
        self.phase = TransactionPhase.ABORTING
        self._asked = replace(self._end_request(is_commit=False), reason=AbortReason.PROGRAM)

    def end_request(self, timeout_ms: int, now: float) -> EndTxn:
        """The same in each attempt. Where time is over, what is asked is whether it was committed:
        a commit would be new then, and an abort tells of one that is not.
        """
        assert self._asked is not None, "nothing is asked"
        if self._asked.is_commit and self.is_in_doubt and self.is_late(now):
            ask = replace(self._end_request(is_commit=False), reason=AbortReason.TIMEOUT)
            return replace(ask, timeout_ms=timeout_ms)
        return replace(self._asked, timeout_ms=timeout_ms)

    def on_no_answer(self, error: RaftmqError) -> None:
        """An attempt has failed; indefinite: it may have been carried out, or may be later."""
        if not error.definite:
            self._doubt()

    def _doubt(self) -> None:
        """Not of an abort: whatever else is asked, it stays to be decided so."""
        if self._asked is not None and self._asked.is_commit:
            self.is_in_doubt = True

    def give_up(self, error: RaftmqError) -> NoReturn:
        """The time for an answer is over.

        Raises:
            OutcomeUnknown: of a commit; it is asked again before the next transaction.
            RaftmqError: `error`.
        """
        assert self._asked is not None, "nothing is asked"
        if not self._asked.is_commit:
            raise error
        if not self.is_in_doubt:  # no attempt has arrived: it is aborted instead
            self._asked = None
            self.phase = TransactionPhase.MUST_ABORT
            self.error = transaction_aborted(
                f"{self} is aborted, as its commit has reached no coordinator: {error}",
                TIMEOUT,
            )
            raise self.error from error
        self.phase = TransactionPhase.UNKNOWN
        raise OutcomeUnknown(
            f"{self}: the coordinator has not said whether it is committed ({error}); "
            "tx.resolve() asks again, and so does the next transaction"
        ) from error

    def on_ended(self, reply: EndTxnReply) -> None:
        """The answer to what was asked.

        Raises:
            TransactionAborted: a commit was asked. Definite.
            ProducerFenced: another producer has the id, or the member of the group. Definite.
            OutcomeUnknown: nobody can say any more. Indefinite.
            RaftmqError: it is to be asked again (retriable).
        """
        assert self._asked is not None, "nothing was asked"
        if reply.error:
            self._on_refused(reply)
            return
        was_commit, in_doubt = self._asked.is_commit, self.is_in_doubt
        if not reply.is_committed and reply.reason == AbortReason.OWNER:
            self.is_in_doubt = False  # it is told, and will not change
            self._on_fenced(f"{self}: another producer has opened it since")
        self.abort_reason = "" if reply.is_committed else REASONS[AbortReason(reply.reason)]
        is_overtaken = ABSENT in (reply.producer_id, reply.producer_epoch)
        self.number = None if is_overtaken else (reply.producer_id, reply.producer_epoch)
        if reply.is_committed and self._version != ABSENT and was_commit:
            self._on_version(reply.count)
        self._over(TransactionPhase.READY, is_committed=reply.is_committed)
        if is_overtaken:  # it was decided before another producer has opened the id
            self.phase = TransactionPhase.FENCED
            self.error = ProducerFenced(f"{self}: another producer has opened it since")
        if was_commit and not reply.is_committed:
            reason = REASONS[AbortReason(reply.reason)]
            if in_doubt and reason == TIMEOUT:
                raise transaction_aborted(
                    f"{self}: its time was over before a commit has arrived", reason
                )
            raise transaction_aborted(
                f"{self} was aborted before ({reason or 'reason not told'})", reason
            )

    def _on_version(self, count: int) -> None:
        if self._version >= self.last_version:
            told = count if count != ABSENT else self._count
            self.last_version, self.last_count = self._version, told

    def _on_refused(self, reply: EndTxnReply) -> None:
        """
        1. To be asked again: it has not been decided, or the coordinator does not know.
        2. Of another owner: for good.
        3. Over, and not the newest one that is over: what became of it is not known any more,
           unless no commit can have arrived.
        4. A group refuses its offsets, or the commit is not valid: it stays open, to be aborted.
        """
        assert self._asked is not None, "nothing was asked"
        self._check_fenced(reply.error, reply.message)  # case 2
        error = error_for(reply.error, reply.message)
        self.on_no_answer(error)  # the coordinator may not know either, as its quorum is silent
        is_to_repeat = error.retriable and not isinstance(error, _OF_GROUP)
        if is_to_repeat or not error.definite:  # case 1
            raise error
        is_over = reply.error in _OVER
        if is_over:  # case 3
            was_doubted, was_commit = self.is_in_doubt, self._asked.is_commit
            self._over(TransactionPhase.CLOSED, is_committed=None if was_doubted else False)
            if was_doubted:
                raise OutcomeUnknown(
                    f"{self}: what became of it is not known any more: {error}"
                ) from error
            if was_commit:
                raise transaction_aborted(f"{self}: {error}", "") from error
            return
        if not self._asked.is_commit:  # an abort that is refused: nothing is left to do but wait
            raise error
        self._asked = None  # case 4
        self.phase, self.error = TransactionPhase.MUST_ABORT, self._refused(error)
        if isinstance(error, FencedInstanceId):
            fenced = ProducerFenced(f"{self}: {error}")
            fenced.__cause__ = error
            self.error = fenced
        raise self.error

    def refuse(self, error: RaftmqError) -> None:
        """Its offsets cannot be committed: another member has the partition, for example."""
        if self.phase is TransactionPhase.OPEN:
            self.end_with(self._refused(error))

    def _refused(self, error: RaftmqError) -> TransactionAborted:
        if isinstance(error, (*_OF_GROUP, FencedInstanceId)):
            aborted = transaction_aborted(
                f"{self} cannot be committed with its offsets, and is aborted: leave its block and "
                f"open the consumer anew, which goes on where its group stands ({error})",
                GROUP,
            )
        else:
            aborted = transaction_aborted(f"{self} cannot be committed: {error}", FAILED_SEND)
        aborted.__cause__ = error
        return aborted

    def interrupt(self) -> None:
        """What waited for the answer was cancelled: it may come to be carried out."""
        self._doubt()
        if self.phase is TransactionPhase.COMMITTING:
            self.phase = TransactionPhase.UNKNOWN

    def is_refused_by_group(self, error: RaftmqError) -> bool:
        """It may be asked again, with other offsets or in a newer generation."""
        is_open = self.phase is TransactionPhase.MUST_ABORT
        return is_open and isinstance(error, TransactionAborted) and error.reason == GROUP

    def ask_again(self) -> None:
        """After a group has refused: with other offsets, or in its newer generation."""
        assert self.phase is TransactionPhase.MUST_ABORT, "only what was refused is asked again"
        self.phase, self.error = TransactionPhase.OPEN, None

    def _over(self, phase: TransactionPhase, *, is_committed: bool | None) -> None:
        fatal = self.error if isinstance(self.error, ProducerFenced) else None
        self._asked, self.is_in_doubt, self.is_committed = None, False, is_committed
        self.phase, self.error = phase, None
        if fatal is not None:  # the member of its group was replaced: it was aborted, and ends
            self.phase, self.error = TransactionPhase.FENCED, fatal

    def _check_fenced(self, number: int, message: str) -> None:
        if number == ErrorCode.PRODUCER_FENCED:
            self._on_fenced(message)

    def _on_fenced(self, message: str) -> NoReturn:
        """For good. What was asked has not happened, unless an earlier attempt was carried out."""
        was_doubted, self.is_in_doubt = self.is_in_doubt, False
        self.number, self._asked = None, None
        self.phase, self.error = TransactionPhase.FENCED, ProducerFenced(message)
        self.is_committed = None if was_doubted else False
        self.on_end()
        if was_doubted:
            raise OutcomeUnknown(
                f"{self}: what became of it is not known any more: {message}"
            ) from self.error
        raise self.error
