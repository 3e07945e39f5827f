"""Verification of the files of aborted transactions: sound, absent, wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.partition.storage.entries import ABORTED_SIZE, pack_aborted, read_aborted
from raftmq.partition.storage.recovery import open_log
from raftmq.partition.verify.partition import verify_partition
from raftmq.topic_config import TopicConfig
from tests.unit.storage.transactional import abort, end, send

if TYPE_CHECKING:
    from pathlib import Path

FILES = OsFiles()
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Several segments with an abort in each, closed in order."""
    log = open_log(FILES, tmp_path, "test", CONFIG)
    for number in range(12):
        send(log, number)
        end(log, number, commit=number % 3 == 0)
    log.write_indexes()
    log.close_aborted()
    return tmp_path


def complaints(folder: Path) -> list[str]:
    return [
        f"{each.severity}: {each.file.name}: {each.what}"
        for each in verify_partition(FILES, folder).findings
        if each.file.suffix == ".aborted"
    ]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.aborted"))


def test_a_sound_log_has_no_findings(folder: Path) -> None:
    assert len(files_of(folder)) > 2
    assert complaints(folder) == []


def test_a_lost_or_short_file_is_a_warning(folder: Path) -> None:
    """The log builds it again (A11.3)."""
    first, second, *_ = files_of(folder)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-ABORTED_SIZE])
    found = complaints(folder)
    assert [each.split(": ")[:2] for each in found] == [
        ["warning", first.name],
        ["warning", second.name],
    ]
    log = open_log(FILES, folder, "test", CONFIG)
    assert len(log.aborted_in(0, log.log_end_offset)) == 8
    log.close_aborted()
    assert complaints(folder) == []


@pytest.mark.parametrize("field", range(4))
def test_a_wrong_entry_is_an_error(folder: Path, field: int) -> None:
    """Sound by its CRC, and closed: the log would believe it."""
    first = files_of(folder)[0]
    data = first.read_bytes()
    entry = read_aborted(data)
    assert entry is not None
    fields = list(entry)
    fields[field] += 1
    first.write_bytes(pack_aborted(entry._make(fields)) + data[ABORTED_SIZE:])
    assert complaints(folder)[0].startswith(f"error: {first.name}: entry 0 is wrong")


def test_an_active_segment_may_lack_entries(folder: Path) -> None:
    """A broker uses it, and has not written what it buffers."""
    log = open_log(FILES, folder, "test", CONFIG)
    send(log, 50)
    abort(log, 50)
    assert complaints(folder) == []
