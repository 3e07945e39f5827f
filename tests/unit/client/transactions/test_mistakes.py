"""What makes no sense in a transaction is said at once, and changes nothing (A11.3, A11.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raftmq.errors import InvalidConfig, InvalidTransaction
from raftmq.wire.messages.transactions import EndTxn
from tests.unit.client.producer.shell import in_log
from tests.unit.client.transactions.coordinator import open_transactions

if TYPE_CHECKING:
    from trio.testing import MockClock

ID: dict[str, Any] = {"transaction_id": "billing-1"}


async def test_outside_of_a_transaction(autojump_clock: MockClock) -> None:
    """Neither before, nor between, nor after; nor by a producer without transactions."""
    async with open_transactions() as (_, (world, _, client)):
        async with client.producer(**ID) as producer:
            with pytest.raises(InvalidTransaction, match="outside of a transaction"):
                await producer.send("t", "a")
            with pytest.raises(InvalidTransaction, match="outside of a transaction"):
                producer.send_nowait("t", "a")
            with pytest.raises(InvalidTransaction, match="outside of a transaction"):
                await producer.send_many("t", ["a"])
            tx = producer.transaction()
            with pytest.raises(InvalidTransaction, match="enter its block first"):
                await tx.send("t", "a")
            async with tx:
                with pytest.raises(InvalidTransaction, match="one at a time"):
                    async with producer.transaction():
                        pass
            with pytest.raises(InvalidTransaction, match="entered once"):
                async with tx:
                    pass
            with pytest.raises(InvalidTransaction, match="over"):
                await tx.send("t", "a")
        async with client.producer() as plain:
            with pytest.raises(InvalidTransaction, match="has no transactions"):
                plain.transaction()
        assert in_log(world) == []


async def test_offsets_in_another_form(autojump_clock: MockClock) -> None:
    """The error shows what is expected; nothing of it is committed."""
    wrong: list[tuple[Any, str]] = [
        ({"orders": 42}, r"expected a topic and a partition, as in \{\(\"orders\", 0\): 42\}"),
        ({("t", "0"): 42}, "partition of t = '0'"),
        ({("t", 0): -1}, "offset of t-0 = -1"),
    ]
    async with open_transactions() as (coordinator, (_, _, client)):
        async with client.producer(**ID) as producer, producer.transaction() as tx:
            for given, words in wrong:
                with pytest.raises(InvalidConfig, match=words):
                    tx.commit_offsets(given, group="billing")
        assert coordinator.offsets == {}


async def test_a_version_needs_an_id_that_comes_again(autojump_clock: MockClock) -> None:
    """And a number that the wire can carry: said before anything is begun."""
    async with open_transactions() as (coordinator, (_, _, client)):
        async with client.producer(transactions=True) as producer:
            with pytest.raises(InvalidTransaction, match="version = 1 without a transaction_id"):
                producer.transaction(version=1)
        async with client.producer(**ID) as producer:
            for number in (-1, 1 << 63, "a", True):
                with pytest.raises(InvalidTransaction, match=r"expected a whole number, 0 to"):
                    producer.transaction(version=number)
        assert not [one for one in coordinator.asked if isinstance(one, EndTxn)]
