"""What to fetch from which leader now: partitions, byte limits, prefetch bound, long poll. Pure.

Kafka: AbstractFetch.prepareFetchRequests. Owns the bound of fetched but undelivered bytes: each
leader has an equal share, and is asked for no more than fits into it. At most one request per
broker is in flight. `fetch_response.py` applies the answers.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.consumer.partition_state import FROM_LATEST
from raftmq.errors import RemoteProtocolError
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.fetch import Fetch, FetchPartition
from raftmq.wire.messages.offsets import ListOffsets, WantedOffset
from raftmq.wire.messages.produce import split_payload
from raftmq.wire.tag_clauses import pack_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.consumer.options import ConsumerOptions
    from raftmq.client.consumer.partition_state import ConsumedPartition, Key
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.routing.routes import LeaderPlace, Routes
    from raftmq.model import IsolationLevel
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.fetch import PartitionFetched
    from raftmq.wire.messages.offsets import FoundOffset
    from raftmq.wire.tag_clauses import TagClauses


# -- Requests -------------------------------------------------------------------------------------
# One fetch or offsets request to a broker, with the state of each partition when it was sent. Pure.
#
# Owns how states become requests, and how the parts of an answer are matched with them.


class PartitionRequest(NamedTuple):
    """One partition of a request."""

    state: ConsumedPartition
    place: LeaderPlace
    version: int
    offset: int

    @property
    def is_current(self) -> bool:
        """Whether the answer is still of use: no seek, rebalance or earlier answer has moved the
        position.
        """
        return self.state.version == self.version

    @property
    def is_caught_up(self) -> bool:
        """The position is at the end, as of the leader's last answer."""
        end_offset = self.state.end_offset
        return end_offset is not None and self.offset >= end_offset


class PlannedRequest(NamedTuple):
    """One request to one broker.

    Attributes:
        asked: its partitions by key.
        wait_seconds: how long the broker may hold the request (long poll).
        is_idle: it only waits for new records: all partitions are caught up.
    """

    broker_id: int
    body: Fetch | ListOffsets
    asked: dict[Key, PartitionRequest]
    wait_seconds: float = 0.0
    is_idle: bool = False

    def covers(self, state: ConsumedPartition) -> bool:
        """Whether an answer to it is of use for the partition."""
        asked = self.asked.get(state.key)
        return asked is not None and asked.is_current


class FetchLimits(NamedTuple):
    """The limits of one fetch request, in milliseconds and bytes."""

    max_wait_ms: int
    bytes_min: int
    bytes_max: int
    partition_bytes_max: int


def asked_of(state: ConsumedPartition, place: LeaderPlace) -> PartitionRequest:
    return PartitionRequest(state, place, state.version, state.fetch_offset)


def fetch_question(
    broker_id: int,
    asked: Sequence[PartitionRequest],
    limits: FetchLimits,
    isolation: IsolationLevel,
    tags: TagClauses = (),
) -> PlannedRequest:
    partition_bytes_max = min(limits.partition_bytes_max, limits.bytes_max)
    partitions = tuple(
        FetchPartition(
            one.place.topic_id,
            one.place.partition,
            one.offset,
            one.place.leader_epoch,
            one.state.fetch_epoch,
            partition_bytes_max,
        )
        for one in asked
    )
    bytes_min = min(limits.bytes_min, limits.bytes_max)
    return PlannedRequest(
        broker_id,
        Fetch(
            limits.max_wait_ms,
            bytes_min,
            limits.bytes_max,
            partitions=partitions,
            isolation_level=isolation,
            tags=tags,
            takes_gaps=True,
        ),
        {one.state.key: one for one in asked},
        wait_seconds=limits.max_wait_ms / 1000,
        is_idle=all(one.is_caught_up for one in asked),
    )


def offsets_question(
    broker_id: int, asked: Sequence[PartitionRequest], isolation: IsolationLevel
) -> PlannedRequest:
    """Where to start. For a timestamp also where the log ends, in case no record is so young; it is
    asked first, so that no record comes between.
    """
    wanted = [each for one in asked for each in _wanted_offsets(one)]
    return PlannedRequest(
        broker_id,
        ListOffsets(tuple(wanted), isolation),
        {one.state.key: one for one in asked},
    )


def _wanted_offsets(asked: PartitionRequest) -> list[WantedOffset]:
    place, number = asked.place, asked.state.start.number
    timestamps = (number,) if number < 0 else (FROM_LATEST.number, number)
    return [
        WantedOffset(place.topic_id, place.partition, place.leader_epoch, timestamp)
        for timestamp in timestamps
    ]


def match_fetched(
    question: PlannedRequest, answer: Answer
) -> list[tuple[PartitionRequest, PartitionFetched, memoryview]]:
    """Raises RemoteProtocolError: the answer does not fit the request."""
    told = answer.body.partitions
    by_id = {(one.place.topic_id, one.place.partition): one for one in question.asked.values()}
    data = split_payload([one.length for one in told], answer.payload)
    matched = []
    for one, piece in zip(told, data, strict=True):
        asked = by_id.pop((one.topic_id, one.partition), None)
        if asked is None:
            raise RemoteProtocolError(
                f"broker {question.broker_id} told of partition {one.partition} of topic "
                f"{one.topic_id.hex()}, of which it was not asked, or twice"
            )
        matched.append((asked, one, piece))
    return matched


def match_offsets(
    question: PlannedRequest, answer: Answer
) -> list[tuple[PartitionRequest, list[FoundOffset]]]:
    """Raises RemoteProtocolError: the answer does not fit the request."""
    assert isinstance(question.body, ListOffsets)
    wanted = [(one.topic_id, one.partition) for one in question.body.partitions]
    told = [(one.topic_id, one.partition) for one in answer.body.partitions]
    if wanted != told:
        raise RemoteProtocolError(
            f"broker {question.broker_id} was asked for {len(wanted)} offsets and told "
            f"{len(told)}, or other ones"
        )
    found: dict[tuple[bytes, int], list[FoundOffset]] = {}
    for one in answer.body.partitions:
        found.setdefault((one.topic_id, one.partition), []).append(one)
    return [
        (asked, found[asked.place.topic_id, asked.place.partition])
        for asked in question.asked.values()
    ]


# -- Fetch plan -----------------------------------------------------------------------------------


PARTITIONS_ASKED_MAX = 1000  # in one request; a broker answers for no more
WAIT_MS_MIN = 10  # a pause that is nearly over must not make the long poll a busy loop


class FetchPlan:
    """The fetch requests of one consumer.

    Attributes:
        out: the request in flight, by broker.
    """

    def __init__(
        self, subscription: Subscription, options: ConsumerOptions, routes: Routes
    ) -> None:
        self._subscription, self._options, self._routes = subscription, options, routes
        self._tags = pack_filter(options.tag_filter)
        self.out: dict[int, PlannedRequest] = {}

    def leaders(self) -> set[int]:
        """Brokers that lead a partition that is read."""
        return {place.leader for _, place in self._placed()}

    def leader_of(self, state: ConsumedPartition) -> int | None:
        place = self._routes.find(*state.key)
        return None if place is None or place.leader == ABSENT else place.leader

    def ask(self, broker_id: int, *, now: float) -> PlannedRequest | None:
        """The next request to the broker, which counts as in flight from now on; None: nothing to
        request.
        """
        assert broker_id not in self.out, "two questions at a time"
        question = self._question(broker_id, now=now)
        if question is not None:
            self.out[broker_id] = question
        return question

    def end(self, question: PlannedRequest) -> None:
        """The request was answered, or never will be."""
        assert self.out[question.broker_id] is question, "another one is under way"
        del self.out[question.broker_id]

    def is_late(self, broker_id: int, *, now: float) -> bool:
        """Whether the request in flight is an idle long poll while other partitions are wanted at
        once.
        """
        question = self.out.get(broker_id)
        return (
            question is not None
            and question.is_idle
            and any(
                self._is_wanted(state, place, now=now) and not question.covers(state)
                for state, place in self._led_by(broker_id)
            )
        )

    def is_late_for(self, state: ConsumedPartition, broker_id: int, *, now: float) -> bool:
        """The same for this partition alone, which costs less."""
        question = self.out.get(broker_id)
        place = self._routes.find(*state.key)
        return (
            question is not None
            and question.is_idle
            and place is not None
            and self._is_wanted(state, place, now=now)
            and not question.covers(state)
        )

    def wake_at(self, broker_id: int, *, now: float) -> float:
        """When the next backoff of one of its partitions is over."""
        return self._wake_at(self._led_by(broker_id), now=now)

    def _wake_at(
        self, led: Sequence[tuple[ConsumedPartition, LeaderPlace]], *, now: float
    ) -> float:
        ends = [
            state.not_before
            for state, _ in led
            if state.not_before > now and state.error is None and not state.is_paused
        ]
        return min(ends, default=inf)

    def _question(self, broker_id: int, *, now: float) -> PlannedRequest | None:
        placed = self._placed()
        led = [(state, place) for state, place in placed if place.leader == broker_id]
        wanted = [
            asked_of(state, place)
            for state, place in led
            if self._is_wanted(state, place, now=now) and _is_same_topic(state, place)
        ][:PARTITIONS_ASKED_MAX]
        # Not all fit into one request: the others come first in the next one.
        if len(wanted) == PARTITIONS_ASKED_MAX:
            self._subscription.rotate([one.state.key for one in wanted])
        starting = [one for one in wanted if one.state.position is None]
        # Partitions without a position need an offset before they can be fetched.
        if starting:
            return offsets_question(broker_id, starting, self._options.isolation)
        leader_count = len({place.leader for _, place in placed})
        space_bytes = self._space_bytes([state for state, _ in led], leader_count) if wanted else 0
        if not space_bytes:  # nothing wanted, or the prefetch bound is reached
            return None
        pause_ms = (self._wake_at(led, now=now) - now) * 1000
        limits = self._limits(space_bytes, pause_ms=pause_ms)
        isolation = self._options.isolation
        return fetch_question(broker_id, wanted, limits, isolation, self._tags)

    def _limits(self, space_bytes: int, *, pause_ms: float) -> FetchLimits:
        options = self._options
        return FetchLimits(
            int(min(options.fetch_max_wait_ms, max(pause_ms, WAIT_MS_MIN))),
            options.fetch_min_bytes,
            min(options.fetch_max_bytes, space_bytes),
            options.max_partition_fetch_bytes,
        )

    def _space_bytes(self, states: Sequence[ConsumedPartition], leader_count: int) -> int:
        """How many bytes more may be fetched; 0 until a quarter of the share is free again.

        Bytes of paused partitions must not keep the others from going on: they are dropped, and
        fetched again.
        """
        share = -(-self._options.prefetch_bytes // leader_count)
        # A quarter must be free: many small fetches would cost more than they bring.
        held_max = share // 4 * 3
        held = sum(state.undelivered.byte_count for state in states)
        if held > held_max:
            for state in states:
                if state.is_paused:  # its records would not be handed out anyway
                    held -= state.undelivered.byte_count
                    state.forget_undelivered()
        return share - held if held <= held_max else 0  # see `held_max`

    def _is_wanted(self, state: ConsumedPartition, place: LeaderPlace, *, now: float) -> bool:
        buffer_bytes = self._options.max_partition_fetch_bytes
        return state.is_wanted(place, buffer_bytes=buffer_bytes, now=now)

    def _led_by(self, broker_id: int) -> list[tuple[ConsumedPartition, LeaderPlace]]:
        return [(state, place) for state, place in self._placed() if place.leader == broker_id]

    def _placed(self) -> list[tuple[ConsumedPartition, LeaderPlace]]:
        """All partitions with a leader."""
        find, placed = self._routes.find, []
        for state in self._subscription.states.values():
            place = find(*state.key)
            if place is not None and place.leader != ABSENT:  # others wait for metadata
                placed.append((state, place))
        return placed


def _is_same_topic(state: ConsumedPartition, place: LeaderPlace) -> bool:
    """Whether it is the topic that is read; otherwise it was deleted and created anew."""
    if state.topic_id is None:  # the first request of this partition decides
        state.read_topic(place.topic_id)
    return state.topic_id == place.topic_id
