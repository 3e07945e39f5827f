"""Verification of the lists of scheduled records: sound, damaged, wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.disk.files import OsFiles
from raftmq.partition.scheduling.lists import LIST_SUFFIX, pack_list, read_list
from raftmq.partition.storage.recovery import open_log
from raftmq.partition.verify.partition import verify_partition
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from pathlib import Path

FILES = OsFiles()
CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Several segments, each of which schedules something."""
    log = open_log(FILES, tmp_path, "test", CONFIG)
    for number in range(20):
        data = encode_batch(values=[b"v"], timestamp=NOW_MS, due_ms=NOW_MS + number)
        log.append(bytes(data), leader_epoch=0, now_ms=NOW_MS, now=0.0)
    log.write_indexes()
    log.close_aborted()
    log.scheduled.take_last(log.log_end_offset)
    work = log.scheduled.begin_write()
    assert work is not None
    work.perform(FILES)
    return tmp_path


def lists_of(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{LIST_SUFFIX}"))


def complaints(folder: Path) -> list[str]:
    found = verify_partition(FILES, folder).findings
    return [f"{each.severity}: {each.what}" for each in found if each.file.suffix == LIST_SUFFIX]


def test_a_sound_log_has_no_findings(folder: Path) -> None:
    """A12.2."""
    assert len(lists_of(folder)) > 2
    assert complaints(folder) == []


def test_a_damaged_list_is_a_warning(folder: Path) -> None:
    """The next opening reads the batches, and knows the same. (A12.2)"""
    first, second, *_ = lists_of(folder)
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(b"x" + second.read_bytes()[1:])
    found = complaints(folder)
    assert len(found) == 2
    assert all(each.startswith("warning: damaged") for each in found)
    assert open_log(FILES, folder, "test", CONFIG).schedule.pending_count == 20


def test_a_list_that_says_something_else_is_an_error(folder: Path) -> None:
    """Sound by its CRC: it would be believed. (A12.3)"""
    first, other, *_ = lists_of(folder)
    base_offset = int(first.stem)
    end_offset = read_list(first.read_bytes(), base_offset).end_offset
    blocks = read_list(other.read_bytes(), int(other.stem)).blocks
    first.write_bytes(pack_list(base_offset, end_offset, blocks))
    [found] = complaints(folder)
    assert found.startswith("error: says something else")


def test_a_list_without_its_segment_is_told(folder: Path) -> None:
    last = lists_of(folder)[-1]
    last.rename(last.with_name(f"{10**6:020d}{LIST_SUFFIX}"))
    found = complaints(folder)
    assert any(each.endswith(".log is missing") for each in found)
