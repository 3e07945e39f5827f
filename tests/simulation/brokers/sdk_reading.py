"""The judge of one SDK consumer: records handed out, positions, seeks, pauses, resets.

Which values may be at which offset, the ledger says. Promises: a partition is read without gaps
from where reading begins, also after cancellations; nothing comes from paused partitions; reading
goes on elsewhere only where records were deleted, or after a seek.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from raftmq.errors import LogTruncation, OffsetOutOfRange, RaftmqError
from tests.simulation.brokers.history import text_of
from tests.simulation.brokers.history_reader import Reader
from tests.simulation.brokers.ledger import Spot
from tests.simulation.brokers.tagging import tags_of
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.tag_filter import TagFilter
    from tests.simulation.brokers.ledger import PartitionLedger
    from tests.simulation.brokers.world import World

Key: TypeAlias = tuple[str, int]


class Reading:
    """Of the consumer that `consumer` is.

    Attributes:
        expected: the offset that comes next, by partition; missing where it is not known.
    """

    def __init__(
        self,
        world: World,
        consumer: Consumer,
        name: str,
        *,
        reset: str,
        asked: TagFilter | None = None,
    ) -> None:
        """`asked`: the filter of the consumer."""
        self._world, self._consumer, self._name, self._reset = world, consumer, name, reset
        self._asked = asked
        self.expected: dict[Key, int] = {}
        self._from_start: set[Key] = set()
        self._topic_ids: dict[Key, bytes] = {}  # of the topics in which these offsets were known
        self._readers: dict[Spot, Reader] = {}

    def begin(self, start: str | int) -> None:
        for key in self._consumer.assignment:
            position = self._consumer.position(*key)
            if isinstance(start, int):
                demand(position == start, f"{self._name}: {key} at {position}, not {start}")
            if position is not None:
                self.expected[key] = position
            elif start == "earliest":
                self._from_start.add(key)

    def on_seek(self, key: Key, *, offset: int | None) -> None:
        """Before the seek. None: to the first one that there is."""
        self._world.trace(f"{self._name} seeks {key} {offset}")
        self._note_topic(key)
        self.expected.pop(key, None)
        self._from_start.discard(key)
        if offset is None:
            self._from_start.add(key)
        else:
            self.expected[key] = offset

    def on_record(self, key: Key, offset: int, value: bytes) -> None:
        demand(key not in self._consumer.paused, f"{self._name}: {key} {offset} is paused")
        ledger = self._ledger(key)
        expected = self.expected.get(key)
        if self._asked is not None:
            passes = self._asked.matches(tags_of(value))
            demand(passes, f"{self._name}: {key} {offset}: {value!r} does not pass {self._asked}")
        # The history is of what is read without gaps.
        elif ledger is not None:
            self._write_down(key, ledger, offset, value)
        if expected is None:
            self._judge_first(key, offset, ledger)
        elif offset != expected and not self._may_go_on(key, offset, expected, ledger):
            self._step_over(key, expected, offset, ledger)
        self.expected[key] = offset + 1
        self._note_topic(key)
        if ledger is not None:
            self._world.ledger.reads += 1
            ledger.see(offset, value, self._name)

    def _judge_first(self, key: Key, offset: int, ledger: PartitionLedger | None) -> None:
        """What was deleted or not yet there when reading began: only that may be missing."""
        is_known = key in self._from_start and offset and ledger is not None
        if is_known and ledger is not None and not ledger.may_have_deleted(offset - 1):
            self._step_over(key, ledger.deleted_to, offset, ledger)
        self._from_start.discard(key)

    def _step_over(
        self, key: Key, expected: int, offset: int, ledger: PartitionLedger | None
    ) -> None:
        """Control records of named producers are handed out to no consumer, and what does not pass
        its filter to that one.
        """
        has_gaps = self._world.plan.tasks or self._asked is not None
        may_be = has_gaps and expected < offset and (ledger is not None or self._asked is not None)
        demand(may_be, f"{self._name}: {key} goes on at {offset}, expected {expected}")
        if ledger is None:  # of a topic of which nothing is known
            return
        if self._reset != "none":  # after a reset it goes on behind what was deleted
            expected = max(expected, ledger.deleted_to)
        ledger.skip(expected, offset, self._name, self._asked)

    def _may_go_on(
        self, key: Key, offset: int, expected: int, ledger: PartitionLedger | None
    ) -> bool:
        """Where else to go on was said when the consumer was made."""
        if self._is_another_topic(key) and self._reset != "none":
            return True
        is_legal = self._reset != "none" and offset > expected
        is_legal = is_legal and (ledger is None or ledger.may_have_deleted(expected))
        if self._reset == "earliest":
            is_legal = is_legal and (ledger is None or ledger.may_have_deleted(offset - 1))
        return is_legal

    # For the history

    def _write_down(self, key: Key, ledger: PartitionLedger, offset: int, value: bytes) -> None:
        """Before it is judged. After a reset, or a possible one, its expectations begin anew."""
        expected = self.expected.get(key)
        has_gone = expected is not None and offset != expected
        may_be_here = has_gone and self._may_go_on(key, offset, expected or 0, ledger)
        reader = self._readers.get(ledger.spot)
        if reader is None:
            reader = self._readers[ledger.spot] = Reader(self._world.history, ledger.spot)
        if may_be_here or reader.following != expected:
            reader.begin(from_beginning=not may_be_here and self._is_first(key, offset, ledger))
        reader.note(offset, text_of(value))

    def _is_first(self, key: Key, offset: int, ledger: PartitionLedger) -> bool:
        """Whether it should be the first record of all; what was deleted is none of them."""
        is_wanted = key in self._from_start or self.expected.get(key) == 0
        return is_wanted and (not offset or not ledger.may_have_deleted(offset - 1))

    def flush(self) -> None:
        """What was read since the last time is one poll."""
        for spot, reader in self._readers.items():
            key = spot.topic, spot.partition
            ledger = self._ledger(key) if key in self._consumer.assignment else None
            is_read = ledger is not None and ledger.spot == spot
            reader.flush(self._consumer.high_watermark(*key) if is_read else None)

    def judge_positions(self) -> None:
        """What the consumer says of itself."""
        if self._reset != "none":
            return  # it may have gone on elsewhere since
        for key, expected in self.expected.items():
            position = self._consumer.position(*key)
            demand(position is not None, f"{self._name}: {key} nowhere, expected {expected}")
            assert position is not None
            if position != expected:
                self._go_on_from(key, expected, position)

    def _go_on_from(self, key: Key, expected: int, position: int) -> None:
        """The consumer has stepped over something, and not handed out anything since."""
        ledger = self._ledger(key)
        self._step_over(key, expected, position, ledger)
        self.expected[key] = position
        if ledger is not None and ledger.spot in self._readers:
            self._readers[ledger.spot].skip(position)

    def on_error(self, error: RaftmqError) -> Key | None:
        """Which partition has lost its place, if that is what it says."""
        demand(not isinstance(error, LogTruncation), f"{self._name}: {error!r}")
        if not isinstance(error, OffsetOutOfRange):
            return None
        key = error.topic or "", -1 if error.partition is None else error.partition
        demand(key in self._consumer.assignment, f"{self._name}: of what? {error!r}")
        ledger, expected = self._ledger(key), self.expected.get(key)
        if ledger is not None and expected is not None and not self._is_another_topic(key):
            was_deleted = ledger.may_have_deleted(expected)
            demand(was_deleted, f"{self._name}: {key} at {expected}: {error!r}")
        return key

    def _topic_id(self, key: Key) -> bytes | None:
        """Of the topic that is read, if it was asked about since the last seek."""
        return self._consumer._subscription.find(*key).topic_id

    def _note_topic(self, key: Key) -> None:
        if topic_id := self._topic_id(key):
            self._topic_ids[key] = topic_id

    def _is_another_topic(self, key: Key) -> bool:
        """A seek may take effect in a topic that was created meanwhile."""
        return self._topic_ids.get(key, self._topic_id(key)) != self._topic_id(key)

    def _ledger(self, key: Key) -> PartitionLedger | None:
        """Of the topic that is read; None if it is one of which the ledger does not know."""
        topic_id = self._topic_id(key)
        for (topic, life), known in self._world.topic_ids.items():
            if topic == key[0] and known == topic_id:
                return self._world.ledger.of(Spot(topic, key[1], life))
        return None

    def is_alive(self, key: Key) -> bool:
        """Whether the topic that is read is still there."""
        topic, partition = key
        spot = Spot(topic, partition, self._world.lives.get(topic, 0))
        return spot in self._world.spots() and self._ledger(key) is self._world.ledger.of(spot)
