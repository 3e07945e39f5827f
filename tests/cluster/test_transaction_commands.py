"""`raftmq transaction` and the admin calls behind it, against real brokers (A11.3)."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from raftmq import testing
from raftmq.cli.main import main
from raftmq.errors import ProducerFenced, TransactionAborted, UnknownTransaction
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq import TransactionDetails
    from raftmq.sync import Client, Producer
    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

ID, TOPIC = "billing-1", "orders"
SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.bootstrap) as client:
        client.admin.create_topic(TOPIC, partitions=2, if_not_exists=True)
        yield client


def run(server: Server, line: str) -> Result:
    return CliRunner().invoke(main, ["-b", server.bootstrap, *line.split()])


def rows(server: Server, line: str) -> list[dict[str, Any]]:
    result = run(server, f"transaction {line} -o json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return [json.loads(each) for each in result.stdout.splitlines()]


def described(
    client: Client, name: str, is_told: Callable[[TransactionDetails], bool]
) -> TransactionDetails:
    """Once the broker that is asked has heard of it."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_told(found := client.admin.describe_transaction(name)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def look_and_abort(server: Server, client: Client, producer: Producer) -> None:
    with producer.transaction() as tx:
        first = tx.send(TOPIC, "a", partition=1).offset
        [found] = client.admin.open_transactions(TOPIC)
        assert (found.transaction_id, found.partition, found.first_offset) == (ID, 1, first)
        assert (found.last_stable_offset, found.high_watermark) == (first, first + 1)
        assert client.admin.open_transactions(TOPIC, [0]) == ()
        [row] = rows(server, f"open {TOPIC} -p 1")
        assert (row["transaction_id"], row["first_offset"]) == (ID, first)
        assert f" {ID} " in run(server, f"transaction open {TOPIC}").stdout
        assert "stable" in run(server, f"topic describe {TOPIC}").stdout
        assert rows(server, f"abort {ID} --yes") == [{"transaction_id": ID, "aborted": True}]
        tx.send(TOPIC, "b", partition=1)


def test_what_is_open_is_shown_and_aborted(server: Server, client: Client) -> None:
    """By whom, and which offset it holds back; its producer is told, and goes on."""
    with client.producer(transaction_id=ID) as producer:
        with pytest.raises(TransactionAborted, match="aborted by an operator") as caught:
            look_and_abort(server, client, producer)
        assert caught.value.reason == "operator"
        found = described(client, ID, lambda one: one.last_reason == "operator")
        assert found.last_outcome == "aborted"
        assert [row["transaction_id"] for row in rows(server, f"describe {ID}")] == [ID]
        with producer.transaction(wait_visible=True) as tx:
            tx.send(TOPIC, "c", partition=1)
    assert client.admin.open_transactions(TOPIC) == ()
    nothing = run(server, f"transaction open {TOPIC}")
    assert (nothing.exit_code, nothing.stderr) == (0, f"raftmq: nothing is open in {TOPIC}\n")


def test_an_abort_where_nothing_is_open(server: Server, client: Client) -> None:
    """It harms nobody: the next transaction of the producer is another one."""
    with client.producer(transaction_id="idle") as producer:
        client.admin.abort_transaction("idle")
        with pytest.raises((TransactionAborted, ProducerFenced)), producer.transaction() as tx:
            tx.send(TOPIC, "a")
        with producer.transaction() as tx:
            tx.send(TOPIC, "b")
        assert tx.outcome == "committed"


def test_what_is_known_and_forgotten(server: Server, client: Client) -> None:
    """With its version, which can be committed again after the id is forgotten."""
    for is_done in (False, True):
        with client.producer(transaction_id="etl") as producer:
            with producer.transaction(version=7, wait_visible=True) as tx:
                tx.send(TOPIC, "a")
            assert tx.is_done is is_done
    found = described(client, "etl", lambda one: one.last_version == 7)
    assert found.last_count == 1
    assert "etl" in {one.transaction_id for one in client.admin.list_transactions()}
    assert not client.admin.list_transactions(idle_seconds=3600)
    shown = run(server, "transaction describe etl").stdout
    assert "version: 7, 1 row" in shown
    listed = run(server, "transaction list").stdout
    assert "etl" in listed
    result = run(server, "transaction forget etl")
    assert result.exit_code == 2  # nobody to ask
    assert "--yes" in result.stderr
    assert rows(server, "forget etl --yes") == [{"transaction_id": "etl", "forgotten": True}]
    with pytest.raises(UnknownTransaction, match="no transaction id 'etl'"):
        described(client, "etl", lambda _one: False)
    with client.producer(transaction_id="etl") as producer, producer.transaction(version=7) as tx:
        assert not tx.is_done


def test_ids_that_do_not_exist(server: Server, client: Client) -> None:
    """Exit code 3; nothing is aborted unless all of them exist."""
    with client.producer(transaction_id=ID) as producer, producer.transaction() as tx:
        tx.send(TOPIC, "a")
        for line in ("describe nope", "abort nope --yes", f"abort {ID} nope --yes"):
            result = run(server, f"transaction {line}")
            assert result.exit_code == 3, result.output
            assert "nope" in result.stderr
        assert run(server, "transaction forget nope --yes").exit_code == 3
        assert run(server, "transaction open nope").exit_code == 3
        assert run(server, f"transaction open {TOPIC} -p 9").exit_code == 3
        assert run(server, "transaction list --idle soon").exit_code == 2
    assert tx.outcome == "committed"


def test_a_healthy_cluster_with_an_open_transaction(server: Server, client: Client) -> None:
    """What is open in its time is nobody's concern."""
    with client.producer(transaction_id=ID) as producer, producer.transaction() as tx:
        tx.send(TOPIC, "a")
        health = client.admin.health()
        assert (health.is_healthy, health.held, health.unsettled) == (True, (), ())
        assert run(server, "cluster health").exit_code == 0
