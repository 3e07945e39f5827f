"""Each record is copied once, in order, whoever is killed meanwhile (A11.3, T7).

The disasters in random order, for as long as one likes: `python -m tests.cluster.copies`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.copier import TARGET
from tests.cluster.copying import Copying

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

HELPER, BY_HAND, BLOCKING = 1, 2, 3
WAYS = {HELPER: "helper", BY_HAND: "by-hand", BLOCKING: "blocking"}
DOWN_SECONDS = 0.5


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Copying]:
    """Of three partitions, by a copier of each way. At the end it is judged."""
    with Copying(tmp_path) as copying:
        for number, way in WAYS.items():
            copying.copiers.start(number, way)
        copying.wait_progress()
        yield copying
        assert not copying.findings()
        assert not copying.disk_findings()


def test_copies_under_kills(copying: Copying) -> None:
    """kill -9 of each copier, of the coordinator, and of a leader of the target; then of one of
    each at once.
    """
    for number, way in WAYS.items():
        copying.copiers.kill([number])
        copying.copiers.start(number, way)
        copying.wait_progress()
    for victim in (copying.coordinator(), copying.leader(TARGET, 0)):
        strike(copying, victim)
    copying.copiers.kill([HELPER])
    strike(copying, copying.leader(TARGET, 1))
    copying.copiers.start(HELPER, WAYS[HELPER])
    copying.wait_progress()


def strike(copying: Copying, victim: int | None) -> None:
    assert victim is not None, "there was no leader"
    copying.brokers.kill([victim])
    time.sleep(DOWN_SECONDS)
    copying.brokers.start([victim])
    copying.brokers.wait_ready([victim])
    copying.wait_progress()
