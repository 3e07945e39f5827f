"""The batches that wait for one partition's leader: linger, order, in-flight limit. Pure.

Also the columns of records that a bulk call hands in (`RecordColumns`), checked and cut; nothing
there runs once per record in Python that could run in C; and which of the batches in a request
(`RequestPart`) a leader's refusal is about (`blamed`). Decides when a queue may send, not whether
its leader is known: that is `sender.py`.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import accumulate, pairwise
from operator import add
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec

from raftmq.client.producer.batch import ProducerBatch
from raftmq.client.producer.record import (
    RECORD_OVERHEAD_BYTES,
    Extras,
    checked_timestamp,
    kept_headers,
    kept_tags,
    length_of,
    size_of,
)
from raftmq.errors import (
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RaftmqError,
    UnsupportedVersion,
)
from raftmq.wire.batch.arguments import (
    check_headers,
    check_int64,
    check_keys,
    check_tags,
    check_values,
)
from raftmq.wire.batch.columns import INT64_MAX
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from raftmq.client.producer.named_producer import NamedNumbering
    from raftmq.client.producer.numbering import Numbering
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.routing.routes import LeaderPlace
    from raftmq.client.transactions.numbering import TransactionNumbering
    from raftmq.rpc.backoff import Backoff
    from raftmq.wire.batch.columns import Key

    AnyNumbering: TypeAlias = Numbering | NamedNumbering | TransactionNumbering


# The format stores timestamps in 64 bits
_WholeNumber = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
# In the order of the fields of RecordColumns, for messages.
NAMES = ("values", "keys", "headers", "tags", "timestamps", "partitions")


class RecordColumns(NamedTuple):
    """Parallel columns of equal length; None where no record has any."""

    values: Sequence[Any]
    keys: Sequence[Any] | None = None
    headers: Sequence[Any] | None = None
    tags: Sequence[Any] | None = None
    timestamps: Sequence[int] | None = None
    partitions: Sequence[int] | None = None

    @classmethod
    def checked(cls, *columns: Any) -> RecordColumns:  # noqa: ANN401  # any object with a length
        """Raises InvalidRecord where their lengths differ."""
        lengths = {
            name: _length(name, column)
            for name, column in zip(NAMES, columns, strict=True)
            if column is not None
        }
        if "values" not in lengths:
            raise InvalidRecord("values is None, expected a list or an Arrow array")
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise InvalidRecord(f"columns of different lengths: {told}")
        return cls(*columns)

    def prepared(self, first: int) -> Prepared:
        """The columns as batches take them, once every record is checked.

        Args:
            first: how many records came before, for messages.

        Raises:
            InvalidRecord: names the column and the index.
        """
        try:
            return self._prepared()
        except InvalidRecord as error:
            if first:  # indices in the message count from this portion on
                error.add_note(f"counted from record {first} on")
            raise

    def _prepared(self) -> Prepared:
        count = len(self.values)
        values, keys = check_values(self.values), check_keys(self.keys)
        # Without headers and tags, which few programs use, sizes are computed without a Python
        # loop.
        if check_headers(self.headers) is None and check_tags(self.tags) is None:
            # The column itself comes back where all keys are bytes.
            key_length = len if keys is self.keys else _key_length
            headers, tags, sizes = None, None, _plain_sizes(count, values, keys, key_length)
        else:
            headers = [kept_headers(each) for each in self.headers or [None] * count]
            tags = [kept_tags(each) for each in self.tags or [None] * count]
            everything = (values or [None] * count, keys or [None] * count, headers, tags)
            sizes = [size_of(v, k, Extras(h, t)) for v, k, h, t in zip(*everything, strict=True)]
        columns = RecordColumns(
            [None] * count if values is None else values,
            keys,
            headers,
            tags,
            _whole_numbers(self.timestamps, "timestamps"),
            _whole_numbers(self.partitions, "partitions"),
        )
        return Prepared(columns, sizes)


class Prepared(NamedTuple):
    """Checked records and the size of each in bytes; copies, so the program may reuse its lists."""

    columns: RecordColumns
    sizes: list[int]

    def part(self, start: int, end: int) -> Prepared:
        return Prepared(portion_of(self.columns, start, end), self.sizes[start:end])


def column_length(rows: object) -> int | None:
    """Number of rows, for a progress bar; None where an iterable does not say."""
    return len(rows) if hasattr(rows, "__len__") else None


def portion_of(columns: RecordColumns, start: int, end: int) -> RecordColumns:
    return RecordColumns._make(
        [None if column is None else _list(column[start:end]) for column in columns]
    )


def _length(name: str, column: object) -> int:
    # A string has a length, but is most likely one value passed in place of a list.
    if isinstance(column, (str, bytes, bytearray)) or not hasattr(column, "__len__"):
        raise InvalidRecord(f"{name} is {kind_of(column)}, expected a list or an Arrow array")
    return len(column)


def _list(column: Any) -> list[Any]:  # noqa: ANN401  # an Arrow array, or any iterable
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)


def _whole_numbers(column: Sequence[object] | None, name: str) -> list[int] | None:
    """Checked integers of 64 bits, 0 or more."""
    if column is None:
        return None
    try:
        return msgspec.convert(column, list[_WholeNumber])
    except msgspec.ValidationError:  # the slow check finds the index for the message
        return [
            checked_timestamp(item, f"{name}[{index}]") if name == "timestamps"
            else check_int64(item, f"{name}[{index}]")
            for index, item in enumerate(column)
        ]  # fmt: skip


def _plain_sizes(
    count: int,
    values: Sequence[bytes | None] | None,
    keys: Sequence[Any] | None,
    key_length: Callable[[Any], int],
) -> list[int]:
    sizes = [RECORD_OVERHEAD_BYTES] * count
    if values is not None:
        sizes = list(map(add, sizes, _lengths(values)))
    if keys is not None:
        sizes = list(map(add, sizes, map(key_length, keys)))
    return sizes


def _lengths(column: Sequence[bytes | None]) -> list[int]:
    try:
        return list(map(len, column))  # type: ignore[arg-type]
    except TypeError:  # a column with None
        return [0 if item is None else len(item) for item in column]


def _key_length(key: Key) -> int:
    return 0 if key is None else length_of(key)


# -- Partition queue ------------------------------------------------------------------------------
# The batches of one partition, in order, and how many of its requests are in flight. Pure.
#
# Invariants: batches leave in the order in which they were opened; a failed batch goes back to the
# front, in its order; with one request in flight at most (decision 0017), the log has that order,
# too. With sequence numbers, batches that may have been appended leave again in requests without
# new ones, before any new one.


# An operator who raises max.message.bytes gets whole batches again within 5 minutes
LIMIT_SECONDS = 300.0


class _Limit(NamedTuple):
    """The largest batch that the leader has said it accepts; of this topic, for some time."""

    bytes_max: int
    topic_id: bytes
    until: float


class PartitionQueue:
    """The send queue of one partition (Kafka: the Deque<ProducerBatch> in RecordAccumulator).

    Args:
        busy: the queues that hold batches or have requests in flight. A queue enters itself;
            `TopicQueues.take_out_idle` removes it.
        backoffs: after a failure, and where the leader still waits for the end of a transaction.
        numbering: sequence numbers; None without idempotence.

    Attributes:
        in_flight: the batches of each request in flight.
        not_before: time until which nothing leaves, because the last attempt failed (backoff).
        open: the last batch, while it takes records.
        problem: why its batches wait, or the last attempt failed; the cause of a delivery timeout.
        is_overdue: its batches wait for long, and that was reported.
        queued_bytes: of the batches that wait here.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        options: ProducerOptions,
        backoffs: tuple[Backoff, Backoff],
        busy: dict[int, PartitionQueue],
        numbering: AnyNumbering | None = None,
    ) -> None:
        self.topic, self.partition, self._busy = topic, partition, busy
        self.numbering = numbering
        self.in_flight: list[list[ProducerBatch]] = []
        self.not_before, self.queued_bytes = -math.inf, 0
        self.open: ProducerBatch | None = None
        self.problem: RaftmqError | None = None
        self.is_overdue = False
        self._options, self._backoff, self._short_backoff = options, *backoffs
        self._batches: deque[ProducerBatch] = deque()
        self._limit: _Limit | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ProducerBatch]:
        return iter(self._batches)

    @property
    def is_idle(self) -> bool:
        """No batch waits and no request is in flight."""
        return not self._batches and not self.in_flight

    @property
    def may_send(self) -> bool:
        """A batch waits, and fewer than `max_in_flight` requests are in flight."""
        return bool(self._batches) and len(self.in_flight) < self._options.max_in_flight

    @property
    def is_in_doubt(self) -> bool:
        """The first batch may have been appended by an earlier attempt."""
        return bool(self._batches) and self._batches[0].may_have_happened

    def on_their_way(self) -> list[ProducerBatch]:
        """The batches in flight whose outcome is not known."""
        return [batch for taken in self.in_flight for batch in taken if batch.outcome is None]

    def unsettled(self) -> list[ProducerBatch]:
        """All whose outcome is not known."""
        return [*self._batches, *self.on_their_way()]

    def open_batch(self, now: float, due_ms: int | None = None) -> ProducerBatch:
        """Append an empty batch to the queue. `due_ms`: its records are scheduled for then."""
        assert self.open is None, "one is open already"
        self.open = ProducerBatch(self.topic, self.partition, now, due_ms)
        self._batches.append(self.open)
        self._busy[self.partition] = self
        return self.open

    def close_batch(self) -> ProducerBatch:
        """The open batch takes no more records."""
        batch, self.open = self.open, None
        assert batch is not None, "none is open"
        batch.is_closed = True
        return batch

    def ready_at(self, *, is_hurried: bool) -> float:
        """When the next request may leave; math.inf: not before an answer or a record comes.

        Args:
            is_hurried: do not linger.
        """
        if not self.may_send:  # an answer or a record changes that
            return math.inf
        return max(self.not_before, self._due_at(self._batches[0], is_hurried=is_hurried))

    def take(self, bytes_max: int, now: float, *, is_hurried: bool) -> list[ProducerBatch]:
        """Remove the oldest batches, at least one, and count them as one request in flight."""
        taken: list[ProducerBatch] = []
        size = 0
        while self._batches:
            batch = self._batches[0]
            size += batch.payload_bytes
            is_due = self._due_at(batch, is_hurried=is_hurried) <= now
            # The first batch always leaves, even if it alone exceeds the request size.
            if taken and (size > bytes_max or not is_due or self._is_apart(taken[0], batch)):
                break
            self.remove(batch)
            taken.append(batch)
        self.in_flight.append(taken)
        return taken

    def put_back(self, batches: Sequence[ProducerBatch]) -> None:
        """Return batches of a failed request to the front of the queue."""
        self._batches.extendleft(reversed(batches))
        self.queued_bytes += sum([batch.byte_count for batch in batches])
        if self._options.max_in_flight > 1:  # requests may fail in any order
            self._batches = deque(sorted(self._batches, key=_opened_at))

    def remove(self, batch: ProducerBatch) -> None:
        """Take a batch out of the queue."""
        self._batches.remove(batch)
        if batch is self.open:
            self.close_batch()
        self.queued_bytes -= batch.byte_count

    def drop(self, batch: ProducerBatch) -> None:
        """Remove a batch that is given up."""
        self.remove(batch)
        # It was sent under that number, so the next one would follow a gap.
        if batch.number is not None and self.numbering is not None:
            self.numbering.end_epoch()

    def on_answer(self, batches: list[ProducerBatch]) -> None:
        """The request with those batches is no longer in flight."""
        self.in_flight.remove(batches)

    def on_success(self) -> None:
        self.not_before, self.problem, self.is_overdue = -math.inf, None, False
        self._backoff.reset()
        self._short_backoff.reset()

    def on_failure(self, problem: RaftmqError | None, now: float, *, at_once: bool) -> None:
        """Pause before the next attempt.

        Args:
            problem: why there has to be another one; None if that was about records that are gone.
            at_once: the next attempt goes to another leader, or without the records that were
                refused, so waiting would gain nothing.
        """
        self.problem = problem
        self.not_before = now + (0.0 if at_once else self._backoff.next_seconds())

    def on_concurrent(self, problem: RaftmqError, now: float) -> None:
        """The leader will have heard within milliseconds what became of the transaction before."""
        self.problem = problem
        self.not_before = now + self._short_backoff.next_seconds()

    def limit_batches(self, bytes_max: int, topic_id: bytes, now: float) -> None:
        """Remember the batch size in bytes that the leader has just named as its limit."""
        self._limit = _Limit(bytes_max, topic_id, now + LIMIT_SECONDS)

    def batch_bytes_max(self, topic_id: bytes, now: float) -> float:
        """The leader's limit for a batch; math.inf if none is known. A single record may be
        larger.
        """
        limit = self._limit
        # A topic that was deleted and created again has a limit of its own.
        if limit is None or limit.topic_id != topic_id or now >= limit.until:
            return math.inf
        return limit.bytes_max

    def _is_apart(self, first: ProducerBatch, other: ProducerBatch) -> bool:
        """One answer cannot be about both: after a refusal the one may still have been appended by
        an earlier attempt, the other certainly was not.
        """
        return self.numbering is not None and first.may_have_happened != other.may_have_happened

    def _due_at(self, batch: ProducerBatch, *, is_hurried: bool) -> float:
        """Until when the batch lingers."""
        if is_hurried or batch.is_closed:
            # A full batch has nothing to wait for.
            return -math.inf
        return batch.opened_at + self._options.linger_seconds


def _opened_at(batch: ProducerBatch) -> float:
    return batch.opened_at


def ready_now(
    queues: Iterable[PartitionQueue], now: float, *, is_hurried: bool
) -> tuple[list[PartitionQueue], float]:
    """Which queues may send now, and when the next one may."""
    ready, later = [], math.inf
    for queue in queues:
        ready_at = queue.ready_at(is_hurried=is_hurried)
        if ready_at <= now:
            ready.append(queue)
        else:
            later = min(later, ready_at)
    return ready, later


# -- Refused batches ------------------------------------------------------------------------------
# Which records an error is about, where a broker has refused them together with others. Pure.
#
# A broker appends all batches of a request for a partition or none, and names the limit that was
# exceeded. From it the client finds the records at fault: only those fail, and the others leave
# again.


class RequestPart(NamedTuple):
    """The batches of one partition in one request.

    Attributes:
        data: the bytes of each batch.
        length: of all of them.
    """

    place: LeaderPlace
    queue: PartitionQueue
    batches: list[ProducerBatch]
    data: list[bytearray]
    length: int


def may_split(batch: ProducerBatch) -> bool:
    """A batch that may have been appended keeps its bytes, by which the broker finds the
    duplicate.
    """
    return batch.unskipped_count > 1 and not batch.may_have_happened


def blamed(
    part: RequestPart, error: RaftmqError, now: float
) -> tuple[list[ProducerBatch], set[ProducerBatch]]:
    """All batches of the part, some perhaps split now, and those among them that the error is not
    about.

    Batches that are too large are not split here: `_encode` does that before they leave again.
    """
    # -1: an old broker, which does not name the limit.
    if isinstance(error, MessageTooLarge) and error.allowed >= 0:
        return part.batches, _those_that_fit(part, error.allowed, now)
    # The highest timestamp that it accepts
    if isinstance(error, InvalidTimestamp) and error.allowed >= 0:
        batches = [one for batch in part.batches for one in _by_time(batch, error.allowed)]
        innocent = {batch for batch in batches if not _is_ahead(batch, error.allowed)}
        if len(innocent) == len(batches):  # it is about a due time
            innocent = {one for one in batches if one.due_ms is None or one.due_ms <= error.allowed}
        # The error may be about a batch that timed out meanwhile, whose timestamps are gone.
        is_told = any(batch.outcome is not None for batch in batches)
        return batches, innocent if len(innocent) < len(batches) or is_told else set()
    # Perhaps of a due time that is too far ahead, or of scheduled records in general.
    if isinstance(error, (InvalidRecord, UnsupportedVersion)):
        return part.batches, _those_due_earlier(part)
    return part.batches, set()


def _those_that_fit(part: RequestPart, bytes_max: int, now: float) -> set[ProducerBatch]:
    sizes = list(map(len, part.data))
    if max(sizes) <= bytes_max:
        return set()  # none exceeds the limit: a repeat would fail again
    part.queue.limit_batches(bytes_max, part.place.topic_id, now)
    return {
        batch
        for batch, size in zip(part.batches, sizes, strict=True)
        if size <= bytes_max or may_split(batch)
    }


def _those_due_earlier(part: RequestPart) -> set[ProducerBatch]:
    """All but the batches with the latest due time: if any is refused for its due time, these are.
    Others that are refused for themselves fail in a later attempt, which is without these.
    """
    latest = max((batch.due_ms for batch in part.batches if batch.due_ms is not None), default=None)
    return set() if latest is None else {one for one in part.batches if one.due_ms != latest}


def _is_ahead(batch: ProducerBatch, highest: int) -> bool:
    return batch.outcome is None and max(batch.timestamps()) > highest


def _by_time(batch: ProducerBatch, highest: int) -> list[ProducerBatch]:
    """Cut a batch where its run of records with timestamps beyond the limit begins and ends."""
    if batch.outcome is not None or not may_split(batch):  # settled, or perhaps appended
        return [batch]
    ahead = [timestamp > highest for timestamp in batch.timestamps()]
    cuts = [at for at, (one, other) in enumerate(pairwise(ahead), 1) if one != other]
    return [batch, *batch.split(cuts)] if cuts else [batch]


# -- Requests -------------------------------------------------------------------------------------
# One produce request: batches of several partitions for one leader, and their answers. Pure.


# The offset of the first batch, after which the others follow, or that of each batch, where some
# were duplicates. -1 with acks=0.
Offsets: TypeAlias = int | tuple[int, ...]


class Stamped(NamedTuple):
    """Batches of a topic with LogAppendTime.

    Attributes:
        times_ms: one for all batches, or of each, where some were duplicates; -1: not known.
    """

    offsets: Offsets
    times_ms: int | tuple[int, ...]


# Answer of one partition.
Answered: TypeAlias = Offsets | Stamped | RaftmqError


class ProduceRequest(NamedTuple):
    """One request to one leader.

    Attributes:
        deadline: after it no answer is waited for.
    """

    leader: int
    deadline: float
    parts: list[RequestPart]


def portions(parts: list[RequestPart], bytes_max: int) -> Iterator[list[RequestPart]]:
    """Divide parts into requests, by bytes and by number of partitions."""
    together: list[RequestPart] = []
    size = 0
    for part in parts:
        # A part that is too large for any request leaves alone.
        if together and (size + part.length > bytes_max or len(together) == PARTITIONS_MAX):
            yield together
            together, size = [], 0
        together.append(part)
        size += part.length
    if together:
        yield together


def offsets_of(batches: Sequence[ProducerBatch], answer: Offsets) -> Sequence[int]:
    """The offset of the first record of each batch."""
    if isinstance(answer, tuple):  # some batches were duplicates
        return answer
    if answer == ABSENT:  # acks=0: no broker has answered
        return [ABSENT] * len(batches)
    counts = [batch.unskipped_count for batch in batches]
    *starts, _end = accumulate(counts, initial=answer)
    return starts


def times_of(batches: Sequence[ProducerBatch], answer: Offsets | Stamped) -> Sequence[int | None]:
    """The leader's timestamp of each batch; None where the producer's counts."""
    if not isinstance(answer, Stamped):  # CreateTime
        return [None] * len(batches)
    times = answer.times_ms
    return times if isinstance(times, tuple) else [times] * len(batches)
