"""Snapshots of producers as bytes: what is written is read, and everything else is refused."""

from __future__ import annotations

from random import Random

import pytest
from crc32c import crc32c

from raftmq.errors import CorruptRecord
from raftmq.partition.producer_format import pack_snapshot, read_snapshot
from raftmq.partition.producers import Remembered
from raftmq.partition.sequences import ProducerState, SequenceRun

END = 1000
SOME = [
    Remembered(2**62, ProducerState(32_767, 2**31 - 1, (), 2**63 - 1, 2**32 - 1, 2**31 - 1), 2.0),
    Remembered(2**63 - 1, ProducerState(0, 3, (SequenceRun(0, 0, 3),)), 2.0),
    Remembered(0, ProducerState(0, 40, (SequenceRun(0, 100, 30), SequenceRun(30, 500, 10))), 0.0),
    Remembered(5, ProducerState(1, 5, tuple(SequenceRun(n, n * 10, 1) for n in range(5))), 4e9),
]


def sealed(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "big")


@pytest.mark.parametrize("some", [[], SOME[:1], SOME])
def test_what_was_packed_is_read(some: list[Remembered]) -> None:
    """None, one with a name and without runs, several, in their order."""
    assert read_snapshot(pack_snapshot(END, some), END).remembered == some


def test_seconds_are_whole_and_bounded() -> None:
    """Idle for longer than anybody remembers."""
    idle = SOME[0]._replace(idle_seconds=1e12)
    [read] = read_snapshot(pack_snapshot(END, [idle]), END).remembered
    assert read.idle_seconds == 2**32 - 1


def test_a_snapshot_belongs_to_one_offset() -> None:
    """Under another name it would be believed of another log's end."""
    with pytest.raises(CorruptRecord, match="offset 1000"):
        read_snapshot(pack_snapshot(END, SOME), END + 1)


@pytest.mark.parametrize("length", [0, 3, 17, 18, 21, 22, 60])
def test_a_torn_snapshot_is_refused(length: int) -> None:
    """Any beginning of one."""
    with pytest.raises(CorruptRecord, match="CRC"):
        read_snapshot(pack_snapshot(END, SOME)[:length], END)


@pytest.mark.parametrize("version", [1, 2, 5])
def test_one_of_another_version_is_refused(version: int) -> None:
    """After a step to a later release, or back to an older one."""
    other = bytearray(pack_snapshot(END, SOME)[:-4])
    other[5] = version
    with pytest.raises(CorruptRecord, match=f"version {version}"):
        read_snapshot(sealed(bytes(other)), END)


@pytest.mark.parametrize(
    "wrong",
    [
        Remembered(1, ProducerState(40_000, 0, ()), 0),
        Remembered(1, ProducerState(0, 2**31, ()), 0),
        Remembered(1, ProducerState(0, 0, (SequenceRun(2**31, 0, 1),)), 0),
        Remembered(1, ProducerState(0, 0, (SequenceRun(0, 0, 0),)), 0),
        Remembered(1, ProducerState(0, 0, (SequenceRun(0, 990, 11),)), 0),
        Remembered(1, ProducerState(0, 0, (SequenceRun(0, -1, 1),)), 0),
        Remembered(-1, ProducerState(0, 0, ()), 0),
        Remembered(1, ProducerState(0, 0, (SequenceRun(0, 0, 1),) * 6), 0),
        Remembered(1, ProducerState(0, 0, (), 0), 0),
        Remembered(1, ProducerState(0, 0, (), -1, 5), 0),
        Remembered(2**62, ProducerState(0, 0, (), -2), 0),
        Remembered(1, ProducerState(0, 0, (), partition_count=4), 0),
        Remembered(2**62, ProducerState(0, 0, (), 1, 0, 2**31), 0),
    ],
    ids=[
        "epoch",
        "next",
        "first",
        "empty",
        "beyond",
        "before",
        "id",
        "runs",
        "generation of none",
        "digest of none",
        "generation",
        "partitions of none",
        "partitions",
    ],
)
def test_what_no_partition_knows_is_refused(wrong: Remembered) -> None:
    """Sound by its CRC, and still impossible."""
    with pytest.raises(CorruptRecord, match="producer"):
        read_snapshot(pack_snapshot(END, [wrong]), END)


def test_a_producer_stands_there_once() -> None:
    """Twice the same id, or a count that is too large."""
    with pytest.raises(CorruptRecord, match="promised"):
        read_snapshot(pack_snapshot(END, [SOME[0], SOME[0]]), END)
    more = sealed(pack_snapshot(END, SOME)[:-4] + b"\0")
    with pytest.raises(CorruptRecord, match="promised"):
        read_snapshot(more, END)


def test_whatever_is_read_raises_nothing_else() -> None:
    """Random bytes in a sound frame: a snapshot, or a CorruptRecord."""
    random = Random(0)
    packed = pack_snapshot(END, SOME)[:-4]
    for _ in range(500):
        changed = bytearray(packed)
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(18, len(changed))] = random.randrange(256)
        changed = changed[: random.choice((len(changed), random.randrange(18, len(changed))))]
        try:
            found = read_snapshot(sealed(bytes(changed)), END)
        except CorruptRecord:
            continue
        assert read_snapshot(pack_snapshot(END, *found), END) == found
