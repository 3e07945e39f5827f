"""What is missing without an extra is told in one sentence, with the command that brings it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from raftmq.extras import PACKAGES, MissingExtra, require_extra

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))[
    "project"
]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ALL_PACKAGES = sorted({name for names in PACKAGES.values() for name in names})
HIDDEN = "import sys; sys.modules.update(dict.fromkeys({names!r}))"
WHOLE_CLIENT = """
import asyncio, pkgutil, importlib, raftmq, raftmq.client, raftmq.wire
for package in (raftmq.client, raftmq.wire):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for name in raftmq.__all__:
    getattr(raftmq, name) if name not in {"sync", "testing"} else None

async def main():
    try:
        async with raftmq.connect("127.0.0.1:1", connect_timeout_ms=10):
            pass
    except raftmq.RaftmqError as error:
        print(type(error).__name__)

asyncio.run(main())
"""


def brought_by(extra: str) -> set[str]:
    """Names as they are imported, without the extras that it includes."""
    names: set[str] = set()
    for requirement in EXTRAS[extra]:
        name = requirement.split(">")[0].split("=")[0]
        if name.startswith("raftmq["):
            names.update(*map(brought_by, name[len("raftmq[") : -1].split(",")))
        else:
            names.add(name.replace("-", "_"))
    return names


def run_without(names: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, where these packages cannot be imported."""
    code = f"{HIDDEN.format(names=names)}\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("extra", PACKAGES)
def test_what_is_asked_for_is_what_an_extra_brings(extra: str) -> None:
    """One that is installed is never called missing, and none that is missing is overlooked."""
    assert set(PACKAGES[extra]) == brought_by(extra)
    require_extra(extra, "this")


def test_the_client_needs_three_packages() -> None:
    """A program on asyncio installs nothing that only nodes and commands need."""
    assert sorted(name.split(">")[0] for name in PROJECT["dependencies"]) == [
        "anyio", "crc32c", "msgspec",
    ]  # fmt: skip
    done = run_without(ALL_PACKAGES, WHOLE_CLIENT)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "Unreachable\n")


def test_the_sentence_names_who_what_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One package or several: each is named, and one command brings all of them."""
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(MissingExtra) as one:
        require_extra("sync", "raftmq.sync")
    assert one.value.name == "trio"
    assert str(one.value) == (
        "raftmq.sync needs trio, which is not installed: pip install 'raftmq[sync]'"
    )
    monkeypatch.setitem(sys.modules, "immutables", None)
    monkeypatch.setitem(sys.modules, "pysyncobj", None)
    with pytest.raises(ImportError) as several:
        require_extra("testing", "raftmq.testing")
    assert "needs trio, immutables and pysyncobj, which are not installed" in str(several.value)


@pytest.mark.parametrize(
    ("extra", "code", "user"),
    [
        ("sync", "import raftmq.sync", "raftmq.sync"),
        ("testing", "from raftmq.testing import broker", "raftmq.testing"),
        ("spark", "import pyspark_raftmq", "the data source for Spark"),
    ],
)
def test_an_import_without_its_extra_ends_with_the_sentence(
    extra: str, code: str, user: str
) -> None:
    """The last line of the traceback says what to do, not which module deep within is missing."""
    done = run_without(ALL_PACKAGES, code)
    assert f"raftmq.extras.MissingExtra: {user} needs " in done.stderr.splitlines()[-1]
    assert done.stderr.endswith(f"pip install 'raftmq[{extra}]'\n")


@pytest.mark.parametrize(
    ("missing", "arguments", "line"),
    [
        (["click", "rich_click"], ["dev"], "the command raftmq needs click and rich_click"),
        (["pysyncobj"], ["broker", "--config", "x"], "raftmq broker needs pysyncobj"),
        (["pysyncobj"], ["dev"], "raftmq dev needs pysyncobj"),
    ],
)
def test_a_command_without_its_extra_is_one_line(
    missing: list[str], arguments: list[str], line: str
) -> None:
    """No traceback, exit code 1, and nothing was begun."""
    code = f"sys.argv = {['raftmq', *arguments]!r}; from raftmq.__main__ import main; main()"
    done = run_without(missing, code)
    assert done.returncode == 1
    assert done.stderr.startswith(f"raftmq: {line}, which ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("job", ["export", "replay", "bulk_load"])
def test_a_job_without_its_extra_is_one_line(job: str, tmp_path: Path) -> None:
    """`python -m spark_io.jobs.export` where only the client is installed: no traceback."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN.format(names=["pyspark", "pyarrow"]))
    done = subprocess.run(
        [sys.executable, "-m", f"spark_io.jobs.{job}", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{job}: the data source for Spark needs pyarrow and pyspark, which are not installed:"
        " pip install 'raftmq[spark]'\n"
    )


@pytest.mark.parametrize("verb", [["quorum", "status"], ["topic", "list"], ["group", "list"]])
def test_commands_for_a_cluster_elsewhere_need_no_broker_here(verb: list[str]) -> None:
    """With `raftmq[cli]` alone they go as far as the connection."""
    arguments = ["raftmq", "-b", "127.0.0.1:1", *verb]
    code = f"sys.argv = {arguments!r}; from raftmq.__main__ import main; main()"
    done = run_without(["immutables", "pysyncobj"], code)
    assert done.returncode == 5, done.stderr
    assert "Connection refused" in done.stderr
