"""The interpreter that Spark runs, and errors on their way to the driver."""

from __future__ import annotations

import logging
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext

from raftmq.errors import Unreachable
from spark_io.python_processes import (
    BRIEF,
    DRIVER_PYTHON,
    IMPORT,
    PYTHON,
    REGISTER,
    SUBMITTED,
    told_in_one_line,
    use_this_interpreter,
)


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver without any of these variables, before its session; they are put back."""
    for name in (PYTHON, DRIVER_PYTHON, SUBMITTED, BRIEF):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setattr(SparkContext, "_gateway", None)


def python3_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.joinpath("python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(folder))


def test_spark_runs_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the session there is nothing to warn of, whatever python3 is."""
    python3_in(tmp_path, monkeypatch)
    use_this_interpreter()
    assert os.environ[PYTHON] == sys.executable
    assert caplog.messages == []


def test_an_interpreter_that_was_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of workers with a path of their own, for one."""
    monkeypatch.setenv(PYTHON, "/opt/workers/bin/python")
    use_this_interpreter()
    assert os.environ[PYTHON] == "/opt/workers/bin/python"


@pytest.mark.parametrize("has_session", [False, True])
def test_too_late(
    has_session: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A JVM that runs another Python is told of in one line, with the way out."""
    monkeypatch.setenv(SUBMITTED, "1234")
    if has_session:
        monkeypatch.setattr(SparkContext, "_gateway", object())
    python3_in(tmp_path, monkeypatch)
    with caplog.at_level(logging.WARNING, "spark_io"):
        use_this_interpreter()
    [told] = caplog.messages
    assert "\n" not in told
    assert f"set {PYTHON}={sys.executable} before it" in told
    assert told.endswith(IMPORT if has_session else REGISTER)


def test_a_python3_of_this_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An activated environment needs no variable, and no warning."""
    monkeypatch.setenv(SUBMITTED, "1234")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    use_this_interpreter()
    assert caplog.messages == []


def test_a_driver_of_this_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark looks for the format in the Python of the driver first."""
    monkeypatch.setenv(SUBMITTED, "1234")
    python3_in(tmp_path, monkeypatch)
    monkeypatch.setenv(DRIVER_PYTHON, sys.executable)
    use_this_interpreter()
    assert os.environ[PYTHON] == sys.executable
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("module", "error", "is_brief"),
    [
        ("pyspark.daemon", Unreachable("nobody"), True),
        ("pyspark.daemon", KeyError("a bug"), False),
        ("orders", Unreachable("nobody"), False),
        (None, Unreachable("nobody"), False),
    ],
)
def test_what_reaches_the_driver(
    module: str | None, error: Exception, is_brief: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of Spark expected errors lose their lines of code; bugs keep them."""
    spec = None if module is None else ModuleSpec(module, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    with pytest.raises(type(error)), told_in_one_line():
        raise error
    assert (BRIEF in os.environ) is is_brief
