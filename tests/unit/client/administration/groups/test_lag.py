"""`Admin`: how far a group is behind, and who reads what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from raftmq.client.group.planning import encode_subscription
from raftmq.wire.batch.control import ControlType
from tests.unit.client.administration.groups.registry import member, open_registry
from tests.unit.client.transactions_in_logs import in_transaction, marker
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_lag(autojump_clock: MockClock) -> None:
    """What is committed and what is read, in order; only what is left in the log is behind."""
    async with open_registry() as (registry, admin):
        registry.add("g", member("m1", ("u", 0)), member("m2", ("t", 0)))
        registry.commit("g", {("u", 0): 1, ("u", 1): 5})
        rows = await admin.group_lag("g")
        assert [(row.topic, row.partition) for row in rows] == [("t", 0), ("u", 0), ("u", 1)]
        assert [(row.committed, row.end_offset, row.lag) for row in rows] == [
            (None, 0, 0),
            (1, 10, 8),
            (5, 5, 0),
        ]
        assert [row.member and row.member.member_id for row in rows] == ["m2", "m1", None]


@pytest.mark.parametrize("is_there", ["committed", "read", "subscribed"])
async def test_nothing_is_committed_yet(is_there: str, autojump_clock: MockClock) -> None:
    """All partitions of a topic in which the group has anything, or which members want: what is
    left there is all of the log, which need not start at 0."""
    async with open_registry() as (registry, admin):
        reading = [("u", 1)] if is_there == "read" else []
        topics = {"u", "gone"} if is_there == "subscribed" else set()
        subscription = encode_subscription(topics)
        one = replace(member("m1", *reading), subscription=subscription)
        registry.add("g", one)
        if is_there == "committed":
            registry.commit("g", {("u", 1): 0})
        rows = [(row.partition, row.committed, row.lag) for row in await admin.group_lag("g")]
        assert rows == [(0, None, 8), (1, 0 if is_there == "committed" else None, 5)]


async def test_lag_of_offsets_alone(autojump_clock: MockClock) -> None:
    """Nobody ever joined; and an offset beyond the log, as after an unclean election."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {("u", 1): 7})
        _, row = await admin.group_lag("g")
        assert (row.committed, row.end_offset, row.lag, row.member) == (7, 5, 0, None)


async def test_ends_that_nobody_knows(autojump_clock: MockClock) -> None:
    """A partition without a leader, one that is gone with its topic, and one that never was."""
    async with open_registry() as (registry, admin):
        registry.add("g", member("m1", ("u", 9)))
        registry.commit("g", {("u", 0): 3, ("u", 1): 4, ("t", 0): 1})
        gone = registry.world.topics.pop("t").topic_id.hex()
        registry.world.lead("u", 1, -1)
        begin = anyio.current_time()
        rows = await admin.group_lag("g")
        assert anyio.current_time() - begin < 6
        assert [(row.topic, row.partition, row.committed, row.lag) for row in rows] == [
            (gone, 0, 1, None),
            ("u", 0, 3, 7),
            ("u", 1, 4, None),
            ("u", 9, None, None),
        ]


async def test_a_group_at_the_end_of_what_is_committed(autojump_clock: MockClock) -> None:
    """It has no lag beside an open transaction, which it cannot read yet (A11.3)."""
    async with open_registry() as (registry, admin):
        (log,) = registry.world.add_topic("v", 1).partitions
        for data in (batch("a"), in_transaction(7, "b"), batch("c")):
            log.place(data)
        registry.commit("g", {("v", 0): 1})
        [row] = await admin.group_lag("g", with_ages=True)
        assert (row.end_offset, row.lag, row.age_seconds) == (1, 0, 0.0)
        log.place(marker(7, ControlType.ABORT))
        [row] = await admin.group_lag("g")
        assert (row.end_offset, row.lag) == (4, 3)


async def test_a_reset_to_the_end(autojump_clock: MockClock) -> None:
    """It does not lead behind an open transaction, whose records the group would then skip."""
    async with open_registry() as (registry, admin):
        (log,) = registry.world.add_topic("v", 1).partitions
        for data in (batch("a"), in_transaction(7, "b"), batch("c")):
            log.place(data)
        registry.commit("g", {("v", 0): 0})
        changes = await admin.reset_group_offsets("g", to="latest")
        assert changes["v", 0].new == 1
