"""The partition logs on one node's disk, decoded to values, as events of a history.

Owns the way from segments to values. Changes nothing, and continues after damage, which it reports.
A log that is being appended to is read up to its last whole batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from jepsen_like.nodes.logs.names import key_of_log
from jepsen_like.nodes.logs.node_event import NodeEvent
from jepsen_like.workloads.keys import decode_value
from raftmq.disk.checkpoint import read_checkpoint
from raftmq.disk.files import OsFiles
from raftmq.partition.storage.inspect import (
    CHECKPOINTS_FOLDER,
    BadBytes,
    find_partition_folders,
    inspect_batches,
    list_segments,
)
from raftmq.partition.storage.segment import BatchStart
from raftmq.partition.storage.work import LOG_START_FILE, LOG_START_KEY
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from raftmq.wire.batch.control import ControlRecord

HIGH_WATERMARKS = "high-watermarks"

Batch = list[Any]  # base offset, epoch, crc, values


def read_replicas(directory: Path, node_id: int, keys: Collection[str]) -> list[NodeEvent]:
    """One for each log of these keys; two for a key are logs of two topics of one name.

    Its high watermark is the one that the node has noted for its next start.
    """
    files = OsFiles(read_only=True)
    known = read_checkpoint(files, directory / CHECKPOINTS_FOLDER / HIGH_WATERMARKS) or {}
    events = []
    for folder in find_partition_folders(files, directory):
        name = f"{folder.parent.name}/{folder.name}"
        key = key_of_log(name)
        if key in keys:
            value = {"key": key, "high_watermark": known.get(name, 0), **_read(files, folder)}
            events.append(NodeEvent(node_id, "replica", value))
    return events


def _read(files: OsFiles, folder: Path) -> dict[str, Any]:
    found_all: dict[str, list[Any]] = {"batches": []}
    for found in _inspect(files, folder):
        if isinstance(found, str):
            found_all.setdefault("damage", []).append(found)
        else:
            add_batch(found_all, found)
    return {"log_start": _log_start(files, folder), **found_all}


def add_batch(found_all: dict[str, list[Any]], data: bytes) -> None:
    """One whole batch to what an event of a replica tells: "batches", "transactional", "markers",
    "scheduled".

    `found_all`: with its "batches".
    """
    found_all["batches"].append(batch_of(data))
    batch = RecordBatch.decode(data)
    _note_transaction(found_all, batch)
    if batch.header.is_scheduled:
        hidden = [batch.header.base_offset, [decode_value(value) for value in batch.values]]
        found_all.setdefault("scheduled", []).append(hidden)


def _note_transaction(found_all: dict[str, list[Any]], batch: RecordBatch) -> None:
    header = batch.header
    told = [header.base_offset, header.producer_id, header.producer_epoch]
    if not header.is_transactional:
        return
    if not batch.is_control:
        found_all.setdefault("transactional", []).append(told)
    elif (kind := _control(batch).type) in (ControlType.ABORT, ControlType.COMMIT):
        found_all.setdefault("markers", []).append([*told, kind == ControlType.COMMIT])


def _control(batch: RecordBatch) -> ControlRecord:
    control: ControlRecord = batch.control
    return control


def _inspect(files: OsFiles, folder: Path) -> Iterator[bytes | str]:
    segments = list_segments(files, folder)
    for segment in segments:
        file = files.open(segment.path)
        for found in inspect_batches(file, BatchStart(segment.base_offset, 0), segment.size):
            if not isinstance(found, BadBytes):
                yield bytes(file.read(found.position, found.header.size))
            elif found.sound_follows or segment is not segments[-1]:
                yield f"{segment.path.name}, byte {found.position}: {found.what}"


def _log_start(files: OsFiles, folder: Path) -> int:
    known = read_checkpoint(files, folder / LOG_START_FILE) or {}
    return known.get(LOG_START_KEY, 0)


def batch_of(data: bytes) -> Batch:
    """`data` is one whole batch. Its CRC here is over all of it, what a leader writes included."""
    batch = RecordBatch.decode(data)
    header = batch.header
    # What no reader gets takes offsets, too: control records, scheduled ones, cancelled ones.
    values: list[int | None] = [None] * (header.last_offset_delta + 1)
    if not batch.is_control and not header.is_scheduled:
        for offset, value in zip(batch.offsets, batch.values, strict=True):
            values[offset - header.base_offset] = decode_value(value)
    return [header.base_offset, header.leader_epoch, crc32c(data), values]
