"""What readers without a filter get of a log in which some batches are scheduled (A12.2)."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from raftmq.disk.files import FileSlice
from raftmq.partition.filtered_read import STEP_UNITS, FilterLimits, plan_filtered
from raftmq.partition.storage.recovery import open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import encode_batch
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

FOLDER = Path("/data/topics/orders/Partition-0")
NOW_MS, DUE_MS = 1_000, 9_000

kinds = st.sampled_from("pppsssbS")  # plain, scheduled, a big plain one, several scheduled
several_limits = st.builds(
    FilterLimits,
    st.integers(1, 4_000) | st.just(1 << 20),
    st.integers(1, 12 * STEP_UNITS),
    st.integers(1, 5) | st.just(1_000),
    st.just(value=True),
)


class Seen(NamedTuple):
    """What looks one after the other have found: offsets that were left out, batches that came."""

    left_out: list[int]
    sent: list[tuple[int, int]]
    end_offset: int


def new_log(drawn: str, segment_bytes: int) -> PartitionLog:
    files = SimulatedFiles(random.Random(0))
    log = open_log(files, FOLDER, "orders/Partition-0", TopicConfig(segment_bytes=segment_bytes))
    for kind in drawn:
        values = [b"v" * (900 if kind == "b" else 10)] * (3 if kind in "Sb" else 1)
        due_ms = DUE_MS if kind in "sS" else None
        data = bytes(encode_batch(values=values, timestamp=NOW_MS, due_ms=due_ms))
        log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    return log


def read_all(log: PartitionLog, offset: int, end: int, limits: FilterLimits) -> Seen:
    left_out, sent = list[int](), list[tuple[int, int]]()
    while offset < end:
        found = plan_filtered(log, offset, None, limits, end_offset=end).find()
        assert found.start_offset <= offset <= found.end_offset <= end
        data = b"".join(
            piece.read() if isinstance(piece, FileSlice) else piece for piece in found.pieces
        )
        assert len(data) == found.length
        came = [(header.base_offset, header.end_offset) for _, header in iter_batches(data)]
        assert found.length <= limits.bytes_max or len(came) == 1
        assert len(found.left_out) <= limits.ranges_max
        for begin, stop in found.left_out:
            left_out += range(begin, stop)
        sent += came
        if found.end_offset == offset:  # the next batch ends beyond what may be seen
            break
        offset = found.end_offset
    return Seen(left_out, sent, offset)


@given(
    drawn=st.text(kinds, min_size=1, max_size=40),
    segment_bytes=st.sampled_from([400, 2_000, 1 << 20]),
    begin=st.integers(0, 60),
    end=st.integers(0, 120),
    limits=several_limits,
)
def test_each_offset_is_sent_or_left_out(
    drawn: str, segment_bytes: int, begin: int, end: int, limits: FilterLimits
) -> None:
    """Whatever the limits, and wherever the reader begins, also within a batch."""
    log = new_log(drawn, segment_bytes)
    batches, offset = list[tuple[str, int, int]](), 0
    for kind in drawn:
        count = 3 if kind in "Sb" else 1
        batches.append((kind, offset, offset + count))
        offset += count
    begin, end = min(begin, offset), min(end, offset)
    seen = read_all(log, begin, end, limits)
    wanted = [one for one in batches if one[2] > begin and one[2] <= end and begin < end]
    assert seen.sent == [one[1:] for one in wanted if one[0] in "pb"]
    hidden = [range(max(one[1], begin), one[2]) for one in wanted if one[0] in "sS"]
    assert seen.left_out == [each for one in hidden for each in one]
    assert seen.end_offset == (wanted[-1][2] if wanted else begin)
    log.close()


def test_many_runs_are_one_look() -> None:
    """As many pieces as fit into a look, joined; nothing of what is hidden is read."""
    log, ranges = new_log("ps" * 50, 1 << 20), list[tuple[int, int]]()

    def read(file: object, position: int, length: int) -> bytes:
        ranges.append((position, length))
        return log.active.file.read(position, length)

    found = plan_filtered(log, 1, None, FilterLimits(1 << 20, 1 << 20, 1_000)).find(read)
    assert (found.end_offset, len(found.left_out), len(found.pieces)) == (100, 50, 1)
    scheduled = [(one.position, one.position + one.length) for one in log.schedule.entries()]
    for position, length in ranges:
        assert all(position >= stop or position + length <= at for at, stop in scheduled)
    assert all(first < second for first, second in pairwise(ranges))
    log.close()
