"""Snapshots of producers: whether they can be read, and say what the batches say.

Owns the comparison. A snapshot that cannot be read costs an opening some time; one that is sound
and wrong would let a duplicate in, or keep a producer out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord
from raftmq.partition.producers import ProducerState, noted
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
    """Reads the snapshots at once, as batches that are appended meanwhile must not be missing; then
    `note` every batch, and `finish`.
    """

    def __init__(self, files: Files, folder: Path, findings: Findings, first_offset: int) -> None:
        self._folder, self._findings, self._first_offset = folder, findings, first_offset
        self._known: dict[int, ProducerState] = {}
        self._is_whole = True
        self._snapshots: list[tuple[int, list[Remembered]]] = []
        for offset in list_snapshots(files, folder):
            remembered = self._load(files, offset)
            if remembered is not None and offset >= first_offset:
                self._snapshots.append((offset, remembered))
        self._snapshots.reverse()  # the lowest is taken next

    def _load(self, files: Files, offset: int) -> list[Remembered] | None:
        path = snapshot_path(self._folder, offset)
        try:
            return load_snapshot(files, self._folder, offset)
        except (CorruptRecord, *READ_ERRORS) as error:
            if files.exists(path):  # else it was removed just now
                what = f"useless, the log does without it: {error}"
                self._findings.warning(path, what, offset=offset)
            return None

    def on_gap(self) -> None:
        """Something could not be read: nothing can be compared any more."""
        self._is_whole = False

    def note(self, header: BatchHeader, account: Account | None) -> None:
        """`account`: what the batch says if it is a named producer's."""
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
            if self._is_whole:
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
    """Of what was trimmed the batches say nothing; nor does any but a fence of the number of
    partitions. Who is missing may have been forgotten, and may have come back since.
    """
    kept = [run for run in producer.runs if run.base_offset >= first_offset]
    if said is None:
        return not kept
    if not said.partition_count:
        producer = producer._replace(partition_count=0)
    return producer._replace(runs=()) == said._replace(runs=()) and all(
        said.offset_of(run.first_sequence, run.record_count) == run.base_offset for run in kept
    )
