"""How the program starts, what it says about itself, and how it ends."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

import raftmq
from raftmq.cli.main import Program, main
from raftmq.cli.terminal.exits import CommandError, ExitCode
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
        "quorum verify -h", "broker -h", "topic -h", "topic list -h", "topic describe -h",
        "topic create -h", "topic alter -h", "topic move -h", "topic delete -h", "topic trim -h",
        "topic restart-empty -h", "cluster -h", "cluster moves -h",
        "cluster health -h", "cluster status -h", "cluster leaders -h", "cluster info -h",
        "group -h", "group list -h", "completion -h", "group describe -h", "group lag -h",
        "group reset-offsets -h", "group delete -h", "profile -h", "profile list -h",
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


@pytest.mark.parametrize(
    ("command", "begins"),
    [("produce", "Exit codes: "), ("consume", "FORMAT"), ("topic list", "JSON: ")],
)
def test_paragraphs_of_a_help_stand_apart(command: str, begins: str) -> None:
    """An empty line before what follows the examples, and between those of the description."""
    lines = list(map(str.strip, invoke(*command.split(), "--help").stdout.splitlines()))
    at = next(number for number, line in enumerate(lines) if line.startswith(begins))
    assert lines[at - 1] == ""
    assert lines[at - 2] != ""
    lines = list(map(str.strip, invoke("topic", "create", "--help").stdout.splitlines()))
    at = next(number for number, line in enumerate(lines) if line.startswith("Without --repl"))
    assert lines[at - 1] == ""


def test_the_nouns_are_in_the_order_of_their_use() -> None:
    """Whoever begins finds at the top what comes first."""
    shown = invoke("--help").stdout
    nouns = ["dev", "broker", "topic", "group", "cluster", "quorum", "log"]
    places = [shown.index(f"│ {noun} ") for noun in nouns]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("noun", "verbs"),
    [
        (
            "topic",
            ["list", "describe", "create", "alter", "move", "delete", "trim", "restart-empty"],
        ),
        ("group", ["list", "describe", "lag", "reset-offsets", "delete"]),
        ("dev", ["status", "stop", "kill", "restart"]),
    ],
)
def test_the_verbs_are_in_order(noun: str, verbs: list[str]) -> None:
    """Those that look come first."""
    shown = invoke(noun, "--help").stdout
    places = [shown.index(f"│ {verb} ") for verb in verbs]
    assert places == sorted(places)


def test_the_first_example_is_where_one_begins() -> None:
    """Of all examples, a cluster on this machine comes first."""
    assert invoke("--help").stdout.split("Examples:")[1].split()[:2] == ["raftmq", "dev"]


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
        ("group reset g", "No such command 'reset'. Did you mean 'reset-offsets'? Try"),
        ("group offsets g", "No such command 'offsets'. Did you mean 'reset-offsets'? Try"),
        ("topic re", "No such command 're'. Did you mean 'restart-empty'? Try"),
        ("quorum s", "No such command 's'. Did you mean 'status'? Try 'raftmq quorum --help'."),
        ("prod x", "No such command 'prod'. Did you mean 'produce'? Try 'raftmq --help'."),
        ("topic list -f json", "No such option '-f'. Did you mean -o json? Try 'raftmq topic"),
        ("group lag g --json", "No such option '--json'. Did you mean -o json? Try 'raftmq group"),
        ("cluster health --format=json", "No such option '--format'. Did you mean -o json? Try"),
        ("log dump", "Missing argument 'DIR'. Try 'raftmq log dump --help'."),
        ("log dump . -o xml", "Invalid value for '-o' / '--output': 'xml' is not one of"),
        ("log dump . --from -1", "Invalid value for '--from': -1 is not in the range x>=0."),
        ("log dump . -n 0", "Invalid value for '-n': 0 is not in the range x>=1."),
        ("log verify . --frm 1", "No such option '--frm'"),
        ("topic list --timeout nan", "Invalid value for '--timeout': 'nan' is not a valid float."),
        ("bench latency t --rate nan", "Invalid value for '--rate': 'nan' is not a valid float."),
        ("produce t --timeout nan", "Invalid value for '--timeout': 'nan' is not a valid float."),
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


def test_streams_that_are_closed() -> None:
    """Whoever has closed stdout wants to hear nothing: no traceback, and the exit code counts."""
    program = (
        "from raftmq.cli.main import click, Program\n"
        "from raftmq.cli.terminal.output import write_json, write_prose, write_table\n"
        "@click.command(cls=type('One', (Program,), {}), invoke_without_command=True)\n"
        "def told(): write_json([{}]); write_prose('so'); write_table(['a'], [['b']]); return 7\n"
        "told([])"
    )
    process = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program],
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (process.returncode, process.stderr) == (ExitCode.UNHEALTHY, b"")


def test_a_full_disk_below_stdout() -> None:
    """The line says what could not be written; an error that has a name keeps it."""
    assert told(OSError(errno.ENOSPC, "No space left")) == (
        "raftmq: cannot write to stdout: No space left\n"
    )
    assert told(OSError(errno.ENOSPC, "No space left", "/x")).endswith("No space left: '/x'\n")


def told(error: Exception) -> str:
    @click.group(cls=Program)
    def program() -> None: ...

    @program.command()
    def fail() -> None:
        raise error

    return CliRunner().invoke(program, ["fail"]).stderr


def test_interrupted_while_modules_are_loaded() -> None:
    """Ctrl-C ends it at any moment without a traceback."""
    program = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'rich_click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from raftmq.__main__ import main\n"
        "main()"
    )
    process = python("-c", program)
    assert (process.returncode, process.stderr) == (ExitCode.INTERRUPTED, "")


# -- completion --------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_evaluates(shell: str) -> None:
    """Each shell gets a function that asks this program."""
    result = invoke("completion", shell)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"_RAFTMQ_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [("raftmq to", "plain,topic"), ("raftmq topic cr", "plain,create"),
     ("raftmq topic create --if", "plain,--if-not-exists"), ("raftmq consume --out", "")],
)  # fmt: skip
def test_what_is_completed(words: str, expected: str) -> None:
    """Nouns, verbs and options, as the shell's function asks for them."""
    environment = {
        **os.environ, "_RAFTMQ_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }  # fmt: skip
    command = [sys.executable, "-c", "from raftmq.cli.main import main; main()"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (process.stderr, process.stdout.strip()) == ("", expected)
