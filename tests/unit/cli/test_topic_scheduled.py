"""`raftmq topic scheduled`: rows and JSON, and cancels by handles (A12.2, A12.3)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.clusters.topic_scheduled import _show_left
from raftmq.cli.main import main
from raftmq.cli.terminal.exits import ExitCode
from tests.unit.client.administration.schedules import DUE_MS, Schedules, refused
from tests.unit.client.administration.served import serve_bureau

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.client.administration.bureau import Bureau


class Here(NamedTuple):
    bureau: Bureau
    schedules: Schedules
    bootstrap: str

    def run(self, line: str) -> Result:
        arguments = ["topic", "scheduled", *line.split(), "-b", self.bootstrap]
        return CliRunner().invoke(main, arguments)

    def handle(self, offset: int) -> str:
        return f"{self.bureau.world.topics['t'].topic_id.hex()}:0:{offset}"


@pytest.fixture
def here() -> Iterator[Here]:
    made: list[Schedules] = []
    with serve_bureau(lambda bureau: made.append(Schedules(bureau))) as (bureau, address):
        yield Here(bureau, made[0], str(address))


def test_a_table(here: Here) -> None:
    """By due time, with handles to be copied; the last line says how much there is."""
    nothing = here.run("t")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing is scheduled in t" in nothing.stderr
    here.schedules.add(0, b"abc", due_ms=time.time_ns() // 1_000_000 + 7_265_000)
    here.schedules.add(1, b"d", b"e", due_ms=DUE_MS).left_out.add(0)
    here.schedules.undecided.add(1)
    found = here.run("t")
    titles, first, second = found.stdout.splitlines()
    assert titles.split() == ["due", "in", "handle", "key", "headers", "tags", "bytes", "note"]
    assert first.split() == [
        "2023-11-14T22:15:00.000Z", "now", here.handle(2), "k1", "h=1", "x", "1",
        *["in", "an", "open", "transaction"],
    ]  # fmt: skip
    assert second.split()[1] == "2h1m"
    assert second.split()[2:] == [here.handle(0), "k0", "h=1", "x", "3", "-"]
    assert "raftmq: 2 batches of " in found.stderr
    assert "bytes, next due 2023-11-14T22:15:00.000Z" in found.stderr
    some = here.run("t -n 1")
    assert len(some.stdout.splitlines()) == 2
    assert "there are more records, -n shows more" in some.stderr


def test_json(here: Here) -> None:
    """One object, with a list of records."""
    here.schedules.add(0, b"\xff", b"b")
    (line,) = here.run("t -p 0 -o json").stdout.splitlines()
    told = json.loads(line)
    assert (told["name"], told["batches"], told["next_due"]) == ("t", 1, DUE_MS)
    assert told["is_complete"]
    assert told["partitions"] == [
        {"partition": 0, "batches": 1, "bytes": told["bytes"], "next_due": DUE_MS}
    ]
    assert told["records"][0] == {
        "handle": here.handle(0),
        "partition": 0,
        "due": DUE_MS,
        "timestamp": 1000,
        "key": "k0",
        "headers": [{"name": "h", "value": "1"}],
        "tags": ["x"],
        "value_bytes": 1,
        "is_undecided": False,
    }
    counts = json.loads(here.run("t -n 0 -o json").stdout)
    assert (counts["records"], counts["is_complete"]) == ([], False)


def test_a_batch_that_cannot_be_read(here: Here) -> None:
    here.schedules.add(0, b"a").data = b""
    found = here.run("t")
    assert found.stdout.splitlines()[1].endswith("cannot be read now")
    told = json.loads(here.run("t -o json").stdout)
    assert (told["records"][0]["timestamp"], told["records"][0]["value_bytes"]) == (None, None)


def test_cancels(here: Here) -> None:
    """All that can be are cancelled, and what cannot be is told, with exit code 1."""
    batch = here.schedules.add(0, b"a", b"b", b"c")
    here.schedules.told[1] = refused("delivered")
    found = here.run(f"t --cancel {here.handle(0)} --cancel {here.handle(1)}")
    assert found.exit_code == ExitCode.FAILED
    assert found.stdout == f"{here.handle(0)} cancelled\n"
    assert f"{here.handle(1)}: not cancelled: t-0 offset 1: because delivered" in found.stderr
    assert batch.left_out == {0}
    found = here.run(f"t -o json --cancel {here.handle(2)} --cancel {here.handle(1)}")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(row["handle"], row["cancelled"], row["reason"]) for row in rows] == [
        (here.handle(2), True, None),
        (here.handle(1), False, "delivered"),
    ]
    assert here.run(f"t --cancel {here.handle(0)}").exit_code == ExitCode.FAILED


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("t --cancel orders:0:1", ExitCode.USAGE, "is no handle of a scheduled record"),
        (f"t --cancel {'0' * 32}:0:1", ExitCode.USAGE, "not of topic t, whose handles begin with"),
        ("missing", ExitCode.NOT_FOUND, "missing"),
        (f"missing --cancel {'0' * 32}:0:1", ExitCode.NOT_FOUND, "there is no topic 'missing'"),
        ("t -p 7", ExitCode.NOT_FOUND, "there is no 7"),
        ("t -n -1", ExitCode.USAGE, "-1 is not in the range"),
    ],
)
def test_what_is_refused(here: Here, line: str, code: int, told: str) -> None:
    """Nothing is cancelled then."""
    batch = here.schedules.add(0, b"a", b"b")
    found = here.run(line)
    assert (found.exit_code, told in found.stderr) == (code, True), found.stderr
    assert not batch.left_out


@pytest.mark.parametrize(
    ("left_ms", "told"),
    [
        (-5, "now"),
        (0, "now"),
        (1, "0.0s"),
        (8900, "8.9s"),
        (60_000, "1m0s"),
        (3_599_999, "59m59s"),
        (3_600_000, "1h0m"),
        (30 * 86_400_000 - 1, "29d23h"),
    ],
)
def test_how_long_it_takes(left_ms: int, told: str) -> None:
    assert _show_left(left_ms) == told
