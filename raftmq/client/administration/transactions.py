"""`TransactionCalls`: the public admin calls on transactions: what is open, and ending it by hand.

What the quorum knows of transaction ids, any broker tells; what is open in a partition, its leader
does. Abort and forget go to the coordinator of the id, which is that of a group of the same name.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import anyio

from raftmq.client.administration import checks
from raftmq.client.administration.groups.checks import find_names
from raftmq.client.administration.offsets import partitions_of
from raftmq.client.administration.questions import ask_any, settle
from raftmq.client.administration.results import OpenInTopic, TransactionDetails
from raftmq.client.group.coordinator import CoordinatorLookup, checked
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import (
    InvalidProducerEpoch,
    InvalidRequest,
    RaftmqError,
    ServerError,
    UnknownTransaction,
)
from raftmq.model import TRANSACTION_ID_CHARS_MAX, AbortReason
from raftmq.wire.bodies import ABSENT, TopicPartition
from raftmq.wire.messages.transactions import (
    DescribeProducers,
    DescribeTransactions,
    EndTxn,
    ForgetTransaction,
    ListTransactions,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.client.administration.groups.checks import TopicNames
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.wire.messages.transactions import (
        DescribeTransactionsReply,
        EndTxnReply,
        ForgetTransactionReply,
        ListTransactionsReply,
        PartitionOpen,
        TransactionDescribed,
    )

# For so long a broker may not know an id that was opened a moment ago.
UNKNOWN_SECONDS, UNKNOWN_PAUSE_SECONDS = 0.5, 0.1


class TransactionCalls:
    """The transaction calls of `mq.admin`; see `Admin` for what holds for all calls.

    All of them raise InvalidRequest for what is no transaction id.
    """

    def __init__(self, cluster: Cluster, *, timeout_seconds: float) -> None:
        self._cluster, self._timeout_seconds = cluster, timeout_seconds

    async def list_transactions(
        self, *, unsettled: bool = False, idle_seconds: float = 0.0
    ) -> tuple[TransactionDetails, ...]:
        """Transaction ids, in their order.

        Args:
            unsettled: only those with commits that some partitions have not marked yet.
            idle_seconds: only those whose last transaction ended so long ago, by this machine's
                clock.
        """
        if not isinstance(idle_seconds, (int, float)) or not idle_seconds >= 0:
            raise InvalidRequest(f"idle_seconds {idle_seconds!r}: expected 0 or more")
        deadline = self._deadline()
        found: list[TransactionDescribed] = []
        after = ""
        while True:
            reply = await self._list_page(ListTransactions(after, unsettled), deadline=deadline)
            found += reply.transactions
            if not reply.next_after:
                break
            if reply.next_after <= after:  # a faulty broker must not make this loop for ever
                raise ServerError("a broker told of pages of transactions that lead nowhere")
            after = reply.next_after
        names = await find_names(self._cluster, deadline=deadline)
        told = (_details(one, names) for one in found)
        since_ms = (time.time() - idle_seconds) * 1000
        return tuple(one for one in told if not idle_seconds or _is_before(one, since_ms))

    async def describe_transaction(self, transaction_id: str) -> TransactionDetails:
        """What the quorum knows of a transaction id.

        Raises:
            UnknownTransaction: it was never opened, or is forgotten. Definite.
        """
        check_transaction_id(transaction_id)
        deadline = self._deadline()
        described = await self._describe(transaction_id, deadline=deadline)
        return _details(described, await find_names(self._cluster, deadline=deadline))

    async def open_transactions(
        self, topic: str, partitions: Collection[int] | None = None
    ) -> tuple[OpenInTopic, ...]:
        """The transactions that are open in a topic, by partition and first offset: what readers
        with `read_committed` wait for.

        Args:
            partitions: None: all of them.

        Raises:
            UnknownTopicOrPartition: there is no such topic, or partition. Definite.
            LeaderNotAvailable: some partition has no leader. Definite.
        """
        checks.check_topic(topic)
        wanted = None if partitions is None else checks.check_partitions(partitions)
        deadline = self._deadline()
        numbers = await partitions_of(self._cluster, topic, wanted, deadline=deadline)
        asks = [partial(self._open_in, topic, number, deadline=deadline) for number in numbers]
        found: list[OpenInTopic] = []
        for outcome in await settle(asks):
            if isinstance(outcome, RaftmqError):
                raise outcome
            found += outcome
        return tuple(found)

    async def abort_transaction(self, transaction_id: str) -> None:
        """Abort what is open under the id, and let its producer know. One that has ended by itself
        meanwhile stays as it is.

        Raises:
            UnknownTransaction: it was never opened, or is forgotten. Definite.
            OutcomeUnknown: it may be aborted, or soon be. Indefinite.
        """
        check_transaction_id(transaction_id)
        deadline = self._deadline()
        found = await self._describe(transaction_id, deadline=deadline)
        if found.producer_id == ABSENT:  # shared, and no version is open
            return

        def make() -> EndTxn:
            return EndTxn(
                transaction_id,
                found.producer_id,
                found.producer_epoch,
                is_commit=False,
                reason=AbortReason.OPERATOR,
                timeout_ms=milliseconds_left(deadline, now=anyio.current_time()),
            )

        def read(reply: EndTxnReply) -> None:
            try:
                checked(reply)
            except InvalidProducerEpoch:  # it has ended meanwhile
                return

        await CoordinatorLookup(self._cluster, transaction_id).ask(
            make, read, deadline=deadline, repeats=RepeatEffect.HARMLESS
        )

    async def forget_transaction(
        self, transaction_id: str, *, with_unsettled: bool = False
    ) -> None:
        """Abort what is open under the id, and forget the id with its versions: a version that was
        committed before can be committed again afterwards.

        Args:
            with_unsettled: also with commits that some partitions have not marked yet. There they
                are aborted then: such a transaction is torn. For partitions that are lost for good.

        Raises:
            UnknownTransaction: it was never opened, or is forgotten. Definite.
            InvalidTransaction: commits are not settled yet. Definite.
            OutcomeUnknown: it may be forgotten, or soon be. Indefinite.
        """
        check_transaction_id(transaction_id)
        deadline = self._deadline()

        def make() -> ForgetTransaction:
            timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
            return ForgetTransaction(transaction_id, with_unsettled, timeout_ms)

        def read(reply: ForgetTransactionReply) -> None:
            checked(reply)

        await CoordinatorLookup(self._cluster, transaction_id).ask(
            make, read, deadline=deadline, repeats=RepeatEffect.FORBIDDEN
        )

    # -- requests --------------------------------------------------------------------------

    async def _list_page(self, page: ListTransactions, *, deadline: float) -> ListTransactionsReply:
        def read(body: ListTransactionsReply) -> ListTransactionsReply:
            return body

        return await ask_any(
            self._cluster,
            lambda _timeout_ms: page,
            read,
            deadline=deadline,
            repeats=RepeatEffect.HARMLESS,
        )

    async def _describe(self, transaction_id: str, *, deadline: float) -> TransactionDescribed:
        until = min(deadline, anyio.current_time() + UNKNOWN_SECONDS)
        while True:
            try:
                return await self._describe_once(transaction_id, deadline=deadline)
            except UnknownTransaction:
                if anyio.current_time() >= until:
                    raise
            await anyio.sleep(UNKNOWN_PAUSE_SECONDS)

    async def _describe_once(self, transaction_id: str, *, deadline: float) -> TransactionDescribed:
        def read(body: DescribeTransactionsReply) -> TransactionDescribed:
            if [one.transaction_id for one in body.transactions] != [transaction_id]:
                raise ServerError("a broker was asked for one transaction id, and told of others")
            return checked(body.transactions[0])

        return await ask_any(
            self._cluster,
            lambda _timeout_ms: DescribeTransactions((transaction_id,)),
            read,
            deadline=deadline,
            repeats=RepeatEffect.HARMLESS,
        )

    async def _open_in(self, topic: str, partition: int, *, deadline: float) -> list[OpenInTopic]:
        async def attempt(place: LeaderPlace) -> list[OpenInTopic]:
            body = DescribeProducers((TopicPartition(place.topic_id, place.partition),))
            found: PartitionOpen
            found, _ = await self._cluster.ask_leader(place, body, deadline=deadline)
            return [
                OpenInTopic(
                    topic,
                    partition,
                    one.transaction_id or None,
                    one.producer_id,
                    one.producer_epoch,
                    one.first_offset,
                    one.open_ms / 1000,
                    found.last_stable_offset,
                    found.high_watermark,
                )
                for one in found.transactions
            ]

        return await self._cluster.at_leader(
            topic, partition, attempt, deadline=deadline, repeats=RepeatEffect.HARMLESS
        )

    def _deadline(self) -> float:
        return anyio.current_time() + self._timeout_seconds


def check_transaction_id(value: object) -> str:
    """
    Raises:
        TypeError: no text.
        InvalidRequest: empty, or too long.
    """
    if not isinstance(value, str):
        raise TypeError(f"transaction id {value!r}: expected str, got {type(value).__name__}")
    if not 1 <= len(value) <= TRANSACTION_ID_CHARS_MAX:
        raise InvalidRequest(
            f"transaction id {value[:TRANSACTION_ID_CHARS_MAX]!r} of {len(value)} characters:"
            f" allowed are 1 to {TRANSACTION_ID_CHARS_MAX}"
        )
    return value


def _details(told: TransactionDescribed, names: TopicNames) -> TransactionDetails:
    outcome, reason = _newest(told)
    partitions = [
        (names.name_of(each.topic_id), each.partition) for each in told.unsettled_partitions
    ]
    return TransactionDetails(
        told.transaction_id,
        told.producer_id,
        told.producer_epoch,
        told.timeout_ms,
        told.is_ephemeral,
        outcome,
        reason,
        _known(told.last_version),
        _known(told.last_count),
        told.unsettled,
        tuple(sorted(partitions)),
        _known(told.changed_at_ms),
        told.lineage,
        _known(told.open_version),
        told.joined,
    )


def _newest(told: TransactionDescribed) -> tuple[str | None, str | None]:
    """`last_outcome` and `last_reason`."""
    if told.last_epoch == ABSENT:
        return None, None
    if told.last_is_committed:
        return "committed", None
    # Whether anything was open is known by logs alone: mostly nothing was, as a program has ended
    # in order before it starts again.
    if told.last_reason == AbortReason.OWNER:
        return "reopened", None
    reason = AbortReason(told.last_reason)
    return "aborted", None if reason is AbortReason.NONE else reason.name.lower()


def _is_before(transaction: TransactionDetails, since_ms: float) -> bool:
    return transaction.changed_at_ms is not None and transaction.changed_at_ms <= since_ms


def _known(number: int) -> int | None:
    return None if number == ABSENT else number
