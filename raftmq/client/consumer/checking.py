"""Whether an answer to a fetch is what it has to be: batches in a row, committed, of known leaders.

Pure. There is no compaction, so a gap between two batches is damage as much as a wrong checksum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.consumer.undelivered import Piece
from raftmq.errors import CorruptRecord
from raftmq.wire.header import iter_batches

if TYPE_CHECKING:
    from raftmq.wire.header import BatchHeader, Buffer


class Expected(NamedTuple):
    """What is asked for, and what is known of the partition.

    Attributes:
        offset: the first batch holds it.
        epoch_before: of the batch before, -1: not known. Epochs never decrease ...
        leader_epoch: ... and none is later than that of the leader that was asked.
        where: for messages.
    """

    offset: int
    epoch_before: int
    leader_epoch: int
    high_watermark: int
    where: str


class Checked(NamedTuple):
    """The batches up to the first that is not right, and what is wrong with that one."""

    pieces: list[Piece]
    damage: CorruptRecord | None = None


def check_answer(data: Buffer, expected: Expected) -> Checked:
    pieces: list[Piece] = []
    offset, epoch = None, expected.epoch_before
    try:
        for position, header in iter_batches(data, where=expected.where):
            problem = _problem_of_place(header, offset, expected) or (
                _problem_of_epoch(header, epoch, expected)
            )
            if problem:
                raise CorruptRecord(problem, position=position, where=expected.where)
            pieces.append(Piece(data, position, header, where=expected.where))
            offset, epoch = header.end_offset, header.leader_epoch
    except CorruptRecord as damage:
        return Checked(pieces, damage.with_traceback(None))
    return Checked(pieces)


def _problem_of_place(header: BatchHeader, offset: int | None, expected: Expected) -> str:
    """`offset`: where the batch before ends, None if this is the first one."""
    if offset is None:
        if not header.base_offset <= expected.offset < header.end_offset:
            return (
                f"offsets {header.base_offset} to {header.end_offset} came, "
                f"{expected.offset} was asked for"
            )
    elif header.base_offset != offset:
        return f"base offset {header.base_offset}, expected {offset}"
    if header.end_offset > expected.high_watermark:
        return f"end offset {header.end_offset}, committed is up to {expected.high_watermark}"
    return ""


def _problem_of_epoch(header: BatchHeader, before: int, expected: Expected) -> str:
    if header.leader_epoch < before:
        return f"leader epoch {header.leader_epoch} after {before}"
    if header.leader_epoch > expected.leader_epoch:
        return f"leader epoch {header.leader_epoch} from a leader of {expected.leader_epoch}"
    return ""
