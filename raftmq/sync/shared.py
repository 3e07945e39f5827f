"""Blocking shared transactions: `client.shared_transaction(...)`, its versions and their members.

Owns the hand-over of one member's records to the loop, from its block's begin to its end.
Parameters and docstrings of the calls are written by `python -m tests.sync_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from raftmq.client.producer.options import member_options
from raftmq.client.type_parameters import KeyT_contra, ValueT_contra
from raftmq.sync.handover import Handover
from raftmq.sync.loop import LoopCall
from raftmq.sync.producer import Producer, shares_of_buffer
from raftmq.sync.sending import TransactionSender

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self, Unpack

    from raftmq.client.producer.options import MemberArguments, PlainMemberArguments
    from raftmq.client.producer.statistics import Statistics
    from raftmq.client.transactions.members import CommittedVersion, Receipt
    from raftmq.client.transactions.shared import Member as AsyncMember
    from raftmq.client.transactions.shared import SharedTransaction as AsyncSharedTransaction
    from raftmq.client.transactions.shared import SharedVersion as AsyncSharedVersion
    from raftmq.client.type_parameters import KeyT, ValueT
    from raftmq.sync.loop import Loop

T = TypeVar("T")


class SharedTransaction:
    """A transaction id whose versions many producers write; see `Client.shared_transaction`.

    Attributes:
        transaction_id, lineage: what it was made with.
    """

    def __init__(self, loop: Loop, shared: AsyncSharedTransaction) -> None:
        self._loop, self._shared = loop, shared
        self.transaction_id, self.lineage = shared.transaction_id, shared.lineage

    def __repr__(self) -> str:
        return repr(self._shared)

    def version(self, number: int) -> SharedVersion:
        """One transaction of it. Asks nothing of the cluster.

        Args:
            number: rises from one version to the next, and may skip; each is committed once.

        Raises:
            InvalidTransaction: it is not 0 or more. Definite.
        """
        return SharedVersion(self._loop, self._shared.version(number))


class SharedVersion:
    """One version of a shared transaction, in each process that has to do with it.

    Attributes:
        number: that of the version.
    """

    def __init__(self, loop: Loop, version: AsyncSharedVersion) -> None:
        self._loop, self._version = loop, version
        self.number = version.number

    def __repr__(self) -> str:
        return repr(self._version)

    @overload
    def join(self, **options: Unpack[PlainMemberArguments]) -> Member: ...
    @overload
    def join(self, **options: Unpack[MemberArguments[ValueT, KeyT]]) -> Member[ValueT, KeyT]: ...
    def join(self, **options: Unpack[MemberArguments[ValueT, KeyT]]) -> Member[ValueT, KeyT]:
        """One more producer of the version: `with version.join() as member:`.

        Args:
            options: those of a producer, but for `acks`, `idempotence`, `delivery`, `name` and
                those of transactions: a member is always as safe as a transaction is.

        Returns:
            The member, to be entered.

        Raises:
            TypeError: an unknown option.
            InvalidConfig: values that are out of bounds or contradict each other, all at once.
        """
        self._loop.check_process()
        timeout_ms = self._version._shared._timeout_ms
        checked = member_options(options, transaction_timeout_ms=timeout_ms)
        handover_bytes, options["buffer_memory"] = shares_of_buffer(checked)
        member = self._loop.evaluate(lambda: self._version.join(**options))
        return Member(self._loop, member, handover_bytes)

    def commit(
        self, receipts: Iterable[Receipt], *, count: int | None = None, wait_visible: bool = False
    ) -> CommittedVersion:
        """Commit what the members of these receipts have written; what others have is aborted.

        It may be asked again, by any process, with the same outcome: a version is committed once.

        Args:
            receipts: of the members that count; none: an empty version.
            count: how many rows the version has, to be compared where it was committed before;
                None: the sum of the receipts'.
            wait_visible: wait until readers of committed records get all of it.

        Returns:
            Whether it was committed before, and its rows.

        Raises:
            TransactionAborted: nothing of it counts, `reason` says why, if that is known: let the
                members write again. Definite.
            UnknownTransaction: the id was forgotten: look whether the version was committed before
                that. Nothing was done. Definite.
            ReplayMismatch: it was committed before, with another number of rows. Definite.
            InvalidTransaction: a receipt of another version; the id belongs to another lineage, or
                to a single producer. Nothing was done. Definite.
            InvalidRequest: records in too many partitions. Nothing was done. Definite.
            OutcomeUnknown: no answer came: ask again. Indefinite.
            UnsupportedVersion: the cluster has no shared transactions yet. Definite.
            RaftmqError: what else the coordinator refuses; `error.definite` says which.
        """
        given = list(receipts)  # in this thread, as they may come slowly
        return self._loop.call(
            lambda: self._version.commit(given, count=count, wait_visible=wait_visible)
        )

    def abort(self) -> CommittedVersion | None:
        """End it, so that nothing of it counts; its members may not send any more. Does nothing if
        it is over, or was never begun.

        Returns:
            None; or that it was committed before, and stays so. Of a version below the newest it is
            not known whether it was: then `count` is None.

        Raises:
            InvalidTransaction: the id belongs to another lineage, or to a single producer.
                Definite.
            OutcomeUnknown: no answer came: it is aborted when its time is over. Indefinite.
            RaftmqError: what else the coordinator refuses.
        """
        return self._loop.call(self._version.abort)


class Member(TransactionSender[ValueT_contra, KeyT_contra]):
    """The calls of `raftmq.Member`, blocking: `with version.join() as member:`.

    Several threads may send in its block.

    Attributes:
        version: the number of the version.
    """

    version: int

    def __init__(
        self,
        loop: Loop,
        member: AsyncMember[ValueT_contra, KeyT_contra],
        handover_bytes_max: int,
    ) -> None:
        super().__init__(loop, Handover(loop, member, handover_bytes_max), member)
        self._member = member
        self._producer = Producer(
            loop, member._producer, handover_bytes_max, handover=self._handover
        )

    def __enter__(self) -> Self:
        self._block.open()
        self._handover.open()
        self._loop.start(LoopCall(self._handover.run, ()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Threads that still send get Closed; records handed in before are sent."""
        if self._loop.is_ours:
            self._handover.close()
        super().__exit__(kind, error, traceback)

    def _pass_over(self, rows: Iterable[Any]) -> None:
        """They are counted: the commit compares. In this thread, as they may come slowly."""
        self._member._on_dropped(sum(1 for _ in rows))

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until all records sent so far are acknowledged, without linger.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
            RequestTimedOut: after `timeout` seconds; the records are sent nevertheless. Indefinite.
        """
        self._call(self._member.flush, timeout=timeout)

    @property
    def statistics(self) -> Statistics:
        """Counts of records and requests so far."""
        return self._member.statistics

    @property
    def receipt(self) -> Receipt:
        """What it has written, for `SharedVersion.commit`; it can be pickled.

        Raises:
            InvalidTransaction: its block has not ended, or with an error. Definite.
        """
        return self._member.receipt  # also once the client is closed
