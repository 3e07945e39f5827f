"""docs/MESSAGING.md: its programs and commands, in order, give what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq import testing
from tests.cluster.tutorial_page import Reader

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/MESSAGING.md"


def test_the_page(tmp_path: Path) -> None:
    """Each file is written, each command typed (A12.1, A12.5)."""
    with testing.cluster(3) as server:
        Reader(tmp_path, server.bootstrap).follow(PAGE)
