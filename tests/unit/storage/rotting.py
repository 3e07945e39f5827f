"""A log of a few batches on a simulated disk that rots under it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord
from raftmq.partition.storage.rot import ROT_MARK
from raftmq.topic_config import TopicConfig
from tests.log_reading import read_batches
from tests.unit.storage.batches import append, batch
from tests.unit.storage.directories import ROOT

if TYPE_CHECKING:
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from tests.simulation.disk import SimulatedFiles

FOLDER = ROOT / "topics/t/Partition-0"
MARK = FOLDER / ROT_MARK
SIZE = len(batch(b"00"))
COUNT, BAD = 12, 5
CONFIG = TopicConfig(segment_bytes=8 * SIZE)
EPOCH_BYTE, LENGTH_BYTE, OFFSET_BYTE, CRC_BYTE, VALUE_BYTE = 15, 11, 7, 18, SIZE - 1


async def filled(directory: LogDirectory) -> PartitionLog:
    """Two segments of records whose values are their offsets, all below the recovery point."""
    log = await directory.open_log("t", 0, CONFIG)
    for number in range(COUNT):
        append(log, b"%02d" % number)
    await directory.flusher.wait_durable(log, COUNT)
    await directory.checkpoint()
    assert [segment.base_offset for segment in log.segments] == [0, 8]
    return log


def rot(files: SimulatedFiles, log: PartitionLog, offset: int, byte: int = VALUE_BYTE) -> None:
    segment = log.segment_of(offset)
    files.flip_bit(segment.path, (offset - segment.base_offset) * SIZE + byte, 3)


def readable(log: PartitionLog) -> list[int]:
    """Offsets from which reading gets on."""
    found = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        with suppress(CorruptRecord):
            found.append(next(read_batches(log, offset)).header.base_offset)
    return found


async def rotten(
    files: SimulatedFiles, directory: LogDirectory, *offsets: int, byte: int = VALUE_BYTE
) -> PartitionLog:
    """As `filled`; and these offsets have rotted since, one found after the other."""
    log = await filled(directory)
    for offset in offsets:
        rot(files, log, offset, byte)
        assert await directory.look(log, offset) is not None
    return log
