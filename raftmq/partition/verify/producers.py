"""Verification of producer snapshots: readable, and in agreement with the batches of the log.

Owns the comparison. A snapshot that cannot be read costs an opening some time, a warning; one that
is sound and wrong would let a duplicate in, or refuse a producer: an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord
from raftmq.partition.sequences import NO_OFFSET, ProducerState, noted
from raftmq.partition.storage.known_producers import (
    list_snapshots,
    load_snapshot,
    snapshot_path,
)
from raftmq.partition.verify.indexes import READ_ERRORS

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.producers import Remembered
    from raftmq.partition.verify.findings import Findings
    from raftmq.wire.batch.header import Account, BatchHeader

WAY_OUT = "remove the file while no broker uses it"


class ProducerCheck:
    """Reads the snapshots at once, before the batches: a broker may append meanwhile, and a
    snapshot must not be newer than what is read. Then `note` every batch, and `finish`.
    """

    def __init__(self, files: Files, folder: Path, findings: Findings, first_offset: int) -> None:
        self._folder, self._findings, self._first_offset = folder, findings, first_offset
        self._known: dict[int, ProducerState] = {}
        self._is_whole = True
        self._snapshots: list[tuple[int, list[Remembered]]] = []
        for offset in list_snapshots(files, folder):
            remembered = self._load(files, offset)
            # One below the first segment is not used either.
            if remembered is not None and offset >= first_offset:
                self._snapshots.append((offset, remembered))
        self._snapshots.reverse()  # the lowest is taken next

    def _load(self, files: Files, offset: int) -> list[Remembered] | None:
        path = snapshot_path(self._folder, offset)
        try:
            return load_snapshot(files, self._folder, offset).remembered
        except (CorruptRecord, *READ_ERRORS) as error:
            if files.exists(path):  # else a broker has removed it just now
                what = f"useless, the log does without it: {error}"
                self._findings.warning(path, what, offset=offset)
            return None

    def on_gap(self) -> None:
        """Something could not be read: nothing can be compared any more."""
        self._is_whole = False

    def note(self, header: BatchHeader, account: Account | None) -> None:
        """`account`: generation and digest in the batch, if it is of a named producer."""
        self._compare_up_to(header.base_offset)
        producer = noted(self._known.get(header.producer_id), header, account)
        if producer is not None:
            self._known[header.producer_id] = producer

    def finish(self, end_offset: int) -> None:
        self._compare_up_to(end_offset)
        for offset, _ in self._snapshots if self._is_whole else ():
            what = f"the log ends at {end_offset}, before it; the next opening removes it"
            self._findings.warning(snapshot_path(self._folder, offset), what, offset=offset)

    def _compare_up_to(self, offset: int) -> None:
        while self._snapshots and self._snapshots[-1][0] <= offset:
            end_offset, remembered = self._snapshots.pop()
            if self._is_whole:  # behind a gap the state by the batches is not complete
                self._compare(end_offset, remembered, is_reached=end_offset == offset)

    def _compare(self, offset: int, remembered: list[Remembered], *, is_reached: bool) -> None:
        path = snapshot_path(self._folder, offset)
        if not is_reached:
            what = "no batch ends there, the log does without it"
            self._findings.warning(path, what, offset=offset)
            return
        for producer_id, producer, _ in remembered:
            said = self._known.get(producer_id)
            if not _agree(producer, said, self._first_offset):
                what = f"producer {producer_id} is {producer}, its batches say {said}; {WAY_OUT}"
                self._findings.error(path, what, offset=offset)


def _agree(producer: ProducerState, said: ProducerState | None, first_offset: int) -> bool:
    """Whether a snapshot's state can be that of the batches, by what they still show."""
    kept = [run for run in producer.runs if run.base_offset >= first_offset]  # others were trimmed
    if said is None:
        return not kept
    if not said.partition_count:  # only fences carry it, and this producer's was trimmed
        producer = producer._replace(partition_count=0)
    # A producer whose last marker is settled is a plain one again, or kept without it.
    bare, said_bare = (each._replace(runs=(), marker_offset=NO_OFFSET) for each in (producer, said))
    return bare == said_bare and all(
        said.offset_of(run.first_sequence, run.record_count) == run.base_offset for run in kept
    )
