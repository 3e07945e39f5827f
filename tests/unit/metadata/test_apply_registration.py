"""Brokers register: whose place they take, and what their disks are worth."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply import brokers
from raftmq.metadata.apply.limits import ENDPOINTS_MAX
from raftmq.metadata.commands import (
    NO_BROKER,
    AlterTopicConfig,
    AssignSlot,
    BeginControlledShutdown,
    BrokerRegistered,
    Endpoint,
    FinishReview,
    UnfenceBroker,
    UnregisterBroker,
)
from raftmq.metadata.image import EMPTY_IMAGE, ChangeKind, Pending, SlotState, TouchedKey
from raftmq.wire.bodies import ID_MAX
from tests.metadata_invariants import check
from tests.unit.metadata.brokers_back import (
    BOOT,
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
    apply_next,
    cluster,
    epoch_of,
    refusal,
)


def test_a_first_registration_starts_fenced() -> None:
    """A new broker: its epoch is the version of the command, and nothing is pending."""
    command = register(
        7, endpoints=(Endpoint("client", "host", 9092),), rack="r1", feature_level_max=3
    )
    image, result = apply_next(EMPTY_IMAGE._replace(version=41), command)
    broker = broker_of(image, 7)
    assert result == BrokerRegistered(42)
    assert (broker.broker_epoch, broker.fenced, broker.pending) == (42, True, Pending.NOTHING)
    assert (broker.endpoints, broker.rack) == (command.endpoints, "r1")
    assert (broker.boot_id, broker.feature_level_max) == (BOOT, 3)
    assert image.changes == (TouchedKey(ChangeKind.BROKER, 7),)


def test_the_same_incarnation_is_a_retry() -> None:
    """The answer was lost; the broker asks again and gets the same epoch, unfenced or not."""
    image = after(cluster(), register())
    epoch = epoch_in(image)
    image = after(image, UnfenceBroker(0, epoch))
    again, result = apply_next(image, register())
    assert result == BrokerRegistered(epoch)
    assert again.brokers is image.brokers


def test_another_incarnation_has_another_epoch() -> None:
    """The process restarted faster than its session ran out: it replaces the unfenced one."""
    image = hosting((0, 1, 2))
    image = after(image, register())
    assert epoch_in(image) == image.version > epoch_of(0)
    assert broker_of(image).fenced
    assert broker_of(image).pending == Pending.MOVE_LEADERS
    assert broker_of(image).pending_since == image.version


def test_a_shutdown_ends_with_the_next_registration() -> None:
    """The new process does not shut down."""
    image = after(cluster(stopping=(0,)), register())
    assert not broker_of(image).in_controlled_shutdown


def test_whoever_hosts_nothing_has_nothing_pending() -> None:
    """Its disk was replaced, fenced and stopped besides: there is nothing to review."""
    image = after(cluster(fenced=(0,)), register(directory_id=NEW_DISK))
    image = after(image, BeginControlledShutdown(0, epoch_in(image)))
    assert broker_of(image).pending == Pending.NOTHING
    assert broker_of(fence(cluster(), 0)).pending == Pending.NOTHING


@pytest.mark.parametrize(
    ("more", "revocation"),
    [
        ({}, Pending.NOTHING),  # killed: the page cache survives
        ({"directory_id": NEW_DISK}, Pending.REVOKE_ALL),
        ({"previous_broker_epoch": 3}, Pending.REVOKE_ALL),  # restored from a backup
        ({"previous_broker_epoch": 99}, Pending.REVOKE_ALL),  # of another cluster
        ({"previous_broker_epoch": -1, "clean_shutdown_epoch": epoch_of(0)}, Pending.REVOKE_ALL),
        ({"boot_id": "another"}, Pending.REVOKE_PAGE_CACHE),
        ({"boot_id": ""}, Pending.REVOKE_PAGE_CACHE),  # unknown
        ({"boot_id": "another", "clean_shutdown_epoch": epoch_of(0)}, Pending.NOTHING),
        ({"boot_id": "another", "clean_shutdown_epoch": 3}, Pending.REVOKE_PAGE_CACHE),
    ],
)
def test_what_a_disk_may_have_lost(more: dict[str, Any], revocation: Pending) -> None:
    """A broker that hosts something comes back: which promises does its disk keep?"""
    image = after(fence(hosting((0, 1, 2)), 0), register(**more))
    assert broker_of(image).pending == Pending.MOVE_LEADERS | revocation


def test_an_unknown_boot_is_never_the_same() -> None:
    """Neither process could tell its boot: that is no sign that the kernel lived on."""
    image = after(hosting((0, 1, 2)), register(boot_id=""))
    known = {"previous_broker_epoch": epoch_in(image), "incarnation": b"j" * 16}
    image = after(reviewed(image), register(boot_id="", **known))
    assert Pending.REVOKE_PAGE_CACHE in broker_of(image).pending


def test_what_is_pending_outlives_a_crash() -> None:
    """An emptied disk registers and crashes before its review: the revocation is not forgotten."""
    image = after(
        fence(hosting((0, 1, 2), (0, 1)), 0),
        register(directory_id=NEW_DISK, damaged=((ORDERS, 1),)),
    )
    again = register(
        incarnation=b"j" * 16,
        directory_id=NEW_DISK,
        previous_broker_epoch=epoch_in(image),
        damaged=((ORDERS, 0),),
    )
    image = after(image, again)
    assert Pending.REVOKE_ALL in broker_of(image).pending
    assert broker_of(image).damaged == ((ORDERS, 0), (ORDERS, 1))


def test_damage_elsewhere_is_not_remembered() -> None:
    """Partitions that were deleted or moved away need no review."""
    damaged = ((ORDERS, 0), (ORDERS, 0), (ORDERS, 9), (b"deleted", 0))
    image = after(hosting((0, 1, 2), (1, 2)), register(damaged=(*damaged, (ORDERS, 1))))
    assert broker_of(image).damaged == (KEY,)


def test_a_broker_must_know_the_cluster_s_feature_level() -> None:
    """Too old, or too new: it would misread the metadata."""
    image = cluster()._replace(feature_level=3)
    for low, high in ((1, 2), (4, 5)):
        problem = refusal(image, register(7, feature_level_min=low, feature_level_max=high))
        assert problem.code == ErrorCode.UNSUPPORTED_VERSION
        assert "the cluster is at 3" in problem.message


# Whose place it takes


def test_a_registration_that_comes_late_replaces_nobody() -> None:
    """It was sent before another process registered, and arrives when that one is in service."""
    late = register(incarnation=b"l" * 16, expected_broker_epoch=epoch_of(0))
    image = after(hosting((0, 1, 2)), register(expected_broker_epoch=epoch_of(0)))
    image = back(reviewed(image))
    assert refusal(image, late).code == ErrorCode.INVALID_UPDATE_VERSION
    again, result = apply_next(image, register(expected_broker_epoch=epoch_of(0)))
    assert (result, again.brokers) == (BrokerRegistered(epoch_in(image)), image.brokers)


def test_a_first_registration_may_expect_nobody() -> None:
    """-1: there is none under this id. There is one: somebody else was given the same id."""
    assert broker_of(after(cluster(), register(7, expected_broker_epoch=-1)), 7).fenced
    problem = refusal(cluster(), register(expected_broker_epoch=-1))
    assert problem.code == ErrorCode.INVALID_UPDATE_VERSION
    assert f"under epoch {epoch_of(0)}" in problem.message


def test_another_machine_does_not_take_the_place_of_one_in_service() -> None:
    """A second machine was given the id of a healthy broker: nothing of that one is revoked."""
    image = hosting((0,))
    foreign = register(directory_id=NEW_DISK, previous_broker_epoch=-1)
    problem = refusal(image, foreign)
    assert problem.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    for part in (
        "another process is broker 0",
        NEW_DISK.hex(),
        "another node.id, or stop the other",
    ):
        assert part in problem.message
    assert Pending.REVOKE_ALL in broker_of(after(fence(image, 0), foreign)).pending


@pytest.mark.parametrize("leave", [register(), UnregisterBroker(0, epoch_of(0))])
def test_slots_are_given_up_with_the_process(leave: Any) -> None:
    """Its successor has none of what it knew of its groups: a slot of before is nobody's."""
    image = after(cluster(), AssignSlot(5, 0, 0), AssignSlot(6, 0, 1), leave)
    assert image.slots[5:7] == (SlotState(NO_BROKER, 2), SlotState(1, 1))
    assert TouchedKey(ChangeKind.SLOT, 5) in image.changes


# What its disk is worth


def test_killed_before_the_epoch_was_written_down() -> None:
    """All three are killed right after their registration: their disks know the epoch before."""
    image = hosting((0, 1, 2))
    image = reviewed(reviewed(reviewed(fence(image, 0, 1, 2), 0), 1), 2)
    for life in (b"1", b"2", b"3"):
        for broker_id in range(3):
            image = reviewed(after(image, register(broker_id, incarnation=life * 16)), broker_id)
    for broker_id in range(3):
        image = back(image, broker_id)
    state = partition_of(image)
    assert state.leader != NO_BROKER
    assert not state.recovery_state


def test_an_epoch_that_was_never_in_service_is_good_enough() -> None:
    """Registered and written down, then registered and killed: nothing was promised in between."""
    image = fence(hosting((0, 1, 2)), 0)
    image = after(image, register(incarnation=b"1" * 16))
    written = epoch_in(image)
    image = after(image, register(incarnation=b"2" * 16))
    known = {"incarnation": b"3" * 16, "previous_broker_epoch": written}
    assert broker_of(after(image, register(**known))).pending == Pending.MOVE_LEADERS


def test_a_copy_from_before_the_last_service_is_old() -> None:
    """In service again under a new epoch, then restored from a backup of the epoch before."""
    image = back(reviewed(after(hosting((0, 1, 2)), register())))
    assert broker_of(image).disk_epoch == epoch_in(image)
    restored = register(incarnation=b"r" * 16, previous_broker_epoch=epoch_of(0))
    assert Pending.REVOKE_ALL in broker_of(after(image, restored)).pending


def test_the_mark_of_another_process_is_not_believed() -> None:
    """A process stops cleanly that never registered: whoever did register was not stopped so."""
    image = hosting((0,), durability="page_cache")
    command = register(boot_id="another", clean_shutdown_epoch=-1)
    assert Pending.REVOKE_PAGE_CACHE in broker_of(after(image, command)).pending


@pytest.mark.parametrize("first", ["page_cache", "fsync"])
def test_a_topic_that_trusted_the_page_cache_once_is_not_trusted_later(first: str) -> None:
    """Its durability is `fsync` by now; what it acknowledged before may be lost all the same."""
    image = hosting((0,), durability=first)
    image = after(image, AlterTopicConfig(ORDERS, {"durability": "page_cache"}))
    image = after(image, AlterTopicConfig(ORDERS, {"durability": "fsync"}))
    image = after(image, AlterTopicConfig(ORDERS, {"durability": None}))
    image = reviewed(after(image, register(boot_id="another")))
    assert (partition_of(image).eligible, partition_of(image).last_known_eligible) == ((), (0,))


def test_a_topic_begins_to_trust_the_page_cache_under_a_review() -> None:
    """The review that is pending counts the partition from then on."""
    image = reviewed(fence(hosting((0,)), 0))
    image = after(image, register(boot_id="another"))
    image = after(image, AlterTopicConfig(ORDERS, {"durability": "page_cache"}))
    check(image)
    finish = FinishReview(0, epoch_in(image), broker_of(image).pending_since)
    assert "1 partitions" in refusal(image, finish).message
    assert partition_of(reviewed(image)).eligible == ()


# Damage


def test_a_retry_may_tell_of_more_damage() -> None:
    """The answer was lost, and meanwhile recovery found another damaged partition."""
    image = after(hosting((0,), (0,)), register(damaged=((ORDERS, 0),)))
    epoch = epoch_in(image)
    image = reviewed(image)
    image, result = apply_next(image, register(damaged=((ORDERS, 0), (ORDERS, 1))))
    assert result == BrokerRegistered(epoch)
    assert broker_of(image).pending_since == image.version
    image = reviewed(image)
    assert partition_of(image, 1).eligible == ()


def test_an_echo_of_the_registration_revokes_nothing() -> None:
    """The command comes a second time, when the replica was repaired and serves again."""
    command = register(damaged=((ORDERS, 0),))
    image = back(reviewed(after(hosting((0, 1)), command)))
    assert after(image, command).brokers is image.brokers


def test_whoever_lost_too_much_is_trusted_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """More damaged partitions than are listed: all of them count as lost."""
    monkeypatch.setattr(brokers, "DAMAGED_MAX", 3)
    image = hosting(*[(0,)] * 5)
    damaged = tuple(sorted(image.hosted_by(0)))[:4]
    some = after(image, register(damaged=damaged[1:]))
    assert broker_of(some).damaged == damaged[1:]
    image = after(image, register(damaged=damaged))
    assert Pending.REVOKE_ALL in broker_of(image).pending
    assert broker_of(image).damaged == ()


# Bounds


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"incarnation": b"i" * 15}, "incarnation of 15 bytes"),
        ({"directory_id": b"d" * 17}, "directory id of 17 bytes"),
        ({"boot_id": "b" * 256}, "boot id of 256 characters, at most 255"),
        ({"rack": "r" * 256}, "rack of 256 characters"),
        ({"endpoints": (Endpoint("l", "h", 1),) * (ENDPOINTS_MAX + 1)}, "33 endpoints, at most 32"),
        ({"endpoints": (Endpoint("l" * 256, "h", 1),)}, "listener of 256"),
        ({"endpoints": (Endpoint("l", "h" * 256, 1),)}, "host of 256"),
        ({"endpoints": (Endpoint("l", "h", 65_536),)}, "port 65536"),
    ],
)
def test_what_is_kept_of_a_broker_is_bounded(more: dict[str, Any], message: str) -> None:
    """Every node holds it for as long as the broker is registered."""
    problem = refusal(cluster(), register(7, **more))
    assert problem.code == ErrorCode.INVALID_REQUEST
    assert message in problem.message


@pytest.mark.parametrize("broker_id", [-1, ID_MAX + 1])
def test_ids_of_brokers_have_a_range(broker_id: int) -> None:
    """Negative numbers mean nobody; the others must fit whatever carries them."""
    problem = refusal(cluster(), replace(register(), broker_id=broker_id))
    assert "ids are 0 to" in problem.message
