"""All members of a group have one filter: who joins with another is refused, and nothing changes.

A12.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import FeatureLevel
from raftmq.tag_filter import parse
from raftmq.wire.messages.groups import DescribeGroups
from raftmq.wire.tag_clauses import TagClause, pack_filter
from tests.unit.broker.groups.coordinating import (
    ELSEWHERE,
    GROUP,
    HERE,
    QUICK,
    coordinating,
    join_of,
    settle,
    stable,
)
from tests.unit.broker.groups.stage import DELAY_SECONDS, RANGE, SESSION_SECONDS, Stage

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.wire.tag_clauses import TagClauses

EU, US = "eu & !test", "us"


def clauses(text: str) -> TagClauses:
    return pack_filter(parse(text))


def of_one(stage: Stage, tags: str, instance: str | None = None) -> str:
    """A stable group whose only member has this filter: its id."""
    if instance is None:
        member_id, token = stage.enter(tags=tags)
    else:
        member_id = stage.given(instance, tags=tags)
        token = stage.join(member_id, instance=instance, tags=tags)
    stage.wait(2 * DELAY_SECONDS)
    assert not stage.joined(token).error
    sync = stage.sync(member_id, {member_id: b"all"}, instance=instance)
    stage.save()
    assert stage.part(sync) == b"all"
    return member_id


def test_the_first_member_brings_the_filter() -> None:
    """It is saved with the plan, shown, and what the next ones are compared with. A12.1."""
    stage = Stage()
    of_one(stage, EU)
    assert (stage.group.describe().tags, stage.first_save().tags) == (EU, EU)
    assert stage.error(stage.join(tags=EU)) == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(("there", "other"), [(EU, US), (EU, ""), ("", US)])
def test_another_filter_is_refused(there: str, other: str) -> None:
    """At once, with both filters and the way out; the members hear nothing of it. A12.1."""
    stage = Stage()
    first = of_one(stage, there)
    told = stage.joined(stage.join(tags=other))
    assert told.error == ErrorCode.INCONSISTENT_GROUP_FILTER
    theirs, own = (f"filter {tags}" if tags else "no filter" for tags in (there, other))
    assert f"group billing: its members read by {theirs}, this one by {own}." in told.message
    assert "Stop all members and start them with the new filter" in told.message
    assert told.message.endswith("or use another group")
    assert stage.heartbeat(first) == ErrorCode.NONE
    assert (stage.group.state, stage.group.describe().tags) == ("Stable", there)


def test_long_filters_leave_room_for_the_way_out() -> None:
    """A message has 1,000 characters, a filter up to 8,192. A12.1."""
    stage = Stage()
    of_one(stage, "x" * 250)
    told = stage.joined(stage.join(tags="y" * 250)).message
    assert f"filter {'x' * 150}…, this one by filter {'y' * 150}…." in told
    assert told.endswith("or use another group")
    assert len(told) < 700


def test_of_two_that_come_at_once_the_first_one_decides() -> None:
    """Both have an id when the group is empty still; the other one is not waited for. A12.1."""
    stage = Stage()
    other = stage.joined(stage.join(tags=US)).member_id
    _, token = stage.enter(tags=EU)
    assert stage.error(stage.join(other, tags=US)) == ErrorCode.INCONSISTENT_GROUP_FILTER
    assert other not in {one.member_id for one in stage.group.describe().members}
    stage.wait(DELAY_SECONDS)
    assert stage.joined(token).generation == 1


def test_a_refused_one_asks_nobody_for_assignors() -> None:
    """Neither its filter nor its assignor fits, which alone would begin a rebalance. A12.1."""
    stage = Stage()
    first = of_one(stage, EU)
    stage.move(stage.first_save())
    token = stage.join("", {"sticky": b""}, tags=US)
    assert stage.error(token) == ErrorCode.INCONSISTENT_GROUP_FILTER
    assert stage.heartbeat(first) == ErrorCode.NONE


def test_an_empty_group_takes_any_filter() -> None:
    """The members have left, or their sessions have ended: their filter is gone. A12.1."""
    stage = Stage()
    of_one(stage, EU)
    stage.wait(SESSION_SECONDS)
    assert (stage.group.state, stage.group.describe().tags) == ("Empty", "")
    assert stage.save().tags == ""
    of_one(stage, US)
    assert stage.group.describe().tags == US


def test_the_next_coordinator_knows_the_filter() -> None:
    """Also before any member has joined again. A12.1."""
    stage = Stage()
    first = of_one(stage, EU)
    stage.move(stage.first_save())
    assert stage.group.describe().tags == EU
    assert stage.error(stage.join(tags=US)) == ErrorCode.INCONSISTENT_GROUP_FILTER
    assert stage.heartbeat(first) == ErrorCode.NONE
    assert stage.is_waiting(stage.enter(tags=EU)[1])


def test_the_only_static_member_is_back_with_another_filter() -> None:
    """No other member differs: it takes its place, in another generation, as its plan was made for
    another subset of the records. A12.1.
    """
    stage = Stage()
    of_one(stage, EU, "i")
    again = stage.given("i", tags=US)
    token = stage.join(again, instance="i", tags=US)
    assert (stage.joined(token).generation, stage.joined(token).must_sync_anew) == (2, True)
    stage.sync(again, {again: b"all"}, instance="i")
    assert stage.save().tags == US
    assert stage.group.describe().tags == US


def test_a_static_member_is_back_among_others() -> None:
    """With another filter it is refused, and the process before it is not fenced; with the same it
    gets back what it had, without a rebalance. A12.1.
    """
    stage = Stage()
    before = of_one(stage, EU, "i")
    other, token = stage.enter(tags=EU)
    again = stage.join(before, {"range": b""}, instance="i", tags=EU)
    assert not stage.joined(token).error
    assert not stage.joined(again).error
    stage.sync(other)
    stage.sync(before, {before: b"1", other: b"2"}, instance="i")
    stage.save()
    assert stage.error(stage.join(instance="i", tags=US)) == ErrorCode.INCONSISTENT_GROUP_FILTER
    assert stage.heartbeat(before, instance="i") == ErrorCode.NONE
    assert stage.heartbeat(other) == ErrorCode.NONE
    back = stage.come("i", tags=EU)
    assert stage.save().tags == EU
    assert not stage.joined(back).must_sync_anew


def test_an_id_of_before_does_not_bring_another_filter() -> None:
    """A static process has an id of when it was alone; meanwhile others have joined. A12.1."""
    stage = Stage()
    of_one(stage, EU, "i")
    late = stage.given("i", tags=US)
    stage.enter(tags=EU)
    assert stage.error(stage.join(late, instance="i", tags=US)) == (
        ErrorCode.INCONSISTENT_GROUP_FILTER
    )


def test_a_member_changes_its_filter() -> None:
    """Alone it may, in another generation, whatever the phase; among others it may not, and stays
    the member that it was. A12.1.
    """
    stage = Stage()
    only = of_one(stage, EU)
    token = stage.join(only, RANGE, tags=US)
    assert stage.joined(token).generation == 2  # it makes a plan now
    token = stage.join(only, RANGE, tags="")
    assert stage.joined(token).generation == 3
    stage.sync(only, {only: b"all"})
    assert stage.save().tags == ""
    other, token = stage.enter()
    assert stage.error(stage.join(only, RANGE, tags=US)) == ErrorCode.INCONSISTENT_GROUP_FILTER
    assert stage.is_waiting(token)
    stage.join(only)
    assert stage.joined(token).generation == 4
    assert {one.member_id for one in stage.group.describe().members} == {only, other}


# At a broker


async def test_a_filter_outlives_its_coordinator(autojump_clock: MockClock) -> None:
    """The slot goes elsewhere and comes back: members with the filter go on, another is refused.
    A12.1.
    """
    async with coordinating(level=FeatureLevel.TAGS) as here:
        (member,) = await stable(here, 1, tags=clauses(EU))
        assert here.cluster.leader.image.groups[GROUP].tags == EU
        await here.give(ELSEWHERE)
        await settle()
        await here.give(HERE)
        await settle()
        (described,) = (await here.ask(DescribeGroups((GROUP,)))).groups
        assert (described.tags, described.generation) == (EU, member.generation)
        refused = await here.ask(join_of(tags=clauses(US)))
        assert refused.error == ErrorCode.INCONSISTENT_GROUP_FILTER
        (described,) = (await here.ask(DescribeGroups((GROUP,)))).groups
        assert described.state == "Stable"


@pytest.mark.parametrize("instance_id", [None, "i"])
async def test_a_filter_needs_nodes_that_keep_it(
    instance_id: str | None, autojump_clock: MockClock
) -> None:
    """Below its feature level it is refused, and the refusal says who is to be upgraded; without a
    filter all is as before. A12.1.
    """
    async with coordinating(level=FeatureLevel.TRANSACTIONS) as here:
        refused = await here.ask(join_of(instance_id=instance_id, tags=clauses(EU)))
        assert refused.error == ErrorCode.UNSUPPORTED_VERSION
        assert refused.message.startswith(
            f"group {GROUP}: a filter of tags needs feature level {FeatureLevel.TAGS.value}"
        )
        assert "upgrade brokers [1, 2, 3]" in refused.message
        assert (await here.ask(join_of())).error == ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("instance_id", [None, "i"])
async def test_only_the_normal_form_is_taken(
    instance_id: str | None, autojump_clock: MockClock
) -> None:
    """Filters are compared as they are told. A12.1."""
    async with coordinating(QUICK, level=FeatureLevel.TAGS) as here:
        unsorted = (TagClause(("us", "eu")),)
        refused = await here.ask(join_of(instance_id=instance_id, tags=unsorted))
        assert refused.error == ErrorCode.INVALID_REQUEST
        assert "filter of tags us & eu: its normal form is eu & us" in refused.message
