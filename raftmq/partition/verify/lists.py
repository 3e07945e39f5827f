"""Verification of the lists of scheduled records against the batches of their segments.

A list that is damaged costs the next opening a walk. One that says something else than the batches
would hide records, or hand them out twice: an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord
from raftmq.partition.scheduling.events import Decided
from raftmq.partition.scheduling.lists import event_in, find_lists, list_path, read_list
from raftmq.partition.scheduling.schedule import Schedule
from raftmq.partition.storage.segment import BatchStart, log_path, walk
from raftmq.partition.verify.indexes import READ_ERRORS

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.scheduling.lists import SavedList
    from raftmq.partition.verify.findings import Findings


def check_lists(files: Files, folder: Path, findings: Findings) -> None:
    for base_offset in find_lists(files, folder):
        path = list_path(folder, base_offset)
        try:
            file = files.open(path)
            saved = read_list(file.read(0, file.size()), base_offset)
            is_right = _is_right(files, folder, base_offset, saved)
        except CorruptRecord as error:
            findings.warning(path, f"damaged: {error}; the next opening reads the batches instead")
        except READ_ERRORS as error:
            findings.warning(path, f"cannot be read: {error}")
        else:
            if not is_right:
                what = "says something else of scheduled records than the batches"
                findings.error(path, f"{what}: remove it, and the next opening reads them")


def _is_right(files: Files, folder: Path, base_offset: int, saved: SavedList) -> bool:
    """True as well where the segment is missing or damaged: that is reported by itself."""
    path = log_path(folder, base_offset)
    if not files.exists(path):
        return True
    file, nothing = files.open(path), Schedule()
    found = []
    try:
        for position, header in walk(file, BatchStart(base_offset, 0), file.size()):
            if header.base_offset >= saved.end_offset:
                break
            event = event_in(file, position, header, nothing)
            if event is not None:
                found.append(event)
    except CorruptRecord:
        return True
    # Which markers matter follows from other segments, too.
    said = [event for event in saved.events() if not isinstance(event, Decided)]
    return said == found
