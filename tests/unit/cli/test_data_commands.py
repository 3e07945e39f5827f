"""`raftmq produce`, `consume` and `bench`: what is refused before any record moves, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.main import main
from tests.unit.client.administration.served import serve_bureau

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.client.administration.bureau import Bureau

NOWHERE = "127.0.0.1:1"


def run(*arguments: str, bootstrap: str = NOWHERE) -> Result:
    return CliRunner().invoke(main, ["-b", bootstrap, *arguments], input=b"x\n")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Where one broker listens, with topic "t"."""
    with serve_bureau() as (_, address):
        yield str(address)


USAGE = [
    (["produce"], "Missing argument 'TOPIC'"),
    (["produce", "a b"], "topic name 'a b'"),
    (["produce", "t", "--acks", "some"], "'some' is neither 0, 1, a number of replicas, nor all"),
    (["produce", "t", "--acks", "-1"], "'-1' is neither"),
    (["produce", "t", "--acks", "1000"], "acks = 1000"),
    (["produce", "t", "-z", "snappy"], "'gzip', 'lz4', 'zstd'"),
    (["produce", "t", "--preset", "fast"], "'high_throughput', 'low_latency'"),
    (["produce", "t", "-p", "-1"], "-1 is not in the range"),
    (["produce", "t", "-p", "one"], "'one' is not a valid integer"),
    (["produce", "t", "-H", "novalue"], "'novalue': expected NAME=VALUE"),
    (["produce", "t", "-H", "=v"], "'=v': expected NAME=VALUE"),
    (["produce", "t", "-H", "\udcff=v"], "headers is not valid Unicode"),
    (["produce", "t", "-t", "\udcff"], "tags is not valid Unicode"),
    (["produce", "t", "--delay", "30"], "'30' is no duration: write it like 7d, 12h, 1h30m"),
    (["produce", "t", "--delay", "-5m"], "'-5m' is no duration"),
    (["produce", "t", "--delay", "9999999999w"], "'9999999999w' is longer than 999999999 days"),
    (["produce", "t", "--at", "-1h"], "Invalid value for --at: '-1h' is no time"),
    (["produce", "t", "--at", "tomorrow"], "Invalid value for --at: 'tomorrow' is no time"),
    (["produce", "t", "--at", "2026-12-24T18:00"], "may be anywhere on earth: add Z for UTC"),
    (["produce", "t", "--at", "0", "--delay", "1s"], "--delay and --at: give one of them"),
    (["produce", "t", "-K", ""], "Invalid value for -K: it is empty"),
    (["produce", "t", "-D", r"\q"], r"Invalid value for -D: \q is no escape"),
    (["produce", "t", "--file", "/nowhere/x"], "'/nowhere/x' does not exist"),
    (["produce", "t", "--timeout", "0"], "0.0 is not in the range"),
    (["produce", "t", "--transaction", "--acks", "1"], "transactions = True with acks = 1"),
    (["produce", "t", "--transaction-records", "0"], "0 is not in the range"),
    (["produce", "t", "--max-request-size", "4 MB"], "'4 MB' is no number of bytes: write it like"),
    (["produce", "t", "--max-request-size", "1GiB"], "max_request_size = 1073741824"),
    (["consume"], "Missing argument 'TOPIC...'"),
    (["consume", "."], "topic name '.'"),
    (["consume", "t", "-g", "billing", "-p", "1"], "-p: a group deals out its partitions itself"),
    (["consume", "t", "-g", "billing", "-o", "7"], "-o: a group begins where it has stopped"),
    (["consume", "t", "-o", "middle"], "Invalid value for -o: 'middle': expected earliest"),
    (["consume", "t", "-o", "start"], "did you mean 'earliest'?"),
    (["consume", "t", "-o", "end"], "did you mean 'latest'?"),
    (["consume", "t", "-o", "lates"], "did you mean 'latest'?"),
    (["consume", "t", "-o", "json"], "'json' is no place to begin: for JSON write -f json"),
    (["consume", "t", "--output", "json"], "No such option '--output'. Did you mean -f json?"),
    (["consume", "t", "-o", "@now"], "Invalid value for -o: 'now' is no time"),
    (["consume", "t", "-n", "0"], "0 is not in the range"),
    (["consume", "t", "--isolation-level", "x"], "'x' is not one of 'read_committed'"),
    (
        ["consume", "t", "--tags", "eu &"],
        "Invalid value for --tags: expected a tag, ! or ( at char",
    ),
    (["consume", "t", "--tags", "eu us"], "at character 4: eu >>> us"),
    (["consume", "t", "--tags", "a", "--tags", "b | c"], "'(a) & (b | c)' for all of them, | for"),
    (["consume", "t", "--tags", ""], "Invalid value for --tags: expected a tag"),
    (["consume", "t", "--tags", "eu\n& ("], "at character 7: eu & ( >>>"),
    (["consume", "t", "--tags", "\udcff"], "a tag that is not valid Unicode at character 1"),
    (["consume", "t", "-g", "billing", "--tags", "eu & !eu"], "matches no record"),
    (["consume", "t", "-f", "%q"], "Invalid value for -f: %q means nothing: there are %t"),
    (["consume", "t", "-f", r"%s\q"], r"Invalid value for -f: \q is no escape"),
    (["bench", "produce"], "have one made with --create"),
    (["bench", "produce", "t", "--create"], "have one made with --create"),
    (["bench", "latency", "t", "-p", "3"], "--partitions and -r are for --create"),
    (["bench", "produce", "t", "--size", "x"], "'x' is not a valid integer"),
    (["bench", "latency", "t", "--size", "3"], "3 is not in the range"),
    (["bench", "latency", "t", "--rate", "0"], "0.0 is not in the range"),
    (["bench", "consume", "a/b"], "topic name 'a/b'"),
    (["bench", "produce", "t", "--acks", "128"], "acks = 128"),
]


@pytest.mark.parametrize(("arguments", "reason"), USAGE)
def test_what_makes_no_sense(arguments: list[str], reason: str) -> None:
    """One line that names it, and exit code 2; nobody was asked."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


COMMANDS = [
    ["produce", "t"],
    ["consume", "t"],
    ["bench", "produce", "t"],
    ["bench", "consume", "t"],
    ["bench", "latency", "t"],
]


@pytest.mark.parametrize("command", [*COMMANDS, ["bench", "produce", "--create"]])
def test_nobody_listens(command: list[str]) -> None:
    """The address that was tried, and the way out."""
    result = run(*command)
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr.count("\n") == 1
    for part in (f"{NOWHERE}: ", "; start the nodes there, or correct -b\n"):
        assert part in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_no_such_topic(command: list[str], bootstrap: str) -> None:
    """Told at once, before anything is typed; with the way out."""
    *verbs, _ = command
    result = run(*verbs, "nope", bootstrap=bootstrap)
    assert (result.exit_code, result.stdout) == (3, ""), result.output
    assert result.stderr == (
        "raftmq: there is no topic 'nope'; `raftmq topic create nope` makes it\n"
    )


@pytest.mark.parametrize("group", [[], ["-g", "billing"]])
def test_one_of_several_topics_is_missing(group: list[str], bootstrap: str) -> None:
    """Nothing of the others is read, which is said; each missing one has its line."""
    result = run("consume", "nope", "t", "none", "-e", *group, bootstrap=bootstrap)
    assert (result.exit_code, result.stdout) == (3, ""), result.output
    assert result.stderr == (
        "raftmq: there is no topic 'nope'; `raftmq topic create nope` makes it\n"
        "raftmq: there is no topic 'none'; `raftmq topic create none` makes it; nothing was read\n"
    )


@pytest.mark.parametrize(
    "command", [["produce", "t"], ["consume", "t"], ["consume", "t", "-e"], ["consume", "t", "-o1"]]
)
def test_no_such_partition(command: list[str], bootstrap: str) -> None:
    """It is named, and how many there are."""
    result = run(*command, "-p", "9", bootstrap=bootstrap)
    assert (result.exit_code, result.stdout) == (3, ""), result.output
    assert "counted from 0: there is no 9" in result.stderr


def test_an_offset_beyond_the_end(bootstrap: str) -> None:
    """With -e nothing is printed, and a line says why; an end that was met says nothing."""
    result = run("consume", "t", "-o", "5000", "-e", bootstrap=bootstrap)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "raftmq: nothing to read from there on: t-0 ends at 0\n"
    assert run("consume", "t", "-e", bootstrap=bootstrap).stderr == ""


def test_an_offset_that_was_deleted() -> None:
    """Reading begins with what is left, and a line says with which offset; not for a place that
    begins with what there is, and not with -q."""
    with serve_bureau(_trim) as (_, address):
        result = run("consume", "t", "-o", "0", "-e", bootstrap=str(address))
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "raftmq: offset 0 was deleted: reads t-0 from 7\n"
        for more in (["-o", "0", "-q"], ["-o", "7"], ["-o", "-9"], ["-o", "earliest"], []):
            assert run("consume", "t", "-e", *more, bootstrap=str(address)).stderr == ""


def _trim(bureau: Bureau) -> None:
    partition = bureau.world.topics["t"].partitions[0]
    partition.log_start_offset = partition.end_offset = 7


def test_a_record_that_is_too_large(bootstrap: str, tmp_path: Path) -> None:
    """The option that raises the limit is named; with it the record passes the producer's check."""
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 2000 + b"\n")
    line = ("produce", "t", "--file", str(path), "--max-request-size")
    result = run(*line, "1999", bootstrap=bootstrap)
    assert result.exit_code == 1, result.output
    assert "a record of 2000 bytes; --max-request-size is 1999: send less, or raise it" in (
        result.stderr
    )
    assert run(*line, "2kB", bootstrap=bootstrap).exit_code == 0


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    """It is refused before anybody is asked."""
    result = run("produce", "t", "--file", str(tmp_path))
    assert result.exit_code == 2
    assert "is a directory" in result.stderr
