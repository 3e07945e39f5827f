"""`raftmq topic`: what is printed, which exit code it has, what is refused before it is asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.main import main
from raftmq.errors import ErrorCode
from raftmq.wire.batch.control import ControlType
from raftmq.wire.messages.topics import (
    CreateTopics,
    DeleteRecords,
    DeleteTopics,
    DescribeLogs,
    ElectLeaders,
)
from tests.unit.client.administration.served import serve_bureau
from tests.unit.client.transactions_in_logs import in_transaction, marker
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.client.administration.bureau import Bureau


class Here(NamedTuple):
    bureau: Bureau
    bootstrap: str

    def run(self, line: str) -> Result:
        arguments = ["-b", self.bootstrap, "topic", *line.split()]
        return CliRunner().invoke(main, arguments)


@pytest.fixture
def here() -> Iterator[Here]:
    """One broker with topic "t"."""
    with serve_bureau() as (bureau, address):
        yield Here(bureau, str(address))


# -- reads -------------------------------------------------------------------------------------


def test_a_list(here: Here) -> None:
    """A table for people, an object per line for programs."""
    here.bureau.world.add_topic("a", 1, -1)
    here.bureau.replicas["t", 0] = ((1, 2), (1,))
    partition = here.bureau.world.topics["t"].partitions[0]
    partition.log_start_offset, partition.end_offset = 2, 9
    result = here.run("list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "topic  partitions  replicas  records  bytes  under-replicated  leaderless",
        "a               2         1        -      -                 0           1",
        "t               1         2        7     70                 1           0",
    ]
    rows = [json.loads(line) for line in here.run("list -o json").stdout.splitlines()]
    assert [(row["name"], row["partitions"], row["leaderless"]) for row in rows] == [
        ("a", 2, 1),
        ("t", 1, 0),
    ]
    assert set(rows[0]) == {
        "name", "topic_id", "partitions", "replication_factor", "under_replicated", "leaderless",
        "records", "bytes", "replica_bytes", "internal",
    }  # fmt: skip
    sizes = [(row["records"], row["bytes"], row["replica_bytes"]) for row in rows]
    assert sizes == [(None, None, None), (7, 70, None)]  # there is no broker 2


def test_topics_of_raftmq_itself(here: Here) -> None:
    """Dead letters and retries of groups are marked for programs (A12.4, A12.5)."""
    for name in ("__dead.billing", "__retry.billing", "_mine"):
        here.bureau.world.add_topic(name, 1)
    rows = [json.loads(line) for line in here.run("list -o json").stdout.splitlines()]
    assert [row["name"] for row in rows if row["internal"]] == ["__dead.billing", "__retry.billing"]


def test_a_list_at_a_narrow_terminal(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that would break the lines loses its middle; a pipe and JSON get all of it."""
    name = "orders-of-the-whole-company-in-europe"
    here.bureau.world.add_topic(name, 1)
    monkeypatch.setenv("COLUMNS", "90")
    assert name in here.run("list").stdout
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    lines = here.run("list").stdout.splitlines()
    assert max(map(len, lines)) == 90
    assert lines[1].startswith("orders-of-…y-in-europe  ")
    assert f'"{name}"' in here.run("list -o json").stdout


def test_a_list_from_a_broker_that_is_too_old_for_sizes() -> None:
    """A rolling upgrade: the rest of the list is there, and the exit code is 0 (A10.1)."""

    def age(bureau: Bureau) -> None:
        del bureau.world.brokers[1].handlers[DescribeLogs]

    with serve_bureau(age) as (bureau, address):
        here = Here(bureau, str(address))
        result = here.run("list")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[1].split() == ["t", "1", "1", "-", "-", "0", "0"]
        assert here.run("describe t").exit_code == 0
        [row] = [json.loads(line) for line in here.run("describe t -o json").stdout.splitlines()]
        assert (row["records"], row["bytes"], row["replica_bytes"]) == (None, None, None)


def test_an_empty_list(here: Here) -> None:
    """The answer is nothing; a person is told what to do next, a program is not."""
    here.bureau.world.topics.clear()
    result = here.run("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "`raftmq topic create NAME` makes one" in result.stderr
    result = here.run("list -o json")
    assert (result.stdout, result.stderr) == ("", "")


def test_a_description(here: Here) -> None:
    """Partitions, what is wrong with them, and every key with a mark at what was set."""
    here.bureau.world.add_topic("u", 1, -1)
    here.bureau.configs["u"] = {"retention.ms": "77"}
    here.bureau.replicas["u", 0] = ((1, 2), (1,))
    result = here.run("describe u")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("topic u: 2 partitions, replication factor 2, id 0")
    assert "start  end  bytes  note" in result.stdout
    assert "not in sync: 2" in result.stdout
    assert "no leader" in result.stdout
    assert "retention.ms                    77 (set)\n" in result.stdout
    assert "segment.ms                      0\n" in result.stdout


def test_a_description_with_an_open_transaction(here: Here) -> None:
    """What holds up readers of committed records is told; what was decided is not."""
    here.bureau.world.add_topic("u", 1, 1)
    held, free = here.bureau.world.topics["u"].partitions
    held.place(batch("a"))
    held.place(in_transaction(7, "b"))
    free.place(in_transaction(7, "b"))
    free.place(marker(7, ControlType.COMMIT))
    result = here.run("describe u")
    assert result.stdout.count("transaction") == 1
    assert "last stable offset 1: a transaction is open, or rot may hide one" in result.stdout
    (row,) = [json.loads(line) for line in here.run("describe u -o json").stdout.splitlines()]
    ends = [(one["end_offset"], one["last_stable_offset"]) for one in row["partitions"]]
    assert ends == [(2, 1), (2, 2)]


def test_a_description_as_json(here: Here) -> None:
    """One object per topic; each topic once."""
    result = here.run("describe t t -o json")
    (row,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert set(row) == {
        "name", "topic_id", "replication_factor", "partitions", "config", "records", "bytes",
        "replica_bytes",
    }  # fmt: skip
    assert row["partitions"][0] == {
        "partition": 0, "leader": 1, "leader_epoch": 0, "partition_epoch": 0, "replicas": [1],
        "isr": [1], "start_offset": 0, "end_offset": 0, "is_recovering": False, "records": 0,
        "bytes": 0, "replica_bytes": 0, "last_stable_offset": 0, "adding": [], "removing": [],
    }  # fmt: skip
    assert row["config"]["retention.ms"] == {"value": "0", "is_default": True}


def test_a_description_of_one_that_is_there_and_one_that_is_not(here: Here) -> None:
    """What is there is shown, then a line for each that is not; exit code 3."""
    result = here.run("describe nope t never")
    assert (result.exit_code, result.stdout.startswith("topic t: 1 partition, ")) == (3, True)
    assert result.stderr.splitlines() == [
        "raftmq: there is no topic 'nope'", "raftmq: there is no topic 'never'",
    ]  # fmt: skip
    result = here.run("describe t nope -o json")
    assert (result.exit_code, json.loads(result.stdout)["name"]) == (3, "t")
    assert "'nope'" in result.stderr


# -- changes -----------------------------------------------------------------------------------


ALONE = (
    "one replica: while its broker is down there is no writing and no reading, and its records go"
    " with its disk"
)


def test_a_topic_is_made(here: Here) -> None:
    """Says what was made; the second time the exit code says that it was there."""
    result = here.run("create u -p 3 -c retention.ms=5 -c segment.ms=7")
    assert (result.exit_code, result.stderr) == (0, f"raftmq: warning: topic u: {ALONE}\n")
    assert result.stdout == "topic u: 3 partitions, replication factor 1 (the cluster's choice)\n"
    assert here.bureau.configs["u"] == {"retention.ms": "5", "segment.ms": "7"}
    assert here.run("create v -r 1").stdout == "topic v: 1 partition, replication factor 1\n"
    again = here.run("create u")
    assert (again.exit_code, again.stdout) == (4, "")
    content = here.run("create u --if-not-exists")
    assert (content.exit_code, content.stdout) == (
        0,
        "topic u exists already, and stays as it is\n",
    )


def test_durations_and_sizes(here: Here) -> None:
    """Keys in .ms take durations, keys in .bytes sizes, others are as they were typed."""
    result = here.run("create u -c retention.ms=7d -c segment.bytes=64MiB -c retention.bytes=1GB")
    assert result.exit_code == 0
    assert here.bureau.configs["u"] == {
        "retention.ms": "604800000", "segment.bytes": "67108864", "retention.bytes": "1000000000",
    }  # fmt: skip
    result = here.run("alter u -c retention.ms=1h30m -c retention.bytes=-1")
    assert result.stdout == "topic u: retention.ms = 5400000, retention.bytes = -1\n"


def test_changes_as_json(here: Here) -> None:
    """A script reads what was done: an object for each change, and nothing else."""

    def rows(line: str) -> list[dict[str, object]]:
        result = here.run(f"{line} -o json")
        assert (result.exit_code, result.stderr) == (0, "")
        return [json.loads(each) for each in result.stdout.splitlines()]

    [made] = rows("create u -p 3 -r 1")
    assert made.pop("topic_id") == here.bureau.world.topics["u"].topic_id.hex()
    assert made == {
        "name": "u", "partitions": 3, "replication_factor": 1, "is_new": True, "warning": ALONE,
    }  # fmt: skip
    [there] = rows("create u -p 4 --if-not-exists")
    assert (there["is_new"], there["partitions"]) == (False, 3)
    assert "partitions = 3, not 4" in str(there["warning"])
    assert rows("alter u -c retention.ms=7 --reset segment.ms") == [
        {"name": "u", "config": {"retention.ms": "7", "segment.ms": None}}
    ]
    for partition in here.bureau.world.topics["u"].partitions:
        partition.end_offset = 9
    assert rows("trim u --before-offset 1:4 -y") == [
        {"name": "u", "partition": 1, "start_offset": 4}
    ]
    assert rows("trim u --before-offset 1:4 -y") == []
    assert rows("delete t u -y") == [{"name": "t", "deleted": True}, {"name": "u", "deleted": True}]


def test_a_topic_is_changed(here: Here) -> None:
    """A line for what was set, and one for the partitions."""
    here.bureau.configs["t"] = {"segment.ms": "5"}
    result = here.run("alter t -c retention.ms=7 --reset segment.ms --partitions 3")
    assert (result.exit_code, result.stderr) == (0, f"raftmq: warning: topic t: {ALONE}\n")
    assert result.stdout == (
        "topic t: retention.ms = 7, segment.ms = its default\ntopic t: 3 partitions\n"
    )
    assert here.bureau.configs["t"] == {"retention.ms": "7"}
    assert here.run("alter t --partitions 2").exit_code == 1


def test_what_has_nothing_to_do_with_replicas_is_not_warned_of(here: Here) -> None:
    """Who has chosen one replica knows it."""
    assert here.run("alter t -c retention.ms=7").stderr == ""
    assert here.run("alter t --reset min.insync.replicas").stderr != ""


def test_topics_are_deleted(here: Here) -> None:
    """All of them, or none if one is not there."""
    here.bureau.world.add_topic("u", 1)
    result = here.run("delete t no -y")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no topic no: `raftmq topic list` shows what there is; nothing" in result.stderr
    assert set(here.bureau.world.topics) == {"t", "u"}
    result = here.run("delete t u t --yes")
    assert (result.exit_code, result.stdout) == (0, "topic t: deleted\ntopic u: deleted\n")
    assert here.bureau.world.topics == {}


def fill(here: Here, *ends: int) -> None:
    topic = here.bureau.world.add_topic("u", *[1] * len(ends))
    for partition, end in zip(topic.partitions, ends, strict=True):
        partition.end_offset = end


def test_a_topic_is_trimmed(here: Here) -> None:
    """By offsets, and by a time that is later than every record; then nothing is left."""
    fill(here, 9, 5, 0)
    result = here.run("trim u --before-offset 0:4 --before-offset 2:0 -y")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "partition  begins with\n        0            4\n"
    result = here.run("trim u --before-time @2126-01-01T00:00:00Z -y")
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [["0", "9"], ["1", "5"]]
    result = here.run("trim u --before-time 4000000000000 -y")
    assert (result.exit_code, here.bureau.count(DeleteRecords)) == (0, 3)
    assert result.stdout == "topic u: there are no such records, nothing to delete\n"


def test_more_than_there_is_to_trim(here: Here) -> None:
    """Nothing is deleted, and the exit code says so."""
    fill(here, 9)
    assert here.run("trim u --before-offset 0:10 -y").exit_code == 1
    result = here.run("trim u --before-offset 1:10 -y")
    assert (result.exit_code, "there is no 1" in result.stderr) == (3, True)
    assert here.bureau.world.topics["u"].partitions[0].log_start_offset == 0


def test_lost_partitions_start_empty(here: Here) -> None:
    """Only what has no leader; then there is nothing left to do."""
    here.bureau.world.add_topic("lost", 1, -1, -1)
    here.bureau.replicas |= {("lost", number): ((1,), ()) for number in (1, 2)}
    result = here.run("restart-empty lost -p 2 -p 0 -y")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "partition  outcome\n        2  starts empty\n"
    (body,) = here.bureau.asked(ElectLeaders)
    assert (body.starts_empty, [one.partition for one in body.partitions]) == (True, [2])
    # Brokers of earlier versions know this wish alone, and would lose records that are there.
    assert not body.is_unclean
    result = here.run("restart-empty lost -y -o json")
    assert json.loads(result.stdout) == {
        "name": "lost", "partition": 1, "outcome": "elected", "error": None,
    }  # fmt: skip
    result = here.run("restart-empty lost -y")
    assert "no such partition lacks a leader, nothing to do" in result.stdout
    result = here.run("restart-empty lost -p 1 -p 3 -y")
    assert (result.exit_code, "partitions 0 to 2, not 3" in result.stderr) == (3, True)


# -- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "describe no",
        "alter no -p 5",
        "alter no -c retention.ms=1",
        "delete no -y",
        "trim no --before-offset 0:1 -y",
        "trim no --before-time 0 -y",
        "restart-empty no -y",
    ],
)
def test_a_topic_that_is_not_there(line: str, here: Here) -> None:
    """Exit code 3, in one line that names it."""
    result = here.run(line)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("raftmq: ")
    assert result.stderr.count("\n") == 1
    assert "no" in result.stderr


WRONG = [
    ("list x", "unexpected extra argument"),
    ("list -o xml", "is not one of"),
    ("list --timeout 0", "is not in the range"),
    ("list --timeout soon", "is not a valid float"),
    ("describe", "Missing argument 'NAME...'"),
    ("describe a/b", "allowed are 1 to 200"),
    ("create", "Missing argument 'NAME'"),
    ("create a/b", "allowed are 1 to 200"),
    ("create ..", "allowed are 1 to 200"),
    ("create u --partitions 0", "is not in the range 1<=x<=10000"),
    ("create u --partitions many", "is not a valid int"),
    ("create u --replication-factor 17", "is not in the range 1<=x<=16"),
    ("create u -c retention.ms", "expected KEY=VALUE"),
    ("create u -c retention.mss=1", "did you mean 'retention.ms'?"),
    (
        "create u -c retention.ms=soon -c segment.ms=0",
        "expected a whole number, or like 7d, 12h, 1h30m, 5s, 500ms; segment.ms = 0",
    ),
    ("create u -c segment.bytes=64MegaBytes", "expected a whole number, or like 64MiB"),
    ("create u --partition 3", "No such option '--partition'"),
    ("alter t", "nothing to change: give -c KEY=VALUE"),
    ("alter t --reset retention.mss", "did you mean 'retention.ms'?"),
    ("alter t --reset segment.ms -c segment.ms=5", "both set and reset"),
    ("alter t -p -1", "is not in the range"),
    ("alter a/b -p 3", "allowed are 1 to 200"),
    ("delete", "Missing argument"),
    ("delete a/b -y", "allowed are 1 to 200"),
    ("delete t", "delete t: this asks first, and there is no terminal to ask at: add --yes"),
    ("trim t", "give --before-offset P:OFFSET, or --before-time TIME"),
    ("trim t --before-offset 0:1 --before-time 0", "give --before-offset P:OFFSET, or"),
    ("trim t --before-offset 5", "expected PARTITION:OFFSET, like 0:1200"),
    ("trim t --before-offset 0:-1", "expected PARTITION:OFFSET"),
    ("trim t --before-time yesterday", "'yesterday' is no time: write 2026-"),
    ("trim t --before-time @-5fortnights", "'-5fortnights' is no time: write 2026-"),
    ("trim t --before-time 2026-11-21", "write a time of it, like 2026-11-21T18"),
    ("trim t --before-offset 0:1", "add --yes"),
    ("restart-empty t", "add --yes"),
]


@pytest.mark.parametrize(("line", "told"), WRONG)
def test_what_was_typed_wrongly(line: str, told: str) -> None:
    """One line, exit code 2, and nobody is asked: there is nobody here."""
    result = CliRunner().invoke(main, ["-b", "127.0.0.1:1", "topic", *line.split()])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ErrorCode.INVALID_REPLICATION_FACTOR, 1),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, 2),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 6),
        (ErrorCode.REQUEST_TIMED_OUT, 5),
    ],
)
def test_what_a_broker_refuses(error: ErrorCode, exit_code: int, here: Here) -> None:
    """Each kind of refusal has its exit code."""
    here.bureau.errors = [error]
    result = here.run("create u")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert error.name in result.stderr
    assert here.bureau.count(CreateTopics) == 1


@pytest.mark.parametrize("verb", ["delete t -y", "create u", "alter t -p 3"])
def test_nobody_is_in_office(verb: str, here: Here) -> None:
    """It is tried again until the time is over, and nothing was changed."""
    here.bureau.errors = [ErrorCode.NOT_CONTROLLER] * 1000
    result = here.run(f"{verb} --timeout 1")
    assert (result.exit_code, result.stdout) == (5, "")
    # The last attempt may begin so late that its answer does not come in time.
    assert "NOT_CONTROLLER" in result.stderr or "may have been carried out" in result.stderr
    assert set(here.bureau.world.topics) == {"t"}


def test_nothing_is_asked_twice_by_a_script(here: Here) -> None:
    """Without a terminal and without --yes nothing is even looked up."""
    assert here.run("delete t").exit_code == 2
    assert here.bureau.count(DeleteTopics) == 0
    assert here.bureau.world.brokers[1].asked == []
