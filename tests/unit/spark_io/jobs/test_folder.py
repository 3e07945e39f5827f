"""Files of an export: whole under their name or not there, wherever a run dies."""

from __future__ import annotations

import fcntl
import os
from io import UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_io.jobs.causes import JobError
from spark_io.jobs.export_folder import LOCK, PartitionFolder
from spark_io.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENT = b"0123456789"


class Died(BaseException):
    """Nobody of the code in question catches it."""


class Mortal:
    """A process that dies at one of its calls of the system: from then on all of them fail.

    Attributes:
        count: calls so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: float) -> None:
        self.count, self._last = 0, last
        for owner, name in (
            (os, "fsync"), (fcntl, "flock"), (Path, "open"), (Path, "mkdir"), (Path, "rename"),
            (Path, "unlink"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def step(self) -> None:
        self.count += 1
        if self.count > self._last:
            raise Died

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.step()
            return function(*args, **named)

        return call


def part(start: int, end: int) -> OffsetRange:
    return OffsetRange("t", 3, start, end)


def write(folder: PartitionFolder, asked: OffsetRange) -> None:
    with folder.new_file(asked) as file:
        file.write(CONTENT)


def hidden(folder: PartitionFolder) -> list[Path]:
    return [path for path in folder.path.glob(".*") if path.name != LOCK]


def steps_of_a_write(folder: PartitionFolder) -> int:
    with pytest.MonkeyPatch.context() as monkeypatch:
        mortal = Mortal(monkeypatch, last=float("inf"))
        write(folder, part(0, 10))
        return mortal.count


@pytest.fixture
def folder(tmp_path: Path) -> PartitionFolder:
    return PartitionFolder(tmp_path / "exports", "t", 3)


def test_names_say_what_there_is(folder: PartitionFolder) -> None:
    """Other files are passed over."""
    assert folder.ranges() == []
    write(folder, part(10, 20))
    write(folder, part(0, 10))
    for name in ("notes.txt", "1-2.parquet", f"{0:020d}-{5:020d}.parquet.crc"):
        (folder.path / name).touch()
    assert folder.ranges() == [part(0, 10), part(10, 20)]
    name = "topic=t/partition=3/00000000000000000010-00000000000000000020.parquet"
    assert str(folder.file_of(part(10, 20))).endswith(name)
    assert folder.file_of(part(10, 20)).read_bytes() == CONTENT
    assert hidden(folder) == []


def test_a_death_at_any_step(tmp_path: Path) -> None:
    """Leaves the whole file or none, and nothing that the next run does not put in order."""
    count = steps_of_a_write(PartitionFolder(tmp_path / "whole", "t", 3))
    assert count >= 10
    named = 0
    for last in range(count):
        folder = PartitionFolder(tmp_path / str(last), "t", 3)
        with pytest.MonkeyPatch.context() as monkeypatch:
            mortal = Mortal(monkeypatch, last)
            with pytest.raises(Died):
                write(folder, part(0, 10))
            assert mortal.count > last
        named += folder.ranges() == [part(0, 10)]
        folder.remove_leftovers()
        assert hidden(folder) == []
        write(folder, part(0, 10))
        assert folder.ranges() == [part(0, 10)]
        assert folder.file_of(part(0, 10)).read_bytes() == CONTENT
    assert 0 < named < count


def test_an_error_while_writing(folder: PartitionFolder) -> None:
    """Leaves nothing."""
    with pytest.raises(UnsupportedOperation), folder.new_file(part(0, 10)) as file:
        file.read()
    assert folder.ranges() == hidden(folder) == []


def test_what_somebody_writes_is_no_leftover(folder: PartitionFolder) -> None:
    """Another export begins meanwhile, and looks for leftovers."""
    assert folder.remove_leftovers() == 0
    with folder.new_file(part(0, 10)) as file:
        file.write(CONTENT)
        dead = folder.path / hidden(folder)[0].name.replace("00-00", "10-00")
        dead.write_bytes(b"half")
        assert folder.remove_leftovers() == 1
        assert not dead.exists()
    assert folder.ranges() == [part(0, 10)]


def test_two_at_once(folder: PartitionFolder) -> None:
    """The same range comes to one file; of ranges that overlap the first one stays."""
    with folder.new_file(part(0, 10)) as one:
        write(folder, part(0, 10))
        one.write(CONTENT)
    assert folder.ranges() == [part(0, 10)]
    with (
        pytest.raises(JobError, match=r"t-3\[10:30\]: another export has written t-3\[20:25\]"),
        folder.new_file(part(10, 30)),
    ):
        write(folder, part(20, 25))
    assert folder.ranges() == [part(0, 10), part(20, 25)]
    assert hidden(folder) == []
