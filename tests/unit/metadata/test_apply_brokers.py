"""Brokers come, go and come back; what that does to their partitions, slice by slice."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    NO_BROKER,
    BeginControlledShutdown,
    DeleteTopic,
    Done,
    FenceBroker,
    FinishReview,
    RecoveryState,
    ReviewPartitions,
    UnfenceBroker,
    UnregisterBroker,
)
from raftmq.metadata.image import ChangeKind, Pending, TouchedKey
from tests.metadata_invariants import check
from tests.unit.metadata.brokers_back import (
    KEY,
    NEW_DISK,
    back,
    broker_of,
    epoch_in,
    fence,
    hosting,
    partition_of,
    register,
    reviewed,
)
from tests.unit.metadata.states import (
    ORDERS,
    after,
    answer,
    apply_next,
    create,
    epoch_of,
    refusal,
)

# Epochs


@pytest.mark.parametrize(
    "command",
    [
        FenceBroker(0, 1),
        UnfenceBroker(0, 1),
        BeginControlledShutdown(0, 1),
        UnregisterBroker(0, 1),
        ReviewPartitions(0, 1, ((ORDERS, 0),)),
        FinishReview(0, 1, -1),
    ],
)
def test_every_command_names_its_registration(command: Any) -> None:
    """A command about an earlier process, or about nobody, changes nothing."""
    image = hosting((0, 1, 2))
    assert refusal(image, command).code == ErrorCode.STALE_BROKER_EPOCH
    stranger = replace(command, broker_id=9)
    assert refusal(image, stranger).code == ErrorCode.BROKER_ID_NOT_REGISTERED


# Fencing


def test_fencing_marks_the_broker_and_touches_no_partition() -> None:
    """A hundred thousand partitions follow in slices; the mark is one small command."""
    image = hosting((0, 1, 2), (1, 0))
    fenced = fence(image, 0)
    assert broker_of(fenced).fenced
    assert broker_of(fenced).pending == Pending.MOVE_LEADERS
    assert broker_of(fenced).pending_since == fenced.version
    assert fenced.partitions is image.partitions
    again, result = apply_next(fenced, FenceBroker(0, epoch_in(fenced)))
    assert (result, again.brokers) == (Done(), fenced.brokers)


def test_a_review_moves_leaders_and_shrinks_isrs() -> None:
    """After its review a fenced broker leads nothing and is in no ISR."""
    image = reviewed(fence(hosting((0, 1, 2), (1, 0)), 0))
    first, second = partition_of(image, 0), partition_of(image, 1)
    assert (first.leader, first.isr, first.leader_epoch) == (1, (1, 2), 1)
    assert (second.leader, second.isr, second.leader_epoch) == (1, (1,), 0)
    assert second.eligible == (0,)  # below min ISR
    assert broker_of(image).pending == Pending.NOTHING


def test_a_slice_is_a_slice() -> None:
    """Only what it names changes; what is gone or hosted elsewhere needs nothing."""
    image = fence(hosting((0, 1), (0, 2), (1, 2)), 0)
    names = ((ORDERS, 0), (ORDERS, 2), (ORDERS, 9), (b"deleted", 0), (ORDERS, 0))
    command = ReviewPartitions(0, epoch_of(0), names)
    sliced = after(image, command)
    assert sliced.changes == (TouchedKey(ChangeKind.PARTITION, KEY),)
    assert (partition_of(sliced, 0).leader, partition_of(sliced, 1).leader) == (1, 0)
    assert after(sliced, command).changes == ()


def test_unfencing_waits_for_the_review() -> None:
    """A broker that is unfenced while it stands as leader would go on in an epoch of before."""
    image = fence(hosting((0, 1, 2)), 0)
    assert "finish it first" in refusal(image, UnfenceBroker(0, epoch_of(0))).message
    image = back(reviewed(image))
    assert image.is_active(0)
    assert answer(image, UnfenceBroker(0, epoch_of(0))) == Done()


def test_a_review_that_was_overtaken_is_not_finished() -> None:
    """Fenced again, or registered, in the middle: what was reviewed before does not count."""
    image = fence(hosting((0, 1, 2)), 0)
    since = broker_of(image).pending_since
    image = after(image, BeginControlledShutdown(0, epoch_of(0)))
    problem = refusal(image, FinishReview(0, epoch_of(0), since))
    assert problem.code == ErrorCode.INVALID_UPDATE_VERSION


def test_a_review_that_missed_something_is_not_finished() -> None:
    """One of two partitions was not reviewed: the fenced broker is still in its ISR."""
    image = fence(hosting((0, 1), (0, 2)), 0)
    image = after(image, ReviewPartitions(0, epoch_of(0), ((ORDERS, 0),)))
    finish = FinishReview(0, epoch_of(0), broker_of(image).pending_since)
    assert "1 partitions" in refusal(image, finish).message
    image = after(image, ReviewPartitions(0, epoch_of(0), ((ORDERS, 1),)), finish)
    assert answer(image, finish) == Done()


def test_an_eligible_replica_with_a_lost_disk_is_not_missed_either() -> None:
    """It is out of every ISR, but would be elected: its review is not over."""
    image = reviewed(fence(hosting((0, 1)), 0))
    image = after(image, register(directory_id=NEW_DISK))
    finish = FinishReview(0, epoch_in(image), broker_of(image).pending_since)
    refusal(image, finish)
    assert partition_of(reviewed(image)).eligible == ()


# Coming back


def test_a_registration_raises_the_leader_epoch_of_the_only_candidate() -> None:
    """The one replica restarts: leaderless while it is fenced, then led again, later in epochs."""
    image = reviewed(after(hosting((0,)), register()))
    assert (partition_of(image).leader, partition_of(image).leader_epoch) == (NO_BROKER, 1)
    image = back(image)
    assert (partition_of(image).leader, partition_of(image).leader_epoch) == (0, 2)
    assert partition_of(image).recovery_state == RecoveryState.RECOVERED


def test_kill_9_of_all_nodes_keeps_every_partition_electable() -> None:
    """All three processes die and come back; nothing was lost below a durable checkpoint."""
    image = hosting((0, 1, 2), (1, 2, 0), (2,), durability="page_cache")
    for broker_id in range(3):
        image = reviewed(after(image, register(broker_id)), broker_id)
    assert all(state.leader == NO_BROKER for state in image.partitions.values())
    for broker_id in range(3):
        image = back(image, broker_id)
    assert all(state.leader != NO_BROKER for state in image.partitions.values())
    assert all(not state.recovery_state for state in image.partitions.values())


def test_a_power_cut_revokes_only_what_trusts_the_page_cache() -> None:
    """Another boot: a durable topic keeps its eligible replica, the other one does not."""
    lost = reviewed(after(hosting((0,), durability="page_cache"), register(boot_id="another")))
    kept = reviewed(after(hosting((0,)), register(boot_id="another")))
    assert (partition_of(lost).eligible, partition_of(lost).last_known_eligible) == ((), (0,))
    assert partition_of(kept).eligible == (0,)
    assert partition_of(back(lost)).recovery_state == RecoveryState.RECOVERING
    assert partition_of(back(kept)).recovery_state == RecoveryState.RECOVERED


@pytest.mark.parametrize("more", [{"directory_id": NEW_DISK}, {"damaged": ((ORDERS, 0),)}])
def test_a_replica_that_lost_records_is_not_elected(more: dict[str, Any]) -> None:
    """The only replica lost synced records: nobody leads until an operator says so."""
    image = back(reviewed(after(fence(hosting((0,), (1,)), 0), register(**more))))
    state = partition_of(image)
    assert (state.leader, state.isr, state.eligible) == (NO_BROKER, (), ())
    assert broker_of(image).damaged == ()


@pytest.mark.parametrize("unclean", ["true", "false"])
def test_a_topic_may_allow_unclean_elections(unclean: str) -> None:
    """Broker 2 fell out of the ISR, the others are gone: it leads only if its topic says so."""
    image = hosting((0, 1, 2), unclean_leader_election_enable=unclean)
    image = back(reviewed(fence(image, 2), 2), 2)
    image = reviewed(reviewed(fence(image, 0, 1), 0), 1)
    state = partition_of(image)
    if unclean == "true":
        assert (state.leader, state.isr, state.eligible) == (2, (2,), ())
        assert state.recovery_state == RecoveryState.RECOVERING
    else:
        assert (state.leader, state.isr, state.eligible) == (NO_BROKER, (), (0, 1))


# Shutting down


def test_a_controlled_shutdown_moves_leaders_and_stays_unfenced() -> None:
    """Leaders go first; the broker follows on, but no ISR counts on it."""
    image = hosting((0, 1, 2), (1, 0, 2))
    command = BeginControlledShutdown(0, epoch_of(0))
    image = after(image, command)
    assert broker_of(image).pending == Pending.MOVE_LEADERS
    assert image.is_unfenced(0)
    assert not image.is_active(0)
    assert after(image, command).brokers is image.brokers
    image = reviewed(image)
    assert [partition_of(image, n).leader for n in (0, 1)] == [1, 1]
    assert all(0 not in partition_of(image, n).isr for n in (0, 1))


def test_the_last_in_sync_serves_until_it_stops() -> None:
    """Nobody could take over: it leads until it is fenced, and is eligible then."""
    image = reviewed(after(hosting((0,)), BeginControlledShutdown(0, epoch_of(0))))
    assert partition_of(image).leader == 0
    image = reviewed(fence(image, 0))
    assert (partition_of(image).leader, partition_of(image).eligible) == (NO_BROKER, (0,))


# Going for good


def test_a_broker_that_hosts_something_is_not_forgotten() -> None:
    """Its replicas have to go elsewhere first."""
    image = hosting((0, 1), (1, 2))
    assert "hosts 1 partitions" in refusal(image, UnregisterBroker(0, epoch_of(0))).message
    image = after(image, DeleteTopic(ORDERS), UnregisterBroker(0, epoch_of(0)))
    assert 0 not in image.brokers
    check(image)


def test_the_version_of_a_broker_is_kept_and_cut() -> None:
    """Operators see which version each broker runs; a text that is too long is cut, as a refusal
    would be one on new nodes alone."""
    image = after(hosting((0, 1)), register(software_version="1" * 300))
    assert broker_of(image).software_version == "1" * 255


def test_what_older_brokers_do_not_send_decides_nothing() -> None:
    """Nodes of an earlier version do not keep a broker's version and its limit of logs: what comes
    after its registration has the same outcome with and without them."""
    images = []
    for more in ({}, {"software_version": "x", "logs_max": 1}):
        image = after(hosting((0, 1, 2), (1, 0)), register(**more))
        image = reviewed(fence(reviewed(image), 0))
        image = after(
            image,
            UnfenceBroker(0, epoch_in(image)),
            create((0,), name="more", topic_id=b"more" * 4),
        )
        image = after(image, BeginControlledShutdown(0, epoch_in(image)))
        without = replace(broker_of(image), software_version="", logs_max=0)
        images.append(image._replace(brokers=image.brokers.set(0, without)))
    assert images[0] == images[1]
