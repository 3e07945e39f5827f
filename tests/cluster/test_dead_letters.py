"""Dead letters on real brokers: `reject`, `raftmq dlq`, and workers that are killed (A12.5)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from raftmq import testing
from raftmq.cli.letters import letter_reads, redrive
from raftmq.cli.main import main
from raftmq.client.administration.admin import Admin
from raftmq.client.client import Client as AsyncClient
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.letters import letter_headers
from raftmq.sync import connect
from tests.cluster.dead_letter_worker import results_of
from tests.cluster.node_process import PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.sync import Client
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

SECONDS_MAX, KILLS = 60.0, 3


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture
def mq(server: Server) -> Iterator[Client]:
    with connect(server.bootstrap) as client:
        yield client


class Desk:
    """The commands, about one group."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def run(self, line: str) -> Result:
        return CliRunner().invoke(main, ["-b", self._server.bootstrap, "dlq", *line.split()])

    def rows(self, line: str) -> list[dict[str, Any]]:
        result = self.run(f"{line} -o json")
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return [json.loads(each) for each in result.stdout.splitlines()]


@pytest.fixture
def desk(server: Server) -> Desk:
    return Desk(server)


def fail(mq: Client, topic: str, group: str, errors: dict[str, str]) -> None:
    """Each value is sent, read and set aside with its error; an empty one is done."""
    mq.admin.create_topic(topic, partitions=1, if_not_exists=True)
    with mq.producer() as producer:
        for value in errors:
            producer.send(topic, value, key=value, headers={"trace": "7"}, tags=["eu"])
    with mq.consumer(topic, group=group, start="earliest") as consumer:
        for record in consumer.records(timeout=2):
            if error := errors[record.text()]:
                consumer.reject(record, error)


def values(mq: Client, topic: str) -> list[str]:
    with mq.consumer(topic, start="earliest") as consumer:
        return [record.text() for record in consumer.records(timeout=1)]


def test_the_desk(mq: Client, desk: Desk) -> None:
    """They are listed, shown, sent back, and gone from the list then."""
    fail(mq, "orders", "billing", {"a": "Timeout: 1", "b": "", "c": "Bad: 2", "d": "Timeout: 3"})
    assert mq.admin.describe_topic("__dead.billing").replication_factor == 3
    [listed] = desk.rows("list billing")
    assert (listed["group"], listed["letters"]) == ("billing", 3)
    assert [one["error"] for one in listed["errors"]] == ["Bad: 2", "Timeout: 1", "Timeout: 3"]
    shown = desk.rows("show billing")
    assert [one["value"] for one in shown] == ["a", "c", "d"]
    assert shown[0]["origin"] | {"timestamp": 0} == {
        "topic": "orders", "partition": 0, "offset": 0, "timestamp": 0,
    }  # fmt: skip
    assert (shown[0]["attempts"], shown[0]["key"], shown[0]["tags"]) == (1, "a", ["eu"])
    assert shown[0]["headers"] == [{"name": "trace", "value": "7"}]
    cut = desk.run("show billing -n 1")
    assert "there are more than these 1" in cut.stderr
    assert desk.run("show billing -n 3").stderr == ""
    table = cut.stdout.splitlines()
    assert len(table) == 2
    assert "orders-0@0" in table[1]
    assert [one["to"] for one in desk.rows("redrive billing --dry-run")] == ["orders"] * 3
    assert desk.rows("redrive billing") == [{"group": "billing", "topic": "orders", "sent": 3}]
    assert values(mq, "orders") == ["a", "b", "c", "d", "a", "c", "d"]
    assert "nothing to send" in desk.run("redrive billing").stdout
    assert desk.run("list billing").stderr == "raftmq: no dead letters\n"
    with mq.consumer("orders", start="earliest") as consumer:
        last = list(consumer.records(timeout=1))[-1]
    assert last.headers == (("trace", b"7"), ("raftmq.redriven", b"1"))
    assert (last.key, last.tags) == ("d", ("eu",))


def test_a_list_of_many(mq: Client, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are read, and of the others the first, which says how old they are."""
    mq.admin.create_topic("__dead.many", partitions=1)
    source = ConsumerRecord("orders", 0, 0, -1, None, None)
    with mq.producer() as producer:
        for hour in range(9):
            headers = letter_headers(source, "many", attempts=1, error=f"E: {hour % 2}")
            time_ms = 1_700_000_000_000 + 3_600_000 * hour
            producer.send("__dead.many", None, headers=headers, timestamp=time_ms)
    monkeypatch.setattr(letter_reads, "READ_MAX", 3)
    [listed] = desk.rows("list many")
    assert listed["letters"] == 9
    assert listed["oldest"] == 1_700_000_000_000
    assert listed["newest"] == 1_700_000_000_000 + 3_600_000 * 8
    assert listed["errors"] == [{"error": "E: 0", "count": 2}, {"error": "E: 1", "count": 1}]


def test_some_of_them(mq: Client, desk: Desk) -> None:
    """Those that are not meant stay, once, also those in front of one that is sent."""
    names = [f"{number:02}" for number in range(20)]
    fail(mq, "some", "chosen", {name: f"E: {int(name) % 3}" for name in names})
    assert desk.rows("redrive chosen --error 1 -n 3")[0]["sent"] == 3
    assert values(mq, "some")[20:] == ["01", "04", "07"]
    left = [name for name in names if name not in ("01", "04", "07")]
    assert sorted(one["value"] for one in desk.rows("show chosen")) == left
    assert desk.rows("redrive chosen --error e:")[0]["sent"] == 17
    assert sorted(values(mq, "some")) == sorted(names * 2)
    assert desk.rows("show chosen") == []


def test_a_topic_that_is_gone(mq: Client, desk: Desk) -> None:
    """Nothing is sent, until there is one to send it to."""
    fail(mq, "brief", "late", {"a": "E", "b": "E"})
    mq.admin.delete_topic("brief")
    result = desk.run("redrive late")
    assert result.exit_code == 3
    assert "2 dead letters would go to brief" in result.stderr
    mq.admin.create_topic("repaired", partitions=1)
    assert desk.rows("redrive late --to-topic repaired")[0]["sent"] == 2
    assert values(mq, "repaired") == ["a", "b"]


def test_purge(mq: Client, desk: Desk) -> None:
    fail(mq, "old", "purged", {"a": "E", "b": "E"})
    assert desk.run("purge purged").exit_code == 2
    assert "2 dead letters would be deleted" in desk.run("purge purged --dry-run").stdout
    assert desk.rows("purge purged --before -1h --yes")[0]["letters"] == 0
    assert len(desk.rows("show purged")) == 2
    assert desk.rows("purge purged --yes")[0]["letters"] == 2
    assert desk.rows("show purged") == []


@pytest.mark.parametrize("verb", ["list", "show", "redrive", "purge --yes"])
def test_a_group_without_any(desk: Desk, verb: str) -> None:
    result = desk.run(f"{verb} nobody")
    assert result.exit_code == 3
    assert "group 'nobody' has no dead letters" in result.stderr


# -- Workers that are killed ----------------------------------------------------------------------


@contextmanager
def worker(server: Server, work: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    """Killed with SIGKILL in the end."""
    command = [sys.executable, "-m", "tests.cluster.dead_letter_worker", work]
    process = subprocess.Popen(
        [*command, "--bootstrap", server.bootstrap, "--topic", topic],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_killed_between_reject_and_commit(server: Server, mq: Client, desk: Desk) -> None:
    """The record is read again, and set aside again: at least once, and none is lost."""
    topic = "killed"
    mq.admin.create_topic(topic, partitions=1)
    with mq.producer() as producer:
        producer.send_many(topic, ["a", "b", "c"])
    with worker(server, "reject", topic) as process:
        assert told(process) == "a"
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert told(process) == "b"  # which is not committed
    with worker(server, "reject", topic) as process:
        found = [told(process)]
        assert process.stdin is not None
        for _ in range(2 if found == ["b"] else 1):
            process.stdin.write("\n")
            process.stdin.flush()
            if len(found) < 2:
                found.append(told(process))
    assert found == ["b", "c"]
    rows = desk.rows(f"show {topic}")
    assert [one["value"] for one in rows] == ["a", "b", "b", "c"]
    assert [one["origin"]["offset"] for one in rows] == [0, 1, 1, 2]


def is_done(mq: Client, group: str) -> bool:
    return [one.lag for one in mq.admin.group_lag(group)] == [0, 0]


@pytest.mark.parametrize("work", ["once", "blocking"])
def test_exactly_once_over_kills(server: Server, mq: Client, desk: Desk, work: str) -> None:
    """Workers are killed again and again: each record has its result once, or is set aside once."""
    topic, count = f"{work}-kills", 100
    names = [f"{number:03}" for number in range(count)]
    for name in (topic, results_of(topic)):
        mq.admin.create_topic(name, partitions=2)
    with mq.producer() as producer:
        producer.send_many(topic, names)
    random, deadline = Random(work), time.monotonic() + SECONDS_MAX
    for _ in range(KILLS):
        with worker(server, work, topic) as process:
            assert told(process) == "open"
            time.sleep(random.uniform(0.3, 1.5))  # it does some of its work
    with worker(server, work, topic):
        while not is_done(mq, topic):
            assert time.monotonic() < deadline, "records are left"
            time.sleep(0.1)
    while any(mq.admin.open_transactions(one) for one in (results_of(topic), f"__dead.{topic}")):
        assert time.monotonic() < deadline, "a transaction stays open"
        time.sleep(0.2)
    dead = [name for name in names if name.endswith("7")]
    assert sorted(values(mq, results_of(topic))) == [name for name in names if name not in dead]
    rows = desk.rows(f"show {topic}")
    assert sorted(one["value"] for one in rows) == dead
    assert {(one["attempts"], one["error"]) for one in rows} == {(2, "ValueError: seven")}


def write_letters(mq: Client, topic: str, count: int, **config: str) -> None:
    """Of a group with the topic's name: numbers, whose errors say whether they are even."""
    mq.admin.create_topic(topic, partitions=1, config=config)
    mq.admin.create_topic(f"__dead.{topic}", partitions=1)
    source = [ConsumerRecord(topic, 0, number, -1, None, b"%d" % number) for number in range(count)]
    with mq.producer() as producer:
        producer.send_many(
            f"__dead.{topic}",
            source,
            value=lambda one: one.value,
            headers=lambda one: letter_headers(
                one, topic, attempts=1, error=f"E: {'even' if one.offset % 2 == 0 else 'odd'}"
            ),
        )


def test_one_reader_of_a_partition(mq: Client, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all steps of a redrive: a consumer that is opened waits for metadata."""
    write_letters(mq, "steps", 40)
    opened = 0
    open_consumer = AsyncClient.consumer

    def counted(*given: Any, **options: Any) -> Any:
        nonlocal opened
        opened += 1
        return open_consumer(*given, **options)

    monkeypatch.setattr(AsyncClient, "consumer", counted)
    monkeypatch.setattr(redrive, "STEP_RECORDS", 7)
    assert desk.rows("redrive steps --error odd")[0]["sent"] == 20
    assert opened == 2  # to plan, and to send
    monkeypatch.undo()
    assert values(mq, "steps") == [str(number) for number in range(1, 40, 2)]


def test_a_redrive_that_is_killed(server: Server, mq: Client, desk: Desk) -> None:
    """Again and again, until one comes to its end: each dead letter is sent back once."""
    count, deadline = 3_000, time.monotonic() + SECONDS_MAX
    write_letters(mq, "far", count)
    command = [sys.executable, "-m", "raftmq", "dlq", "redrive", "far", "--error", "even"]
    kills = 0
    while True:
        assert time.monotonic() < deadline
        process = subprocess.Popen([*command, "-b", server.bootstrap], cwd=PROJECT)
        try:
            # From before it has begun on, a little later each time.
            assert process.wait(0.4 + 0.08 * kills) == 0
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert kills, "it was too quick"
    wanted = [str(number) for number in range(0, count, 2)]
    assert sorted(values(mq, "far")) == sorted(wanted)
    left = sorted(str(number) for number in range(1, count, 2))
    assert sorted(one["value"] for one in desk.rows("show far -n 9999")) == left
    # What was sent back stands there no more: else it would be a dead letter again once the offset
    # of the redrive is forgotten.
    assert sorted(values(mq, "__dead.far")) == left
    mq.admin.delete_group("__redrive.far")
    assert desk.rows("list far")[0]["letters"] == len(left)


def test_one_that_is_too_large(mq: Client, desk: Desk) -> None:
    """With the header that counts it has no room in its topic: it is kept, and the others go."""
    names = [*map(str, range(9)), "5" * 9_990, *map(str, range(9, 12))]
    mq.admin.create_topic("__dead.tight", partitions=1)
    mq.admin.create_topic("tight", partitions=1, config={"max.message.bytes": 10_000})
    mq.admin.create_topic("wide", partitions=1)
    with mq.producer() as producer:
        for at, name in enumerate(names):
            source = ConsumerRecord("tight", 0, at, -1, None, None)
            headers = letter_headers(source, "tight", attempts=1, error="")
            producer.send("__dead.tight", name, headers=headers)
    result = desk.run("redrive tight -o json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"group": "tight", "topic": "tight", "sent": 12}
    [kept] = desk.rows("show tight")
    assert kept["value"] == names[9]
    assert "1 dead letter too large with the header raftmq.redriven, and kept" in result.stderr
    assert f"offset {kept['offset']}, of tight/0/9/-1, for tight: raise max" in result.stderr
    assert values(mq, "tight") == [name for name in names if len(name) < 9]
    assert desk.rows("redrive tight --to-topic wide")[0]["sent"] == 1
    assert values(mq, "wide") == [names[9]]
    assert desk.rows("show tight") == []


@contextmanager
def stopped_before_it_deletes(error: BaseException) -> Iterator[None]:
    """As a redrive is that ends between its last transaction and the deletion."""

    async def stop(self: object, *given: object, **options: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admin, "delete_records", stop)
        yield


@pytest.mark.parametrize("line", ["redrive {}", "redrive {} --error odd", "purge {} --yes"])
def test_killed_before_it_deletes(mq: Client, desk: Desk, line: str) -> None:
    """The next command deletes what was sent back, also if nothing is left to send."""
    group = f"kept-{len(line)}"
    write_letters(mq, group, 3)
    with stopped_before_it_deletes(KeyboardInterrupt()):
        result = desk.run(f"redrive {group}")
    assert result.exit_code == 130
    assert f"3 dead letters of group {group} sent back so far: run it again" in result.stderr
    assert len(values(mq, f"__dead.{group}")) == 3
    assert desk.run(line.format(group)).exit_code == 0
    mq.admin.delete_group(f"__redrive.{group}")
    assert desk.rows(f"show {group}") == []
    assert values(mq, f"__dead.{group}") == []
    assert values(mq, group) == ["0", "1", "2"]


def test_purge_deletes_nothing_when_it_only_looks(mq: Client, desk: Desk) -> None:
    write_letters(mq, "looked-at", 2)
    with stopped_before_it_deletes(KeyboardInterrupt()):
        desk.run("redrive looked-at")
    assert desk.rows("purge looked-at --dry-run")[0]["letters"] == 0
    assert desk.rows("redrive looked-at --dry-run") == []
    assert len(values(mq, "__dead.looked-at")) == 2


def test_the_leader_dies_meanwhile(server: Server, mq: Client, desk: Desk) -> None:
    """Of the topic of dead letters: what `reject` has returned for stands there, once."""
    topic, count = "moving", 60
    mq.admin.create_topic(topic, partitions=1)
    with mq.producer() as producer:
        producer.send_many(topic, map(str, range(count)))
    victim: int | None = None
    with mq.consumer(topic, group=topic, start="earliest") as consumer:
        for number, record in zip(range(count), consumer.records(timeout=30), strict=False):
            if number == count // 2:
                victim = server.leader_of(f"__dead.{topic}", 0)
                assert victim is not None
                server.kill_node(victim)
            consumer.reject(record, "no", timeout=30)
    assert victim is not None
    server.start_node(victim)
    assert [one["value"] for one in desk.rows(f"show {topic}")] == [*map(str, range(count))]
