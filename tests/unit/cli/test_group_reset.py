"""`raftmq group reset-offsets`: what is shown, asked, and done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from raftmq.wire.messages.group_offsets import OffsetCommit
from tests.unit.cli.group_here import FIRST, SECOND, open_here
from tests.unit.client.administration.groups.registry import member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.cli.group_here import Here

PLAN = [
    "topic  partition  old  new  log start  log end",
    "u              0    5    2          2       10",
    "u              1    4    0          0        5",
]


@pytest.fixture
def here() -> Iterator[Here]:
    with open_here() as here:
        yield here


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits there and can answer."""
    monkeypatch.setattr("raftmq.cli.terminal.output.is_terminal", lambda _name: True)


def test_a_dry_run(here: Here) -> None:
    """The plan, and nothing is done; with members it says what stands in the way."""
    result = here.run("reset-offsets billing --to earliest --dry-run")
    assert (result.exit_code, result.stdout.splitlines(), result.stderr) == (0, PLAN, "")
    here.registry.add("billing", member("m1"))
    result = here.run("reset-offsets billing --to earliest --dry-run")
    assert (result.exit_code, result.stdout.splitlines()) == (0, PLAN)
    assert "group billing has 1 member: stop it first" in result.stderr
    assert here.registry.bureau.count(OffsetCommit) == 0


def test_a_reset_by_a_script(here: Here) -> None:
    """Says what was done."""
    result = here.run("reset-offsets billing --to earliest -y")
    assert (result.exit_code, result.stdout.splitlines(), result.stderr) == (0, PLAN, "")
    assert here.registry.committed("billing") == {FIRST: 2, SECOND: 0}
    (row,) = here.rows("reset-offsets billing --shift 3 --topic u --partition 1 -y")
    assert row == {
        "group": "billing", "topic": "u", "partition": 1, "old": 0, "new": 3, "start_offset": 0,
        "end_offset": 5, "asked": None,
    }  # fmt: skip


def test_what_lies_outside_of_the_log(here: Here) -> None:
    """It is told what is done in place of it, in the table and on stderr."""
    told = [
        "raftmq: u-0: offset 6000 lies beyond the end of the log: 10 in place of it",
        "raftmq: u-1: offset 6000 lies beyond the end of the log: 5 in place of it",
    ]
    for more in ("--dry-run", "-y"):
        result = here.run(f"reset-offsets billing --to 6000 {more}")
        assert (result.exit_code, result.stderr.splitlines()) == (0, told)
        assert result.stdout.splitlines()[:2] == [
            "topic  partition  old  new  log start  log end  asked",
            "u              0    5   10          2       10   6000",
        ]
    assert here.registry.committed("billing") == {FIRST: 10, SECOND: 5}
    result = here.run("reset-offsets billing --shift -9 --topic u --partition 0 -y -o json")
    assert "u-0: offset 1 lies before the start of the log: 2 in place of it" in result.stderr
    assert json.loads(result.stdout)["asked"] == 1


def test_many_partitions_outside_of_the_log(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each of them has a line."""
    monkeypatch.setattr("raftmq.cli.clusters.group_reset.NAMED_MAX", 1)
    result = here.run("reset-offsets billing --to 6000 -y")
    assert result.stderr.splitlines()[1:] == ["raftmq: and 1 more partition likewise"]


@pytest.mark.usefixtures("terminal")
def test_a_person_knows_before_the_answer(here: Here) -> None:
    """What was asked for is not what the question is about."""
    result = here.run("reset-offsets billing --to 6000 --topic u --partition 0", "n\n")
    first, second, question, *_ = result.stderr.splitlines()
    assert (first, question[:4]) == ("u-0: offset 5 to 10", "Set ")
    assert second == "raftmq: u-0: offset 6000 lies beyond the end of the log: 10 in place of it"


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("--to latest", {FIRST: 10, SECOND: 5}),
        ("--to 3", {FIRST: 3, SECOND: 3}),
        ("--shift -1", {FIRST: 4, SECOND: 3}),
        ("--to @2126-01-01T00:00:00Z", {FIRST: 10, SECOND: 5}),
        ("--to 2126-01-01T00:00:00Z", {FIRST: 10, SECOND: 5}),
        ("--to @4000000000000 --topic u --partition 0", {FIRST: 10, SECOND: 4}),
        ("--to 0 --topic t", {("t", 0): 0, FIRST: 5, SECOND: 4}),
    ],
)
def test_where_it_leads(where: str, offsets: dict[tuple[str, int], int], here: Here) -> None:
    """All that can be typed."""
    result = here.run(f"reset-offsets billing {where} --yes")
    assert (result.exit_code, result.stderr) == (0, "")
    assert here.registry.committed("billing") == offsets


@pytest.mark.usefixtures("terminal")
def test_a_reset_by_a_person(here: Here) -> None:
    """What would be done is shown; nothing is done unless the answer is yes."""
    result = here.run("reset-offsets billing --to earliest", "n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[:2] == ["u-0: offset 5 to 2", "u-1: offset 4 to 0"]
    assert "Set these 2 offsets of group billing? [y/N]: n" in result.stderr
    assert result.stderr.endswith("nothing was changed\n")
    assert here.registry.bureau.count(OffsetCommit) == 0
    result = here.run("reset-offsets billing --to earliest", "y\n")
    assert (result.exit_code, result.stdout.splitlines()) == (0, PLAN)
    assert here.registry.committed("billing") == {FIRST: 2, SECOND: 0}


@pytest.mark.usefixtures("terminal")
def test_an_offset_that_changes_while_a_person_thinks(here: Here) -> None:
    """What was shown is not what would be done: nothing is."""
    here.registry.before = lambda: here.registry.commit("billing", {FIRST: 6, SECOND: 6})
    result = here.run("reset-offsets billing --shift 1", "y\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "u-0 has 6 committed now, expected was 5" in result.stderr
    assert here.registry.committed("billing") == {FIRST: 6, SECOND: 6}


@pytest.mark.usefixtures("terminal")
def test_a_group_that_begins_with_a_reset(here: Here) -> None:
    """Nobody was in it yet: it reads on from there."""
    result = here.run("reset-offsets new --to latest --topic u", "y\n")
    assert (result.exit_code, "u-0: offset - to 10" in result.stderr) == (0, True)
    assert here.registry.committed("new") == {FIRST: 10, SECOND: 5}


@pytest.mark.parametrize("answer", ["-y", ""])
@pytest.mark.usefixtures("terminal")
def test_a_reset_of_a_group_with_members(answer: str, here: Here) -> None:
    """Nobody is asked for what cannot be."""
    here.registry.add("billing", member("m1"), member("m2"))
    result = here.run(f"reset-offsets billing --to earliest {answer}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "group billing has 2 members: stop them first" in result.stderr
    assert "[y/N]" not in result.stderr
