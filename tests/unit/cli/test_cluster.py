"""`raftmq cluster`: the verdict and its exit code, who carries what, every address."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.main import main
from raftmq.errors import ErrorCode
from raftmq.wire.messages.cluster import VoterAddress
from raftmq.wire.messages.corruption import DamagedReplicaRow, DescribeDamage, DescribeDamageReply
from raftmq.wire.messages.topics import ElectLeaders
from raftmq.wire.messages.transactions import (
    DescribeOverdue,
    DescribeOverdueReply,
    OverdueCommits,
    OverduePartition,
)
from tests.unit.client.administration.served import serve_bureau

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.client.administration.bureau import Bureau


class Here(NamedTuple):
    bureau: Bureau
    bootstrap: str

    def run(self, line: str) -> Result:
        return CliRunner().invoke(main, ["cluster", *line.split(), "-b", self.bootstrap])


@pytest.fixture
def here() -> Iterator[Here]:
    """One broker with topic "t"."""
    with serve_bureau() as (bureau, address):
        yield Here(bureau, str(address))


def ail(bureau: Bureau) -> None:
    """Everything that can be wrong at once, but for the quorum."""
    bureau.world.add_topic("u", -1, *[1] * 11)
    bureau.replicas |= {("u", number): ((1, 2), (1,)) for number in range(1, 12)}
    bureau.voters = (VoterAddress(1, "v1", 9001), VoterAddress(2, "v2", 9001))


def test_all_is_well(here: Here) -> None:
    """One line and exit code 0."""
    result = here.run("health")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "healthy: cluster cluster-a: 1 broker, 1 topic, 1 partition\n"


def test_all_is_not_well(here: Here) -> None:
    """The worst comes first, and the exit code is 7."""
    ail(here.bureau)
    here.bureau.controller_id = -1
    result = here.run("health")
    assert (result.exit_code, result.stderr) == (7, "")
    assert result.stdout.splitlines() == [
        "unhealthy: cluster cluster-a: 2 brokers, 2 topics, 13 partitions",
        "  the quorum has no leader: nothing can be changed, see `raftmq quorum status`",
        "  no leader, so neither written nor read: u 0",
        "  broker down: 2",
        "  replicas not in sync: u 1-11",
    ]


def test_long_lists_at_a_terminal(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty partitions of each of twelve topics with long names lost their leaders: runs of numbers
    in place of each partition, within 80 columns, and whole words."""
    names = [f"orders-of-the-whole-company-in-europe-{number:02}" for number in range(12)]
    for name in names:
        here.bureau.world.add_topic(name, *[-1] * 60)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", "80")
    first, *told = here.run("health").stdout.splitlines()
    assert first.startswith("unhealthy: cluster cluster-a: ")
    assert max(map(len, told)) <= 80
    assert told[0].startswith("  no leader, so neither written nor read:")
    assert all(line.startswith("    ") for line in told[1:])
    listed = " ".join(map(str.strip, told))
    assert all(f"{name} 0-59; " in listed for name in names[:10])
    assert listed.endswith("; and 120 more partitions")


def test_topics_that_one_broker_stops(here: Here) -> None:
    """A warning for each kind, and no reason to be unhealthy."""
    here.bureau.min_isr = {"t": 2, "u": 2, "v": 1, "w": 2}
    for name in ("u", "v", "w"):
        here.bureau.world.add_topic(name, 1)
        here.bureau.replicas[name, 0] = ((1, 2), (1, 2))
    assert here.run("health").stdout.splitlines()[1:] == [
        "  warning: u, w: acks=all needs all 2 replicas (min.insync.replicas = 2): one broker that"
        " is down stops it",
        "  warning: t: one replica: while its broker is down there is no writing and no reading,"
        " and its records go with its disk",
    ]
    result = here.run("health -o json")
    row = json.loads(result.stdout)
    assert (result.exit_code, row["is_healthy"]) == (0, True)
    assert [one["topic"] for one in row["fragile"]] == ["t", "u", "w"]
    assert row["fragile"][1]["replication_factor"] == row["fragile"][1]["min_insync_replicas"] == 2


def test_voters_that_share_a_host(here: Here) -> None:
    """A warning, and no reason to be unhealthy."""
    here.bureau.voters = (VoterAddress(1, "h", 9001), VoterAddress(3, "h", 9002))
    told = "  warning: voters 1 and 3 are on one host, h, and fail together"
    assert told in here.run("health").stdout.splitlines()
    assert json.loads(here.run("health -o json").stdout)["voters_together"] == {"h": [1, 3]}


def test_a_damaged_replica(here: Here) -> None:
    """Where, and what its broker has found; also where nobody else has it."""
    topic_id = here.bureau.world.topics["t"].topic_id
    found = DamagedReplicaRow(topic_id, 0, 42, "offsets 42 to 43 have changed")
    here.bureau.lie(DescribeDamage, DescribeDamageReply((found,), 1), 1)
    result = here.run("health")
    assert result.exit_code == 7
    line = "  ailing replica: t-0 on broker 1 from offset 42 on: offsets 42 to 43 have changed"
    assert result.stdout.splitlines()[1:] == [line]
    [damaged] = json.loads(here.run("health -o json").stdout)["damaged"]
    assert (damaged["topic"], damaged["broker_id"], damaged["offset"]) == ("t", 1, 42)
    here.bureau.lie(DescribeDamage, DescribeDamageReply((found,), 700), 1)
    assert here.run("health").stdout.splitlines()[1:] == [line, "  699 more ailing replicas"]
    assert json.loads(here.run("health -o json").stdout)["damaged_count"] == 700


def test_transactions_that_take_too_long(here: Here) -> None:
    """Where readers wait, whose commits are not settled, and where to look on (A11.3)."""
    topic_id = here.bureau.world.topics["t"].topic_id
    found = (OverduePartition(topic_id, 0, "billing-1", 910_000),)
    late = (OverdueCommits("billing-2", 3, 61_000),)
    here.bureau.lie(DescribeOverdue, DescribeOverdueReply(found, late), 1)
    result = here.run("health")
    assert result.exit_code == 7
    assert result.stdout.splitlines()[1:] == [
        "  transactions open for too long, readers wait: t 0; see `raftmq transaction open TOPIC`",
        "  commits not settled for a minute: of billing-2; see `raftmq transaction describe ID`",
    ]
    row = json.loads(here.run("health -o json").stdout)
    assert row["held"] == [
        {"topic": "t", "partition": 0, "transaction_id": "billing-1", "open_seconds": 910.0}
    ]
    assert row["unsettled"] == [
        {"transaction_id": "billing-2", "commits": 3, "oldest_seconds": 61.0}
    ]


def test_health_as_json(here: Here) -> None:
    """One object, with everything that is wrong."""
    ail(here.bureau)
    result = here.run("health -o json")
    assert result.exit_code == 7
    row = json.loads(result.stdout)
    assert {key: row[key] for key in ("is_healthy", "controller_id", "brokers", "topics")} == {
        "is_healthy": False, "controller_id": 1, "brokers": 2, "topics": 2,
    }  # fmt: skip
    assert row["brokers_down"] == [2]
    assert row["leaderless"] == [{"topic": "u", "partition": 0, "missing": []}]
    assert row["under_replicated"][0] == {"topic": "u", "partition": 1, "missing": [2]}
    assert row["wrong_clocks"] == []


@pytest.mark.parametrize(
    ("ahead_ms", "words"),
    [
        (15 * 86_400_000 + 5, "15 days ahead"),
        (-36 * 3_600_000, "36 hours behind"),
        (-301_000, "5 minutes behind"),
        (90_000, "90 seconds ahead"),
        (0, "0 ms ahead"),
    ],
)
def test_a_clock_is_wrong(here: Here, ahead_ms: int, words: str) -> None:
    """In words, and as numbers."""
    here.bureau.clocks_ahead_ms = {1: ahead_ms}
    result = here.run("health")
    assert result.exit_code == 7
    assert result.stdout.splitlines()[1:] == [
        f"  clocks wrong: broker 1 is {words} (against the others'): deletes nothing for its age,"
        " set it right"
    ]
    row = json.loads(here.run("health -o json").stdout)
    assert (row["is_healthy"], row["wrong_clocks"]) == (
        False,
        [{"broker_id": 1, "ahead_ms": ahead_ms}],
    )


def test_waiting(here: Here) -> None:
    """Until all is well, or the time is over: then the last look counts."""
    assert here.run("health --wait").exit_code == 0
    ail(here.bureau)
    result = here.run("health --wait --timeout 0.6")
    assert result.exit_code == 7
    assert result.stdout.startswith("unhealthy: ")


def test_waiting_for_nobody() -> None:
    """Who never answers is not unhealthy, but not to be reached."""
    result = CliRunner().invoke(
        main, ["cluster", "health", "--wait", "--timeout", "0.2", "-b", "127.0.0.1:1"]
    )
    assert (result.exit_code, result.stdout) == (5, "")
    assert "connect to 127.0.0.1:1: Connection refused" in result.stderr


def test_watching(here: Here) -> None:
    """Line by line where there is no screen; Ctrl-C ends it."""
    command = [sys.executable, "-m", "raftmq", "cluster", "health", "--watch", "-b", here.bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("healthy: ")
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr.strip()) == (130, "raftmq: interrupted")
    assert "\x1b" not in rest


def test_who_carries_what(here: Here) -> None:
    """A row for each broker, and a line about the whole."""
    ail(here.bureau)
    result = here.run("status")
    assert (result.exit_code, result.stderr) == (0, "")
    row, _, last = result.stdout.splitlines()[1:]
    assert row.split() == ["1", here.bootstrap, "-", "active", "controller", "12", "12", "0"]
    assert last == "cluster cluster-a: 2 topics, 13 partitions, 1 leaderless, 11 under-replicated"
    broker, summary = [json.loads(line) for line in here.run("status -o json").stdout.splitlines()]
    assert broker == {
        "type": "broker", "broker_id": 1, "address": here.bootstrap, "rack": None,
        "state": "active", "is_controller": True, "leads": 12, "replicas": 12, "not_in_sync": 0,
    }  # fmt: skip
    assert summary == {
        "type": "summary", "cluster_id": "cluster-a", "controller_id": 1, "brokers": 1,
        "topics": 2, "partitions": 13, "leaderless": 1, "under_replicated": 11,
    }  # fmt: skip
    here.bureau.controller_id = -1
    for line in ("status", "status -o json", "info"):
        assert "the last known, and may be old" in here.run(line).stderr


def test_leaders(here: Here) -> None:
    """Partitions that others lead are listed, and given back; a second time nothing is to do."""
    here.bureau.replicas["t", 0] = ((2, 1), (1, 2))
    result = here.run("leaders")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "topic  partition  leader  preferred  isr",
        "t              0       1          2  1,2",
        "1 partition, 1 not led by the preferred leader; `raftmq cluster leaders --balance` elects"
        " it",
    ]
    row = json.loads(here.run("leaders -o json").stdout)
    assert row == {"topic": "t", "partition": 0, "leader": 1, "preferred": 2, "isr": [1, 2]}
    assert here.run("leaders --balance").stdout.splitlines() == [
        "topic  partition  leader  preferred  isr  error",
        "t              0       2          2  1,2      -",
        "1 preferred leader elected, 0 failed",
    ]
    here.bureau.errors = [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    here.bureau.replicas["t", 0] = ((1, 2), (2,))
    failed = here.run("leaders --balance -o json")
    assert (failed.exit_code, json.loads(failed.stdout)["leader"]) == (1, 2)
    assert json.loads(failed.stdout)["error"]
    here.bureau.replicas["t", 0] = ((2, 1), (1, 2))
    result = here.run("leaders --balance")
    assert (result.exit_code, result.stdout) == (
        0,
        "every partition is led by its preferred leader\n",
    )


def test_an_unclean_leader(here: Here) -> None:
    """A replica is elected as it is, after a question; what has a leader is left alone."""
    here.bureau.replicas["t", 0] = ((2, 1), ())
    result = here.run("leaders --unclean t 0")
    assert (result.exit_code, here.bureau.asked(ElectLeaders)) == (2, [])
    assert "add --yes" in result.stderr
    result = here.run("leaders --unclean t 0 --yes")
    assert (result.exit_code, result.stdout) == (0, "partition 0 of topic t: elected\n")
    (body,) = here.bureau.asked(ElectLeaders)
    assert (body.is_unclean, body.starts_empty) == (True, False)
    again = here.run("leaders --unclean t 0 -y -o json")
    assert again.exit_code == 0
    row = json.loads(again.stdout)
    assert (row["topic"], row["partition"], row["outcome"]) == ("t", 0, "led already")
    here.bureau.errors = [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    result = here.run("leaders --unclean t 0 -y")
    assert (result.exit_code, "partition 0 of topic t: failed: " in result.stdout) == (1, True)


def test_every_address(here: Here) -> None:
    """Of listeners and of voters, whose ports people look for here."""
    ail(here.bureau)
    result = here.run("info")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("cluster cluster-a, controller: broker 1, feature level 1, ")
    assert ["1", "clients", here.bootstrap, "-", "active", "0.1.0"] in [
        line.split() for line in lines
    ]
    assert ["2", "(voters)", "v2:9001", "-", "-", "-"] in [line.split() for line in lines]
    row = json.loads(here.run("info -o json").stdout)
    assert row["brokers"][0]["listeners"] == {"brokers": "inside:1001", "clients": here.bootstrap}
    assert row["brokers"][0]["version"] == "0.1.0"
    assert row["voters"][1] == {"node_id": 2, "address": "v2:9001"}
    here.bureau.controller_id = -1
    assert "controller: none" in here.run("info").stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("health --wait --watch", "--wait and --watch: choose one"),
        ("leaders --balance --unclean t 0", "--balance and --unclean: choose one"),
        ("leaders --unclean t", "requires 2 arguments"),
        ("leaders --unclean t -1", "is not in the range"),
        ("health -o xml", "is not one of"),
        ("health --timeout 0", "is not in the range"),
        ("status x", "unexpected extra argument"),
        ("info -o yaml", "is not one of"),
        ("helth", "Did you mean 'health'?"),
        ("health -b nowhere", "no port; write host:port"),
    ],
)
def test_what_was_typed_wrongly(line: str, told: str) -> None:
    """One line, exit code 2, and nobody is asked."""
    result = CliRunner().invoke(main, ["-b", "127.0.0.1:1", "cluster", *line.split()])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
