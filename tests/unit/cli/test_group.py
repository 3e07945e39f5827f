"""`raftmq group`: what is printed, which exit code it has, what is refused before it is asked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from raftmq.cli.clusters.group_reads import short_member, show_age
from raftmq.cli.main import main
from raftmq.cli.terminal.output import show_partitions
from raftmq.client.administration.results import GroupMember
from raftmq.errors import ErrorCode
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.messages.groups import DeleteGroups, DescribedMember
from tests.unit.cli.group_here import FIRST, open_here
from tests.unit.client.administration.groups.registry import member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.cli.group_here import Here


@pytest.fixture
def here() -> Iterator[Here]:
    with open_here() as here:
        yield here


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits there and can answer."""
    monkeypatch.setattr("raftmq.cli.terminal.output.is_terminal", lambda _name: True)


# -- reads -------------------------------------------------------------------------------------


def test_a_list(here: Here) -> None:
    """A table for people, an object per line for programs."""
    here.registry.add("audit", member("m1"), member("m2"))
    result = here.run("list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "group    state   type      members  coordinator",
        "audit    Stable  consumer        2            1",
        "billing  Empty   consumer        0            1",
    ]
    assert here.rows("list")[0] == {
        "name": "audit", "state": "Stable", "protocol_type": "consumer", "members": 2,
        "coordinator": 1,
    }  # fmt: skip


def test_an_empty_list(here: Here) -> None:
    """The answer is nothing; a person is told where groups come from."""
    here.registry.groups.clear()
    here.registry.offsets.clear()
    result = here.run("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no groups yet" in result.stderr
    assert here.rows("list") == []


def test_a_description(here: Here) -> None:
    """One line about the group, one for each member; what is not known is said to be so."""
    odd = DescribedMember("m3", "i3", "", "", b"\xc1", b"\xc1")
    members = (member("m1", *[("u", number) for number in (0, 1, 2, 5)], ("t", 0)), member("m2"))
    here.registry.add("audit", *members, odd, generation=7)
    result = here.run("describe audit billing")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "group audit: Stable, generation 7, assignor range, 3 members, coordinator broker 1",
        "",
        "member  instance  client  host  reads",
        "m1      -         app     h     t 0; u 0-2, 5",
        "m2      -         app     h     -",
        "m3      i3        -       -     not known",
        "",
        "group billing: Empty, generation 3, 0 members, coordinator broker 1",
    ]


def test_a_description_as_json(here: Here) -> None:
    """One object per group; each group once."""
    here.registry.add("audit", member("m1", FIRST), DescribedMember("m2"))
    row, other = here.rows("describe audit billing audit")
    first, second = row.pop("members")
    assert row == {
        "name": "audit", "state": "Stable", "generation": 3, "protocol_type": "consumer",
        "protocol": "range", "leader": "m1", "coordinator": 1, "tags": None,
    }  # fmt: skip
    assert first == {
        "member_id": "m1", "instance_id": None, "client_id": "app", "host": "h", "topics": ["u"],
        "partitions": [{"topic": "u", "partition": 0}],
    }  # fmt: skip
    assert (second["client_id"], second["topics"], second["partitions"]) == (None, None, [])
    assert (other["leader"], other["protocol"], other["members"]) == (None, None, [])


def test_a_description_with_a_filter(here: Here) -> None:
    """By which all members read; a long one is cut, but not in JSON. A12.1."""
    here.registry.add("audit", member("m1", FIRST), tags="eu & !test")
    line = here.run("describe audit").stdout.splitlines()[0]
    assert ", assignor range, filter eu & !test, 1 member, " in line
    assert here.rows("describe audit")[0]["tags"] == "eu & !test"
    here.registry.add("audit", member("m1", FIRST), tags="x" * 8000)
    assert f", filter {'x' * 199}…, 1 member," in here.run("describe audit").stdout
    assert here.rows("describe audit")[0]["tags"] == "x" * 8000


def test_a_description_of_one_that_is_there_and_one_that_is_not(here: Here) -> None:
    """What is there is shown, then the error."""
    result = here.run("describe biling billing")
    assert (result.exit_code, result.stdout.startswith("group billing: Empty")) == (3, True)
    assert "there is no group 'biling', did you mean 'billing'?" in result.stderr
    result = here.run("describe billing nope -o json")
    assert (result.exit_code, json.loads(result.stdout)["name"]) == (3, "billing")


def test_partitions_in_few_words() -> None:
    """Runs are shown by their ends, whatever the order."""
    assert show_partitions([]) == ""
    numbers = [("b", 3), ("a", 0), ("b", 1), ("b", 2), ("b", 5), ("b", 6)]
    assert show_partitions(numbers) == "a 0; b 1-3, 5-6"


def test_lag(here: Here) -> None:
    """The sum comes first, then a row for each partition, with who reads it."""
    here.registry.add("billing", member("m1", FIRST, ("t", 0)))
    result = here.run("lag billing")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "group billing: lag 6 in 3 partitions",
        "topic  partition  committed  end  lag  age  member  host",
        "t              0          -    0    0  0s   m1      h",
        "u              0          5   10    5  -    m1      h",
        "u              1          4    5    1  -    -       -",
    ]
    _, first, second = here.rows("lag billing")
    assert first == {
        "group": "billing", "topic": "u", "partition": 0, "committed": 5, "end_offset": 10,
        "lag": 5, "age_seconds": None, "member_id": "m1", "client_id": "app", "host": "h",
    }  # fmt: skip
    assert (second["member_id"], second["client_id"], second["host"]) == (None, None, None)


def test_members_in_80_columns(here: Here) -> None:
    """Real ids have 59 characters: a table has the client's name and some, JSON the whole."""
    member_id = "billing-worker-of-the-shop-" + "0123456789abcdef" * 2
    member = DescribedMember(member_id, None, "billing-worker-of-the-shop", "10.11.12.13")
    assert short_member(shown_member(member)) == "billing-work…-012345"
    assert short_member(shown_member(DescribedMember("0123456789" * 3))) == "0123456789012345678…"
    here.registry.add("billing", member)
    row = here.run("describe billing").stdout.splitlines()[3]
    assert row.startswith("billing-work…-012345  ")
    assert here.rows("describe billing")[0]["members"][0]["member_id"] == member_id


def test_lag_in_time(here: Here) -> None:
    """The oldest unread record is five minutes old: the table says so in 80 columns also where the
    member's id has 59 characters, and leaves out the host that does not fit; JSON has all. A9.3."""
    orders = here.registry.world.add_topic("orders", 1).partitions[0]
    written = int((time.time() - 300) * 1000)
    orders.append(encode_batch(values=[b"x"] * 3, timestamp=written))
    here.registry.commit("billing", {("orders", 0): 1})
    reader = "billing-worker-of-the-shop-" + "0123456789abcdef" * 2
    found = member(reader, ("orders", 0), client="billing-worker-of-the-shop", host="10.11.12.13")
    here.registry.add("billing", found)
    titles, row = here.run("lag billing").stdout.splitlines()[1:3]
    assert titles == "topic   partition  committed  end  lag  age  member                host"
    assert row == "orders          0          1    3    2  5m   billing-work…-012345  10.11.12.13"
    orders.end_offset = 1_000_000_000
    lines = here.run("lag billing").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[-3:] == ["lag", "age", "member"]
    first = here.rows("lag billing")[0]
    assert (first["member_id"], first["host"]) == (reader, "10.11.12.13")
    assert 300 <= first["age_seconds"] < 360


def test_ages_in_few_characters() -> None:
    """The unit grows with the age; less than a unit is cut off, as ages are."""
    ages = [None, 0.0, 0.9, 119.9, 120.0, 7199.0, 7200.0, 172_799.0, 172_800.0, 8_640_000.0]
    assert [show_age(each) for each in ages] == [
        None, "0s", "0s", "119s", "2m", "119m", "2h", "47h", "2d", "100d",
    ]  # fmt: skip


def shown_member(member: DescribedMember) -> GroupMember:
    return GroupMember(member.member_id, None, member.client_id, member.host, None, None)


def test_lag_of_an_end_that_is_not_known(here: Here) -> None:
    """Nobody leads a partition; in another one nothing is committed yet."""
    del here.registry.offsets["billing"][here.registry.world.topics["u"].topic_id, 1]
    assert here.run("lag billing").stdout.splitlines() == [
        "group billing: lag 10 in 2 partitions",
        "topic  partition  committed  end  lag  age  member  host",
        "u              0          5   10    5    -       -     -",
        "u              1          -    5    5    -       -     -",
    ]
    here.registry.world.lead("u", 1, -1)
    result = here.run("lag billing --timeout 0.5")
    assert result.stdout.startswith("group billing: lag 5 in 1 partition, 1 more not known\n")
    assert result.stderr == ""


def test_lag_of_nothing(here: Here) -> None:
    """A group that has committed nothing and reads nothing is not behind."""
    here.registry.offsets.clear()
    assert here.run("lag billing").stdout == "group billing: lag 0 in 0 partitions\n"


def test_watching(here: Here) -> None:
    """Line by line where there is no screen; Ctrl-C ends it."""
    command = [sys.executable, "-m", "raftmq", "group", "lag", "billing", "--watch"]
    process = subprocess.Popen(
        [*command, "-b", here.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "group billing: lag 6 in 2 partitions\n"
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr.strip()) == (130, "raftmq: interrupted")
    assert "\x1b" not in rest


def test_watching_a_group_that_is_not_there(here: Here) -> None:
    """That is no reason to be patient."""
    result = here.run("lag biling --watch")
    assert (result.exit_code, "did you mean 'billing'" in result.stderr) == (3, True)


# -- deletion ----------------------------------------------------------------------------------


def test_groups_are_deleted(here: Here) -> None:
    """All of them, or none if one is not there, or has members."""
    here.registry.add("audit")
    result = here.run("delete audit biling -y")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "there is no group 'biling', did you mean 'billing'?" in result.stderr
    assert result.stderr.endswith("\nraftmq: nothing was deleted\n")
    result = here.run("delete audit billing audit --yes")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "group audit: deleted\ngroup billing: deleted\n"
    assert here.registry.groups == {}
    here.registry.add("audit")
    here.registry.add("billing", member("m1"))
    result = here.run("delete audit billing -y")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "stop it first, or wait until its session ends, then delete it" in result.stderr
    assert set(here.registry.groups) == {"audit", "billing"}


@pytest.mark.usefixtures("terminal")
def test_a_deletion_by_a_person(here: Here) -> None:
    """The question says what goes."""
    result = here.run("delete billing", "n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Delete billing (offsets of 2 partitions), for good? [y/N]" in result.stderr
    assert here.registry.bureau.count(DeleteGroups) == 0
    assert here.run("delete billing", "y\n").stdout == "group billing: deleted\n"


# -- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "describe no",
        "lag no",
        "delete no -y",
        "reset-offsets no --to latest -y",
        "reset-offsets no --to latest --dry-run",
        "reset-offsets billing --to latest --topic no -y",
        "reset-offsets billing --to latest --topic t --partition 1 -y",
    ],
)
def test_what_is_not_there(line: str, here: Here) -> None:
    """Exit code 3, in one line that names it."""
    result = here.run(line)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("raftmq: ")
    assert result.stderr.count("\n") == 1
    assert "there is no" in result.stderr or "'no' is not there" in result.stderr


LONG = "x" * 201
WRONG = [
    ("list x", "unexpected extra argument"),
    ("list -o xml", "is not one of"),
    ("describe", "Missing argument 'NAME...'"),
    (f"describe {LONG}", "allowed are 1 to 200"),
    ("lag", "Missing argument 'NAME'"),
    (f"lag {LONG}", "allowed are 1 to 200"),
    (f"lag {LONG} --watch", "allowed are 1 to 200"),
    (f"delete {LONG} -y", "allowed are 1 to 200"),
    ("delete g", "delete g: this asks first, and there is no terminal to ask at: add --yes"),
    ("reset-offsets g", "give --to earliest, latest, an offset or @TIME, or --shift N"),
    ("reset-offsets g --to 1 --shift 1", "give --to earliest"),
    ("reset-offsets g --to erliest", "--to erliest: expected earliest, latest, an offset"),
    ("reset-offsets g --to erliest", "did you mean 'earliest'?"),
    ("reset-offsets g --to start", "expected earliest, latest, an offset, or @TIME"),
    ("reset-offsets g --to start", "did you mean 'earliest'?"),
    ("reset-offsets g --to end", "did you mean 'latest'?"),
    ("reset-offsets g --to -5", "see --shift for so many forward or back"),
    (f"reset-offsets g --to {1 << 63}", "expected earliest"),
    ("reset-offsets g --to @yesterday", "--to: 'yesterday' is no time: write 2026-"),
    ("reset-offsets g --to @2026-11-21", "write a time of it, like 2026-11-21T18:00Z"),
    ("reset-offsets g --to @999999999999999999", "lies after the year 9999"),
    ("reset-offsets g --shift far", "is not a valid int"),
    ("reset-offsets g --to 1 --partition 0", "--partition: say of which topic"),
    ("reset-offsets g --to 1 --partition 0 --topic a --topic b", "with one --topic"),
    ("reset-offsets g --to 1 --topic a/b", "allowed are 1 to 200"),
    ("reset-offsets g --to 1", "add --yes"),
    ("rest-offsets g", "Did you mean 'reset-offsets'?"),
]


@pytest.mark.parametrize(("line", "told"), WRONG)
def test_what_was_typed_wrongly(line: str, told: str) -> None:
    """One line, exit code 2, and nobody is asked: there is nobody here."""
    result = CliRunner().invoke(main, ["-b", "127.0.0.1:1", "group", *line.split()])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "error", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_nobody_coordinates_it(error: ErrorCode, here: Here) -> None:
    """It is tried again until the time is over."""
    here.registry.finds = [error] * 1000
    result = here.run("describe billing --timeout 0.2")
    assert (result.exit_code, result.stdout) == (5, "")
