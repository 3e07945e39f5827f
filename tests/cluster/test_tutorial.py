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
PROGRAM = re.compile(r"^\$ python (\w+\.py)", re.MULTILINE)
SETTINGS = """\
[tool.pytest.ini_options]
addopts = ["--strict-config"]
of_a_plugin_that_is_not_installed = true
"""  # of the checkout: its own tests need plugins
AGAIN = {
    "first.py": "sent, offset 3\nread c-17 two apples\n",
    "blocking.py": "c-17 two apples\n" * 2 + "c-18 a pear\nc-17 two apples\nc-18 a pear\n",
    "places.py": "parcels 0 2\nparcels 1 2\nparcels 0 3\nparcels 1 3\n8 records\n",
    "keys.py": "{...}\n['opened', 'paid', 'closed', 'opened', 'paid', 'closed']\n",
    "acks.py": "acks=0: offset -1, ...\nacks=1: offset ...\nacks=all: offset ...\n",
    "workers.py": "80 jobs, 80 different, by ['anna', 'bert']\n",
    "crash.py": "first attempt got welcome\n...\nsecond attempt got welcome\n",
    "errors.py": "...\nit is there already\n",
    "replay.py": "2 days ago\n3 days ago\n1 days ago 2\n",
    "speed.py": "...\nthe slowest is one_by_one: True\n",
    "steady.py": "... acknowledged...\nall are kept: True\n",
}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("tutorial") / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(SETTINGS, "utf-8")
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


@pytest.mark.parametrize("program", AGAIN)
def test_a_program_again(reader: Reader, program: str) -> None:
    """After the whole tutorial; records stay, and what is printed then is what the page says."""
    arguments = " batch careful" if program == "crash.py" else ""
    reader.compare(f"python {program}{arguments}", AGAIN[program])


def test_every_program_runs_again() -> None:
    """The list above has all of them."""
    assert {name for page in PAGES for name in PROGRAM.findall(page.read_text("utf-8"))} == {*AGAIN}


def test_the_index_leads_to_every_page() -> None:
    """In the order of their numbers."""
    index = (TUTORIAL / "README.md").read_text("utf-8")
    assert re.findall(r"\]\((\d\d-[\w-]+\.md)\)", index) == sorted(
        page.name for page in TUTORIAL.glob("[0-9]*.md")
    )
