"""Logs on a real disk for tests: several segments, epochs, small indexes, all of it durable.

Owns how they are made and how single bytes of them are changed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from raftmq.disk.checkpoint import write_checkpoint
from raftmq.disk.files import OsFiles
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

NOW_MS = 1_700_000_000_000
TOPIC = "orders-1"
CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=256)
RECORDS_PER_BATCH = 3
END_OFFSET = 72  # of the log that `make_log` makes
SEGMENTS = 5


def make_log(root: Path, *, epochs: int = 3, batches_per_epoch: int = 8) -> Path:
    """A partition folder in the data directory `root`: 24 batches of 3 records, 3 epochs."""
    folder = root / "topics" / TOPIC / "Partition-0"
    folder.mkdir(parents=True)
    for name, data in made_once(epochs, batches_per_epoch).items():
        (folder / name).write_bytes(data)
    return folder


@cache
def made_once(epochs: int, batches_per_epoch: int) -> dict[str, bytes]:
    """Syncing takes most of the time; copies need none."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        log = open_log(OsFiles(), folder, "test", CONFIG)
        for epoch in range(epochs):
            log.assign_epoch(epoch)
            for _ in range(batches_per_epoch):
                append(log)
        flush(log)
        return contents_of(folder)


def append(log: PartitionLog) -> None:
    """One batch with headers, tags and rising timestamps."""
    first = log.log_end_offset
    offsets = range(first, first + RECORDS_PER_BATCH)
    batch = encode_batch(
        keys=[b"key-%d" % (offset % 5) for offset in offsets],
        values=[b"value of record %d" % offset for offset in offsets],
        headers=[{"trace": bytes([offset % 256, 0xFF])} for offset in offsets],
        tags=[["odd"] if offset % 2 else [] for offset in offsets],
        timestamps=[NOW_MS + 10 * offset for offset in offsets],
    )
    log.append(batch, leader_epoch=log.epochs.latest, now_ms=NOW_MS, now=0.0)


def flush(log: PartitionLog) -> None:
    mark = log.begin_flush(0.0)
    mark.perform(log.files)
    log.complete_flush(mark)
    log.write_indexes()


def set_recovery_point(root: Path, recovery_point: int) -> None:
    """As a broker would have noted it; `root` is the data directory."""
    files = OsFiles()
    files.make_directory(root / "checkpoints")
    points = {f"{TOPIC}/Partition-0": recovery_point}
    write_checkpoint(files, root / "checkpoints" / "recovery-points", points)


def reopen(folder: Path, recovery_point: int = 0) -> PartitionLog:
    """As a broker opens it after a crash of its process."""
    return open_log(OsFiles(), folder, "test", CONFIG, Past(recovery_point))


def segments_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def cut(path: Path, length: int) -> None:
    """A negative length counts from the end, as in a slice."""
    path.write_bytes(path.read_bytes()[:length])
