"""What to ask of which broker now. Pure; `intake.py` takes in what comes.

Owns the bounds of what lies undelivered: each leader has an equal share of them, and is asked for
no more than fits into it. At most one question per broker is under way.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from raftmq.client.consumer.questions import (
    FetchLimits,
    asked_of,
    fetch_question,
    offsets_question,
)
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.consumer.options import ConsumerOptions
    from raftmq.client.consumer.partition_state import PartitionState
    from raftmq.client.consumer.questions import Question
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.routing.routes import Place, Routes

PARTITIONS_ASKED_MAX = 1000  # at a time; a broker tells of no more
WAIT_MS_MIN = 10


class FetchPlan:
    """Attributes:
    out: the question that is under way, by broker.
    """

    def __init__(
        self, subscription: Subscription, options: ConsumerOptions, routes: Routes
    ) -> None:
        self._subscription, self._options, self._routes = subscription, options, routes
        self.out: dict[int, Question] = {}

    def leaders(self) -> set[int]:
        """Brokers that lead what is read."""
        return {place.leader for _, place in self._placed()}

    def leader_of(self, state: PartitionState) -> int | None:
        place = self._routes.find(*state.key)
        return None if place is None or place.leader == ABSENT else place.leader

    def ask(self, broker_id: int, *, now: float) -> Question | None:
        """The next question to it, which is under way from now on; None: there is none now."""
        assert broker_id not in self.out, "two questions at a time"
        question = self._question(broker_id, now=now)
        if question is not None:
            self.out[broker_id] = question
        return question

    def end(self, question: Question) -> None:
        """It was answered, or will never be."""
        assert self.out[question.broker_id] is question, "another one is under way"
        del self.out[question.broker_id]

    def is_late(self, broker_id: int, *, now: float) -> bool:
        """Whether the question under way waits for news while others are wanted at once."""
        question = self.out.get(broker_id)
        return (
            question is not None
            and question.is_idle
            and any(
                self._is_wanted(state, place, now=now) and not question.covers(state)
                for state, place in self._led_by(broker_id)
            )
        )

    def is_late_for(self, state: PartitionState, broker_id: int, *, now: float) -> bool:
        """The same, if only this partition may be wanted: costs less."""
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
        """When the next pause of one of its partitions is over."""
        return self._wake_at(self._led_by(broker_id), now=now)

    def _wake_at(self, led: Sequence[tuple[PartitionState, Place]], *, now: float) -> float:
        ends = [
            state.not_before
            for state, _ in led
            if state.not_before > now and state.error is None and not state.is_paused
        ]
        return min(ends, default=inf)

    def _question(self, broker_id: int, *, now: float) -> Question | None:
        placed = self._placed()
        led = [(state, place) for state, place in placed if place.leader == broker_id]
        wanted = [
            asked_of(state, place)
            for state, place in led
            if self._is_wanted(state, place, now=now) and _is_same_topic(state, place)
        ][:PARTITIONS_ASKED_MAX]
        if len(wanted) == PARTITIONS_ASKED_MAX:
            self._subscription.rotate([one.state.key for one in wanted])
        starting = [one for one in wanted if one.state.position is None]
        if starting:
            return offsets_question(broker_id, starting)
        leader_count = len({place.leader for _, place in placed})
        room = self._room([state for state, _ in led], leader_count) if wanted else 0
        if not room:
            return None
        pause_ms = (self._wake_at(led, now=now) - now) * 1000
        return fetch_question(broker_id, wanted, self._limits(room, pause_ms=pause_ms))

    def _limits(self, room: int, *, pause_ms: float) -> FetchLimits:
        options = self._options
        return FetchLimits(
            int(min(options.fetch_max_wait_ms, max(pause_ms, WAIT_MS_MIN))),
            options.fetch_min_bytes,
            min(options.fetch_max_bytes, room),
            options.max_partition_fetch_bytes,
        )

    def _room(self, states: Sequence[PartitionState], leader_count: int) -> int:
        """For so many bytes more; none until a good part of the share is free again.

        What is paused must not keep the rest from going on: it is fetched another time.
        """
        share = -(-self._options.prefetch_bytes // leader_count)
        held_max = share // 4 * 3
        held = sum(state.undelivered.byte_count for state in states)
        if held > held_max:
            for state in states:
                if state.is_paused:
                    held -= state.undelivered.byte_count
                    state.forget_undelivered()
        return share - held if held <= held_max else 0

    def _is_wanted(self, state: PartitionState, place: Place, *, now: float) -> bool:
        buffer_bytes = self._options.max_partition_fetch_bytes
        return state.is_wanted(place, buffer_bytes=buffer_bytes, now=now)

    def _led_by(self, broker_id: int) -> list[tuple[PartitionState, Place]]:
        return [(state, place) for state, place in self._placed() if place.leader == broker_id]

    def _placed(self) -> list[tuple[PartitionState, Place]]:
        """All partitions that somebody leads."""
        find, placed = self._routes.find, []
        for state in self._subscription.states.values():
            place = find(*state.key)
            if place is not None and place.leader != ABSENT:
                placed.append((state, place))
        return placed


def _is_same_topic(state: PartitionState, place: Place) -> bool:
    """Otherwise it was deleted and created anew."""
    if state.topic_id is None:
        state.read_topic(place.topic_id)
    return state.topic_id == place.topic_id
