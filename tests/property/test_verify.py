"""Verification and the log agree: what is called harmless is, whatever was damaged and how.

One file of a log is damaged: bits flipped, bytes cut, added, repeated or overwritten, or the file
removed. Verification must not raise; and where it reports no error, the log that recovery opens
must give back every record and answer every lookup by time.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import event, given
from hypothesis import strategies as st

from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptRecord
from raftmq.partition.verify.findings import Severity
from raftmq.partition.verify.partition import verify_partition
from tests.log_reading import offset_for_timestamp, read_batches
from tests.unit.verify.logs import END_OFFSET, NOW_MS, made_once, make_log, reopen
from tests.unit.verify.logs import set_recovery_point as note_durable

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog

NAMES = sorted(made_once(3, 8))
TIMES = range(NOW_MS - 10, NOW_MS + 10 * END_OFFSET + 10, 35)

positions = st.integers(0, 1600)
damages = st.one_of(
    st.tuples(st.just("flip"), positions, st.integers(0, 7)),
    st.tuples(st.just("cut"), positions, st.just(0)),
    st.tuples(st.just("cut"), positions.map(lambda at: at - at % 16), st.just(0)),
    st.tuples(st.just("zero"), positions, st.integers(1, 600)),
    st.tuples(st.just("repeat"), positions.map(lambda at: at - at % 16), st.integers(1, 4)),
    st.tuples(st.just("add"), st.just(0), st.integers(1, 99)),
    st.tuples(st.just("remove"), st.just(0), st.just(0)),
)


def damage(path: Path, kind: str, position: int, amount: int) -> None:
    data = bytearray(path.read_bytes())
    position %= len(data) + 1
    if kind == "flip" and position < len(data):
        data[position] ^= 1 << amount
    elif kind == "cut":
        del data[position:]
    elif kind == "zero":
        data[position : position + amount] = bytes(len(data[position : position + amount]))
    elif kind == "repeat":
        data[position:position] = data[max(0, position - 16 * amount) : position]
    elif kind == "add":
        data += bytes(range(amount))
    path.write_bytes(data)
    if kind == "remove":
        path.unlink()


def everything_in(log: PartitionLog) -> list[object]:
    """Every record and the answer to every lookup; where one is refused, the refusal."""
    found: list[object] = []
    offset = log.log_start_offset
    try:
        while offset < log.log_end_offset:
            for batch in read_batches(log, offset):
                found += batch.records()
                offset = batch.header.end_offset
        found += [offset_for_timestamp(log, timestamp) for timestamp in TIMES]
    except CorruptRecord as error:
        found.append(str(error))
    return found


def healthy_contents() -> list[object]:
    with TemporaryDirectory() as name:
        return everything_in(reopen(make_log(Path(name)), END_OFFSET))


HEALTHY = healthy_contents()


@given(st.sampled_from(NAMES), damages)
def test_what_verification_calls_harmless_is_harmless(name: str, how: tuple[str, int, int]) -> None:
    """All of the log was durable, so that nothing may be missing from it."""
    with TemporaryDirectory() as root:
        folder = make_log(Path(root))
        note_durable(Path(root), END_OFFSET)
        damage(folder / name, *how)
        report = verify_partition(OsFiles(read_only=True), folder)
        severities = {finding.severity for finding in report.findings}
        event(f"{Path(name).suffix or name}: {max(severities, default='nothing')}")
        if Severity.ERROR not in severities:
            assert everything_in(reopen(folder, END_OFFSET)) == HEALTHY
