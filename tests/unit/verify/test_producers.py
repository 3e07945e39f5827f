"""Snapshots of producers under verification: damaged ones are told, and cost nothing; wrong ones
are errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.partition.producer_format import pack_snapshot
from raftmq.partition.producers import Remembered
from raftmq.partition.sequences import ProducerState, SequenceRun
from raftmq.partition.storage.known_producers import list_snapshots, load_snapshot, snapshot_path
from raftmq.partition.storage.recovery import open_log
from raftmq.partition.verify.partition import verify_partition
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.header import Account, named_producer_id, seal
from raftmq.wire.batch.records import encode_batch
from tests.unit.verify.logs import NOW_MS, cut, flip, flush

if TYPE_CHECKING:
    from pathlib import Path

FILES = OsFiles()
CONFIG = TopicConfig(segment_bytes=700, index_interval_bytes=100)
END = 24
NAMED = named_producer_id("etl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two producers in turn, 12 batches of two records, a snapshot for each segment and the end."""
    log = open_log(FILES, tmp_path, "test", CONFIG)
    for at in range(END // 2):
        batch = encode_batch(
            values=[b"x" * 20] * 2,
            timestamp=NOW_MS,
            producer_id=at % 2,
            producer_epoch=0,
            base_sequence=at // 2 * 2,
        )
        log.append(batch, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    flush(log)
    log.producers.take_last(END)
    work = log.producers.begin_write(log.segments, is_durable=False)
    assert work is not None
    work.perform(FILES)
    return tmp_path


def complaints(folder: Path) -> list[str]:
    return [
        f"{finding.severity}: {finding.file.name}: {finding.what}"
        for finding in verify_partition(FILES, folder).findings
    ]


def newest(folder: Path) -> Path:
    return snapshot_path(folder, list_snapshots(FILES, folder)[-1])


def rewrite(path: Path, *remembered: Remembered, offset: int | None = None) -> None:
    end = int(path.stem) if offset is None else offset
    path.with_name(f"{end:020d}.producers").write_bytes(pack_snapshot(end, remembered))


def test_sound_snapshots_are_no_finding(folder: Path) -> None:
    """As a broker leaves them: also once the log's first segments are gone."""
    assert len(list_snapshots(FILES, folder)) > 2
    assert complaints(folder) == []


@pytest.mark.parametrize("harm", ["torn", "flipped", "empty"])
def test_a_damaged_snapshot_is_told_and_harmless(folder: Path, harm: str) -> None:
    """The log does without it: a warning."""
    path = newest(folder)
    if harm == "flipped":
        flip(path, 40)
    else:
        cut(path, 0 if harm == "empty" else -3)
    [complaint] = complaints(folder)
    assert complaint.startswith(f"warning: {path.name}: useless, the log does without it: corrupt")


def test_a_snapshot_that_says_something_else_is_an_error(folder: Path) -> None:
    """Sound, and wrong: a sequence that was not reached, a place where something else stands, a
    producer that never wrote."""
    path = newest(folder)
    known = load_snapshot(FILES, folder, END).remembered
    wrong = known[0].producer._replace(next_sequence=90)
    rewrite(path, known[0]._replace(producer=wrong), known[1])
    [complaint] = complaints(folder)
    assert complaint.startswith(
        f"error: {path.name}: producer 0 is ProducerState(epoch=0, next_seq"
    )
    assert complaint.endswith("remove the file while no broker uses it")
    moved = known[0].producer._replace(runs=(SequenceRun(10, 18, 2),))
    rewrite(path, known[0]._replace(producer=moved))
    assert len(complaints(folder)) == 1
    rewrite(path, Remembered(9, ProducerState(0, 2, (SequenceRun(0, 4, 2),)), 0))
    assert "producer 9 is" in complaints(folder)[0]


def with_names(folder: Path) -> list[Remembered]:
    """Two lives of a name behind the others, and what is known then."""
    log = open_log(FILES, folder, "test", CONFIG)
    for first in (0, 2):
        producer = log.append_fence(
            NAMED, 5, partition_count=3, leader_epoch=0, now_ms=NOW_MS, now=0.0
        ).producer
        assert producer.next_sequence == first
        batch = encode_batch(
            values=[b"x" * 20] * 2,
            timestamp=NOW_MS,
            producer_id=NAMED,
            producer_epoch=producer.epoch,
            base_sequence=first,
            account=Account(5, first + 2),
        )
        log.append(batch, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    flush(log)
    end = log.log_end_offset
    remembered = log.producers.now.picture().saved().remembered
    snapshot_path(folder, end).write_bytes(pack_snapshot(end, remembered))
    return remembered


def test_names_are_compared_with_their_fences(folder: Path) -> None:
    """Sound as it is; another generation, digest, epoch or count of partitions is an error."""
    *others, named = with_names(folder)
    assert complaints(folder) == []
    assert named.producer == ProducerState(1, 4, (SequenceRun(2, END + 4, 2),), 5, 4, 3)
    for wrong in (
        named.producer._replace(generation=6),
        named.producer._replace(digest=5),
        named.producer._replace(epoch=2),
        named.producer._replace(partition_count=4),
    ):
        rewrite(newest(folder), *others, named._replace(producer=wrong))
        [complaint] = complaints(folder)
        assert f"producer {NAMED} is" in complaint


def test_a_count_of_partitions_whose_fence_is_gone(folder: Path) -> None:
    """A batch behind it does not say the count, so that the snapshot may."""
    log = open_log(FILES, folder, "test", CONFIG)
    batch = encode_batch(
        values=[b"x"],
        timestamp=NOW_MS,
        producer_id=NAMED,
        producer_epoch=1,
        base_sequence=4,
        base_offset=log.log_end_offset,
        leader_epoch=0,
        account=Account(5, 5),
    )
    log.append_replicated(batch, leader_epoch=0, now=0.0)
    flush(log)
    *others, named = log.producers.now.picture().saved().remembered
    assert named.producer.partition_count == 0
    snapshot_path(folder, log.log_end_offset).write_bytes(b"")
    counted = named._replace(producer=named.producer._replace(partition_count=3))
    rewrite(newest(folder), *others, counted)
    assert complaints(folder) == []


def test_a_fence_that_does_not_decode_is_told_once(folder: Path) -> None:
    """Sound by its CRC; what it said of its producer nobody knows, so nothing is compared."""
    with_names(folder)
    log = open_log(FILES, folder, "test", CONFIG)
    segment = log.segment_of(END)
    position, header = segment.locate(END)
    data = bytearray(segment.path.read_bytes())
    fence = data[position : position + header.size]
    fence[70] ^= 64  # the length of its value
    data[position : position + header.size] = seal(fence)
    segment.path.write_bytes(data)
    [complaint] = complaints(folder)
    assert "sound by its CRC, but does not decode" in complaint


def test_who_was_forgotten_is_no_finding(folder: Path) -> None:
    """Idle for too long, or one too many; or back since, with less than its batches say."""
    path = newest(folder)
    rewrite(path)
    assert complaints(folder) == []
    rewrite(path, Remembered(0, ProducerState(0, 12, (SequenceRun(10, 20, 2),)), 0))
    assert complaints(folder) == []


def test_a_snapshot_where_no_batch_ends(folder: Path) -> None:
    """Between two records, or beyond the end of the log: of no use."""
    rewrite(newest(folder), offset=3)
    rewrite(newest(folder), offset=500)
    first, second = complaints(folder)
    assert first.endswith("3.producers: no batch ends there, the log does without it")
    assert second.endswith(
        "500.producers: the log ends at 24, before it; the next opening removes it"
    )


def test_behind_damage_nothing_is_compared(folder: Path) -> None:
    """What the batches there said of their producers nobody can know."""
    first = sorted(folder.glob("*.log"))[0]
    flip(first, 200)
    assert {complaint.partition(": ")[2].partition(":")[0] for complaint in complaints(folder)} == {
        first.name
    }
