"""`raftmq log dump`: the batches, records or known producers of a partition folder, as rows.

Owns what a row shows. Bytes that are no batch are skipped and named on stderr. Writes nothing, and
tolerates a broker that appends meanwhile.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.disks.folders import find_one_partition
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import Row, put_bytes, show_time, shown, write_json, write_table
from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptRecord, StorageError, UnsupportedCompression
from raftmq.model import NO_TIMESTAMP, Compression
from raftmq.partition.epochs import UNDEFINED_EPOCH
from raftmq.partition.storage.aborted_index import kind_in_file
from raftmq.partition.storage.inspect import (
    BadBytes,
    SegmentFile,
    inspect_batches,
    list_segments,
    start_near,
)
from raftmq.partition.storage.known_producers import (
    account_in,
    list_snapshots,
    load_snapshot,
    snapshot_path,
)
from raftmq.partition.storage.segment import BatchStart, FoundBatch
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import COMPRESSION_BITS, TIMESTAMP_TYPE_BIT, is_named
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.producers import Remembered
    from raftmq.wire.batch.header import Account, BatchHeader
    from raftmq.wire.batch.records import Record


KEY_LENGTH_MAX = 24  # characters in a table, which JSON output does not cut
VALUE_LENGTH_MAX = 60
CODEC_NAMES = {int(codec): codec.name.lower() for codec in Compression}

BATCH_TITLES = (
    "offset", "end", "segment", "byte", "bytes", "records", "epoch", "timestamp", "+ms",
    "compression", "encoding", "producer", "flags",
)  # fmt: skip
RECORD_TITLES = ("offset", "timestamp", "key", "value", "headers", "tags")


class Selection(NamedTuple):
    """Offsets [start_offset, end_offset), at most `rows_max` rows; None: no limit."""

    start_offset: int
    end_offset: int | None
    rows_max: int | None

    def has(self, offset: int) -> bool:
        return offset >= self.start_offset and not self.is_behind(offset)

    def is_behind(self, offset: int) -> bool:
        return self.end_offset is not None and offset >= self.end_offset


class DumpedBatch(NamedTuple):
    """Where one batch was found. `is_aborted`: readers of committed records drop it."""

    file: File
    position: int
    header: BatchHeader
    is_aborted: bool = False


class Share(NamedTuple):
    batches: int = 0
    bytes: int = 0

    def plus(self, header: BatchHeader) -> Share:
        return Share(self.batches + 1, self.bytes + header.size)


class Dump:
    """One reading of a folder. `exit_code` is final when its iterator is exhausted."""

    def __init__(self, files: Files, folder: Path, selection: Selection) -> None:
        self._files, self._selection = files, selection
        self._segments = list_segments(files, folder)
        self.exit_code = ExitCode.OK
        # Offset and type of each marker of a transaction, by producer id; read when needed.
        self._markers: dict[int, list[tuple[int, int]]] | None = None
        self._shown = self._aborted = Share()

    def batches(self) -> Iterator[DumpedBatch]:
        """Those that hold a selected offset, in the order of the log."""
        leader_epoch = UNDEFINED_EPOCH
        for segment in self._selected_segments():
            start = start_near(self._files, segment, self._selection.start_offset)
            file = self._files.open(segment.path)
            for each in inspect_batches(file, start, segment.size, leader_epoch):
                # Damage does not end the dump: the sound batches after it are what people look for.
                if isinstance(each, BadBytes):
                    self._complain(segment, each)
                    continue
                leader_epoch = each.header.leader_epoch
                # Offsets only rise: nothing that is selected follows.
                if self._selection.is_behind(each.header.base_offset):
                    return
                if each.header.end_offset > self._selection.start_offset:
                    yield self._judged(DumpedBatch(file, *each))

    def _judged(self, batch: DumpedBatch) -> DumpedBatch:
        self._shown = self._shown.plus(batch.header)
        if not batch.header.is_transactional or batch.header.is_control:
            return batch
        if self._markers is None:
            self._markers = self._read_markers(batch.header.base_offset)
        # The next marker of the producer decides.
        mine = self._markers.get(batch.header.producer_id, [])
        following = bisect_left(mine, (batch.header.base_offset, 0))
        if following == len(mine) or mine[following][1] != ControlType.ABORT:
            return batch
        self._aborted = self._aborted.plus(batch.header)
        return batch._replace(is_aborted=True)

    def _read_markers(self, offset: int) -> dict[int, list[tuple[int, int]]]:
        """Those behind `offset`, up to the log's end: what decides may stand behind the selection.
        Not from the index, which may be missing."""
        found: dict[int, list[tuple[int, int]]] = {}
        for segment in self._segments:
            file = self._files.open(segment.path)
            begin = BatchStart(segment.base_offset, 0)
            for each in inspect_batches(file, begin, segment.size):
                if isinstance(each, BadBytes) or each.header.base_offset < offset:
                    continue
                kind = _marker_kind(DumpedBatch(file, *each))
                if kind in (ControlType.ABORT, ControlType.COMMIT):
                    mine = found.setdefault(each.header.producer_id, [])
                    mine.append((each.header.base_offset, int(kind)))
        return found

    def tell_share(self) -> None:
        """How much of what was shown was aborted: it takes place until retention removes it."""
        if self._aborted.batches:
            percent = 100 * self._aborted.bytes / self._shown.bytes
            _say(
                f"{self._aborted.batches} of {self._shown.batches} batches were aborted, "
                f"{percent:.1f} % of the bytes"
            )

    def _selected_segments(self) -> Iterator[SegmentFile]:
        ends = [segment.base_offset for segment in self._segments[1:]]
        for segment, end in zip(self._segments, [*ends, None], strict=True):
            if end is None or end > self._selection.start_offset:
                yield segment

    def records(self) -> Iterator[Record]:
        for batch in self.batches():
            try:
                yield from self._records_of(batch)
            # One bad batch does not end the dump.
            except (CorruptRecord, UnsupportedCompression) as error:
                where = f"{batch.file.path}, batch at byte {batch.position}"
                self._fail(f"{where}, offset {batch.header.base_offset}: {error}")

    def _records_of(self, batch: DumpedBatch) -> Iterator[Record]:
        data = batch.file.read(batch.position, batch.header.size)
        for record in RecordBatch.decode(data).records():
            # A batch may begin before the selection, or end behind it.
            if self._selection.has(record.offset):
                yield record

    def _complain(self, segment: SegmentFile, bad: BadBytes) -> None:
        where = f"{segment.path}, byte {bad.position}, offset {bad.offset}: {bad.what}"
        # 1. The batch is readable, but something in it is wrong.
        # 2. Sound batches follow, here or in later segments: readers would miss these bytes.
        # 3. The end of the log: a torn tail, or a broker is writing right now.
        if bad.end == bad.position:
            self._fail(f"{where}; the batch is shown as it is")
        elif bad.sound_follows or segment != self._segments[-1]:
            self._fail(f"{where}; {bad.end - bad.position} bytes passed over")
        else:
            _say(f"{where}; a tail of {bad.end - bad.position} bytes that is torn, or just written")

    def _fail(self, line: str) -> None:
        self.exit_code = ExitCode.FAILED
        _say(line)


def _say(line: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"raftmq: {line}\n")


def dump_log(folder: Path, selection: Selection, *, records: bool, as_json: bool) -> int:
    """Print what was selected; returns the exit code."""
    files = OsFiles(read_only=True)
    dump = Dump(files, find_one_partition(files, folder), selection)
    if records:
        _write_records(islice(dump.records(), selection.rows_max), as_json=as_json)
    else:
        _write_batches(islice(dump.batches(), selection.rows_max), as_json=as_json)
        dump.tell_share()
    return dump.exit_code


def _write_batches(batches: Iterable[DumpedBatch], *, as_json: bool) -> None:
    if as_json:
        write_json(map(batch_object, batches))
    else:
        write_table(BATCH_TITLES, map(_batch_row, batches))


def _write_records(records: Iterable[Record], *, as_json: bool) -> None:
    if as_json:
        write_json(map(record_object, records))
    else:
        write_table(RECORD_TITLES, map(_record_row, records))


# -- batches -----------------------------------------------------------------------------------


def batch_object(batch: DumpedBatch) -> Row:
    """Generation, digest and count of partitions only for batches of named producers."""
    header, account = batch.header, _account(batch)
    row: Row = {
        "segment": batch.file.path.name,
        "position": batch.position,
        "base_offset": header.base_offset,
        "end_offset": header.end_offset,
        "bytes": header.size,
        "records": header.record_count,
        "leader_epoch": header.leader_epoch,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "compression": _codec_name(header),
        "encoding": _encoding(header),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "flags": _flags(batch, account),
    }
    return row if account is None else row | account._asdict()


def _batch_row(batch: DumpedBatch) -> tuple[object, ...]:
    header, account = batch.header, _account(batch)
    return (
        header.base_offset,
        header.end_offset,
        int(batch.file.path.stem),
        batch.position,
        header.size,
        header.record_count,
        header.leader_epoch,
        show_time(header.base_timestamp),
        None if NO_TIMESTAMP in header[7:9] else header.max_timestamp - header.base_timestamp,
        _codec_name(header),
        _encoding(header),
        _producer(header, account),
        " ".join(_flags(batch, account)),
    )


def _account(batch: DumpedBatch) -> Account | None:
    try:
        return account_in(batch.file, FoundBatch(batch.position, batch.header))
    except CorruptRecord:
        return None  # --records reports the damage; here the other columns are worth showing


def _producer(header: BatchHeader, account: Account | None) -> str | None:
    if header.producer_id < 0:
        return None
    number = f"{header.producer_id}/{header.producer_epoch}"
    return number if account is None else f"{number} generation {account.generation}"


def _codec_name(header: BatchHeader) -> str:
    codec = header.attributes & COMPRESSION_BITS
    return CODEC_NAMES.get(codec, f"unknown ({codec})")


def _encoding(header: BatchHeader) -> str:
    return "columns" if header.is_columns else "kafka"


def _flags(batch: DumpedBatch, account: Account | None) -> list[str]:
    header, kind = batch.header, _marker_kind(batch)
    flags = {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "fence": header.is_control and account is not None,
        "commit": kind == ControlType.COMMIT,
        "abort": kind == ControlType.ABORT,
        "aborted": batch.is_aborted,
        "log_append_time": bool(header.attributes & TIMESTAMP_TYPE_BIT),
    }
    return [name for name, is_set in flags.items() if is_set]


def _marker_kind(batch: DumpedBatch) -> ControlType | int | None:
    """What the marker of a transaction decides; None of another batch."""
    if not batch.header.is_transactional:
        return None
    try:
        return kind_in_file(batch.file, FoundBatch(batch.position, batch.header))
    except CorruptRecord:
        return None  # as above


# -- records -----------------------------------------------------------------------------------


def record_object(record: Record) -> Row:
    row: Row = {"offset": record.offset, "timestamp": record.timestamp}
    put_bytes(row, "key", record.key)
    put_bytes(row, "value", record.value)
    row["headers"] = [_header_object(*header) for header in record.headers]
    row["tags"] = list(record.tags)
    return row


def _header_object(name: str, value: bytes | None) -> Row:
    row: Row = {"name": name}
    put_bytes(row, "value", value)
    return row


def _record_row(record: Record) -> tuple[object, ...]:
    headers = " ".join(f"{name}={shown(value, KEY_LENGTH_MAX)}" for name, value in record.headers)
    return (
        record.offset,
        show_time(record.timestamp),
        shown(record.key, KEY_LENGTH_MAX),
        shown(record.value, VALUE_LENGTH_MAX),
        shown(headers, VALUE_LENGTH_MAX),
        shown(" ".join(record.tags), VALUE_LENGTH_MAX),
    )


# -- Producer snapshots ---------------------------------------------------------------------------
# `raftmq log dump --producers`: idempotent producers as the snapshots of a folder have them.
#
# Owns what a row shows. A snapshot that cannot be read is named on stderr.


TITLES = (
    "snapshot", "producer", "next sequence", "idle s", "generation", "digest", "open from",
    "sequence@offset+records",
)  # fmt: skip


class Known(NamedTuple):
    """A producer, as the snapshot at `offset` has it."""

    offset: int
    remembered: Remembered


class ProducersDump:
    """One reading of a folder. `exit_code` is final when its iterator is exhausted."""

    def __init__(self, files: Files, folder: Path, selection: Selection) -> None:
        self._files, self._folder, self._selection = files, folder, selection
        self.exit_code = ExitCode.OK

    def rows(self) -> Iterator[Known]:
        for offset in list_snapshots(self._files, self._folder):
            if self._selection.has(offset):
                yield from (Known(offset, each) for each in self._load(offset))

    def _load(self, offset: int) -> list[Remembered]:
        try:
            return load_snapshot(self._files, self._folder, offset).remembered
        # One bad snapshot does not hide the others; recovery falls back to an older one, too.
        except (CorruptRecord, StorageError) as error:
            path = snapshot_path(self._folder, offset)
            sys.stdout.flush()
            sys.stderr.write(f"raftmq: {path}: {error}; the log does without it\n")
            self.exit_code = ExitCode.FAILED
            return []


def dump_producers(folder: Path, selection: Selection, *, as_json: bool) -> int:
    """Print what was selected; returns the exit code."""
    files = OsFiles(read_only=True)
    dump = ProducersDump(files, find_one_partition(files, folder), selection)
    rows = islice(dump.rows(), selection.rows_max)
    if as_json:
        write_json(map(producer_object, rows))
    else:
        write_table(TITLES, map(_row, rows))
    return dump.exit_code


def producer_object(known: Known) -> Row:
    producer_id, producer, idle_seconds = known.remembered
    return {
        "snapshot": known.offset,
        "producer_id": producer_id,
        "producer_epoch": producer.epoch,
        "next_sequence": producer.next_sequence,
        "idle_seconds": int(idle_seconds),
        "generation": producer.generation,
        "digest": producer.digest,
        "partition_count": producer.partition_count,
        "open_offset": producer.open_offset,
        "marker_offset": producer.marker_offset,
        "runs": [run._asdict() for run in producer.runs],
    }


def _row(known: Known) -> tuple[object, ...]:
    producer_id, producer, idle_seconds = known.remembered
    runs = (f"{run.first_sequence}@{run.base_offset}+{run.record_count}" for run in producer.runs)
    return (
        known.offset,
        f"{producer_id}/{producer.epoch}",
        producer.next_sequence,
        int(idle_seconds),
        producer.generation if is_named(producer_id) else None,
        f"{producer.digest:08x}" if is_named(producer_id) else None,
        producer.open_offset if producer.open_offset >= 0 else None,
        " ".join(runs),
    )
