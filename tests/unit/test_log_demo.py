"""The demonstration of the log shows what it says, and fails when that is not so.

Runs it as people do, with few records, and holds its comparison against losses made by hand.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

DEMO = Path(__file__).parents[2] / "examples" / "log_demo.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The example is no part of a package."""
    spec = importlib.util.spec_from_file_location("log_demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_loses_nothing_and_finds_the_flipped_bit(tmp_path: Path) -> None:
    """Write, kill, recover, read, verify: exit code 0, and nothing is left behind."""
    command = [sys.executable, str(DEMO), "--records", "9000", "--directory", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.stderr == ""
    assert process.returncode == 0, process.stdout
    assert "the partition log of raftmq alone" in process.stdout
    assert "CRC-32C is" in process.stdout
    assert "0 of the acknowledged ones are missing" in process.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_comparison_counts_every_kind_of_fault(demo: ModuleType) -> None:
    """A record is missing, doubled, or behind a later one of its key; other keys may move."""
    line, compare, comparison = demo.Line, demo.compare, demo.Comparison
    written = [line(b"a", b"1"), line(b"b", b"1"), line(b"a", b"2")]
    a1, b1, a2 = written
    assert compare(written, written) == comparison()
    assert compare(written, [b1, a1, a2]) == comparison()
    assert compare(written, [a1, b1]) == comparison(lost=1)
    assert compare(written, [a1, b1, b1, a2]) == comparison(doubled=1)
    assert compare(written, [a2, b1, a1]) == comparison(out_of_order=2)


def test_the_data_are_the_same_every_time(demo: ModuleType) -> None:
    """The second writer goes on where the log ends, which it could not if they were not."""
    partitions = demo.deal_out(demo.read_lines(5000))
    assert partitions == demo.deal_out(demo.read_lines(5000))
    assert sum(map(len, partitions)) == 5000
    assert len(partitions) == demo.PARTITIONS


def test_acknowledged_records_that_are_gone_are_counted(demo: ModuleType, tmp_path: Path) -> None:
    """One partition recovered less than it had promised, another one more."""
    show = demo.Demo(tmp_path, 10, demo.Console(quiet=True))
    assert show._check_survivors([10, 10], [7, 15]) == demo.Comparison(lost=3)
