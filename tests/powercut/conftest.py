"""Fixtures: a disk whose power can be cut, and a data directory on it that is judged at the end.

A test that uses `rig` fails if its ledger has a finding when it is over, whatever else it checks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from jepsen_like.nodes.disk import LoopDisk, loop_disk
from tests.powercut.capabilities import power_cuts, require
from tests.powercut.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _records_without_exceptions() -> Iterator[None]:
    """pytest keeps log records; with an exception in one, it would keep files of the disk open."""
    make_record = logging.getLogRecordFactory()

    def make_text(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        record.msg, record.args = record.getMessage(), ()
        return record

    logging.setLogRecordFactory(make_text)
    yield
    logging.setLogRecordFactory(make_record)


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
