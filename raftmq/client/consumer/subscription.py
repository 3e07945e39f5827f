"""Which partitions a consumer reads: whole topics, an explicit list, or a group's assignment. Pure.

Kafka: SubscriptionState. Owns what metadata mean for it: new partitions, and topics and partitions
that do not exist. Invariant: a partition that is read stays so, unless a group revokes it; if it
disappears, that is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.consumer.partition_state import (
    FROM_EARLIEST,
    ConsumedPartition,
    start_of_added,
)
from raftmq.client.consumer.record import PartitionOwner
from raftmq.client.routing.routes import no_topic
from raftmq.errors import (
    ErrorCode,
    InvalidConfig,
    RaftmqError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_for,
)
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from raftmq.client.consumer.options import ConsumerOptions
    from raftmq.client.consumer.partition_state import Key, ReadingEvents, Start
    from raftmq.client.routing.routes import Routes, TopicRoutes

# So long metadata may lack a topic before that is an error: it may have been created a moment ago.
UNKNOWN_SECONDS_MAX = 5.0


class Subscription:
    """The topics and partitions of one consumer.

    Attributes:
        topics: of which something is read.
        reads_what_is_dealt: the group assigns the partitions.
        asked: the filter of tags for all of its partitions; None: all records are read.
        owner: what marks its partitions as those of a member; None without a group.
        states: every partition that is read, in the order in which they are fetched next.
    """

    def __init__(
        self,
        topics: Sequence[str],
        options: ConsumerOptions,
        routes: Routes,
        random: Random,
        events: ReadingEvents,
    ) -> None:
        self._routes, self._random, self._options = routes, random, options
        self._events, self.asked = events, options.tag_filter
        self.owner = None if options.group is None else PartitionOwner()
        self.reads_what_is_dealt = not options.assign and options.group is not None
        self._reads_all = not options.assign and options.group is None
        # Of the group itself: they may not be there yet, and are read from their beginning.
        self._along = frozenset(() if options.group is None else options.group.read_along)
        self.states: dict[Key, ConsumedPartition] = {}
        for key in options.assign or ():
            self._add((key[0], key[1]), options.start_at((key[0], key[1])))
        self.topics = tuple(dict.fromkeys([*topics, *(topic for topic, _ in self.states)]))
        if topics and self._along:
            self.topics = (*self.topics, *self._along)
        self._own = frozenset(self.topics) - self._along
        # Number of partitions when the topic was seen first
        self._first_counts: dict[str, int] = {}
        self._first_ids: dict[str, bytes] = {}
        self._untold = set(self.topics)
        self._unknown_since: dict[str, float] = {}
        self._problems: list[RaftmqError] = []

    @property
    def is_told(self) -> bool:
        """Whether metadata have answered for every topic."""
        return not self._untold

    def is_awaited(self, topic: str) -> bool:
        """Whether the topic is not there, and need not be: it is made by who needs it first."""
        told = self._routes.topic(topic)
        return topic in self._along and told is not None and told.topic_id is None

    def take_problem(self) -> RaftmqError | None:
        """The next error of a topic as a whole, to be raised; it comes again if the cause lasts.

        What was fetched of the topic, and not handed out, is dropped: nothing of it may come after
        the error. It is fetched again should the topic be there nevertheless.
        """
        if not self._problems:
            return None
        problem = self._problems.pop(0)
        for state in self.states.values():
            if state.topic == problem.topic:
                state.drop_fetched()
        return problem

    def missing(self) -> UnknownTopicOrPartition | None:
        """The error of a topic or partition that does not exist as far as brokers say now, for a
        program that waits no longer: `take_problem` gives it some time to appear.
        """
        for topic in sorted(self._own):
            told = self._routes.topic(topic)
            if told is None or told.topic_id is not None:
                continue
            if isinstance(_why_unknown(topic, told.error), UnknownTopicOrPartition):
                return _no_topic(topic)
        for state in self.states.values():
            told = self._routes.topic(state.topic)
            if told and told.topic_id is not None and state.partition not in told.places:
                return _no_partition(state, told)
        return None

    def find(self, topic: str, partition: int) -> ConsumedPartition:
        """Raises InvalidConfig: the partition is not read."""
        state = self.states.get((topic, partition))
        if state is None:
            known = ", ".join(map(str, list(self.states.values())[:5])) or "nothing yet"
            more = ", ..." if len(self.states) > 5 else ""
            raise InvalidConfig(
                [f"{topic}-{partition} is not read by this consumer; what is: {known}{more}"]
            )
        return state

    def find_all(self, call: str, partitions: Sequence[Key]) -> list[ConsumedPartition]:
        """The arguments of `call`. Raises TypeError: not a pair; InvalidConfig: as `find`."""
        for key in partitions:
            if not isinstance(key, tuple) or len(key) != 2:
                raise TypeError(
                    f'{call} takes pairs, as in {call}(("orders", 0), ("orders", 1)), not {key!r}'
                )
        return [self.find(*key) for key in partitions]

    def topic_id_of(self, state: ConsumedPartition) -> bytes | None:
        """Of the topic that is read, or will be: after a seek no request was sent yet."""
        if state.topic_id is not None:
            return state.topic_id
        told = self._routes.topic(state.topic)
        return None if told is None else told.topic_id

    def read_topics(self, topics: Sequence[str], watched: Sequence[str] = ()) -> None:
        """Set the topics of which the group assigns partitions.

        Args:
            watched: further topics whose number of partitions is needed, as the leader of the group
                plans for others; their errors are not raised here.
        """
        self._own = frozenset(topics) - self._along
        before, self.topics = self.topics, tuple(dict.fromkeys([*topics, *watched]))
        added = {topic for topic in self.topics if topic not in before}
        self._untold = (self._untold | added) & set(self.topics)
        for topic in self._unknown_since.keys() - set(self.topics):
            del self._unknown_since[topic]

    def assign(self, keys: Iterable[Key]) -> list[ConsumedPartition]:
        """The group assigns these; partitions that are read already go on."""
        added = [key for key in keys if key not in self.states]
        for topic, partition in added:
            # Partitions that were added since are read from their beginning, see `start_of_added`.
            is_new = partition >= self._first_counts.get(topic, partition + 1)
            is_new = is_new or self._is_made_anew(topic)
            start = self._options.start_at((topic, partition))
            if topic in self._along:  # a record may have been moved before it was assigned
                start = FROM_EARLIEST
            self._add((topic, partition), start_of_added(start) if is_new else start)
        return [self.states[key] for key in added]

    def _is_made_anew(self, topic: str) -> bool:
        """Deleted and created anew since this consumer saw it first: all of it is new."""
        told = self._routes.topic(topic)
        known = None if told is None else told.topic_id
        return known is not None and known != self._first_ids.get(topic, known)

    def release(self, keys: Iterable[Key]) -> list[ConsumedPartition]:
        """The group revokes these. Their undelivered records are dropped."""
        released = [self.states.pop(key) for key in keys if key in self.states]
        for state in released:
            state.release()
        return released

    def on_unreachable(self) -> None:
        """No broker answers, so that none says that a topic is unknown: its time starts anew."""
        self._unknown_since.clear()

    def on_metadata(self, *, now: float) -> list[ConsumedPartition]:
        """Apply refreshed metadata. Returns partitions with a new error."""
        for topic in self.topics:
            told = self._routes.topic(topic)
            if told is None:  # not answered yet
                continue
            if told.topic_id is None:
                self._on_unknown(topic, told.error, now=now)
            else:
                self._on_known(topic, told)
            self._untold.discard(topic)
        return [state for state in self.states.values() if self._is_gone(state, now=now)]

    def outdated(self) -> list[Key]:
        """Partitions of a deleted topic where another topic has its name now."""
        return [key for key, state in self.states.items() if self._is_outdated(state)]

    def _is_outdated(self, state: ConsumedPartition) -> bool:
        told = self._routes.topic(state.topic)
        if told is None or told.topic_id is None:
            return False
        return state.topic_id not in (None, told.topic_id)

    def rotate(self, keys: Iterable[Key]) -> None:
        """These were fetched: they go to the end of the order."""
        for key in keys:
            self.states[key] = self.states.pop(key)

    def _on_unknown(self, topic: str, number: int, *, now: float) -> None:
        # A watched topic: its reader, another member, gets the error.
        if topic not in self._own:
            return
        error = _why_unknown(topic, number)
        if not error.retriable:  # an invalid name, for example
            self._keep_problem(error.at(topic))
        elif now >= self._unknown_since.setdefault(topic, now) + UNKNOWN_SECONDS_MAX:
            del self._unknown_since[topic]
            # Other retriable errors say nothing about the topic.
            if isinstance(error, UnknownTopicOrPartition):
                self._keep_problem(_no_topic(topic).at(topic))

    def _keep_problem(self, error: RaftmqError) -> None:
        """Keep an error for the program, once however often it is found."""
        if str(error) not in map(str, self._problems):  # every refresh finds it again
            self._problems.append(error)

    def _on_known(self, topic: str, told: TopicRoutes) -> None:
        self._unknown_since.pop(topic, None)
        self._first_counts.setdefault(topic, len(told.places))
        assert told.topic_id is not None, "known, and has no id"
        self._first_ids.setdefault(topic, told.topic_id)
        if self._reads_all:  # with `assign` or a group, partitions are given
            for key in ((topic, partition) for partition in sorted(told.places)):
                if key not in self.states:
                    start = self._options.start_at(key)
                    self._add(key, start if topic in self._untold else start_of_added(start))

    def _is_gone(self, state: ConsumedPartition, *, now: float) -> bool:
        """The partition has disappeared, or has not appeared for too long: now it has an error."""
        told = self._routes.topic(state.topic)
        # A deleted topic is an error of the topic; one error per partition is enough.
        if told is None or told.topic_id is None or state.error is not None:
            return False
        if self._is_outdated(state):
            state.fail(
                UnknownTopicId(
                    f"{state}: topic {state.topic!r} was deleted and created anew; "
                    "seek to read the new one"
                )
            )
        elif state.partition not in told.places and _is_missing(state, now=now):
            state.fail(_no_partition(state, told))
        return state.error is not None

    def _add(self, key: Key, start: Start) -> None:
        reset = self._options.reset
        self.states[key] = ConsumedPartition(
            key,
            start,
            self._random,
            self._events,
            # What is left there is not passed over.
            reset=FROM_EARLIEST if reset is not None and key[0] in self._along else reset,
            isolation=self._options.isolation,
            owner=self.owner,
            deserializers=self._options.deserializers,
        )


def _is_missing(state: ConsumedPartition, *, now: float) -> bool:
    """The partition is missing for longer than a new topic needs."""
    if not state.failures:  # the wait starts at the first refresh without it
        state.on_failure(None, now=now)
    return now >= state.failed_since + UNKNOWN_SECONDS_MAX


def _why_unknown(topic: str, number: int) -> RaftmqError:
    """The error of a topic that metadata lack."""
    return error_for(number or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}")


def _no_topic(topic: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(no_topic(topic))


def _no_partition(state: ConsumedPartition, told: TopicRoutes) -> UnknownTopicOrPartition:
    count = len(told.places)
    has = counted(count, "partition")
    return UnknownTopicOrPartition(f"{state} does not exist: the topic has {has}")
