"""Checks of a program's keys, values, headers, timestamps and tags before they are encoded.

Owns every InvalidRecord of the codec that concerns a column: lengths, types, ranges, limits.
Invariant: what passes here is encoded without an error in either record format (except tags, for
which Kafka's format has no place). For columns of plain bytes nothing is done per record in
Python, and timestamps cost one subtraction each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import msgspec

from raftmq.errors import InvalidRecord
from raftmq.model import RecordFormat
from raftmq.wire.batch.columns import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    Key,
    Value,
    is_increasing,
)
from raftmq.wire.batch.directory import Tags, problem_of_tags
from raftmq.wire.batch.header import RECORDS_MAX
from raftmq.wire.batch.record_headers import HEADERS_MAX, FlatHeaders
from raftmq.words import kind_of

Item = TypeVar("Item")
GivenHeaders = Mapping[str, Value | str] | Sequence[tuple[str, Value | str]] | None


class CheckedRecords(NamedTuple):
    """All records of a batch to be written; an empty column is None."""

    record_count: int
    base_timestamp: int
    max_timestamp: int
    offset_deltas: list[int] | None  # None: 0, 1, 2 ...
    timestamp_deltas: list[int] | None  # None: every record has the base timestamp
    keys: Sequence[Key] | None
    values: Sequence[Value] | None
    headers: list[FlatHeaders] | None
    tags: list[Tags] | None


class Timestamps(NamedTuple):
    base: int
    latest: int
    deltas: list[int] | None


def check_records(
    *,
    values: Sequence[object],
    keys: Sequence[object] | None = None,
    headers: Sequence[GivenHeaders] | None = None,
    tags: Sequence[object] | None = None,
    timestamps: Sequence[int] | None = None,
    timestamp: int | None = None,
    offset_deltas: Sequence[int] | None = None,
) -> CheckedRecords:
    """Check all columns of a batch.

    Raises:
        InvalidRecord: names the column and, if one item is wrong, its index.
    """
    count = check_lengths(
        values,
        keys=keys,
        headers=headers,
        tags=tags,
        timestamps=timestamps,
        offset_deltas=offset_deltas,
    )
    times = check_timestamps(timestamps, timestamp, count)
    return CheckedRecords(
        record_count=count,
        base_timestamp=times.base,
        max_timestamp=times.latest,
        offset_deltas=check_offset_deltas(offset_deltas, count),
        timestamp_deltas=times.deltas,
        keys=check_keys(keys),
        values=check_values(values),
        headers=check_headers(headers),
        tags=check_tags(tags),
    )


def check_lengths(values: Sequence[object], **columns: Sequence[object] | None) -> int:
    """The record count, if all columns have it."""
    count = len(values)
    if not 1 <= count <= RECORDS_MAX:
        raise InvalidRecord(f"{count} values, a batch holds 1 to {RECORDS_MAX} records")
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise InvalidRecord(f"{len(column)} {name} for {count} values")
    return count


def check_due(
    due_ms: int, record_format: RecordFormat, offset_deltas: Sequence[int] | None
) -> None:
    """Whether such records can be scheduled for that moment."""
    if record_format is not RecordFormat.COLUMNS:
        raise InvalidRecord("record_format is KAFKA, which has no place for a due time")
    if offset_deltas is not None:
        raise InvalidRecord("a scheduled batch must have offsets without gaps")
    if not 0 <= due_ms <= INT64_MAX:
        raise InvalidRecord(f"due_ms is {due_ms}, allowed 0 to {INT64_MAX}")


def check_values(values: Sequence[object]) -> Sequence[Value] | None:
    """Bytes and None, text in UTF-8; None instead of the column if no record has a value."""
    if _is_plain(values):  # the fast path: nothing to check per record
        return _as_list(values)
    return _or_none([check_value(item, f"values[{index}]") for index, item in enumerate(values)])


def check_keys(keys: Sequence[object] | None) -> Sequence[Key] | None:
    """Bytes, text, integers and None. None instead of the column if no record has a key."""
    if keys is None:
        return None
    if _is_plain(keys):  # the fast path: nothing to check per record
        return _as_list(keys)
    return _or_none([check_key(item, f"keys[{index}]") for index, item in enumerate(keys)])


def _is_plain(column: Sequence[object]) -> bool:
    """Whether all items are bytes. Counting types runs in C, in a third of the time of a loop."""
    return list(map(type, column)).count(bytes) == len(column)


def _as_list(column: Sequence[object]) -> Sequence[bytes]:
    """msgspec encodes lists and tuples, not other sequences."""
    return cast("Sequence[bytes]", column if isinstance(column, (list, tuple)) else list(column))


def _or_none(column: list[Item]) -> list[Item] | None:
    return None if column.count(None) == len(column) else column  # type: ignore[arg-type]


def check_value(item: object, name: str) -> Value:
    if item is None:
        return None
    if isinstance(item, str):
        return encode_text(item, name)
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    problem = f"{name} is {kind_of(item)}, expected bytes, str or None"
    if name.startswith("value"):
        problem += "; value_serializer, such as json.dumps, encodes other values"
    raise InvalidRecord(problem)


def check_key(item: object, name: str) -> Key:
    if isinstance(item, int) and not isinstance(item, bool):
        return check_int64(item, name)
    if isinstance(item, str):
        if not item.isascii():  # which is known without looking; most keys are
            encode_text(item, name)
        return item if type(item) is str else str.__str__(item)
    if item is None or isinstance(item, (bytes, bytearray, memoryview)):
        return None if item is None else bytes(item)
    problem = f"{name} is {kind_of(item)}, expected bytes, str, int or None"
    raise InvalidRecord(f"{problem}; key_serializer encodes other keys")


def check_int64(item: object, name: str) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise InvalidRecord(f"{name} is {kind_of(item)}, expected int")
    if not INT64_MIN <= item <= INT64_MAX:
        raise InvalidRecord(f"{name} = {item} does not fit into 64 bits")
    return int(item)


def _to_integers(column: Sequence[object], name: str) -> list[int]:
    try:
        return msgspec.convert(list(column), list[int])
    except msgspec.ValidationError:  # the slow way, to name the index in the error
        return [check_int64(item, f"{name}[{index}]") for index, item in enumerate(column)]


def encode_text(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"{name} is not valid Unicode: {error}") from error


def check_timestamps(
    timestamps: Sequence[int] | None, timestamp: int | None, count: int
) -> Timestamps:
    """Milliseconds, either one for each record or a single one for all of them."""
    if (timestamps is None) == (timestamp is None):
        raise InvalidRecord("give either timestamps or timestamp")
    if timestamps is None:
        single = check_int64(timestamp, "timestamp")
        return Timestamps(single, single, None)
    given = _to_integers(timestamps, "timestamps")
    base = given[0]
    deltas = [each - base for each in given]
    # Timestamps are nearly sorted: sorting them takes a third of the time of min and max.
    ordered = sorted(deltas)
    earliest, latest = base + ordered[0], base + ordered[-1]
    # Also the difference must fit: deltas are i64, too.
    if earliest < INT64_MIN or latest > INT64_MAX or latest - earliest > INT64_MAX:
        raise InvalidRecord(f"timestamps {earliest} to {latest} do not fit into 64 bits")
    return Timestamps(base, latest, deltas if ordered[0] != ordered[-1] else None)


def check_offset_deltas(deltas: Sequence[int] | None, count: int) -> list[int] | None:
    """Strictly increasing from 0 or more; None instead of the column if they are 0, 1, 2 ..."""
    if deltas is None:
        return None
    deltas = _to_integers(deltas, "offset_deltas")
    if deltas[0] < 0 or deltas[-1] > INT32_MAX or not is_increasing(deltas):
        raise InvalidRecord("offset_deltas must be strictly increasing, from 0 to 2^31 - 1")
    return None if deltas[-1] == count - 1 else deltas


def check_headers(headers: Sequence[GivenHeaders] | None) -> list[FlatHeaders] | None:
    """Names (in UTF-8) and values in turn; None instead of the column if no record has any."""
    if headers is None:
        return None
    names: dict[object, bytes] = {}  # encoded once: most records have the same few names
    checked = [
        _to_flat(each, f"headers[{index}]", names) if each else []
        for index, each in enumerate(headers)
    ]
    return checked if any(checked) else None


def check_record_headers(headers: object) -> None:
    """Those of a single record."""
    _to_flat(headers, "headers", {})


def check_record_tags(tags: object) -> None:
    """Those of a single record."""
    _to_tags(tags, "tags", {})


def _to_flat(given: object, where: str, names: dict[object, bytes]) -> FlatHeaders:
    if isinstance(given, Mapping):
        given = list(given.items())
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes, bytearray)):
        raise InvalidRecord(f"{where} is {kind_of(given)}, expected a mapping or pairs")
    if len(given) > HEADERS_MAX:
        raise InvalidRecord(f"{where}: {len(given)} headers, allowed {HEADERS_MAX}")
    flat: FlatHeaders = []
    try:
        for name, value in given:
            flat.append(names.get(name) or _to_name(name, where, names))
            flat.append(value if type(value) is bytes else check_value(value, f"{where}: {name!r}"))
    except (TypeError, ValueError) as error:  # no pair, or a name that is not even hashable
        raise InvalidRecord(f"{where}: expected pairs of name and value: {error}") from error
    return flat


def _to_name(name: object, where: str, names: dict[object, bytes]) -> bytes:
    if not isinstance(name, str):
        raise InvalidRecord(f"{where}: the name is {kind_of(name)}, expected str")
    names[name] = encode_text(name, where)
    return names[name]


def check_tags(tags: Sequence[object] | None) -> list[Tags] | None:
    """Each record's tags sorted and unique; None instead of the column if no record has any."""
    if tags is None:
        return None
    known: dict[tuple[object, ...], Tags] = {}  # checked once: most records have the same few sets
    checked = [
        _to_tags(each, f"tags[{index}]", known) if each else () for index, each in enumerate(tags)
    ]
    return checked if any(checked) else None


def _to_tags(given: object, where: str, known: dict[tuple[object, ...], Tags]) -> Tags:
    if not isinstance(given, (list, tuple, set, frozenset)):
        raise InvalidRecord(f"{where} is {kind_of(given)}, expected a list of str")
    written = tuple(given)
    try:
        if written in known:  # as it was written before
            return known[written]
    except TypeError as error:  # not hashable, as a list
        raise InvalidRecord(f"{where}: a tag that is not a str: {error}") from error
    known[written] = _sorted_tags(written, where)
    return known[written]


def _sorted_tags(written: tuple[object, ...], where: str) -> Tags:
    for tag in written:
        if not isinstance(tag, str):
            raise InvalidRecord(f"{where}: a tag is {kind_of(tag)}, expected str")
        encode_text(tag, where)
    result = tuple(sorted(cast("set[str]", set(written))))
    problem = problem_of_tags(result)
    if problem:
        raise InvalidRecord(f"{where}: {problem}")
    return result
