"""`Admin`: groups are listed, described and deleted, with two brokers on a simulated network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from raftmq.client.administration.results import GroupSummary
from raftmq.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    InvalidGroupId,
    NonEmptyGroup,
    OutcomeUnknown,
    ServerError,
    Unreachable,
)
from raftmq.wire.messages.groups import (
    DeleteGroups,
    DescribedMember,
    DescribeGroups,
    DescribeGroupsReply,
    FindCoordinator,
    ListGroups,
)
from tests.unit.client.administration.bureau import LOST
from tests.unit.client.administration.groups.registry import member, open_registry

if TYPE_CHECKING:
    from trio.testing import MockClock


# -- lists -------------------------------------------------------------------------------------


async def test_every_broker_is_asked(autojump_clock: MockClock) -> None:
    """Each one knows only the groups that it coordinates; the list is by name."""
    async with open_registry() as (registry, admin):
        registry.add("b", member("m1"), member("m2"))
        registry.add("a")
        registry.coordinators["a"] = 2
        assert await admin.list_groups() == (
            GroupSummary("a", "Empty", "consumer", 0, coordinator=2),
            GroupSummary("b", "Stable", "consumer", 2, coordinator=1),
        )


async def test_a_long_list(autojump_clock: MockClock) -> None:
    """A broker that cannot tell all at once is asked for the rest."""
    async with open_registry() as (registry, admin):
        names = [f"g{number}" for number in range(5)]
        for name in names:
            registry.add(name)
        registry.listed_max = 2
        assert [one.name for one in await admin.list_groups()] == names
        assert registry.bureau.count(ListGroups) == 3 + 1
        registry.listed_max = 0
        with pytest.raises(ServerError, match="does not say which"):
            await admin.list_groups()


async def test_a_broker_that_takes_over(autojump_clock: MockClock) -> None:
    """As long as it does not know its groups, all are asked again: the list would have a hole."""
    async with open_registry() as (registry, admin):
        registry.add("a")
        registry.coordinators["a"] = 2
        registry.lists[2] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3
        assert [one.name for one in await admin.list_groups()] == ["a"]
        assert registry.bureau.count(ListGroups) == 8


async def test_slots_without_a_coordinator(autojump_clock: MockClock) -> None:
    """A coordinator is lost, and no other broker has its slots yet: the groups in them are not
    gone, and both brokers are asked again. Broker 1 loses a slot between its two pages."""
    async with open_registry() as (registry, admin):
        registry.add("a")
        registry.add("b")
        low, high = tuple(range(32)), tuple(range(32, 64))
        registry.listed_max = 1
        registry.slots[1] = [low, low[1:], low, low, low, low]
        registry.slots[2] = [high, high[1:], high]
        assert [one.name for one in await admin.list_groups()] == ["a", "b"]
        assert registry.bureau.count(ListGroups) == 3 * (2 + 1)


async def test_a_broker_that_does_not_answer(autojump_clock: MockClock) -> None:
    """Half of a list is none; once the cluster does not count on the broker, nor does the list."""
    async with open_registry() as (registry, admin):
        registry.add("a")
        registry.world.brokers[2].stop()
        with pytest.raises(Unreachable, match="b2"):
            await admin.with_timeout(1).list_groups()
        registry.bureau.down.add(2)
        registry.world.version += 1
        assert [one.name for one in await admin.list_groups()] == ["a"]


# -- descriptions ------------------------------------------------------------------------------


async def test_a_group_with_members(autojump_clock: MockClock) -> None:
    """Members come by their ids, with what they read; the coordinator is told, and found anew."""
    async with open_registry() as (registry, admin):
        registry.add("g", member("m2", ("u", 1)), member("m1", ("u", 0), ("t", 0)))
        registry.coordinators["g"] = 2
        registry.finds = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        found = await admin.describe_group("g")
        assert (found.name, found.state, found.generation) == ("g", "Stable", 3)
        assert (found.protocol_type, found.protocol, found.leader) == ("consumer", "range", "m2")
        assert found.coordinator == 2
        first, second = found.members
        assert (first.member_id, first.client_id, first.host) == ("m1", "app", "h")
        assert (first.instance_id, first.topics) == (None, ("t", "u"))
        assert first.partitions == (("t", 0), ("u", 0))
        assert second.partitions == (("u", 1),)


async def test_members_of_another_kind(autojump_clock: MockClock) -> None:
    """What they say is not known here, and is not taken for nothing; the rest is told."""
    async with open_registry() as (registry, admin):
        registry.add("g", DescribedMember("m1", "i1", "app", "h", b"\xc1", b"\xc1"))
        (one,) = (await admin.describe_group("g")).members
        assert (one.instance_id, one.topics, one.partitions) == ("i1", None, None)
        registry.add("g", member("m1", ("u", 0)))
        registry.groups["g"] = replace(registry.groups["g"], protocol_type="connect")
        (one,) = (await admin.describe_group("g")).members
        assert (one.topics, one.partitions) == (None, None)


async def test_a_member_without_partitions(autojump_clock: MockClock) -> None:
    """There are more members than partitions: some get nothing."""
    async with open_registry() as (registry, admin):
        registry.add("g", replace(member("m1", ("u", 0)), assignment=b""))
        (one,) = (await admin.describe_group("g")).members
        assert (one.topics, one.partitions) == (("u",), ())


async def test_the_filter_of_a_group(autojump_clock: MockClock) -> None:
    """All members have the same; None: they read all records. A12.1."""
    async with open_registry() as (registry, admin):
        registry.add("g", member("m1", ("u", 0)), tags="eu & !test")
        assert (await admin.describe_group("g")).tags == "eu & !test"
        registry.add("g", member("m1", ("u", 0)))
        assert (await admin.describe_group("g")).tags is None


async def test_a_group_that_is_not_there(autojump_clock: MockClock) -> None:
    """Every call says so at once, and names it."""
    async with open_registry() as (_, admin):
        for call in (
            admin.describe_group,
            admin.group_offsets,
            admin.group_lag,
            admin.delete_group,
        ):
            with pytest.raises(GroupIdNotFound, match="there is no group 'no'"):
                await call("no")
        with pytest.raises(GroupIdNotFound, match="'no' is not there, or has committed nothing"):
            await admin.reset_group_offsets("no", to="earliest")


async def test_nobody_coordinates_it(autojump_clock: MockClock) -> None:
    """It is asked for until the time is over."""
    async with open_registry() as (registry, admin):
        registry.finds = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1000
        with pytest.raises(CoordinatorNotAvailable):
            await admin.with_timeout(1).describe_group("g")
        assert registry.bureau.count(FindCoordinator) > 3


async def test_an_answer_about_another_group(autojump_clock: MockClock) -> None:
    """It says nothing of ours."""
    async with open_registry() as (registry, admin):
        registry.bureau.lie(DescribeGroups, DescribeGroupsReply())
        with pytest.raises(ServerError, match="asked about group 'g', and told of others"):
            await admin.with_timeout(1).describe_group("g")


@pytest.mark.parametrize("name", ["", "x" * 201])
async def test_names_that_no_group_has(name: str, autojump_clock: MockClock) -> None:
    """Nobody is asked."""
    async with open_registry() as (registry, admin):
        with pytest.raises(InvalidGroupId, match="allowed are 1 to 200"):
            await admin.describe_group(name)
        assert registry.bureau.count(FindCoordinator) == 0


# -- deletion ----------------------------------------------------------------------------------


async def test_a_group_is_deleted(autojump_clock: MockClock) -> None:
    """With its offsets, at its coordinator, wherever that is by then."""
    async with open_registry() as (registry, admin):
        registry.add("g")
        registry.commit("g", {("u", 0): 5})
        registry.errors = [ErrorCode.NOT_COORDINATOR]
        await admin.delete_group("g")
        assert (registry.groups, registry.offsets) == ({}, {})


async def test_a_group_with_members_stays(autojump_clock: MockClock) -> None:
    """It is not even asked for; where members come at that moment, the coordinator refuses."""
    async with open_registry() as (registry, admin):
        registry.add("g", member("m1"))
        with pytest.raises(NonEmptyGroup, match=r"g has 1 member: stop it first.*then delete it"):
            await admin.delete_group("g")
        assert registry.bureau.count(DeleteGroups) == 0
        registry.add("g")
        registry.errors = [ErrorCode.NON_EMPTY_GROUP]
        with pytest.raises(NonEmptyGroup):
            await admin.delete_group("g")


async def test_a_deletion_whose_answer_is_lost(autojump_clock: MockClock) -> None:
    """It is asked for once: a group of that name may have begun anew meanwhile."""
    async with open_registry() as (registry, admin):
        registry.add("g")
        registry.errors = [LOST]
        with pytest.raises(OutcomeUnknown):
            await admin.delete_group("g")
        assert registry.bureau.count(DeleteGroups) == 1
