"""What lies in the logs of a broker's directory, batch by batch, while it runs or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.disk.files import OsFiles
from raftmq.partition.storage.inspect import (
    BadBytes,
    find_partition_folders,
    inspect_batches,
    list_segments,
)
from raftmq.partition.storage.segment import BatchStart
from tests.cluster.broker_ledger import StoredBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.broker_ledger import Logs


def read_logs(directory: Path, topic: str) -> Logs:
    """Up to the first bytes that are no batch: an append may be under way."""
    files = OsFiles(read_only=True)
    return {
        int(folder.name.removeprefix("Partition-")): list(_read(folder))
        for folder in find_partition_folders(files, directory)
        if folder.parent.name.startswith(f"{topic}-")
    }


def _read(folder: Path) -> Iterator[StoredBatch]:
    files = OsFiles(read_only=True)
    for segment in list_segments(files, folder):
        file = files.open(segment.path)
        for found in inspect_batches(file, BatchStart(segment.base_offset, 0), segment.size):
            if isinstance(found, BadBytes):
                return
            position, header = found
            data = bytes(file.read(position, header.size))
            yield StoredBatch(header.base_offset, header.end_offset, data)
