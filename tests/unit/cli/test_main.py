"""How the program starts, what it says about itself, and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

import raftmq
from raftmq.cli.exits import CommandError, ExitCode
from raftmq.cli.main import Program, main
from raftmq.errors import StorageError


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


# -- the process -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "expected"), [("--version", f"raftmq {raftmq.__version__}\n"), ("--help", "log")]
)
def test_it_runs_as_a_module(argument: str, expected: str) -> None:
    """`python -m raftmq` is the same program."""
    process = python("-m", "raftmq", argument)
    assert (process.returncode, process.stderr) == (0, "")
    assert expected in process.stdout


def test_help_loads_nothing_heavy() -> None:
    """Help must be there at once: no event loop, no codec, no noun that was not asked for."""
    program = (
        "import sys; from raftmq.cli import main; import atexit\n"
        "heavy = 'trio msgspec crc32c pysyncobj raftmq.wire raftmq.partition raftmq.metadata'\n"
        "heavy = [*heavy.split(), 'raftmq.cli.log', 'raftmq.cli.quorum']\n"
        "atexit.register(lambda: sys.stderr.write(str([m for m in heavy if m in sys.modules])))\n"
        "main(['--help'])"
    )
    assert python("-c", program).stderr == "[]"


# -- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "--help", "-h", "log -h", "log dump -h", "log verify -h", "quorum -h", "quorum status -h",
        "quorum verify -h", "broker -h",
    ],
)  # fmt: skip
def test_every_help_is_there(command: str) -> None:
    """Each command says how it is used, and the leaves give examples."""
    arguments = command.split()
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert " ".join(["Usage: raftmq", *arguments[:-1]]) in result.stdout
    assert not re.search(r"[a-z,] {2,}[(a-z].*[,.]", result.stdout.split("Examples:")[-1])
    if len(arguments) == 3:
        assert "Examples:" in result.stdout
        assert "JSON: one object per line" in result.stdout


def test_without_arguments_it_shows_its_help() -> None:
    """As usage error, so that a script notices."""
    result = invoke()
    assert (result.exit_code, "Usage: raftmq" in result.output) == (ExitCode.USAGE, True)


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("lgo", "No such command 'lgo'. Did you mean 'log'? Try 'raftmq --help'."),
        ("log dmp", "No such command 'dmp'. Did you mean 'dump'? Try 'raftmq log --help'."),
        ("log dump", "Missing argument 'DIR'. Try 'raftmq log dump --help'."),
        ("log dump . -o xml", "Invalid value for '-o' / '--output': 'xml' is not one of"),
        ("log dump . --from -1", "Invalid value for '--from': -1 is not in the range x>=0."),
        ("log dump . -n 0", "Invalid value for '-n': 0 is not in the range x>=1."),
        ("log verify . --frm 1", "No such option '--frm'"),
    ],
)
def test_a_wrong_command_line_is_one_line_on_stderr(arguments: str, line: str) -> None:
    """It names what is wrong and the way to help."""
    result = invoke(*arguments.split())
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    assert result.stderr.startswith(f"raftmq: {line}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (CommandError("no such thing", ExitCode.NOT_FOUND), 3, "raftmq: no such thing\n"),
        (StorageError("read x: Input/output error"), 1, "raftmq: read x: Input/output error\n"),
        (PermissionError(13, "Permission denied", "x"), 1,
         "raftmq: [Errno 13] Permission denied: 'x'\n"),
        (KeyboardInterrupt(), 130, "\nraftmq: interrupted\n"),
    ],
)  # fmt: skip
def test_every_error_ends_in_an_exit_code(error: BaseException, exit_code: int, line: str) -> None:
    """No traceback, whatever a command raises on purpose."""

    @click.group(cls=Program)
    def program() -> None: ...

    @program.command()
    def fail() -> None:
        raise error

    result = CliRunner().invoke(program, ["fail"])
    assert (result.exit_code, result.stderr) == (exit_code, line)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As `head` does: the output breaks off, nothing is said of it."""
    arguments = [sys.executable, "-m", "raftmq", "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (process.returncode, process.stderr) == (1, b"")


def test_the_result_of_a_command_is_the_exit_code() -> None:
    """Commands return it; nothing is as good as 0."""

    @click.group(cls=Program)
    def program() -> None: ...

    program.command("bad")(lambda: 7)
    program.command("good")(lambda: None)
    assert CliRunner().invoke(program, ["bad"]).exit_code == 7
    assert CliRunner().invoke(program, ["good"]).exit_code == 0
