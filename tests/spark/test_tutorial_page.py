"""docs/tutorial/13-spark.md, followed. The other pages: tests/cluster/test_tutorial.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.tutorial_page import Reader
from tests.spark.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark


def test_the_page(server: Server, tmp_path: Path) -> None:
    """Its program moves three records through a stream of Spark; the command line reads them."""
    Reader(tmp_path, server.bootstrap).follow(ROOT / "docs/tutorial/13-spark.md")
