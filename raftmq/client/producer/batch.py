"""One batch from its first record to word of what became of it. Pure.

Invariants: records are added only until it is closed; it is settled once, with an outcome for all
of its records; what may have been sent is never encoded anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.client.producer.record import RECORD_OVERHEAD_BYTES
from raftmq.errors import RaftmqError
from raftmq.wire.bodies import ABSENT
from raftmq.wire.header import RECORDS_MAX
from raftmq.wire.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.client.producer.record import Extras, GivenTags
    from raftmq.model import Compression
    from raftmq.wire.arguments import GivenHeaders
    from raftmq.wire.columns import Key, Value

OnDelivery: TypeAlias = "Callable[[RaftmqError | None, RecordMetadata | None], object]"


class RecordMetadata(NamedTuple):
    """Where a record stands.

    Attributes:
        offset: -1 with acks=0, where nobody tells.
        timestamp: the record's, in milliseconds since 1970-01-01 UTC.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchMetadata(NamedTuple):
    """Where records stand that were sent together.

    Attributes:
        base_offset: of the first one; -1 with acks=0, where nobody tells.
        is_repeated: it was sent again after an attempt whose outcome nobody knows, so that its
            records may stand in the log twice.
    """

    topic: str
    partition: int
    base_offset: int
    record_count: int
    is_repeated: bool = False

    @property
    def end_offset(self) -> int:
        """One past the last; -1 where nobody tells."""
        return ABSENT if self.base_offset == ABSENT else self.base_offset + self.record_count


Outcome: TypeAlias = BatchMetadata | RaftmqError


class ProducerBatch:
    """Once it is encoded its records are bytes and no objects any more.

    Attributes:
    byte_count: of its records, as they are counted against the buffer.
    payload_bytes: the same without what only memory is needed for.
    opened_at: when its first record came.
    is_repeated: see `BatchMetadata`.
    attempts: how often it was sent.
    last_error: what came of the last attempt that failed.
    outcome: None as long as nobody knows.
    """

    __slots__ = (
        "_callbacks", "_count", "_data", "_has_keys", "_headers", "_keys", "_tags", "_timestamps",
        "_values", "_watchers", "attempts", "byte_count", "is_closed", "is_repeated", "last_error",
        "may_have_happened", "opened_at", "outcome", "partition", "payload_bytes", "topic",
        "unclaimed",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, opened_at: float) -> None:
        self.topic, self.partition, self.opened_at = topic, partition, opened_at
        self._count = 0
        self.byte_count = self.payload_bytes = self.attempts = self.unclaimed = 0
        self.is_closed = self.is_repeated = self.may_have_happened = False
        self.last_error: RaftmqError | None = None
        self.outcome: Outcome | None = None
        self._values: list[Value] = []
        self._keys: list[Key] = []
        self._timestamps: list[int] = []
        self._has_keys = False
        self._headers: list[GivenHeaders] = []
        self._tags: list[GivenTags] = []
        self._data: bytearray | None = None
        self._callbacks: list[tuple[int, OnDelivery]] = []
        self._watchers: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """By the number of its records."""
        return self._count >= RECORDS_MAX

    @property
    def room(self) -> int:
        """For so many records more."""
        return RECORDS_MAX - self._count

    def add(self, value: Value, key: Key, timestamp: int, size: int) -> int:
        """The index of the new record."""
        index = self._count
        self._count = index + 1
        self._values.append(value)
        self._keys.append(key)
        if key is not None:
            self._has_keys = True
        self._timestamps.append(timestamp)
        self.byte_count += size
        self.payload_bytes += size - RECORD_OVERHEAD_BYTES
        return index

    def add_extras(self, extras: Extras) -> None:
        """Of the record that was added last."""
        count = self._count
        if extras.headers:
            self._headers += [None] * (count - 1 - len(self._headers))
            self._headers.append(extras.headers)
        if extras.tags:
            self._tags += [None] * (count - 1 - len(self._tags))
            self._tags.append(extras.tags)

    def extend(
        self,
        values: Sequence[Value],
        keys: Sequence[Key] | None,
        timestamps: Sequence[int],
        size: int,
    ) -> None:
        """Many records; `timestamps` has one for each."""
        if keys is not None and not self._has_keys:
            self._has_keys = True
        self._keys.extend([None] * len(values) if keys is None else keys)
        self._values.extend(values)
        self._count += len(values)
        self._timestamps.extend(timestamps)
        self.byte_count += size
        self.payload_bytes += size - RECORD_OVERHEAD_BYTES * len(values)

    def extend_extras(
        self, headers: Sequence[GivenHeaders] | None, tags: Sequence[GivenTags] | None
    ) -> None:
        """Of as many records as were added last."""
        count = self._count
        if headers is not None:
            self._headers += [None] * (count - len(headers) - len(self._headers))
            self._headers.extend(headers)
        if tags is not None:
            self._tags += [None] * (count - len(tags) - len(self._tags))
            self._tags.extend(tags)

    def encode(self, compression: Compression) -> bytearray:
        """Its bytes, always the same ones. It is closed then.

        Raises:
            RaftmqError: it cannot be encoded, and never will be.
        """
        self.is_closed = True
        if self._data is None:
            self._data = self._encode(compression)
            self._forget_records()
        return self._data

    def _encode(self, compression: Compression) -> bytearray:
        stamps, count = self._timestamps, self._count
        is_one_time = stamps.count(stamps[0]) == count
        return encode_batch(
            values=self._values,
            keys=self._keys if self._has_keys else None,
            headers=_filled(self._headers, count),
            tags=_filled(self._tags, count),
            timestamps=None if is_one_time else stamps,
            timestamp=stamps[0] if is_one_time else None,
            compression=compression,
        )

    def _forget_records(self) -> None:
        self._values, self._keys, self._headers, self._tags = [], [], [], []

    # -- what became of it -----------------------------------------------------------------

    def call_back(self, index: int, on_delivery: OnDelivery) -> None:
        """Have `on_delivery` told about one record."""
        assert self.outcome is None, "settled: nobody is called back any more"
        self._callbacks.append((index, on_delivery))

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have `watcher` called when it is settled."""
        self._watchers.append(watcher)

    def settle(self, outcome: Outcome) -> list[tuple[int, OnDelivery]]:
        """Once; who is to be called back, and for which record."""
        assert self.outcome is None, "settled twice"
        self.outcome = outcome
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()
        callbacks, self._callbacks = self._callbacks, []
        self._forget_records()
        self._data = None
        if isinstance(outcome, RaftmqError):
            self._timestamps = []
        return callbacks

    def metadata_of(self, index: int) -> RecordMetadata:
        """Of one record. Raises what became of the batch instead, if it failed."""
        outcome = self.outcome
        assert outcome is not None, "not settled yet"
        if isinstance(outcome, RaftmqError):
            raise outcome.at(self.topic, self.partition)  # others raise it, too
        base = outcome.base_offset
        offset = ABSENT if base == ABSENT else base + index
        return RecordMetadata(self.topic, self.partition, offset, self._timestamps[index])


def _filled(column: list[GivenHeaders] | list[GivenTags], count: int) -> list | None:  # type: ignore[type-arg]
    """With None for those at the end; None altogether where nobody has any."""
    if not column:
        return None
    return [*column, *[None] * (count - len(column))]
