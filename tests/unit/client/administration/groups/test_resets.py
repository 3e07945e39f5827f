"""`Admin`: where a group is to read on, and that two resets do not mix."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.administration.results import OffsetReset
from raftmq.errors import (
    GroupIdNotFound,
    InvalidRequest,
    InvalidTopic,
    InvalidUpdateVersion,
    LeaderNotAvailable,
    NonEmptyGroup,
    OutcomeUnknown,
    RaftmqError,
    UnknownTopicOrPartition,
)
from raftmq.wire.messages.group_offsets import OffsetCommit
from tests.producing import produce
from tests.unit.client.administration.bureau import LOST
from tests.unit.client.administration.groups.registry import Registry, member, open_registry
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.administration.admin import Admin

FIRST, SECOND = ("u", 0), ("u", 1)  # logs from 2 to 10, and from 0 to 5


def changed(plan: dict[tuple[str, int], OffsetReset]) -> dict[int, tuple[int | None, int]]:
    """By partition: old and new."""
    return {partition: (one.old, one.new) for (_, partition), one in plan.items()}


# -- where to ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "news", "asked"),
    [
        ({"to": "earliest"}, (2, 0), (None, None)),
        ({"to": "latest"}, (10, 5), (None, None)),
        ({"to": 7}, (7, 5), (None, 7)),
        ({"to": 0}, (2, 0), (0, None)),
        ({"to": 1 << 60}, (10, 5), (1 << 60, 1 << 60)),
        ({"shift": 3}, (8, 5), (None, 7)),
        ({"shift": -3}, (2, 1), (None, None)),
        ({"shift": -1000}, (2, 0), (-995, -996)),
        ({"shift": 0}, (5, 4), (None, None)),
        ({"to": datetime(2126, 1, 1, tzinfo=UTC)}, (10, 5), (None, None)),
    ],
)
async def test_where_it_leads(
    target: dict[str, Any],
    news: tuple[int, int],
    asked: tuple[int | None, int | None],
    autojump_clock: MockClock,
) -> None:
    """It lies within the log, and what was asked for beyond it is told; old and new are, too, and
    committed."""
    async with open_registry() as (registry, admin):
        registry.add("g")
        registry.commit("g", {FIRST: 5, SECOND: 4})
        plan = await admin.reset_group_offsets("g", **target)
        assert plan == {
            FIRST: OffsetReset(5, news[0], 2, 10, asked[0]),
            SECOND: OffsetReset(4, news[1], 0, 5, asked[1]),
        }
        assert registry.committed("g") == {FIRST: news[0], SECOND: news[1]}


async def test_a_time(autojump_clock: MockClock) -> None:
    """The first record at or after it; the end where no record is so young."""
    async with open_registry() as (registry, admin):
        for value in ("a", "b"):
            await produce(admin._cluster, "t", 0, batch(value))
        registry.commit("g", {("t", 0): 1})
        at = datetime.fromtimestamp(1, UTC)  # of all records
        assert changed(await admin.reset_group_offsets("g", to=at)) == {0: (1, 0)}
        later = datetime.fromtimestamp(2, UTC)
        assert changed(await admin.reset_group_offsets("g", to=later)) == {0: (0, 2)}


# -- which partitions --------------------------------------------------------------------------


async def test_what_a_group_has_committed(autojump_clock: MockClock) -> None:
    """Without a word about topics: those partitions, unless their topic is gone."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {SECOND: 4, ("t", 0): 1})
        del registry.world.topics["t"]
        registry.world.version += 1
        assert list(await admin.reset_group_offsets("g", to="latest")) == [SECOND]
        registry.offsets["h"] = {(b"x" * 16, 0): registry.offsets["g"].popitem()[1]}
        with pytest.raises(InvalidRequest, match="offsets of deleted topics only"):
            await admin.reset_group_offsets("h", to="latest")


async def test_topics_and_partitions(autojump_clock: MockClock) -> None:
    """All of a topic, or some; also where nothing was committed yet, by nobody."""
    async with open_registry() as (registry, admin):
        assert changed(await admin.reset_group_offsets("new", to=3, topics=["u"])) == {
            0: (None, 3),
            1: (None, 3),
        }
        assert registry.committed("new") == {FIRST: 3, SECOND: 3}
        plan = await admin.reset_group_offsets("new", shift=1, partitions=[SECOND])
        assert changed(plan) == {1: (3, 4)}


async def test_a_shift_from_nowhere(autojump_clock: MockClock) -> None:
    """An error for a partition that is named; of a topic those that can be are shifted."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {FIRST: 5})
        with pytest.raises(InvalidRequest, match="nothing for u-1, so there is nothing to shift"):
            await admin.reset_group_offsets("g", shift=1, partitions=[FIRST, SECOND])
        assert changed(await admin.reset_group_offsets("g", shift=1, topics=["u"])) == {0: (5, 6)}
        with pytest.raises(InvalidRequest, match="nothing for t-0"):
            await admin.reset_group_offsets("g", shift=1, topics=["t"])


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, TypeError, "give either to="),
    ({"to": 1, "shift": 1}, TypeError, "give either to="),
    ({"to": "erliest"}, InvalidRequest, "expected 'earliest', 'latest', an offset"),
    ({"to": True}, InvalidRequest, "expected 'earliest'"),
    ({"to": -1}, InvalidRequest, "offsets begin at 0"),
    ({"to": datetime(2026, 1, 1)}, InvalidRequest, "no time zone"),
    ({"shift": "1"}, TypeError, "expected int"),
    ({"to": 1, "topics": ["u"], "partitions": [FIRST]}, TypeError, "give one of them"),
    ({"to": 1, "topics": "u"}, TypeError, "expected a list of names"),
    ({"to": 1, "topics": []}, InvalidRequest, "topics is empty"),
    ({"to": 1, "topics": ["a/b"]}, InvalidTopic, "allowed are"),
    ({"to": 1, "topics": ["no"]}, UnknownTopicOrPartition, "there is no topic 'no'"),
    ({"to": 1, "partitions": "u"}, InvalidRequest, "expected a list like"),
    ({"to": 1, "partitions": []}, InvalidRequest, "partitions is empty"),
    ({"to": 1, "partitions": [("u", 2)]}, UnknownTopicOrPartition, "there is no 2"),
    ({"to": 1, "partitions": [("u", 0, 0)]}, InvalidRequest, "expected a pair"),
    ({"to": 1, "partitions": [(0, "u")]}, InvalidRequest, "expected a pair"),
    ({"to": 1, "partitions": [("u", "0")]}, InvalidRequest, "partition '0' of u: expected a whole"),
    ({"to": []}, InvalidRequest, "to=\\[\\]: expected 'earliest'"),
]


@pytest.mark.parametrize(("arguments", "error", "told"), WRONG)
async def test_what_cannot_be(
    arguments: dict[str, Any], error: type[Exception], told: str, autojump_clock: MockClock
) -> None:
    """Nothing is committed."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {FIRST: 5})
        with pytest.raises(error, match=told):
            await admin.reset_group_offsets("g", **arguments)
        assert registry.bureau.count(OffsetCommit) == 0


# -- who may -----------------------------------------------------------------------------------


async def test_a_group_with_members(autojump_clock: MockClock) -> None:
    """They would read on elsewhere: refused, with the way out; a dry run is not."""
    async with open_registry() as (registry, admin):
        registry.add("g", member("m1"), member("m2"))
        registry.commit("g", {FIRST: 5})
        told = "has 2 members: stop them first.*then reset its offsets"
        with pytest.raises(NonEmptyGroup, match=told):
            await admin.reset_group_offsets("g", to="earliest")
        plan = await admin.reset_group_offsets("g", to="earliest", dry_run=True)
        assert changed(plan) == {0: (5, 2)}
        assert registry.bureau.count(OffsetCommit) == 0


async def test_a_member_that_comes_meanwhile(autojump_clock: MockClock) -> None:
    """The coordinator has the last word."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {FIRST: 5})
        registry.before = partial(registry.add, "g", member("m1"))
        with pytest.raises(NonEmptyGroup, match="only they may commit"):
            await admin.reset_group_offsets("g", to="earliest")
        assert registry.committed("g") == {FIRST: 5}


async def test_a_partition_that_nobody_leads(autojump_clock: MockClock) -> None:
    """Nobody knows where its log ends: nothing is committed."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {FIRST: 5, SECOND: 4})
        registry.world.lead("u", 1, -1)
        with pytest.raises(LeaderNotAvailable, match="u-1"):
            await admin.with_timeout(1).reset_group_offsets("g", to=1)
        assert registry.committed("g") == {FIRST: 5, SECOND: 4}


async def test_nothing_to_go_by(autojump_clock: MockClock) -> None:
    """A group that has committed nothing begins where somebody names topics."""
    async with open_registry() as (registry, admin):
        registry.add("g")
        with pytest.raises(GroupIdNotFound, match="name topics"):
            await admin.reset_group_offsets("g", to=1)
        assert list(await admin.reset_group_offsets("g", to=1, topics=["t"])) == [("t", 0)]


# -- at the same time --------------------------------------------------------------------------


async def test_an_offset_that_changes_meanwhile(autojump_clock: MockClock) -> None:
    """Nothing is committed, and the error says what is there."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {FIRST: 5})
        registry.before = partial(registry.commit, "g", {FIRST: 9})
        with pytest.raises(InvalidUpdateVersion, match="u-0 has 9 committed now, expected was 5"):
            await admin.reset_group_offsets("g", to="earliest")
        assert registry.committed("g") == {FIRST: 9}


async def test_two_resets_at_the_same_time(autojump_clock: MockClock) -> None:
    """One of them wins, whole; the other has changed nothing."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {FIRST: 5, SECOND: 3})
        errors: list[RaftmqError] = []

        async def reset(to: int) -> None:
            try:
                await admin.reset_group_offsets("g", to=to)
            except InvalidUpdateVersion as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reset, 2)
            nursery.start_soon(reset, 4)
        assert len(errors) == 1
        assert set(registry.committed("g").values()) in ({2}, {4})


async def test_an_answer_that_is_lost(autojump_clock: MockClock) -> None:
    """It is asked for again, and what has the wanted offset by then was committed."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {FIRST: 5, SECOND: 4})
        registry.errors = [LOST]
        assert changed(await admin.reset_group_offsets("g", shift=-1)) == {0: (5, 4), 1: (4, 3)}
        assert registry.committed("g") == {FIRST: 4, SECOND: 3}
        assert registry.bureau.count(OffsetCommit) == 2


async def test_an_answer_that_is_lost_and_a_change(autojump_clock: MockClock) -> None:
    """It was committed, and somebody else has changed it since: nobody knows that any more."""
    async with open_registry() as (registry, admin):
        await lose_and_change(registry, admin)


async def lose_and_change(registry: Registry, admin: Admin) -> None:
    registry.commit("g", {FIRST: 5})
    registry.errors = [LOST]

    def change() -> None:
        registry.before = partial(registry.commit, "g", {FIRST: 9})

    registry.before = change
    with pytest.raises(OutcomeUnknown, match="u-0 has 9 committed now"):
        await admin.reset_group_offsets("g", to="earliest")
