"""What a node says that does not come so far as to run: layers of settings, exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.cli.nodes import broker_run
from raftmq.cli.nodes.broker_run import run_broker
from raftmq.cli.terminal.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
[node]
id = 1
cluster_id = "orders"
directory = "{directory}"
[quorum.voters]
1 = "127.0.0.1:9293"
[[listeners]]
name = "brokers"
bind = "127.0.0.1:9294"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings that are right, with a directory that is not: nothing is ever begun."""
    directory, path = tmp_path / "data", tmp_path / "node.toml"
    directory.write_text("a file")
    path.write_text(FILE.format(directory=directory))
    return path


def complaint(config: Path, *overrides: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        run_broker(config, overrides)
    return caught.value


@pytest.mark.parametrize(
    ("variable", "overrides", "told"),
    [
        (None, (), "node.id = -1: "),
        ("-2", (), "node.id = -2 from RAFTMQ_NODE__ID: "),
        ("-2", ("node.id=-3",), "node.id = -3 from -o: "),
        ("-2", ("node.id=-3", "node.id=-4"), "node.id = -4 from -o: "),
    ],
)
def test_the_nearest_layer_counts(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    overrides: tuple[str, ...],
    told: str,
) -> None:
    """The command line above the environment, the environment above the file; each says so."""
    config.write_text(config.read_text().replace("id = 1", "id = -1"))
    if variable is not None:
        monkeypatch.setenv("RAFTMQ_NODE__ID", variable)
    error = complaint(config, *overrides)
    assert str(error) == f"{told}expected a whole number from 0 to 2147483647"
    assert error.exit_code is ExitCode.USAGE


def test_a_layer_may_mend_what_is_wrong_below(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts in the end is looked at, and nothing else."""
    config.write_text(config.read_text().replace("id = 1", 'id = "one"'))
    monkeypatch.setenv("RAFTMQ_NODE__ID", "1")
    assert str(complaint(config)).startswith("node.directory = ")


def test_a_warning_does_not_keep_it_from_starting(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands on stderr, with its key, before anything else happens."""
    assert "is no directory" in str(complaint(config))
    warned = capsys.readouterr().err
    assert warned.startswith("raftmq: warning: quorum.voters: a single voter: ")


def test_each_problem_has_its_line(config: Path) -> None:
    """They are told apart by lines, not by semicolons that a message may have itself."""
    error = complaint(config, "node.idd=1", "node.id=x", "y")
    assert [line.partition(":")[0] for line in str(error).splitlines()] == [
        "-o y",
        "node.idd",
        "node.id = 'x' from -o",
    ]


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        (MemoryError(), "not enough memory: give the node more (MemoryMax of systemd"),
        (RuntimeError("can't start new thread"), "the system starts no more threads for this"),
    ],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_machine_that_gives_too_little(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    lacking: Exception,
    told: str,
    *,
    is_alone: bool,
) -> None:
    """At its start, in one task or in several, whatever follows from that: one line and exit code
    1, in place of a traceback."""

    def run(_main: object, *_arguments: object) -> None:
        if is_alone:
            raise lacking
        raise BaseExceptionGroup("tasks", [KeyError("gone"), ExceptionGroup("", [lacking])])

    (config.parent / "data").unlink()
    monkeypatch.setattr(trio, "run", run)
    monkeypatch.setattr(broker_run, "begin_log", lambda _settings: None)
    error = complaint(config)
    assert str(error).startswith(told)
    assert "\n" not in str(error)
    assert error.exit_code is ExitCode.FAILED


def test_a_bug_is_shown_as_it_is(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another RuntimeError is none of the machine's."""

    def run(_main: object, *_arguments: object) -> None:
        raise RuntimeError("a bug")

    (config.parent / "data").unlink()
    monkeypatch.setattr(trio, "run", run)
    monkeypatch.setattr(broker_run, "begin_log", lambda _settings: None)
    with pytest.raises(RuntimeError, match="a bug"):
        run_broker(config, ())
