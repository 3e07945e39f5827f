"""`raftmq log dump --producers`: what the snapshots of a partition folder know, as rows.

Owns what a row shows. A snapshot that cannot be read is named on stderr.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.disks.folders import find_one_partition
from raftmq.cli.exits import ExitCode
from raftmq.cli.output import Row, write_json, write_table
from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.storage.known_producers import list_snapshots, load_snapshot, snapshot_path
from raftmq.wire.header import is_named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raftmq.cli.disks.log_dump import Selection
    from raftmq.disk.files import Files
    from raftmq.partition.producers import Remembered

TITLES = (
    "snapshot", "producer", "next sequence", "idle s", "generation", "digest",
    "sequence@offset+records",
)  # fmt: skip


class Known(NamedTuple):
    """A producer, as the snapshot at `offset` has it."""

    offset: int
    remembered: Remembered


class ProducersDump:
    """One reading of a folder. `exit_code` is final when everything was taken."""

    def __init__(self, files: Files, folder: Path, selection: Selection) -> None:
        self._files, self._folder, self._selection = files, folder, selection
        self.exit_code = ExitCode.OK

    def rows(self) -> Iterator[Known]:
        for offset in list_snapshots(self._files, self._folder):
            if self._selection.has(offset):
                yield from (Known(offset, each) for each in self._load(offset))

    def _load(self, offset: int) -> list[Remembered]:
        try:
            return load_snapshot(self._files, self._folder, offset)
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
        " ".join(runs),
    )
