"""`Admin`: brokers, how the cluster is, and leaders on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.administration.results import (
    HeldPartition,
    PartitionLeader,
    UnsettledTransaction,
    WrongClock,
)
from raftmq.errors import ErrorCode
from raftmq.model import Address
from raftmq.wire.messages.cluster import VoterAddress
from raftmq.wire.messages.corruption import DamagedReplicaRow, DescribeDamage, DescribeDamageReply
from raftmq.wire.messages.topics import ElectLeaders
from raftmq.wire.messages.transactions import (
    DescribeOverdue,
    DescribeOverdueReply,
    OverdueCommits,
    OverduePartition,
)
from tests.unit.client.administration.bureau import Bureau, open_bureau

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_elections(autojump_clock: MockClock) -> None:
    """Each partition has an outcome of its own; some are named, or all are meant."""
    async with open_bureau() as (bureau, admin):
        await admin.create_topic("u", partitions=3)
        bureau.replicas = {("u", 0): ((2, 1), (1, 2)), ("u", 2): ((2, 1), (1, 2))}
        bureau.errors = [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ]
        found = await admin.elect_leaders("u")
        assert [one.outcome for one in found] == ["elected", "led already", "failed"]
        assert str(found[2].error) == "PREFERRED_LEADER_NOT_AVAILABLE"
        (one,) = await admin.elect_leaders("u", [2], unclean=True)
        assert (one.partition, one.outcome) == (2, "elected")
        (body,) = [body for body in bureau.asked(ElectLeaders) if body.is_unclean]
        assert [it.partition for it in body.partitions] == [2]


async def test_an_election_while_nobody_is_in_office(autojump_clock: MockClock) -> None:
    """It is asked for again."""
    async with open_bureau() as (bureau, admin):
        bureau.replicas["t", 0] = (2, 1), (1, 2)
        bureau.errors = [ErrorCode.NOT_CONTROLLER]
        (one,) = await admin.elect_leaders("t")
        assert one.outcome == "elected"


async def test_the_cluster(autojump_clock: MockClock) -> None:
    """A broker that is down has the address at which it listened for clients."""
    async with open_bureau() as (bureau, admin):
        bureau.down = {2}
        bureau.voters = (VoterAddress(1, "v1", 9001),)
        found = await admin.describe_cluster()
        assert (found.cluster_id, found.controller_id) == ("cluster-a", 1)
        first, second = found.brokers
        assert (first.broker_id, first.state, first.address) == (1, "active", Address("b1", 9000))
        assert (second.state, second.address) == ("down", Address("b2", 9000))
        assert first.listeners["brokers"] == Address("inside", 1001)
        assert (first.software_version, second.software_version) == ("0.1.0", None)
        assert found.voters == {1: Address("v1", 9001)}
        bureau.controller_id = -1
        assert (await admin.describe_cluster()).controller_id is None


async def test_health(autojump_clock: MockClock) -> None:
    """All is well; then a broker is down, a replica lags, somebody leads nothing."""
    async with open_bureau() as (bureau, admin):
        well = await admin.health()
        assert well.is_healthy
        assert (well.broker_count, well.topic_count, well.partition_count) == (2, 1, 1)
        bureau.world.add_topic("u", 1, -1)
        bureau.replicas |= {("t", 0): ((1, 2), (1,)), ("u", 1): ((2,), (2,))}
        bureau.down = {2}
        ill = await admin.health()
        assert not ill.is_healthy
        assert ill.brokers_down == (2,)
        assert [(one.topic, one.partition) for one in ill.leaderless] == [("u", 1)]
        assert [(one.topic, one.partition, one.missing) for one in ill.under_replicated] == [
            ("t", 0, (2,)),
            ("u", 1, (2,)),
        ]
        loads = await admin.broker_loads()
        assert (loads[1].leads, loads[1].replicas, loads[2].not_in_sync) == (2, 2, 2)


async def test_a_clock_that_is_wrong(autojump_clock: MockClock) -> None:
    """The broker that was asked knows whose; older ones do not tell."""
    async with open_bureau() as (_, admin):
        assert (await admin.health()).wrong_clocks == ()
    async with open_bureau() as (bureau, admin):
        bureau.clocks_ahead_ms = {2: -7}
        ill = await admin.health()
        assert (ill.is_healthy, ill.wrong_clocks) == (False, (WrongClock(2, -7),))


async def test_what_brokers_have_found_on_their_disks(autojump_clock: MockClock) -> None:
    """Each is asked; one that does not know the question tells of nothing, nor of a topic that is
    gone.
    """

    def forget_the_question(bureau: Bureau) -> None:
        del bureau.world.brokers[1].handlers[DescribeDamage]

    async with open_bureau(forget_the_question) as (bureau, admin):
        topic_id = bureau.world.topics["t"].topic_id
        found = (DamagedReplicaRow(topic_id, 0, 42, "byte 7"), DamagedReplicaRow(b"?" * 16, 0, 1))
        bureau.instead[2, DescribeDamage] = DescribeDamageReply(found, 2)
        ill = await admin.health()
        assert not ill.is_healthy
        [one] = ill.damaged
        assert (one.topic, one.partition, one.broker_id) == ("t", 0, 2)
        assert (one.offset, one.what) == (42, "byte 7")
        assert ill.damaged_count == 1
        bureau.instead[2, DescribeDamage] = DescribeDamageReply(found[:1], 700)
        assert (await admin.health()).damaged_count == 700


async def test_transactions_that_take_too_long(autojump_clock: MockClock) -> None:
    """Each broker tells of what it leads and coordinates; one that does not know the question tells
    of nothing, nor is a topic named that is gone (A11.3).
    """

    def forget_the_question(bureau: Bureau) -> None:
        del bureau.world.brokers[1].handlers[DescribeOverdue]

    async with open_bureau(forget_the_question) as (bureau, admin):
        assert (await admin.health()).is_healthy
        topic_id = bureau.world.topics["t"].topic_id
        found = (
            OverduePartition(topic_id, 0, "billing-1", 910_000),
            OverduePartition(topic_id, 1, "", 920_000),
            OverduePartition(b"?" * 16, 0),
        )
        late = OverdueCommits("billing-2", 3, 61_000)
        bureau.instead[2, DescribeOverdue] = DescribeOverdueReply(found, (late,))
        ill = await admin.health()
        assert not ill.is_healthy
        assert ill.held == (
            HeldPartition("t", 0, "billing-1", 910.0),
            HeldPartition("t", 1, None, 920.0),
        )
        assert ill.unsettled == (UnsettledTransaction("billing-2", 3, 61.0),)


async def test_a_broker_that_has_just_died(autojump_clock: MockClock) -> None:
    """The cluster still counts on it: the health report names it, as it gives no answer."""
    async with open_bureau() as (bureau, admin):
        assert (await admin.health()).silent == ()
        bureau.world.brokers[2].stop()
        ill = await admin.health()
        assert (ill.is_healthy, ill.silent, ill.brokers_down) == (False, (2,), ())
        assert set(ill.addresses) >= {1, 2}


async def test_a_broker_that_came_after_the_connection(autojump_clock: MockClock) -> None:
    """It was down when this client learnt the addresses, and is not called silent."""
    async with open_bureau(lambda bureau: bureau.down.add(2)) as (bureau, admin):
        await admin.list_topics()  # learns the addresses
        bureau.down.clear()
        bureau.world.version += 1
        assert (await admin.health()).silent == ()


async def test_who_leads_and_who_should(autojump_clock: MockClock) -> None:
    """The first replica is the preferred leader."""
    async with open_bureau() as (bureau, admin):
        bureau.replicas["t", 0] = ((2, 1), (1, 2))
        [one] = await admin.partition_leaders()
        assert one == PartitionLeader("t", 0, 1, 2, (1, 2))
        assert not one.is_preferred


async def test_a_voter_that_never_came(autojump_clock: MockClock) -> None:
    """It is in the settings, and no broker of its id has registered; nor does anybody lead."""
    async with open_bureau() as (bureau, admin):
        bureau.voters = (VoterAddress(3, "v3", 9001),)
        found = await admin.health()
        assert (found.is_healthy, found.brokers_down, found.broker_count) == (False, (3,), 3)
        bureau.voters, bureau.controller_id = (), -1
        assert not (await admin.health()).is_healthy
