"""`ConsumerRecord`: one record as the program gets it; the deserializers of a consumer. Pure.

Kafka: ConsumerRecord, Deserializer. What cannot be read as the program wants it (text, JSON, its
own deserializer) is an `UndecodableRecord` that has the record as it was sent: nothing is lost, and
reading goes on behind it. Also owns the ownership mark by which a late commit is recognized.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar
from weakref import ReferenceType, ref

import msgspec

from raftmq.client.dead_letters.letters import Origin, origin_of
from raftmq.client.group.effects import LossCause
from raftmq.client.type_parameters import Generic, KeyT_co, ValueT_co
from raftmq.errors import UndecodableRecord
from raftmq.words import kind_of

Deserializer: TypeAlias = Callable[[Any], Any]
# Timestamps count milliseconds from here.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEY_NUMBER_BYTES = 8  # what a number as a key counts
_OF_DELIVERIES = ("scheduled_at", "due")  # the last fields of a record


# A Struct is faster to make than a NamedTuple or a dataclass, and has no `count` and `index`, which
# a user takes for fields of the record. `eq=False`: records of each ownership are of a class of
# their own, see `PartitionOwnership`, and equal nevertheless.
class ConsumerRecord(msgspec.Struct, Generic[ValueT_co, KeyT_co], frozen=True, eq=False):
    """One record. In annotations `ConsumerRecord[Order, str]` is one with such a value and key, and
    `ConsumerRecord` one as it was sent.

    Attributes:
        topic: its name.
        partition: number of the partition.
        offset: its number in the partition.
        timestamp: milliseconds since 1970-01-01 UTC, -1 where it has none; see `time`.
        key: bytes, text, an int, or None, or what `key_deserializer` has made of it.
        value: bytes or None, or what `value_deserializer` has made of it; see `text` and `json`.
        headers: pairs of a name and bytes, in order; a name may come twice.
        tags: sorted.
        scheduled_at: of a record that was sent with a delay, or for a moment: when it was made, in
            milliseconds as `timestamp`, which says when it was delivered. None of any other.
        due: of such a record: when it was to be delivered, in milliseconds.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: KeyT_co | None
    value: ValueT_co | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    tags: tuple[str, ...] = ()
    scheduled_at: int | None = None
    due: int | None = None

    # The ownership in which a member of a group got it; None: not in a group, or a copy
    ownership: ClassVar[PartitionOwnership | None] = None

    def text(self) -> str:
        """The value as text, of UTF-8.

        Raises:
            UndecodableRecord: it is no UTF-8, or None, or a deserializer made something else of it.
        """
        if isinstance(self.value, str):
            return self.value
        try:
            return str(self._bytes("text"), "utf-8")
        except UnicodeDecodeError as error:
            raise UndecodableRecord.of(self, f"value: {error}") from error

    def json(self) -> Any:  # noqa: ANN401  # as `json.loads`
        """The value as what its JSON says.

        Raises:
            UndecodableRecord: it is no JSON, or None, or a deserializer made something else of it.
        """
        try:
            return json.loads(self.value if isinstance(self.value, str) else self._bytes("JSON"))
        except (ValueError, RecursionError) as error:  # it is nested too deep
            raise UndecodableRecord.of(self, f"value: no JSON: {error}") from error

    @property
    def time(self) -> datetime | None:
        """The timestamp as a datetime in UTC; None where it has none.

        Raises:
            UndecodableRecord: it is after the year 9999.
        """
        if self.timestamp < 0:
            return None
        try:
            return _EPOCH + timedelta(milliseconds=self.timestamp)
        except OverflowError as error:
            what = f"timestamp {self.timestamp}: after the year 9999"
            raise UndecodableRecord.of(self, what) from error

    @property
    def size(self) -> int:
        """Bytes of the key, the value, the names and values of headers, and the tags, as they were
        sent, without compression and what a batch adds. A number as key counts 8.
        """
        return size_of(self)

    @property
    def origin(self) -> Origin:
        """Where the record stood first: of a dead letter, or one that is tried again, the place
        where it failed first, and of any other one its own.
        """
        return origin_of(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset, self.timestamp))

    def __repr__(self) -> str:  # of all classes alike, which are an implementation detail
        names = ConsumerRecord.__struct_fields__
        if self.due is None:  # nearly all
            names = names[: -len(_OF_DELIVERIES)]
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{ConsumerRecord.__name__}({shown})"

    def _bytes(self, kind: str) -> bytes:
        if isinstance(self.value, bytes):
            return self.value
        what = "None" if self.value is None else kind_of(self.value)
        raise UndecodableRecord.of(self, f"value: {what}, not bytes of {kind}")


AnyRecord: TypeAlias = ConsumerRecord[Any, Any]


def size_of(record: AnyRecord) -> int:
    """Of a record as it was sent."""
    return (
        _bytes_in(record.key)
        + _bytes_in(record.value)
        + sum(_bytes_in(name) + _bytes_in(value) for name, value in record.headers)
        + sum(map(_bytes_in, record.tags))
    )


def _bytes_in(sent: bytes | str | int | None) -> int:
    if sent is None:
        return 0
    if isinstance(sent, int):
        return KEY_NUMBER_BYTES
    return len(sent.encode() if isinstance(sent, str) else sent)


def _fields(record: AnyRecord) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in ConsumerRecord.__struct_fields__)


# -- Deserializers --------------------------------------------------------------------------------


class DeserializedRecord(ConsumerRecord[Any, Any], frozen=True, eq=False):
    """A record with what deserializers have made of its key and value.

    Attributes:
        sent: as it was sent.
    """

    sent: ConsumerRecord | None = None

    @property
    def size(self) -> int:
        """As it was sent."""
        return size_of(as_sent(self))


class Deserializers(NamedTuple):
    """The `key_deserializer` and `value_deserializer` of a consumer."""

    key: Deserializer | None = None
    value: Deserializer | None = None

    def key_of(self, record: ConsumerRecord) -> Any:  # noqa: ANN401  # whatever it makes
        """Raises UndecodableRecord."""
        return _made("key", self.key, record.key, record)

    def value_of(self, record: ConsumerRecord) -> Any:  # noqa: ANN401
        """Raises UndecodableRecord."""
        return _made("value", self.value, record.value, record)

    def record_of(self, record: ConsumerRecord) -> AnyRecord:
        """The same record, with key and value deserialized.

        Raises:
            UndecodableRecord: a deserializer has failed; its error is the cause.
        """
        ownership = record.ownership
        kind = DeserializedRecord if ownership is None else ownership.deserialized_kind
        key, value = self.key_of(record), self.value_of(record)
        topic, partition, offset, timestamp, _, _, headers, tags, made, due = (
            msgspec.structs.astuple(record)
        )
        return kind(
            topic, partition, offset, timestamp, key, value, headers, tags, made, due, record
        )


def as_sent(record: AnyRecord) -> ConsumerRecord:
    """The record without what deserializers have made of it."""
    if isinstance(record, DeserializedRecord):
        assert record.sent is not None, "deserialized from nothing"
        return record.sent
    return record


def _made(name: str, make: Deserializer | None, given: object, record: ConsumerRecord) -> object:
    # No key, or a record that only deletes: a deserializer is not for these.
    if make is None or given is None:
        return given
    try:
        return make(given)
    except Exception as error:
        what = f"{name}_deserializer: {type(error).__name__}: {error}"
        raise UndecodableRecord.of(record, what) from error


# -- Partition ownership --------------------------------------------------------------------------
# The time for which a group member owns a partition: records handed out meanwhile bear its mark.
#
# Records that were handed out before a partition went to another member, or before its topic was
# deleted and created anew, say nothing of how far it is done now.


RecordT = TypeVar("RecordT", bound=AnyRecord)


class PartitionOwner:
    """The member of a group that owns partitions: from what was handed out to who knows how far
    it is done, for the transactions of producers.
    """

    def __init__(self) -> None:
        # The one circle: a member is made from its partitions. Weak, as records that a program
        # keeps must not keep their consumer.
        self._member: ReferenceType[object] | None = None

    def is_member(self, member: object) -> None:
        """Called once, as the consumer is made."""
        self._member = ref(member)

    @property
    def member(self) -> object | None:
        """None: its consumer is gone."""
        return None if self._member is None else self._member()


class PartitionOwnership:
    """One member's ownership of one partition; a mark, compared by identity.

    Attributes:
        topic_id: of the topic that is read; None: not known yet.
        owner: the member.
        cause: once it has ended, why.
    """

    def __init__(self, topic_id: bytes | None = None, owner: PartitionOwner | None = None) -> None:
        self.topic_id, self.owner, self.cause = topic_id, owner, LossCause.OTHER

    # A class for each ownership, as records then bear the mark for nothing: an attribute of each
    # takes time, and another field would be seen by programs.

    @cached_property
    def record_kind(self) -> type[AnyRecord]:
        """Of records in this ownership."""
        return self._marked(ConsumerRecord)

    @cached_property
    def deserialized_kind(self) -> type[DeserializedRecord]:
        """Of deserialized ones."""
        return self._marked(DeserializedRecord)

    def _marked(self, kind: type[RecordT]) -> type[RecordT]:
        # Copied and pickled without the mark, which means nothing in another process.
        def as_plain(record: AnyRecord) -> tuple[type[RecordT], tuple[Any, ...]]:
            return kind, msgspec.structs.astuple(record)

        def copied(record: AnyRecord) -> RecordT:
            return kind(*msgspec.structs.astuple(record))

        return msgspec.defstruct(  # type: ignore[return-value]
            ConsumerRecord.__name__,
            [],
            bases=(kind,),
            module=kind.__module__,
            namespace={"ownership": self, "__reduce__": as_plain, "__copy__": copied},
        )
