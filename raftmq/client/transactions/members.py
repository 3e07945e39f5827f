"""Members of a shared transaction: their state, their receipts, and what commits them. Pure.

A version of a shared transaction is written by many producers, its members: each has a producer id
of its own, out of the block of that version, in epoch 0, for this one transaction. Whoever commits
lists the members that count, by their receipts; all others are aborted by that. Nothing is decided
by a member. Sends nothing, waits for nothing: `shared.py` does.

Invariant: a receipt is given out only where each record of its member was acknowledged by all
in-sync replicas, so what is committed stands in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.client.transactions.records import (
    REASONS,
    TransactionPhase,
    TransactionRecords,
    transaction_aborted,
)
from raftmq.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTransaction,
    OutcomeUnknown,
    ReplayMismatch,
    UnknownTransaction,
    error_for,
)
from raftmq.model import AbortReason
from raftmq.wire.bodies import ABSENT, TopicPartition
from raftmq.wire.messages.transactions import (
    MEMBERS_MAX,
    TRANSACTION_PARTITIONS_MAX,
    EndTxn,
)
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.wire.messages.transactions import EndTxnReply, JoinTransactionReply

# Of a version that is not open any more, or an id that is forgotten.
_OVER = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)

# Of an id that is forgotten, or a version below the newest: whether it was committed nobody knows.
_UNKNOWN = (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.PRODUCER_FENCED)


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a member has written: to be brought to whoever commits the version, by pickle or as its
    fields.

    Attributes:
        transaction_id, lineage, version: of which transaction.
        block, number: which member of which opening of the version; -1: it has written nothing.
        partitions: topic id and number of each partition in which it has records.
        count: its records; where `is_done`, those that were dropped.
        is_done: the version was committed before.
    """

    transaction_id: str
    lineage: str
    version: int
    block: int = ABSENT
    number: int = ABSENT
    partitions: tuple[tuple[bytes, int], ...] = ()
    count: int = 0
    is_done: bool = False


@dataclass(frozen=True)
class CommittedVersion:
    """A version of a shared transaction that is committed.

    Attributes:
        is_repeated: it was committed before, or by an attempt of this call whose answer was lost.
        count: of its rows, as its committer has told it; None: not known any more, as a higher
            version was committed since.
    """

    is_repeated: bool
    count: int | None


@dataclass(frozen=True)
class VersionId:
    """Which version of which shared transaction, and whose."""

    transaction_id: str
    lineage: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of transaction {self.transaction_id!r}"

    def receipt(self, count: int, *, is_done: bool = False) -> Receipt:
        """Of a member that has written nothing."""
        return Receipt(
            transaction_id=self.transaction_id,
            lineage=self.lineage,
            version=self.version,
            count=count,
            is_done=is_done,
        )

    def end_request(self, *, is_commit: bool) -> EndTxn:
        return EndTxn(
            self.transaction_id,
            ABSENT,
            0,
            is_commit,
            reason=AbortReason.NONE if is_commit else AbortReason.PROGRAM,
            transaction_version=self.version,
            lineage=self.lineage,
        )

    def commit_of(self, receipts: Iterable[Receipt], count: int | None) -> EndTxn:
        """The request that commits what these members have written.

        Args:
            count: of the rows; None: the sum of the receipts'.

        Raises:
            TypeError: something else than a receipt.
            InvalidTransaction: a receipt of another version.
            InvalidRequest: they name too many partitions.
            TransactionAborted: they are of two openings of the version, the first of which was
                aborted: its members' records are gone.
        """
        writers: dict[tuple[int, int], Receipt] = {}
        rows = 0
        for receipt in receipts:
            self._check(receipt)
            member = receipt.block, receipt.number
            # A receipt that comes twice is one member all the same.
            if receipt.block < 0 or member not in writers:
                rows += receipt.count
            if receipt.block >= 0:
                writers[member] = receipt
        blocks = {block for block, _ in writers}
        if len(blocks) > 1:
            raise transaction_aborted(
                f"{self} was aborted after some of these members had joined, and begun anew by "
                "others: what the first have written is gone; let all of them write again",
                "",
            )
        partitions = {place: None for one in writers.values() for place in one.partitions}
        if len(partitions) > TRANSACTION_PARTITIONS_MAX:
            raise InvalidRequest(
                f"{self}: records in {len(partitions)} partitions, at most "
                f"{TRANSACTION_PARTITIONS_MAX}: commit more often, or send to fewer topics"
            )
        return replace(
            self.end_request(is_commit=True),
            producer_id=next(iter(blocks), ABSENT),
            count=rows if count is None else count,
            partitions=tuple(TopicPartition(*place) for place in partitions),
            numbers=bits_of(number for _, number in writers),
        )

    def _check(self, receipt: Receipt) -> None:
        if not isinstance(receipt, Receipt):
            raise TypeError(f"a receipt is expected, and {kind_of(receipt)} was given")
        theirs = VersionId(receipt.transaction_id, receipt.lineage, receipt.version)
        if theirs != self:
            raise InvalidTransaction(
                f"{self}, lineage {self.lineage!r}: a receipt is of {theirs}, lineage "
                f"{theirs.lineage!r}"
            )

    def committed(self, reply: EndTxnReply, count: int, *, was_doubted: bool) -> CommittedVersion:
        """What the answer to a commit of so many rows means.

        Args:
            was_doubted: an attempt before had no answer.

        Raises:
            TransactionAborted: nothing of it counts. Definite.
            InvalidTransaction: the id is a single producer's, or of another lineage. Definite.
            UnknownTransaction: the id was forgotten; what an earlier commit has done nobody knows.
            ProducerFenced: a higher version was begun or committed since. Definite.
            OutcomeUnknown: the same where an attempt of this commit had no answer. Indefinite.
            ReplayMismatch: it was committed before, with another number of rows.
            RaftmqError: what else is refused.
        """
        if reply.error in _UNKNOWN and was_doubted:
            raise OutcomeUnknown(f"{self}: {reply.message}")
        if reply.error == ErrorCode.INVALID_PRODUCER_EPOCH:
            raise transaction_aborted(f"{self} was aborted before: {reply.message}", "")
        if reply.error:
            raise error_for(reply.error, reply.message)
        if not reply.is_committed:
            reason = REASONS[AbortReason(reply.reason)]
            raise transaction_aborted(
                f"{self} was aborted before ({reason or 'reason not told'})", reason
            )
        return self._done(reply.count, count, is_repeated=reply.is_repeated)

    def done_before(self, reply: EndTxnReply, count: int) -> CommittedVersion:
        """What the answer to an abort means where members were told that it was committed before,
        and have dropped what they had: so many rows in all.

        Raises:
            UnknownTransaction: the id was forgotten since.
            ReplayMismatch: it had another number of rows.
            RaftmqError: what is refused.
        """
        if self.aborted(reply) is None:
            raise UnknownTransaction(
                f"{self} was committed when its members asked, and the id was forgotten since: "
                "look for its records; the same version would be committed anew"
            )
        return self._done(reply.count, count, is_repeated=True)

    def aborted(self, reply: EndTxnReply) -> CommittedVersion | None:
        """What the answer to an abort means. None: it is not committed.

        Raises:
            InvalidTransaction: the id is a single producer's, or of another lineage.
            RaftmqError: what else is refused.
        """
        if reply.error and reply.error not in _OVER:
            raise error_for(reply.error, reply.message)
        if not reply.is_committed:
            return None
        return self._done(reply.count, ABSENT, is_repeated=True)

    def _done(self, known: int, count: int, *, is_repeated: bool) -> CommittedVersion:
        """It is committed; a repetition must be of as many rows, where both numbers are known.

        Raises:
            ReplayMismatch: it is not.
        """
        if is_repeated and ABSENT not in (known, count) and known != count:
            raise ReplayMismatch(
                f"{self} was committed before with {known} rows, and now has {count}: nothing was "
                "changed; rows that are new need a version of their own"
            )
        told = known if is_repeated else count
        return CommittedVersion(is_repeated, None if told == ABSENT else told)


class MemberMachine(TransactionRecords):
    """The only transaction of one member. It has no end of its own."""

    ENDED_BY = (
        "its version was committed without it, or was aborted by its program, by an operator or as "
        "a higher one was begun"
    )
    OUTSIDE = "sent after the end of the member's block, and not taken"

    def __init__(self, version: VersionId, timeout_ms: int) -> None:
        super().__init__(version.transaction_id, timeout_ms, _nobody)
        self.version = version
        self._block = self._number = ABSENT

    def __str__(self) -> str:
        return f"member of {self.version}"

    def on_joined(self, reply: JoinTransactionReply) -> None:
        """Records may be sent, unless the version was committed before."""
        assert self.phase is TransactionPhase.CLOSED, "it joins once"
        # As whoever has opened the version wanted it.
        self._timeout_ms = reply.transaction_timeout_ms or self._timeout_ms
        if not reply.is_done:
            self._block, self._number = reply.block, reply.number
            self.number, self.phase = (reply.block + reply.number, 0), TransactionPhase.OPEN

    def give_up(self) -> None:
        """Its block ends with an error: what has left does not count, and no more leaves."""
        if self.phase is TransactionPhase.OPEN:
            told = f"{self}: the block of a member has ended with an error"
            self.end_with(transaction_aborted(told, REASONS[AbortReason.PROGRAM]))

    def receipt(self, count: int) -> Receipt:
        """Of its records, all of which were acknowledged."""
        assert self.phase is TransactionPhase.OPEN, "it must not be committed"
        places = tuple((place.topic_id, place.partition) for place in self._partitions)
        found = self.version.receipt(count)
        if not places:
            return found
        return replaced(found, block=self._block, number=self._number, partitions=places)


def _nobody() -> None:
    pass


def bits_of(numbers: Iterable[int]) -> bytes:
    """As the request lists members: number n is bit n % 8 of byte n // 8."""
    found = bytearray(MEMBERS_MAX // 8)
    for number in numbers:
        found[number // 8] |= 1 << number % 8
    return bytes(found).rstrip(b"\0")
