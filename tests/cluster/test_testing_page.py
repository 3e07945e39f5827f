"""docs/TESTING-YOUR-CODE.md: its modules work as they stand there, under pytest and its plugin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from raftmq import testing
from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).parents[2] / "docs/TESTING-YOUR-CODE.md"
MODULE = re.compile(r"^```python (\S+)$(.*?)^```$", re.MULTILINE | re.DOTALL)
FIXTURE = re.compile(r"^\| `(raftmq_\w+)` \| (\w+) \|", re.MULTILINE)
MEMBER = re.compile(r"^\| `([a-z_]+)[`(](?:, `(\w+)`)?", re.MULTILINE)
PYTEST_SECONDS_MAX = 100
# What a topic's name is made of, whatever a test is called.
NAMES = """
import pytest
seen = []

@pytest.mark.parametrize("text", ["", "a b/c\u00e4", "x" * 1000])
def test_name(raftmq_topic, text):
    assert len(raftmq_topic) <= 249 and raftmq_topic.isascii() and " " not in raftmq_topic
    assert "/" not in raftmq_topic and "[" not in raftmq_topic
    seen.append(raftmq_topic)
    assert len(seen) == len(set(seen))

def test_nothing_was_imported():
    import sys
    assert "raftmq.testing.pytest_plugin" in sys.modules
    assert "raftmq.broker.broker" not in sys.modules
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    """What it says of the modules in `folder`, where every warning is an error."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-q", "-p", "no:cacheprovider", *arguments],
        capture_output=True,
        text=True,
        timeout=PYTEST_SECONDS_MAX,
        cwd=folder,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_its_modules(tmp_path: Path) -> None:
    """Copied from the page to a folder with nothing else."""
    modules = dict(MODULE.findall(PAGE.read_text("utf-8")))
    assert modules.keys() == {
        "orders.py",
        "test_orders.py",
        "conftest.py",
        "test_connection.py",
        "test_failover.py",
    }
    for name, text in modules.items():
        tmp_path.joinpath(name).write_text(text)
    assert "5 passed" in run_pytest(tmp_path)


def test_its_fixtures(tmp_path: Path) -> None:
    """The page lists those that pytest knows, with their scopes."""
    said = run_pytest(tmp_path, "--fixtures")
    known = re.findall(r"^(raftmq_\w+)(?: \[(\w+) scope\])? --", said, re.MULTILINE)
    listed = FIXTURE.findall(PAGE.read_text("utf-8"))
    assert [(name, scope or "function") for name, scope in known] == listed


def test_its_members() -> None:
    """The page lists what a server can be asked, and the package offers what it says."""
    _, _, table = PAGE.read_text("utf-8").partition("| of `server` |")
    listed = {name for pair in MEMBER.findall(table) for name in pair if name}
    public = {name for name in dir(Server) if not name.startswith("_")}
    assert listed == public | {"nodes", "addresses"}
    for name in testing.__all__:
        assert getattr(testing, name).__doc__
    with pytest.raises(AttributeError, match="brokr"):
        testing.brokr  # noqa: B018


def test_what_the_plugin_costs_others(tmp_path: Path) -> None:
    """Tests that want no broker: nothing of one is imported; names suit any test."""
    tmp_path.joinpath("test_names.py").write_text(NAMES)
    assert "4 passed" in run_pytest(tmp_path, "-p", "no:trio")
