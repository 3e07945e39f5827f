"""Shared transactions: many producers write a version, somebody commits it, once.

Owns what programs type: `mq.shared_transaction(...)`, its versions, the blocks of members, commit
and abort; and the waits for the coordinator. `members.py` says what is asked, and what an answer
means. The quorum keeps which members of which version there are (decision 0039).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Sized
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, overload

import anyio.lowlevel
from msgspec.structs import replace

from raftmq.client.group.coordinator import checked
from raftmq.client.producer.options import ProducerOptions, member_options
from raftmq.client.producer.producer import Producer
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.client.transactions.asking import AskedCoordinator
from raftmq.client.transactions.members import MemberMachine, Receipt, VersionId
from raftmq.client.transactions.sending import TransactionSender, check_number
from raftmq.client.transactions.session import warn_of_page_cache
from raftmq.client.type_parameters import KeyT_contra, ValueT_contra
from raftmq.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidTransaction,
    OutcomeUnknown,
    RaftmqError,
    UnsupportedVersion,
    error_for,
)
from raftmq.model import LINEAGE_CHARS_MAX
from raftmq.wire.messages.transactions import EndTxn, JoinTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random
    from types import TracebackType
    from typing import Unpack

    from raftmq.client.producer.options import MemberArguments, PlainMemberArguments
    from raftmq.client.producer.statistics import Statistics
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.transactions.members import CommittedVersion
    from raftmq.client.type_parameters import KeyT, ValueT
    from raftmq.wire.messages.transactions import EndTxnReply, JoinTransactionReply

# As the defaults of a producer: together they outlast the restart of a broker.
ANSWER_SECONDS_MAX, ATTEMPT_SECONDS_MAX = 120.0, 30.0
ROWS_AT_ONCE = 4096  # that are counted before other tasks get to run

logger = logging.getLogger("raftmq.client")


class SharedTransaction:
    """A transaction id whose versions many producers write; see `Client.shared_transaction`.

    Attributes:
        transaction_id, lineage: what it was made with.
    """

    def __init__(
        self,
        cluster: Cluster,
        transaction_id: str,
        *,
        lineage: str,
        transaction_timeout_ms: int,
        is_ephemeral: bool,
        new_random: Callable[[], Random],
        now_ms: Callable[[], int],
    ) -> None:
        _check_shared(transaction_id, lineage, transaction_timeout_ms, is_ephemeral=is_ephemeral)
        self.transaction_id, self.lineage = transaction_id, lineage
        self._timeout_ms, self._is_ephemeral = transaction_timeout_ms, is_ephemeral
        self._cluster, self._new_random, self._now_ms = cluster, new_random, now_ms
        self._coordinator = AskedCoordinator(cluster, transaction_id, ATTEMPT_SECONDS_MAX)
        self._warned = set[str]()  # topics

    def __repr__(self) -> str:
        return f"<SharedTransaction {self.transaction_id!r} of lineage {self.lineage!r}>"

    def version(self, number: int) -> SharedVersion:
        """One transaction of it. Asks nothing of the cluster.

        Args:
            number: rises from one version to the next, and may skip; each is committed once.

        Raises:
            InvalidTransaction: it is not 0 or more. Definite.
        """
        check_number("version", number)
        return SharedVersion(self, number)

    # -- within ----------------------------------------------------------------------------

    async def _join(self, version: VersionId, *, seconds: float) -> JoinTransactionReply:
        """One member more, or the answer that the version was committed before. Raises the
        answer's error.
        """
        ask = JoinTransaction(
            self.transaction_id,
            self.lineage,
            version.version,
            self._timeout_ms,
            self._is_ephemeral,
        )
        try:
            return await self._coordinator.ask(
                lambda timeout_ms: replace(ask, timeout_ms=timeout_ms),
                checked,
                deadline=self._cluster.now() + seconds,
            )
        except UnsupportedVersion as error:
            raise _too_old(version, error) from error

    async def _end(self, version: VersionId, request: EndTxn) -> tuple[EndTxnReply, bool]:
        """The coordinator's last word, which may be an error; and whether an attempt before had no
        answer.

        Raises:
            OutcomeUnknown: there is none, and it may have been carried out. Indefinite.
            RaftmqError: no attempt has reached a coordinator. Definite.
        """
        was_doubted = False

        def doubt(error: RaftmqError) -> None:
            nonlocal was_doubted
            was_doubted = was_doubted or not error.definite

        def read(reply: EndTxnReply) -> EndTxnReply:
            if reply.error:
                error = error_for(reply.error, reply.message)
                doubt(error)
                # The coordinator may not know either, as its quorum is silent.
                if error.retriable or not error.definite:
                    raise error
            return reply

        try:
            reply = await self._coordinator.ask(
                lambda timeout_ms: replace(request, timeout_ms=timeout_ms),
                read,
                deadline=self._cluster.now() + ANSWER_SECONDS_MAX,
                on_failure=doubt,
                repeats=RepeatEffect.ACCEPTED,
            )
        except UnsupportedVersion as error:
            raise _too_old(version, error) from error
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"{version}: the coordinator has not said what became of it: {error}; ask again"
            ) from error
        if reply.error == ErrorCode.UNSUPPORTED_VERSION:
            raise _too_old(version, error_for(reply.error, reply.message))
        return reply, was_doubted

    def _new_producer(self, options: ProducerOptions, member: MemberMachine) -> Producer[Any, Any]:
        random, now_ms = self._new_random(), self._now_ms
        return Producer(self._cluster, options, random=random, now_ms=now_ms, member=member)

    def _warn_of_page_cache(self, member: MemberMachine) -> None:
        warn_of_page_cache(self._cluster, member, self._warned)


class SharedVersion:
    """One version of a shared transaction, in each process that has to do with it.

    Attributes:
        number: that of the version.
    """

    def __init__(self, shared: SharedTransaction, number: int) -> None:
        """Made by `SharedTransaction.version`."""
        self._shared, self.number = shared, number
        self._id = VersionId(shared.transaction_id, shared.lineage, number)

    def __repr__(self) -> str:
        return f"<SharedVersion {self.number} of {self._shared!r}>"

    @overload
    def join(self, **options: Unpack[PlainMemberArguments]) -> Member: ...
    @overload
    def join(self, **options: Unpack[MemberArguments[ValueT, KeyT]]) -> Member[ValueT, KeyT]: ...
    def join(self, **options: Unpack[MemberArguments[ValueT, KeyT]]) -> Member[ValueT, KeyT]:
        """One more producer of the version: `async with version.join() as member:`.

        Args:
            options: those of a producer, but for `acks`, `idempotence`, `delivery`, `name` and
                those of transactions: a member is always as safe as a transaction is.

        Returns:
            The member, to be entered.

        Raises:
            TypeError: an unknown option.
            InvalidConfig: values that are out of bounds or contradict each other, all at once.
        """
        checked = member_options(options, transaction_timeout_ms=self._shared._timeout_ms)
        return Member(self._shared, self._id, checked)

    async def commit(
        self,
        receipts: Iterable[Receipt],
        *,
        count: int | None = None,
        wait_visible: bool = False,
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
        if count is not None:
            check_number("count", count)
        given = list(receipts)
        request = self._id.commit_of(given, count)
        rows, is_done = request.count, any(one.is_done for one in given)
        # Never commit without what these have dropped, even where the id was forgotten meanwhile.
        # An abort commits nothing, and tells whether the version is committed.
        if is_done:
            request = self._id.end_request(is_commit=False)
        request = replace(request, wait_settled=wait_visible)
        reply, was_doubted = await self._shared._end(self._id, request)
        if is_done:
            outcome = self._id.done_before(reply, rows)
        else:
            outcome = self._id.committed(reply, rows, was_doubted=was_doubted)
        if wait_visible and not reply.is_settled:
            logger.warning("%s is committed, and not readable everywhere yet", self._id)
        return outcome

    async def abort(self) -> CommittedVersion | None:
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
        reply, _ = await self._shared._end(self._id, self._id.end_request(is_commit=False))
        return self._id.aborted(reply)


class Member(TransactionSender[ValueT_contra, KeyT_contra]):
    """One producer of a version: `async with version.join() as member:` for one attempt of a task.

    Entering the block joins the version, which opens it if nobody has. Leaving it waits until all
    records are acknowledged; nothing is decided by that: `receipt` says what is to be committed.
    With an error of the program, or cancelled, it gives up what was not sent, and has no receipt.

    Attributes:
        version: the number of the version.
    """

    version: int

    def __init__(
        self, shared: SharedTransaction, version: VersionId, options: ProducerOptions
    ) -> None:
        """Made by `SharedVersion.join`."""
        super().__init__(version.transaction_id, version.version)
        self._shared, self._id, self._options = shared, version, options
        self._machine = MemberMachine(version, options.transaction_timeout_ms)
        self._producer = shared._new_producer(options, self._machine)
        self._receipt: Receipt | None = None
        self._was_entered = False
        self._dropped_count, self._lock = 0, Lock()  # blocking programs may send in threads

    def __repr__(self) -> str:
        state = "open" if self._is_on else "ended" if self._was_entered else "not entered"
        return f"<Member of {self._id}: {state}>"

    async def __aenter__(self) -> Self:
        """Join the version; a lower one of the id that is open is aborted by that.

        Raises:
            InvalidTransaction: this one was entered before; the id belongs to another lineage, or
                to a single producer. Definite.
            ProducerFenced: a higher version is open. Definite.
            InvalidTransactionTimeout: longer than the cluster allows. Definite.
            UnsupportedVersion: the cluster has no shared transactions yet. Definite.
            RaftmqError: the coordinator does not answer, or refuses: the version has as many
                members as it may have, for example.
        """
        if self._was_entered:
            raise InvalidTransaction("a member joins once: join again with version.join()")
        self._was_entered = True
        seconds = self._options.delivery_timeout_ms / 1000
        joined = await self._shared._join(self._id, seconds=seconds)
        self._machine.on_joined(joined)
        self._is_done = joined.is_done
        if not joined.is_done:
            await self._producer.__aenter__()
        self._is_on = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_on = False
        if self._is_done:
            if error is None:
                self._receipt = self._id.receipt(self._dropped_count, is_done=True)
            return
        try:
            if error is None:
                await self._deliver()
        except BaseException as found:  # cancelled
            await self._close(type(found), found, found.__traceback__)
            raise
        await self._close(kind, error, traceback)
        if error is None:
            self._receipt = self._machine.receipt(self._producer.statistics.records)

    async def _deliver(self) -> None:
        """Raises what has ended it: a record was given up, or its time is over."""
        dispatcher, machine = self._producer._dispatcher, self._machine
        await dispatcher.stop_taking()
        # Ends at the latest with the delivery timeout of each batch.
        await dispatcher.wait_delivered()
        machine.on_time(self._shared._cluster.now())
        if machine.error is not None:
            raise machine.error.copied() from machine.error.__cause__
        self._shared._warn_of_page_cache(machine)

    async def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._machine.give_up()
            self._producer._dispatcher.fail_transaction()
        await self._producer.__aexit__(kind, error, traceback)

    async def flush(self) -> None:
        """Wait until all records sent so far are acknowledged, without linger.

        Raises:
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
        """
        self._check_on()
        if not self._is_done:
            await self._producer.flush()

    @property
    def statistics(self) -> Statistics:
        """Counts of records and requests so far."""
        found: Statistics = self._producer.statistics
        return found

    @property
    def receipt(self) -> Receipt:
        """What it has written, for `SharedVersion.commit`; it can be pickled.

        Raises:
            InvalidTransaction: its block has not ended, or with an error. Definite.
        """
        if self._receipt is None:
            raise InvalidTransaction(
                f"{self!r}: no receipt before its block has ended, and none if that was with an "
                "error"
            )
        return self._receipt

    # -- within ----------------------------------------------------------------------------

    def _check_on(self) -> None:
        if not self._is_on:
            raise InvalidTransaction(
                "the member's block has ended: what is sent must be in its receipt"
                if self._was_entered
                else "the member has not joined: enter its block first"
            )

    def _on_dropped(self, count: int) -> None:
        with self._lock:
            self._dropped_count += count

    async def _pass_over(self, rows: Iterable[Any] | AsyncIterable[Any]) -> None:
        """They are counted: the commit compares."""
        if isinstance(rows, Sized):
            self._on_dropped(len(rows))
        elif isinstance(rows, AsyncIterable):
            async for _ in rows:
                self._on_dropped(1)
        else:
            for number, _ in enumerate(rows, 1):
                self._on_dropped(1)
                if number % ROWS_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()


def _check_shared(
    transaction_id: str, lineage: str, timeout_ms: int, *, is_ephemeral: bool
) -> None:
    """Raises InvalidConfig, with all problems at once."""
    problems = []
    if transaction_id is None:  # which a producer may have
        problems.append("transaction_id = None: expected text")
    most = LINEAGE_CHARS_MAX
    if not (isinstance(lineage, str) and len(lineage) <= most):
        problems.append(f"lineage = {lineage!r}: expected text of at most {most} characters")
    elif not lineage.isprintable():
        problems.append(f"lineage = {lineage!r}: expected characters that can be printed")
    if not isinstance(is_ephemeral, bool):
        problems.append(f"is_ephemeral = {is_ephemeral!r}: expected True or False")
    try:
        ProducerOptions(
            transaction_id=transaction_id, transactions=True, transaction_timeout_ms=timeout_ms
        )
    except InvalidConfig as error:
        problems += error.problems
    if problems:
        raise InvalidConfig(problems)


def _too_old(version: VersionId, error: RaftmqError) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{version}: the cluster has no shared transactions yet; let all of its brokers run a "
        f"version that has them ({error})"
    )
