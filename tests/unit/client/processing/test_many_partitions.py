"""What a record costs in the order of `process` does not grow with the partitions (A12.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.processing import order as module
from raftmq.client.processing.order import ProcessingOrder

if TYPE_CHECKING:
    import pytest

MANY = 2_000
LOOKS_PER_RECORD = 20


class Looks:
    """How often a partition was looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, first = 0, module._Place.first.fget
        assert first is not None

        def counted(place: module._Place) -> module.RecordInHand | None:
            self.count += 1
            return first(place)

        monkeypatch.setattr(module._Place, "first", property(counted))


def record(partition: int, offset: int) -> ConsumerRecord:
    return ConsumerRecord("orders", partition, offset, -1, None, b"")


def handle(order: ProcessingOrder, partition: int, offset: int) -> None:
    order.add(partition, [record(partition, offset)])
    order.update_full()
    one = order.begin()
    assert one is not None
    order.finish(one)
    order.update_full()


def test_those_without_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not kept."""
    looks, order = Looks(monkeypatch), ProcessingOrder(1_000)
    for partition in range(MANY):
        handle(order, partition, 0)
    assert looks.count <= LOOKS_PER_RECORD * MANY
    assert not order._places


def test_those_with_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one that waits."""
    order = ProcessingOrder(10 * MANY)
    for partition in range(MANY):
        order.add(partition, [record(partition, 0)])
        one = order.begin()
        assert one is not None
        order.postpone(one, 1e9)
    looks = Looks(monkeypatch)
    for partition in range(MANY):
        handle(order, partition, 1)
    assert looks.count <= LOOKS_PER_RECORD * MANY


def test_suspects_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first record of each has failed, and holds up one that is to be alone, too."""
    order = ProcessingOrder(10 * MANY)
    looks = Looks(monkeypatch)
    for partition in range(MANY):
        order.handle_alone(partition, 2)
        order.add(partition, [record(partition, 0), record(partition, 1)])
        one = order.begin()
        assert one is not None
        order.postpone(one, 1e9)
        order.end_alone(one)
        assert order.begin() is None
    assert looks.count <= LOOKS_PER_RECORD * MANY
