"""`raftmq log dump` and `raftmq log verify` on real folders, healthy and not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.main import main
from raftmq.model import Compression, RecordFormat
from raftmq.partition.producer_format import pack_snapshot
from raftmq.partition.producers import Remembered
from raftmq.partition.sequences import ProducerState, SequenceRun
from raftmq.partition.storage.known_producers import snapshot_path
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import Account, named_producer_id
from raftmq.wire.batch.records import encode_batch, encode_control_batch
from tests.unit.storage.transactional import abort, end, send
from tests.unit.verify.logs import (
    END_OFFSET,
    NOW_MS,
    SEGMENTS,
    contents_of,
    cut,
    flip,
    flush,
    make_log,
    reopen,
    segments_of,
    set_recovery_point,
)

if TYPE_CHECKING:
    from pathlib import Path

NAMED = named_producer_id("etl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_log(tmp_path)


def log(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["log", *map(str, arguments)])


def objects(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log(*arguments, "-o", "json").stdout.splitlines()]


# -- which folder ------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["dump", "verify"])
def test_a_folder_that_is_none(verb: str, tmp_path: Path) -> None:
    """Missing, empty, or a file: one line that says so, and what would be right."""
    missing = log(verb, tmp_path / "missing")
    assert (missing.exit_code, missing.stdout) == (3, "")
    assert missing.stderr.startswith(f"raftmq: {tmp_path}/missing does not exist")
    empty = log(verb, tmp_path)
    assert (empty.exit_code, "holds no log" in empty.stderr) == (3, True)
    (tmp_path / "Partition-0").mkdir()
    assert log(verb, tmp_path / "Partition-0").exit_code == 3
    (tmp_path / "file").touch()
    file = log(verb, tmp_path / "file")
    assert (file.exit_code, file.stderr.count("\n")) == (2, 1)
    assert f"is a file; give the partition folder that it lies in: {tmp_path}" in file.stderr


def test_dump_wants_one_partition(folder: Path, tmp_path: Path) -> None:
    """Given more than that, it lists those that could be meant, but not a thousand of them."""
    for number in range(1, 12):
        (folder.parent / f"Partition-{number}").mkdir()
    result = log("dump", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{tmp_path} is not a partition folder; below it are {folder}, " in result.stderr
    assert result.stderr.endswith("Partition-7 and 4 more\n")


def test_dump_needs_segments(folder: Path) -> None:
    """What surrounds a log is not a log."""
    for path in folder.glob("0*"):
        path.unlink()
    assert log("dump", folder).exit_code == 3
    assert log("verify", folder).exit_code == 7


def test_an_unreadable_file_is_named(folder: Path) -> None:
    """A folder stands where a segment should; for a file without permission it is the same."""
    path = segments_of(folder)[0]
    path.unlink()
    path.mkdir()
    result = log("dump", folder)
    assert (result.exit_code, result.stderr) == (1, f"raftmq: read {path}: Is a directory\n")


# -- dump --------------------------------------------------------------------------------------


def test_dump_lists_every_batch(folder: Path) -> None:
    """A heading and a line for each; reading leaves no trace."""
    before = contents_of(folder)
    lines = log("dump", folder).stdout.splitlines()
    assert lines[0].split()[:3] == ["offset", "end", "segment"]
    assert len(lines) == 25
    assert lines[1].split()[:4] == ["0", "3", "0", "0"]
    assert contents_of(folder) == before


def test_dump_as_json_says_all_of_a_batch(folder: Path) -> None:
    """Fields as the help lists them."""
    first, *_, last = objects("dump", folder)
    size = first.pop("bytes")
    assert first == {
        "segment": "00000000000000000000.log", "position": 0, "base_offset": 0, "end_offset": 3,
        "records": 3, "leader_epoch": 0, "base_timestamp": NOW_MS, "max_timestamp": NOW_MS + 20,
        "compression": "none", "encoding": "columns", "producer_id": -1, "producer_epoch": -1,
        "base_sequence": -1, "flags": [],
    }  # fmt: skip
    assert 100 < size < 500
    assert (last["end_offset"], last["leader_epoch"]) == (END_OFFSET, 2)


def test_dump_of_records(folder: Path) -> None:
    """Everything of a record in JSON; a readable line in the table."""
    assert objects("dump", folder, "--records", "--from", 31, "--to", 32) == [
        {
            "offset": 31, "timestamp": NOW_MS + 310, "key": "key-1", "value": "value of record 31",
            "headers": [{"name": "trace", "value_base64": "H/8="}], "tags": ["odd"],
        }
    ]  # fmt: skip
    line = log("dump", folder, "--records", "--from", 31, "-n", 1).stdout.splitlines()[1]
    assert line == (
        "    31  2023-11-14T22:13:20.310Z  key-1  value of record 31  trace=\\x1f\\xff  odd"
    )


def test_dump_of_a_range(folder: Path) -> None:
    """From the batch that holds the first offset, up to but not including the last."""
    offsets = [row["base_offset"] for row in objects("dump", folder, "--from", 31, "--to", 37)]
    assert offsets == [30, 33, 36]
    offsets = [row["offset"] for row in objects("dump", folder, "--records", "--from", 31, "-n", 4)]
    assert offsets == [31, 32, 33, 34]
    assert objects("dump", folder, "--from", END_OFFSET) == []
    assert log("dump", folder, "--from", END_OFFSET).exit_code == 0


def test_dump_of_every_kind_of_batch(tmp_path: Path) -> None:
    """Kafka's encoding, compression, a producer, a marker of a transaction, keys that are ints."""
    folder = make_log(tmp_path, epochs=1, batches_per_epoch=0)
    kafka = encode_batch(
        values=[b"v"], timestamp=-1, record_format=RecordFormat.KAFKA, producer_id=9,
        producer_epoch=1, base_sequence=5, compression=Compression.GZIP, transactional=True,
    )  # fmt: skip
    marker = encode_control_batch(
        kind=ControlType.COMMIT, coordinator_epoch=3, producer_id=9, producer_epoch=1,
        timestamp=NOW_MS, base_offset=1,
    )  # fmt: skip
    integers = encode_batch(values=[None], keys=[-3], timestamp=NOW_MS, base_offset=2)
    opened = reopen(folder)
    for batch in (kafka, marker, integers):
        batch[12:16] = bytes(4)  # leader epoch 0
        opened.append_replicated(batch, leader_epoch=0, now=0.0)
    flush(opened)
    rows = objects("dump", folder)
    assert [row["flags"] for row in rows] == [
        ["transactional"], ["transactional", "control", "commit"], [],
    ]  # fmt: skip
    assert [row["encoding"] for row in rows] == ["kafka", "kafka", "columns"]
    assert (rows[0]["compression"], rows[0]["producer_id"]) == ("gzip", 9)
    assert "9/1" in log("dump", folder).stdout
    records = objects("dump", folder, "--records")
    assert (records[0]["timestamp"], records[0]["value"]) == (-1, "v")
    assert (records[2]["key"], records[2]["value"]) == (-3, None)
    assert log("dump", folder, "--records").exit_code == 0
    assert log("verify", folder).exit_code == 0


def test_dump_says_what_was_aborted(tmp_path: Path) -> None:
    """Two transactions overlap and one is aborted, by a marker behind the selection; how much that
    is stands on stderr."""
    folder = make_log(tmp_path, epochs=1, batches_per_epoch=0)
    opened = reopen(folder)
    send(opened, 7)
    send(opened, 8)
    end(opened, 8, commit=True)
    abort(opened, 7)
    flush(opened)
    rows = objects("dump", folder)
    assert [row["flags"] for row in rows] == [
        ["transactional", "aborted"], ["transactional"], ["transactional", "control", "commit"],
        ["transactional", "control", "abort"],
    ]  # fmt: skip
    result = log("dump", folder, "-n", "2")
    assert "1 of 2 batches were aborted, 50.0 % of the bytes" in result.stderr


def test_dump_of_a_named_producer(tmp_path: Path) -> None:
    """Its fence, and a batch behind it, say generation and digest."""
    folder = make_log(tmp_path, epochs=1, batches_per_epoch=0)
    opened = reopen(folder)
    opened.append_fence(NAMED, 17, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    batch = encode_batch(
        values=[b"v"], timestamp=NOW_MS, producer_id=NAMED, producer_epoch=0, base_sequence=0,
        account=Account(17, 0xBEEF),
    )  # fmt: skip
    opened.append(batch, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    flush(opened)
    rows = objects("dump", folder)
    assert [row["flags"] for row in rows] == [["control", "fence"], []]
    assert [(row["generation"], row["digest"]) for row in rows] == [(17, 0), (17, 0xBEEF)]
    assert f"{NAMED}/0 generation 17" in log("dump", folder).stdout
    assert [row["offset"] for row in objects("dump", folder, "--records")] == [0, 1]
    assert log("verify", folder).exit_code == 0


def test_dump_passes_over_damage_and_fails(folder: Path) -> None:
    """What is sound is shown, what is not is named on stderr."""
    flip(segments_of(folder)[1], 80)
    result = log("dump", folder, "-o", "json")
    assert (result.exit_code, result.stdout.count("\n")) == (1, 23)
    assert result.stderr.startswith(f"raftmq: {segments_of(folder)[1]}, byte 0, offset ")
    assert result.stderr.endswith("bytes passed over\n")


def test_dump_shows_a_misplaced_batch(folder: Path) -> None:
    """Sound by its CRC: the reader of a dump may want to see it."""
    flip(segments_of(folder)[0], 7, bit=2)
    result = log("dump", folder)
    assert (result.exit_code, result.stdout.count("\n")) == (1, 25)
    assert "base offset 4, expected 0; the batch is shown as it is" in result.stderr


def test_dump_takes_a_torn_tail_as_normal(folder: Path) -> None:
    """A broker may be writing it at this moment."""
    cut(segments_of(folder)[-1], -1)
    result = log("dump", folder)
    assert (result.exit_code, result.stdout.count("\n")) == (0, 24)
    assert "torn, or just written" in result.stderr


def test_dump_of_records_that_do_not_decode(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other batches are shown."""
    opened = reopen(folder)
    batch = encode_batch(values=[b"x" * 99], timestamp=NOW_MS, compression=Compression.ZSTD)
    opened.append(batch, leader_epoch=2, now_ms=NOW_MS, now=0.0)
    flush(opened)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    result = log("dump", folder, "--records", "-o", "json")
    assert (result.exit_code, result.stdout.count("\n")) == (1, END_OFFSET)
    assert f"offset {END_OFFSET}: the package zstandard is not installed" in result.stderr


def test_a_reader_that_had_enough_is_no_traceback(folder: Path) -> None:
    """`| head -1` closes the pipe."""
    command = f"{sys.executable} -m raftmq log dump {folder} --records | head -0"
    process = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert process.stderr == ""


# -- verify ------------------------------------------------------------------------------------


def test_verify_of_a_healthy_data_directory(folder: Path, tmp_path: Path) -> None:
    """Each partition has a line, and the verdict is ok."""
    (folder.parent / "Partition-1").mkdir()
    other = make_log(tmp_path / "other").rename(folder.parent / "Partition-2")
    (folder.parent / "Partition-1").rmdir()
    result = log("verify", tmp_path)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == [str(folder), str(other)]
    assert lines[1].split()[1:3] == [str(SEGMENTS), "24"]
    assert lines[-1] == "ok"


def test_verify_shows_errors_first_and_exits_7(folder: Path, tmp_path: Path) -> None:
    """Also for the whole data directory, with names as seen from there."""
    set_recovery_point(tmp_path, 3)
    flip(tmp_path / "checkpoints" / "recovery-points", 0)
    segments_of(folder)[0].with_suffix(".index").unlink()
    flip(segments_of(folder)[1], 80)
    result = log("verify", tmp_path)
    assert (result.exit_code, result.stderr) == (7, "")
    heading, *findings = result.stdout.split("\n\n")[1].splitlines()
    assert heading.split() == ["severity", "file", "byte", "offset", "what"]
    assert [line.split()[0] for line in findings] == ["error", "warning", "warning"]
    assert str(segments_of(folder)[1].relative_to(tmp_path)) in findings[0]
    assert result.stdout.endswith("\n1 error, 2 warnings\n")


def test_verify_with_warnings_only_exits_0(folder: Path) -> None:
    """They are shown all the same."""
    cut(segments_of(folder)[-1], -1)
    result = log("verify", folder)
    assert result.exit_code == 0
    assert "torn tail" in result.stdout


def test_verify_as_json(folder: Path) -> None:
    """Findings, partitions and a summary, told apart by their type."""
    flip(segments_of(folder)[1], 80)
    finding, partition, summary = objects("verify", folder)
    assert "bytes are no batch: CRC-32C is" in finding.pop("what")
    assert finding == {
        "type": "finding", "severity": "error", "folder": str(folder),
        "file": segments_of(folder)[1].name, "position": 0,
        "offset": int(segments_of(folder)[1].stem),
    }  # fmt: skip
    assert partition.pop("bytes") == summary.pop("bytes") > 0
    assert partition == {
        "type": "partition", "folder": str(folder), "segments": SEGMENTS, "batches": 23,
        "records": END_OFFSET - 3, "log_start_offset": 0, "log_end_offset": END_OFFSET,
        "errors": 1, "warnings": 0,
    }  # fmt: skip
    assert summary == {
        "type": "summary", "partitions": 1, "batches": 23, "records": END_OFFSET - 3,
        "errors": 1, "warnings": 0,
    }  # fmt: skip


def test_progress_is_drawn_on_a_terminal_only(folder: Path) -> None:
    """stderr is a terminal here; stdout, a pipe, has nothing but the report."""
    terminal, stderr = os.openpty()
    command = [sys.executable, "-m", "raftmq", "log", "verify", str(folder)]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, check=False)
    os.close(stderr)
    assert b"verify" in os.read(terminal, 1 << 16)
    os.close(terminal)
    assert process.stdout.decode() == log("verify", folder).stdout


# -- producers ---------------------------------------------------------------------------------


def with_snapshots(folder: Path) -> Path:
    """Of a producer with two runs and one with a name, at the end; and a damaged one at 30."""
    remembered = [
        Remembered(7, ProducerState(2, 40, (SequenceRun(0, 3, 30), SequenceRun(30, 50, 10))), 12.5),
        Remembered(NAMED, ProducerState(3, 9, (), 17, 0xBEEF), 2.0),
        Remembered(8, ProducerState(4, 1, (SequenceRun(0, 70, 1),), open_offset=70), 0.0),
    ]
    end = snapshot_path(folder, END_OFFSET)
    end.write_bytes(pack_snapshot(END_OFFSET, remembered))
    snapshot_path(folder, 30).write_bytes(b"nothing")
    return folder


def test_dump_of_producers(folder: Path) -> None:
    """As a table and as objects, from each snapshot that can be read."""
    with_snapshots(folder)
    result = log("dump", folder, "--producers")
    assert result.exit_code == 1
    _, plain, named, in_transaction = (line.split() for line in result.stdout.splitlines())
    assert plain == ["72", "7/2", "40", "12", "-", "-", "-", "0@3+30", "30@50+10"]
    assert named == ["72", f"{NAMED}/3", "9", "2", "17", "0000beef", "-", "-"]
    assert in_transaction == ["72", "8/4", "1", "0", "-", "-", "70", "0@70+1"]
    assert "030.producers: corrupt record" in result.stderr
    assert "the log does without it" in result.stderr
    found, other, _ = objects("dump", folder, "--producers", "--from", 31)
    assert (other["producer_id"], other["generation"], other["digest"]) == (NAMED, 17, 0xBEEF)
    assert found == {
        "snapshot": 72,
        "producer_id": 7,
        "producer_epoch": 2,
        "next_sequence": 40,
        "idle_seconds": 12,
        "generation": -1,
        "digest": 0,
        "partition_count": 0,
        "open_offset": -1,
        "marker_offset": -1,
        "runs": [
            {"first_sequence": 0, "base_offset": 3, "record_count": 30},
            {"first_sequence": 30, "base_offset": 50, "record_count": 10},
        ],
    }


def test_dump_lists_records_or_producers(folder: Path) -> None:
    """Both at once would be two tables."""
    result = log("dump", folder, "--producers", "--records")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not both" in result.stderr
