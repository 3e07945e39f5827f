"""Dead letters on real brokers: `reject`, `raftmq dlq`, and workers that are killed (A12.5)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from raftmq import testing
from raftmq.cli.main import main
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.sync import Client
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster


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
    table = desk.run("show billing -n 1").stdout.splitlines()
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
