"""What a transactional producer asks of its coordinator: to open its id, to end a transaction.

Owns the waits: for records that are on their way, for answers, and their times. `machine.py` says
what comes next, and what an answer means. The coordinator is that of a group of the same name.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from raftmq.client.transactions.asking import AskedCoordinator
from raftmq.client.transactions.records import TIMEOUT, TransactionPhase
from raftmq.errors import (
    InvalidTransaction,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    RebalanceInProgress,
    TransactionAborted,
    UnsupportedVersion,
)
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from raftmq.client.producer.dispatcher import Dispatcher
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.transactions.machine import TransactionMachine
    from raftmq.client.transactions.records import TransactionRecords
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.transactions import EndTxnReply, GroupOffsets

    FindGroups: TypeAlias = Callable[[bool], Awaitable[tuple[GroupOffsets, ...]]]

# For an abort that nobody waits for: the program, or the block, is cancelled. Without it the
# transaction holds up readers until its time is over.
ABORT_SECONDS_MAX = 1.0

logger = logging.getLogger("raftmq.client")


class Verdict:
    """What became of one transaction.

    Attributes:
        is_committed: None: not known (yet).
    """

    def __init__(self, *, is_committed: bool | None = None) -> None:
        self.is_committed = is_committed


class TransactionSession:
    """The transactions of one producer, one at a time.

    Attributes:
        machine: their state.
        is_busy: a transaction is on.
        is_settled: what the newest commit wrote can be read, as far as it was asked.
    """

    def __init__(
        self,
        cluster: Cluster,
        machine: TransactionMachine,
        dispatcher: Dispatcher,
        options: ProducerOptions,
    ) -> None:
        self.cluster, self.machine = cluster, machine
        self._dispatcher, self._options = dispatcher, options
        seconds = options.request_timeout_ms / 1000
        self._coordinator = AskedCoordinator(cluster, machine.transaction_id, seconds)
        self.is_busy = self.is_settled = False
        self._warned = set[str]()  # topics
        self._verdict: Verdict | None = None  # of the newest transaction

    async def open(self) -> None:
        """Open the id: what another producer has open under it is aborted.

        Raises:
            RaftmqError: it is not open; there is nothing to undo.
        """
        machine = self.machine
        # Nothing is open yet, so no transaction's time counts.
        deadline = self.cluster.now() + self._options.delivery_timeout_ms / 1000
        machine.begin_opening()
        try:
            await self._coordinator.ask(machine.open_request, machine.on_opened, deadline=deadline)
        except UnsupportedVersion as error:
            raise UnsupportedVersion(
                f"{machine}: the cluster has no transactions yet; let all of its brokers run a "
                f"version that has them ({error})"
            ) from error

    async def begin(self, *, version: int, count: int) -> Verdict:
        """Begin a transaction, once what became of the one before is known.

        Raises:
            InvalidTransaction: another one is on. Definite.
            ProducerFenced: another producer has the id. Definite.
            RaftmqError: the coordinator does not say what became of the one before; nothing was
                begun. Definite.
        """
        if self.is_busy:
            raise InvalidTransaction(
                f"{self.machine} is on: a producer has one at a time; end it first, or give each "
                "task a producer of its own"
            )
        self.is_busy = True
        try:
            await self.settle()
            if self.machine.phase is TransactionPhase.CLOSED:
                await self.open()
        except BaseException:  # also when cancelled: the next one tries again
            self.is_busy = False
            raise
        self.machine.begin(version=version, count=count)
        self._dispatcher.begin()
        self._verdict = Verdict()
        return self._verdict

    async def settle(self) -> None:
        """Learn what became of the transaction before, if that is not known. A commit that a group
        refuses now leaves it open: it is aborted then.

        Raises:
            ProducerFenced: another producer has the id. Definite.
            RaftmqError: no coordinator has said it.
        """
        machine = self.machine
        self.check_fenced()
        try:
            while machine.is_asked or machine.phase is TransactionPhase.MUST_ABORT:
                if not machine.is_asked:
                    machine.ask_abort()
                await self._settle_once()
        finally:
            if self._verdict is not None:
                self._verdict.is_committed = machine.is_committed
        self.check_fenced()

    async def _settle_once(self) -> None:
        try:
            await self._ask_end(deadline=self._deadline())
        # It is known now, or nobody knows it any more; `outcome` of that transaction says which.
        except (TransactionAborted, OutcomeUnknown) as error:
            if self.machine.phase is TransactionPhase.UNKNOWN:  # still no answer
                raise
            logger.info("%s: what became of it: %s", self.machine, error)

    def is_committed_version(self, version: int) -> bool:
        return version != ABSENT and version <= self.machine.last_version

    async def skip(self) -> None:
        """End a transaction whose version was committed before: nothing of it has left."""
        await self._dispatcher.stop_taking()
        self.machine.finish_empty()
        self.machine.is_committed = True
        self._over()

    async def resolve(self, verdict: Verdict) -> None:
        """Learn what became of a transaction whose end was not answered.

        Raises:
            OutcomeUnknown: no coordinator has said it. Indefinite.
        """
        if verdict is not self._verdict:  # one that was forgotten before the next began
            return
        try:
            await self.settle()
        except ProducerFenced:
            return
        except RaftmqError as error:
            raise OutcomeUnknown(f"{self.machine}: not known yet: {error}") from error

    def phase_of(self, verdict: Verdict) -> TransactionPhase:
        """Of a transaction that has ended without an outcome."""
        return self.machine.phase if verdict is self._verdict else TransactionPhase.UNKNOWN

    # -- the end of a transaction ----------------------------------------------------------

    async def commit(
        self,
        find_groups: FindGroups,
        *,
        is_wanted: bool,
        wait_settled: bool,
        count: Callable[[], int] | None = None,
    ) -> None:
        """Commit what was sent, once all of it is acknowledged.

        Args:
            find_groups: the offsets to commit, in the present generations of the groups; True: they
                were refused in the generations of the first call.
            is_wanted: there is something to decide even without records: a version, or offsets.
            wait_settled: wait until readers of committed records get it.
            count: of the rows, of a version.

        Raises:
            TransactionAborted: nothing of it counts. Definite.
            ProducerFenced: another producer has the id; nothing of it counts. Definite.
            OutcomeUnknown: whether it is committed. Indefinite.
        """
        machine = self.machine
        try:
            await self._flush()
        except BaseException:  # cancelled: nothing was asked yet
            await self.abort_soon()
            raise
        if machine.phase is TransactionPhase.OPEN and machine.is_empty and not is_wanted:
            machine.finish_empty()
            machine.is_committed = True
            self._over()
            return
        machine.on_time(self.cluster.now())
        if machine.phase is TransactionPhase.OPEN:
            warn_of_page_cache(self.cluster, machine, self._warned)
            if count is not None:
                machine.set_count(count())
            await self._commit(find_groups, wait_settled=wait_settled)
        if machine.phase is TransactionPhase.MUST_ABORT:
            error = machine.error
            assert error is not None, "aborted for no reason"
            await self._abort_over(error)

    async def _commit(self, find_groups: FindGroups, *, wait_settled: bool) -> None:
        """Once more after a refusal of a group, if its generation is another one by now."""
        machine = self.machine
        is_again = False
        while machine.takes_records:
            try:
                # Ends with the time of the transaction where a rebalance does not end before.
                seconds = self._deadline() - self.cluster.now()
                with anyio.fail_after(seconds):
                    found = await find_groups(is_again)
            except TimeoutError:
                machine.refuse(RebalanceInProgress("the group has not said whose they are"))
                return
            except RaftmqError as error:  # the partition is another member's, for example
                machine.refuse(error)
                return
            except BaseException:  # cancelled: nothing was asked yet
                await self.abort_soon()
                raise
            if not machine.takes_records:  # its time was over meanwhile
                return
            machine.ask_commit(found, wait_settled=wait_settled, now=self.cluster.now())
            may_ask_again = await self._commit_once()
            if may_ask_again and not is_again:
                is_again = True
                machine.ask_again()
            elif machine.is_committed and wait_settled and not self.is_settled:
                logger.warning("%s is committed, and not readable everywhere yet", machine)

    async def _commit_once(self) -> bool:
        """False: it is over, or to be aborted; True: a group has refused.

        Raises:
            RaftmqError: it is over, or not known.
        """
        machine = self.machine
        try:
            await self._ask_end(deadline=min(self._deadline(), machine.latest_at))
        except RaftmqError as error:
            if machine.phase is TransactionPhase.MUST_ABORT:
                return machine.is_refused_by_group(error)
            self._over()
            raise
        except BaseException:
            self._over()
            raise
        self._over()
        return False

    def refuse(self, error: RaftmqError) -> RaftmqError:
        """Its offsets are another member's: nothing of it may count, whether its program goes on
        or not. The error with which it ends.
        """
        self.machine.refuse(error)
        told = self.machine.error or error
        return told.copied()

    async def abort(self) -> None:
        """End the transaction so that nothing of it counts.

        Raises:
            ProducerFenced: another producer has the id; nothing of it counts. Definite.
            RaftmqError: the coordinator does not answer: what has left is aborted by the next
                transaction, or when its time is over.
        """
        machine = self.machine
        await self._dispatcher.stop_taking()
        if machine.phase is TransactionPhase.OPEN:
            aborted = TransactionAborted(f"{machine} was aborted by the program")
            aborted.reason = "program"
            machine.end_with(aborted)
        if machine.phase is not TransactionPhase.MUST_ABORT:
            self._over()
            return
        self._dispatcher.fail_transaction()
        try:
            if machine.is_empty:
                machine.finish_empty()
                machine.is_committed = False
                self.check_fenced()
                return
            machine.ask_abort()
            await self._ask_end(deadline=self._deadline())
            self.check_fenced()
        finally:
            self._over()

    async def abort_soon(self) -> None:
        """The same where the caller is cancelled, or has an error of its own."""
        with anyio.move_on_after(ABORT_SECONDS_MAX, shield=True) as scope:
            try:
                await self.abort()
            except RaftmqError as error:
                logger.warning("%s is not aborted yet: reason=%s", self.machine, error)
        if scope.cancelled_caught:
            logger.warning("%s is not aborted yet: no answer in time", self.machine)
        self._over()

    async def close(self) -> None:
        """The producer ends: what is open is aborted."""
        if self.machine.phase in (TransactionPhase.OPEN, TransactionPhase.MUST_ABORT):
            await self.abort_soon()

    async def _abort_over(self, error: RaftmqError) -> None:
        """Abort, and raise `error`, the reason; or that another producer has the id; or that an
        earlier attempt to commit may still be carried out, as nobody has answered the abort.
        """
        try:
            await self.abort()
        except (ProducerFenced, OutcomeUnknown):
            raise
        except RaftmqError as problem:
            logger.warning("%s is not aborted yet: reason=%s", self.machine, problem)
            if self.machine.is_in_doubt:
                raise OutcomeUnknown(
                    f"{self.machine}: it was refused ({error}), an earlier attempt to commit it had"
                    " no answer, and nor had the abort; tx.resolve() asks again"
                ) from problem
        except BaseException:
            await self.abort_soon()
            raise
        if self.machine.is_committed:  # by an attempt that was refused later
            return
        told = self.explained(error)
        raise told.copied() from told.__cause__

    def explained(self, error: RaftmqError) -> RaftmqError:
        """With the reason, where the broker that refused a record did not know it."""
        machine = self.machine
        if not isinstance(error, TransactionAborted) or error.reason:
            return error
        if machine.abort_reason == TIMEOUT:
            told = machine.timed_out()
        elif machine.abort_reason == "operator":
            told = TransactionAborted(f"{machine} was aborted by an operator; run it again")
            told.reason = machine.abort_reason
        else:
            return error
        told.__cause__ = error
        return told

    async def _flush(self) -> None:
        await self._dispatcher.stop_taking()
        # Ends at the latest with the delivery timeout of each batch.
        await self._dispatcher.wait_delivered()

    def _over(self) -> None:
        self.is_busy = False
        if self._verdict is not None:
            self._verdict.is_committed = self.machine.is_committed
        self._dispatcher.is_taking = False
        self._dispatcher.failures.forget()  # they are reported with the transaction

    def check_fenced(self) -> None:
        if self.machine.phase is TransactionPhase.FENCED:
            assert self.machine.error is not None, "fenced for no reason"
            raise self.machine.error.copied()

    # -- requests --------------------------------------------------------------------------

    def _deadline(self) -> float:
        """Not longer than the transaction: then it is aborted anyway."""
        seconds = min(self._options.delivery_seconds, self.machine.timeout_seconds)
        return self.cluster.now() + seconds

    async def _ask_end(self, *, deadline: float) -> None:
        """Ask what the machine wants asked, until there is an answer.

        Raises:
            RaftmqError: see `TransactionMachine.on_ended` and `give_up`.
        """
        machine = self.machine
        self.is_settled = False

        def make(timeout_ms: int) -> Request:
            return machine.end_request(timeout_ms, self.cluster.now())

        def read(reply: EndTxnReply) -> None:
            machine.on_ended(reply)
            self.is_settled = reply.is_settled

        try:
            await self._coordinator.ask(
                make,
                read,
                deadline=deadline,
                on_failure=machine.on_no_answer,
                is_over=lambda: not machine.is_asked,
            )
        except RaftmqError as error:
            if machine.is_asked:  # else the error is the answer
                machine.give_up(error)
            raise
        except BaseException:  # cancelled: it may have been carried out
            machine.interrupt()
            raise


def warn_of_page_cache(cluster: Cluster, records: TransactionRecords, warned: set[str]) -> None:
    """Once for each topic: its owner may not know what it means for transactions."""
    for topic in cluster.routes.page_cached(records.topic_ids):
        if topic not in warned:
            warned.add(topic)
            logger.warning(
                "%s: topic %s has durability = page_cache: if the power of all its in-sync replicas"
                " fails, a part of what is committed may be gone; with durability = fsync it stays",
                records,
                topic,
            )
