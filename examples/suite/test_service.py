"""The service of examples/service.py, with its real lifespan and a real broker behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import service
from fastapi.testclient import TestClient

import raftmq
from raftmq import testing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq import sync
    from raftmq.testing import Server


@pytest.fixture
def client(
    raftmq_broker: Server, raftmq_topic: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """The block of a TestClient runs the lifespan: the connection opens and closes with it."""
    monkeypatch.setenv(service.BOOTSTRAP, raftmq_broker.bootstrap)
    monkeypatch.setattr(service, "TOPIC", raftmq_topic)
    with TestClient(service.app) as client:
        yield client


def test_an_order_is_there_once_it_is_answered(client: TestClient) -> None:
    order = {"customer": "c-17", "item": "apples", "count": 2}
    placed = client.post("/orders", json=order)
    assert placed.status_code == 201
    partition, offset = placed.json()["partition"], placed.json()["offset"]
    found = client.get(f"/orders/{partition}", params={"offset": offset})
    assert found.json() == {"orders": [order], "next_offset": offset + 1}


def test_orders_of_a_customer_stay_in_order(client: TestClient) -> None:
    items = ["apples", "pears", "plums"]
    for item in items:
        placed = client.post("/orders", json={"customer": "c-17", "item": item}).json()
    path, offset = f"/orders/{placed['partition']}", 0
    found: list[str] = []
    while len(found) < len(items):  # a page at a time
        page = client.get(path, params={"offset": offset, "limit": 2}).json()
        found += [order["item"] for order in page["orders"]]
        offset = page["next_offset"]
    assert found == items


def test_a_page_without_orders(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WAIT_SECONDS", 0.1)
    assert client.get("/orders/0").json() == {"orders": [], "next_offset": 0}


def test_a_page_behind_the_end(client: TestClient) -> None:
    assert client.get("/orders/0", params={"offset": 500}).status_code == 404


def test_a_topic_with_other_partitions(
    raftmq_broker: Server,
    raftmq_topic: str,
    blocking_mq: sync.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was there before the service, with more of them: all can be read, and no other."""
    blocking_mq.admin.create_topic(raftmq_topic, partitions=8)
    monkeypatch.setenv(service.BOOTSTRAP, raftmq_broker.bootstrap)
    monkeypatch.setattr(service, "TOPIC", raftmq_topic)
    monkeypatch.setattr(service, "WAIT_SECONDS", 0.1)
    with TestClient(service.app) as client:
        assert [client.get(f"/orders/{number}").status_code for number in (7, 8)] == [200, 404]


def test_what_is_no_order(client: TestClient) -> None:
    assert client.post("/orders", json={"customer": "", "item": "apples"}).status_code == 422


def test_a_service_without_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not start, so that its supervisor starts it again."""
    monkeypatch.setenv(service.BOOTSTRAP, "127.0.0.1:1")
    with pytest.raises(raftmq.errors.Unreachable), TestClient(service.app):
        pass


def test_a_cluster_that_went_away(raftmq_topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 while it is away; then the same connection goes on."""
    order = {"customer": "c-17", "item": "apples"}
    monkeypatch.setattr(service, "TOPIC", raftmq_topic)
    monkeypatch.setattr(service, "DELIVERY_TIMEOUT_MS", 500)
    with testing.broker() as server:
        monkeypatch.setenv(service.BOOTSTRAP, server.bootstrap)
        with TestClient(service.app) as client:
            server.kill_node(1)
            assert client.post("/orders", json=order).status_code == 503
            server.start_node(1)
            for _ in range(60):  # as a client would, until the broker is found again
                status = client.post("/orders", json=order).status_code
                if status != 503:
                    break
            assert status == 201
