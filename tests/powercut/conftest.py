"""Fixtures: a disk whose power can be cut, and a data directory on it that is judged at the end.

A test that uses `rig` fails if its ledger has a finding when it is over, whatever else it checks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.powercut.capabilities import power_cuts, require
from tests.powercut.disk import LoopDisk, loop_disk
from tests.powercut.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _logs_as_text() -> Iterator[None]:
    """pytest keeps records with the exceptions in them, and those keep files of the disk open."""
    logger, handler = logging.getLogger("raftmq"), logging.StreamHandler()
    logger.addHandler(handler)
    logger.propagate = False
    yield
    logger.propagate = True
    logger.removeHandler(handler)


@pytest.fixture
def disk() -> Iterator[LoopDisk]:
    require(power_cuts)
    with loop_disk() as disk:
        yield disk


@pytest.fixture
def rig(disk: LoopDisk) -> Iterator[Rig]:
    rig = Rig(disk.mount_point / "data", disk, seed=1)
    yield rig
    assert not rig.ledger.findings
    assert rig.ledger.acknowledged, "nothing was acknowledged: nothing was tested"
