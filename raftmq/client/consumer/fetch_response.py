"""What a fetch answer, or its absence, means: errors, retries, truncation, damage. Pure.

Kafka: AbstractFetch.handleFetchSuccess. Owns which errors are retried and which are raised.
Retriable errors are retried for ever, except damage: the leader gets a report and repairs it, or
hands over leadership, so the fetch is repeated for a while before the error is raised. Invariant:
an answer to a request that is outdated by now is dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from raftmq.client.consumer.completed_fetches import CompletedFetch, PassedOver
from raftmq.client.consumer.fetch_plan import match_fetched, match_offsets
from raftmq.client.consumer.partition_state import DamageMet
from raftmq.errors import (
    CorruptRecord,
    LogTruncation,
    OffsetOutOfRange,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
    error_for,
)
from raftmq.model import IsolationLevel
from raftmq.wire.batch.head import iter_sent
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.corruption import CorruptionVerdict
from raftmq.wire.messages.offsets import ListOffsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.client.consumer.completed_fetches import Fetched
    from raftmq.client.consumer.fetch_plan import PartitionRequest, PlannedRequest
    from raftmq.client.consumer.partition_state import ConsumedPartition
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.routing.routes import Routes
    from raftmq.rpc.reply import Answer
    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.header import BatchHeader, Buffer
    from raftmq.wire.messages.fetch import AbortedTransaction, LeftOutRange, PartitionFetched


# -- Checking -------------------------------------------------------------------------------------
# Whether fetched bytes are what they must be: batches without gaps, committed, of known leader
# epochs. Pure.
#
# There is no compaction, so a gap between two batches that the leader does not say it has left out
# is damage as much as a wrong checksum.


class Expected(NamedTuple):
    """What was requested, and what is known of the partition.

    Attributes:
        offset: the first batch holds it.
        epoch_before: leader epoch of the batch before, -1: not known. Epochs never decrease ...
        leader_epoch: ... and none is above that of the leader that was asked.
        end: no batch reaches beyond it, see `end_told`.
        where: for messages.
        aborted: transactions whose batches are passed over.
        asked: the filter of tags that was asked for.
        left_out: what the leader says it has left out: by the filter, or as it is scheduled.
    """

    offset: int
    epoch_before: int
    leader_epoch: int
    end: int
    where: str
    aborted: Sequence[AbortedTransaction] = ()
    asked: TagFilter | None = None
    left_out: Sequence[LeftOutRange] = ()


class Checked(NamedTuple):
    """What came up to the first invalid batch, and what is wrong with that one."""

    pieces: list[Fetched]
    damage: CorruptRecord | None = None


def end_told(told: PartitionFetched, isolation: IsolationLevel) -> int:
    """Up to where a reader at this level gets records: the last stable offset, or the high
    watermark.
    """
    # A broker of a version without transactions tells none, and has none in its logs.
    if isolation is IsolationLevel.READ_COMMITTED and told.last_stable_offset != ABSENT:
        return told.last_stable_offset
    return told.high_watermark


def check_answer(data: Buffer, expected: Expected) -> Checked:
    """Batches of aborted transactions are checked, too: only a header whose CRC is right says
    whose a batch is. They are never decoded.
    """
    aborted = _by_producer(expected.aborted) if expected.aborted else None
    answer, where = _CheckedAnswer(expected), expected.where
    try:
        for position, length, header in iter_sent(data, expected.asked, where=where):
            answer.pass_over(header.base_offset)
            piece = CompletedFetch(
                data,
                position,
                header,
                where=where,
                is_aborted=aborted is not None and _is_aborted(header, aborted),
                size=length,
                asked=expected.asked,
            )
            answer.add(piece, position)
        answer.pass_over(None)
    except CorruptRecord as damage:
        answer.pass_over_before_damage()
        return Checked(answer.pieces, damage.with_traceback(None))
    return Checked(answer.pieces)


class _CheckedAnswer:
    """Attributes:
    pieces: batches, and ranges that were left out, each of which begins where the one before
        ends.
    """

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._left_out = deque(expected.left_out)
        self.pieces: list[Fetched] = []

    def pass_over(self, before: int | None) -> None:
        """The ranges before a batch that begins at `before`; None: before the end."""
        ranges = self._left_out
        while ranges and (before is None or ranges[0].start_offset < before):
            self.add(PassedOver(*msgspec.structs.astuple(ranges[0])), position=0)
            ranges.popleft()

    def pass_over_before_damage(self) -> None:
        """The ranges that follow what came before a damaged batch: the damage is behind them."""
        ranges = self._left_out
        while ranges and not self._problem_of(PassedOver(*msgspec.structs.astuple(ranges[0]))):
            self.pass_over(ranges[0].start_offset + 1)

    def add(self, piece: Fetched, position: int) -> None:
        """Raises CorruptRecord: it does not follow from what came before."""
        if problem := self._problem_of(piece):
            raise CorruptRecord(problem, position=position, where=self._expected.where)
        self.pieces.append(piece)

    def _problem_of(self, piece: Fetched) -> str:
        expected, before = self._expected, self.pieces[-1] if self.pieces else None
        offset = None if before is None else before.end_offset
        epoch = expected.epoch_before if before is None else before.leader_epoch
        return _problem_of_place(piece.base_offset, piece.end_offset, offset, expected) or (
            _problem_of_epoch(piece.leader_epoch, epoch, expected)
        )


# First offsets of aborted transactions, in rising order, and the offsets of their markers.
_Aborted: TypeAlias = "dict[int, tuple[list[int], list[int]]]"


def _by_producer(aborted: Sequence[AbortedTransaction]) -> _Aborted:
    found: _Aborted = {}
    for one in sorted(aborted, key=lambda one: one.first_offset):
        firsts, markers = found.setdefault(one.producer_id, ([], []))
        firsts.append(one.first_offset)
        markers.append(one.marker_offset)
    return found


def _is_aborted(header: BatchHeader, aborted: _Aborted) -> bool:
    """By the header alone. Transactions of one producer do not overlap, so the last one that began
    at or before the batch decides.
    """
    if not header.is_transactional or header.producer_id not in aborted:
        return False
    firsts, markers = aborted[header.producer_id]
    at = bisect_right(firsts, header.base_offset) - 1
    return at >= 0 and header.base_offset < markers[at]


def _problem_of_place(begin: int, end: int, offset: int | None, expected: Expected) -> str:
    """`offset`: where the batch before ends, None for the first one."""
    if offset is None:
        # The first batch may begin before the offset: logs are read by whole batches.
        if not begin <= expected.offset < end:
            return f"offsets {begin} to {end} came, {expected.offset} was asked for"
    elif begin != offset:
        return f"base offset {begin}, expected {offset}"
    elif begin >= end:  # of a range; no header can say so
        return f"offsets {begin} to {end} are none"
    # Uncommitted records may still be truncated, and those of open transactions aborted; no
    # consumer may see them.
    if end > expected.end:
        return f"end offset {end}, committed is up to {expected.end}"
    return ""


def _problem_of_epoch(epoch: int, before: int, expected: Expected) -> str:
    # A log in which an older leader's records follow a newer one's has lost a truncation.
    if epoch < before:
        return f"leader epoch {epoch} after {before}"
    if epoch > expected.leader_epoch:
        return f"leader epoch {epoch} from a leader of {expected.leader_epoch}"
    return ""


# -- Responses ------------------------------------------------------------------------------------


# A broker that finds damage in its log has it repaired, or hands over leadership, which takes a
# while.
REPAIR_SECONDS_MAX = 5.0  # for one leader, from its first damaged answer on
HANDOVERS_SECONDS_MAX = 30.0  # for all leaders together, one after the other
ANSWER_SECONDS = 3.0  # beyond the long poll
# 3 s doubled four times: answers of a slow broker must get through at last
ANSWER_SECONDS_MAX = 48.0


class FetchResponses:
    """Applies answers to the partitions' states.

    Args:
        subscription: keeps the order in which partitions are fetched.
        on_given_up: called before the undelivered records of a partition are dropped.
    """

    def __init__(
        self,
        subscription: Subscription,
        routes: Routes,
        on_given_up: Callable[[ConsumedPartition], None],
    ) -> None:
        self._subscription, self._routes, self._on_given_up = subscription, routes, on_given_up
        self._asked = subscription.asked
        self._answer_seconds: dict[int, float] = {}
        self._refused: list[PartitionRequest] = []

    def answer_seconds(self, broker_id: int) -> float:
        """How long to wait for an answer beyond the long poll."""
        return self._answer_seconds.get(broker_id, ANSWER_SECONDS)

    def on_answer(
        self, question: PlannedRequest, answer: Answer, *, now: float
    ) -> list[ConsumedPartition]:
        """Apply an answer. Returns the partitions that may have records to hand out.

        Raises:
            RemoteProtocolError: it does not fit the request; nothing was applied.
        """
        self._answer_seconds.pop(question.broker_id, None)
        if isinstance(question.body, ListOffsets):
            for asked, found in match_offsets(question, answer):
                if asked.is_current:
                    error = next((one.error for one in found if one.error), 0)
                    offsets = [one.offset for one in found if one.offset >= 0]
                    self._on_offsets(asked, error, offsets, now=now)
        else:
            matched = match_fetched(question, answer)
            is_shared = sum(bool(data) for _, _, data in matched) > 1
            for asked, told, data in matched:
                if asked.is_current:
                    # A copy: a partition that is read slowly must not keep the whole answer in
                    # memory.
                    self._on_fetched(asked, told, bytes(data) if is_shared else data, now=now)
        return [asked.state for asked in question.asked.values()]

    def on_failure(
        self, question: PlannedRequest, error: RaftmqError, *, now: float
    ) -> list[ConsumedPartition]:
        """There was no answer. Returns the partitions that it was about."""
        broker_id = question.broker_id
        if isinstance(error, RequestTimedOut):
            # Slow or dead cannot be told apart: wait longer next time, so that a slow broker gets
            # through.
            seconds = min(2 * self.answer_seconds(broker_id), ANSWER_SECONDS_MAX)
            self._answer_seconds[broker_id] = seconds
        for asked in question.asked.values():
            if asked.is_current:  # else a seek or rebalance came meanwhile
                self._on_error(asked, error, now=now)
        return [asked.state for asked in question.asked.values()]

    def _on_offsets(
        self, asked: PartitionRequest, error: int, offsets: list[int], *, now: float
    ) -> None:
        """Set the start. The last offset counts: without a record so young that is the log's
        end.
        """
        if error or not offsets:
            text = "where to start is not known" if error else "no offset was told"
            self._on_error(asked, error_for(error or -1, f"{asked.state}: {text}"), now=now)
        else:
            asked.state.found(offsets[-1])

    def _on_fetched(
        self,
        asked: PartitionRequest,
        told: PartitionFetched,
        data: bytes | memoryview,
        *,
        now: float,
    ) -> None:
        """1. An error. 2. A diverging history. 3. Batches, perhaps damaged ones, or none."""
        if told.error:
            place = asked.place
            self._routes.on_leader(
                place.topic_id,
                place.partition,
                leader=told.leader,
                leader_epoch=told.leader_epoch,
            )
            self._on_error(asked, _error_told(asked, told), now=now)
        elif told.diverging is not None:  # the log was truncated below the fetch offset
            self._on_diverging(asked, told.diverging.end_offset)
        else:
            self._on_batches(asked, told, data, now=now)

    def _on_batches(
        self,
        asked: PartitionRequest,
        told: PartitionFetched,
        data: bytes | memoryview,
        *,
        now: float,
    ) -> None:
        state = asked.state
        end = end_told(told, state.isolation)
        expected = Expected(
            asked.offset,
            state.fetch_epoch,
            asked.place.leader_epoch,
            end,
            f"{state} from offset {asked.offset}",
            told.aborted,
            self._asked,
            told.left_out,
        )
        pieces, damage = check_answer(data, expected)
        state.on_told(asked.place.topic_id, told.high_watermark, end)
        if pieces or damage is None:  # an empty answer is a success, too
            state.on_success()
        state.add(pieces)
        if pieces:
            self._subscription.rotate([state.key])
        # Only damage right at the fetch offset: what is behind good batches is fetched again.
        elif damage is not None:
            self._on_damage(asked, damage, now=now)
            if state.error is None:  # not given up yet: the leader should check its disk
                self._refused.append(asked)

    def _on_damage(self, asked: PartitionRequest, damage: RaftmqError, *, now: float) -> None:
        """Fetch again for a while, unless the leader has checked its disk and found the batch
        intact.
        """
        state, place = asked.state, asked.place
        met = state.damage or DamageMet(place, since=now, first=now)
        if met.place != place:  # a new leader has its own time to repair
            met = met._replace(place=place, since=now)
        is_over = now >= min(met.since + REPAIR_SECONDS_MAX, met.first + HANDOVERS_SECONDS_MAX)
        # The leader's disk is intact: the bytes were written so, and repetition would not help.
        if is_over or state.vouched_at == place:
            state.fail(_told_damage(asked, damage))
            return
        state.damage = met
        self._retry(asked, is_doubted=True, now=now)

    def take_refused(self) -> list[PartitionRequest]:
        """Requests whose answer was damaged, and of which the leader has no report yet."""
        refused, self._refused = self._refused, []
        return refused

    def on_verdict(self, asked: PartitionRequest, verdict: int) -> None:
        """The leader's finding about the damage that was reported."""
        if asked.is_current and verdict == CorruptionVerdict.WHOLE:  # other verdicts: it repairs
            asked.state.vouched_at = asked.place

    def _on_diverging(self, asked: PartitionRequest, end_offset: int) -> None:
        """The log was truncated. If only undelivered records are gone, nothing is lost: fetch
        again.
        """
        state = asked.state
        state.on_cut()
        if state.undelivered:
            self._on_given_up(state)
            state.forget_undelivered()
            return
        state.fail(
            LogTruncation(
                f"{state}: records from offset {end_offset} on were read, and are not in the log "
                f"any more: the position was {asked.offset}; "
                f"seek({state.topic!r}, {state.partition}, offset={end_offset}) reads what took "
                "their place",
                offset=end_offset,
            )
        )

    def _on_error(self, asked: PartitionRequest, error: RaftmqError, *, now: float) -> None:
        """1. Damage. 2. Retriable. 3. An error that only the program can resolve."""
        if isinstance(error, CorruptRecord):
            self._on_damage(asked, error, now=now)
        elif error.retriable:
            is_doubted = error.refresh_metadata or isinstance(error, Unreachable)
            self._retry(asked, is_doubted=is_doubted, now=now)
        else:
            asked.state.fail(error)

    def _retry(self, asked: PartitionRequest, *, is_doubted: bool, now: float) -> None:
        asked.state.on_failure(asked.place, now=now)
        # Otherwise the answer has named the new leader already.
        if is_doubted and self._routes.find(*asked.state.key) == asked.place:
            self._routes.doubt(asked.state.topic)


def _error_told(asked: PartitionRequest, told: PartitionFetched) -> RaftmqError:
    state = asked.state
    error = error_for(told.error, told.message or f"refused for {state}")
    if isinstance(error, OffsetOutOfRange):
        first, end = told.log_start_offset, told.high_watermark
        there = f"the first is {first}, the last {end - 1}" if first < end else "it is empty"
        return OffsetOutOfRange(
            f"{state}: offset {asked.offset} is not there: {there}, the next will be {end}; "
            f"seek({state.topic!r}, {state.partition}, offset={first}) goes on there, and "
            'auto_offset_reset="earliest" does so by itself'
        )
    return error


def _told_damage(asked: PartitionRequest, damage: RaftmqError) -> RaftmqError:
    what = damage.what if isinstance(damage, CorruptRecord) else str(damage)
    state = asked.state
    return CorruptRecord(
        f"{state} at offset {asked.offset}, again and again: {what}; "
        f"seek({state.topic!r}, {state.partition}, offset=...) passes over it"
    )
