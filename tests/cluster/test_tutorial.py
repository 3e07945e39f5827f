"""docs/tutorial/: every program and every command of it, in order, on a real cluster of three."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.local.directory import find_layout
from tests.cluster.tutorial_page import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial"
PAGES = sorted(page for page in TUTORIAL.glob("[0-9]*.md") if "spark" not in page.name)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("tutorial")
    nobody = Reader(folder, "127.0.0.1:9292")
    started = nobody.run("raftmq dev --detach --port 0")
    found = re.search(r"^bootstrap: (\S+)$", started, re.MULTILINE)
    assert found, started
    assert find_layout(folder / "raftmq-data")
    yield Reader(folder, found[1])
    nobody.run("raftmq dev stop")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page(reader: Reader, page: Path) -> None:
    """Each file is written, each command typed; what comes back is what the page shows."""
    reader.follow(page)


def test_the_index_leads_to_every_page() -> None:
    """In the order of their numbers."""
    index = (TUTORIAL / "README.md").read_text("utf-8")
    assert re.findall(r"\]\((\d\d-[\w-]+\.md)\)", index) == sorted(
        page.name for page in TUTORIAL.glob("[0-9]*.md")
    )
