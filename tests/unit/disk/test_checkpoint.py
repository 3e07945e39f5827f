"""Small files of named numbers, replaced whole."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raftmq.disk.checkpoint import read_checkpoint, write_checkpoint
from tests.simulation.disk import SimulatedFiles

PATH = Path("/data/recovery-points")


@pytest.fixture
def files() -> SimulatedFiles:
    files = SimulatedFiles(Random(0))
    files.make_directory(PATH.parent)
    return files


def test_round_trip(files: SimulatedFiles) -> None:
    """Names may hold spaces, numbers may be large."""
    points = {"a b/Partition-0": 1 << 62, "z": 0}
    write_checkpoint(files, PATH, points)
    assert read_checkpoint(files, PATH) == points
    write_checkpoint(files, PATH, {})
    assert read_checkpoint(files, PATH) == {}


def test_there_is_none_yet(files: SimulatedFiles) -> None:
    """A new directory."""
    assert read_checkpoint(files, PATH) is None


def test_damage_reads_as_none(files: SimulatedFiles) -> None:
    """Every flipped bit and every cut: no checkpoint is better than a wrong one."""
    write_checkpoint(files, PATH, {"orders/Partition-0": 1234})
    size = files.size(PATH)
    for position in range(size):
        for bit in range(8):
            files.flip_bit(PATH, position, bit)
            assert read_checkpoint(files, PATH) is None
            files.flip_bit(PATH, position, bit)
    for length in range(size - 1, -1, -1):
        files.cut(PATH, length)
        assert read_checkpoint(files, PATH) is None
