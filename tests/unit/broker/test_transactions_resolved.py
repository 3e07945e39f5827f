"""Leaders end what is open in their logs when their metadata show what became of it (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.transactions.resolving import AHEAD_SECONDS, LOOK_SECONDS
from raftmq.errors import ProducerFenced, TransactionAborted
from raftmq.metadata.delta import ChangeLog
from raftmq.wire.batch.control import ControlType
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.transacting import (
    HERE,
    Producer,
    commit_members,
    end,
    join,
    leading,
    markers,
    open_id,
)

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_decision_ends_what_is_open(autojump_clock: MockClock, *, is_commit: bool) -> None:
    """In every partition that has something of it, within a moment, and once."""
    async with leading(partitions=3) as (cluster, node):
        producer = await open_id(cluster)
        replicas = [node.replicas.get(TOPIC_ID, number) for number in range(3)]
        for replica in replicas[:2]:
            producer.send(replica)
        await settle()
        assert [replica.last_stable_offset for replica in replicas] == [0, 0, 0]
        assert replicas[0].high_watermark == 1
        await end(cluster, producer, is_commit=is_commit, partitions=(0, 1))
        await settle()
        kind = ControlType.COMMIT if is_commit else ControlType.ABORT
        assert [markers(replica) for replica in replicas] == [
            [(producer.producer_id, kind)], [(producer.producer_id, kind)], []
        ]  # fmt: skip
        assert [replica.last_stable_offset for replica in replicas] == [2, 2, 0]
        await trio.sleep(2 * LOOK_SECONDS)
        assert len(markers(replicas[0])) == 1
        assert node.replicas.open_transactions.all() == []


async def test_another_owner_aborts_what_is_open(autojump_clock: MockClock) -> None:
    """Only that: another transaction in the same partition goes on."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        first, other = await open_id(cluster), await open_id(cluster, "other")
        first.send(replica)
        other.send(replica)
        second = await open_id(cluster, owner=b"n" * 16)
        await settle()
        assert second == first.next
        assert markers(replica) == [(first.producer_id, ControlType.ABORT)]
        assert replica.last_stable_offset == 1
        await end(cluster, other, "other")
        await settle()
        assert replica.last_stable_offset == replica.high_watermark == 4


async def test_metadata_that_do_not_tell_what_changed(autojump_clock: MockClock) -> None:
    """As after a snapshot of the quorum: everything open is looked at."""
    async with leading() as (cluster, node):
        cluster.nodes[HERE]._machine.changes = ChangeLog(changes_max=0)
        cluster.nodes[HERE]._machine.changes.reset(cluster.nodes[HERE].image)
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster)
        producer.send(replica)
        await end(cluster, producer)
        await settle()
        assert markers(replica) == [(producer.producer_id, ControlType.COMMIT)]


async def test_a_broker_that_is_behind_catches_up(autojump_clock: MockClock) -> None:
    """It lets in what its metadata do not show yet, and ends it when they do; readers wait."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        cluster.follow_seconds = 5.0
        producer = await open_id(cluster)
        producer.send(replica)
        await end(cluster, producer)
        await trio.sleep(4.0)
        assert (markers(replica), replica.last_stable_offset) == ([], 0)
        await trio.sleep(1.5)
        assert markers(replica) == [(producer.producer_id, ControlType.COMMIT)]


async def test_what_nobody_has_granted_is_aborted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After a while, and a look at the quorum; the id's owner writes on when its epoch comes."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster)
        forged = Producer(producer.producer_id, producer.epoch + 1)
        forged.send(replica)
        await trio.sleep(AHEAD_SECONDS - 1)
        assert replica.last_stable_offset == 0
        await trio.sleep(3.0)
        assert markers(replica) == [(producer.producer_id, ControlType.ABORT)]
        assert replica.last_stable_offset == replica.high_watermark == 2
        assert "nobody has granted" in caplog.text


async def test_what_is_not_granted_stays_while_the_quorum_is_silent(
    autojump_clock: MockClock,
) -> None:
    """It may be this broker that is behind: then it was granted, and is committed."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        cluster.isolate(HERE)
        producer = await open_id(cluster)
        producer.send(replica)
        await end(cluster, producer)
        cluster.depose()
        await trio.sleep(3 * AHEAD_SECONDS)
        assert markers(replica) == []
        cluster.heal()
        cluster.elect()
        await settle()
        assert markers(replica) == [(producer.producer_id, ControlType.COMMIT)]


async def test_what_the_index_lacks_is_found_all_the_same(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """And said, as it is a mistake of this program."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster)
        producer.send(replica)
        node.replicas.open_transactions.put(replica.key, set())
        await end(cluster, producer)
        await trio.sleep(0.1)
        assert markers(replica) == []
        await trio.sleep(3 * LOOK_SECONDS)
        assert markers(replica) == [(producer.producer_id, ControlType.COMMIT)]
        assert "decided transactions were still open" in caplog.text


async def test_a_commit_that_does_not_list_a_partition_is_told(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A client's mistake, which loses records where a leader hears of it too late."""
    async with leading(partitions=2) as (cluster, node):
        replicas = [node.replicas.get(TOPIC_ID, number) for number in range(2)]
        producer = await open_id(cluster)
        for replica in replicas:
            producer.send(replica)
        await end(cluster, producer, partitions=(0,))
        await settle()
        assert [markers(one)[0][1] for one in replicas] == [ControlType.COMMIT] * 2
        told = [one.message for one in caplog.records if "does not list" in one.message]
        assert len(told) == 1
        assert f"log={replicas[1].log.name} producer_id={producer.producer_id}" in told[0]


async def test_a_new_leader_knows_what_is_open(autojump_clock: MockClock) -> None:
    """What its log has open, and the metadata, too, is ended when it is decided."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster)
        producer.send(replica)
        node.replicas.open_transactions.put(replica.key, set())
        assert replica.assignment is not None
        epoch, change = replica.assignment.leader_epoch, replica.assignment.partition_epoch
        await replica.take_up(
            replica.assignment._replace(leader_epoch=epoch + 1, partition_epoch=change + 1)
        )
        await end(cluster, producer)
        await trio.sleep(0.1)
        assert markers(replica) == [(producer.producer_id, ControlType.COMMIT)]


@pytest.mark.parametrize("is_delta_whole", [True, False])
async def test_a_commit_ends_all_members_of_its_block(
    autojump_clock: MockClock, *, is_delta_whole: bool
) -> None:
    """A14.3: those that it lists count, all others are aborted, at once."""
    async with leading(partitions=2) as (cluster, node):
        if not is_delta_whole:  # as after a snapshot of the quorum
            cluster.nodes[HERE]._machine.changes = ChangeLog(changes_max=0)
            cluster.nodes[HERE]._machine.changes.reset(cluster.nodes[HERE].image)
        replicas = [node.replicas.get(TOPIC_ID, number) for number in range(2)]
        listed, copy, other = [await join(cluster) for _ in range(3)]
        single = await open_id(cluster, "another")
        for producer, replica in (
            (listed, replicas[0]), (copy, replicas[0]), (single, replicas[0]), (other, replicas[1])
        ):  # fmt: skip
            producer.send(replica)
        await settle()
        await commit_members(cluster, listed)
        await settle()
        assert sorted(markers(replicas[0])) == [
            (listed.producer_id, ControlType.COMMIT), (copy.producer_id, ControlType.ABORT)
        ]  # fmt: skip
        assert markers(replicas[1]) == [(other.producer_id, ControlType.ABORT)]
        assert replicas[0].last_stable_offset == 2, "the single producer's is still open"
        assert replicas[0].is_settled(replicas[0].leading().leader_epoch, [listed.producer_id], 0)


async def test_a_new_opening_ends_what_the_one_before_has_left(autojump_clock: MockClock) -> None:
    """A member of the block that was left is refused, or aborted with it."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        before, late = await join(cluster), await join(cluster)
        before.send(replica)
        after = await join(cluster, version=1)
        await settle()
        assert markers(replica) == [(before.producer_id, ControlType.ABORT)]
        with pytest.raises(TransactionAborted):
            late.send(replica)
        after.send(replica)
        await commit_members(cluster, after, version=1)
        await settle()
        assert markers(replica)[1:] == [(after.producer_id, ControlType.COMMIT)]
        with pytest.raises(ProducerFenced):
            after.send(replica, sequence=1)


async def test_what_is_forged_by_later_metadata_is_aborted(autojump_clock: MockClock) -> None:
    """Let in while the producer id was not known, and far ahead of it since: not for ever open."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        expected = cluster.leader.image.next_producer_id
        forged = Producer(expected, 20_000)
        forged.send(replica)
        owner = await open_id(cluster)
        assert owner.producer_id == expected
        await trio.sleep(AHEAD_SECONDS + 3.0)
        assert markers(replica) == [(expected, ControlType.ABORT)]
