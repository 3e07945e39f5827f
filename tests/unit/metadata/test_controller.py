"""The active controller: whom it fences, whom it takes back, whom it lets go.

Images are made by hand here; what becomes of the proposals is the simulation's business
(tests/simulation/test_controller_seeds.py).
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    NO_BROKER,
    BeginControlledShutdown,
    FenceBroker,
    ReviewPartitions,
    UnfenceBroker,
)
from raftmq.metadata.controller import (
    Controller,
    HeartbeatAnswer,
    ProbeBroker,
    ProbeOutcome,
)
from raftmq.metadata.controller.controller import TICK_SECONDS
from raftmq.metadata.controller.effects import RETRY_SECONDS
from raftmq.metadata.controller.probes import PROBE_PAUSE_SECONDS
from raftmq.metadata.image import (
    PartitionState,
    Pending,
)
from raftmq.metadata.liveness import SESSION_SECONDS, BrokerContact
from tests.unit.metadata.office import (
    FENCED,
    REFUSED,
    Office,
    broker,
    commands_in,
    image_of,
    key,
    led_by,
    with_broker,
)

# Taking office


def test_nothing_before_office() -> None:
    """A controller that has not read the state has no opinion."""
    with pytest.raises(AssertionError, match="not in office"):
        Controller().on_tick(now=0.0, image=image_of())


def test_one_term_only() -> None:
    """A new term is a new object: soft state of an old one would be wrong."""
    office = Office(image_of(broker(1)))
    with pytest.raises(AssertionError, match="one term"):
        office.controller.on_office(now=0.0, image=office.image)


def test_an_image_never_goes_back() -> None:
    """Whoever passes an older image would make it propose what was done already."""
    office = Office(image_of(broker(1)))
    with pytest.raises(AssertionError, match="image 99 after 100"):
        office.controller.on_tick(now=0.0, image=office.image._replace(version=99))


def test_office_begins_with_a_probe_of_every_broker() -> None:
    """It saw no connection break, as they ended at its predecessor; fenced brokers are done."""
    office = Office(image_of(broker(1), broker(2, fenced=True), broker(3)))
    begins_at = 1000.0 + PROBE_PAUSE_SECONDS
    assert office.first == [ProbeBroker(1, 10, begins_at), ProbeBroker(3, 30, begins_at)]


def test_a_sound_cluster_needs_nothing() -> None:
    """Two brokers heartbeat for a minute and a half, and nothing is proposed."""
    office = Office(image_of(broker(1), broker(2), partitions=[led_by(1, 2), led_by(2, 1)]))
    for _ in range(90):
        office.heartbeat(1)
        office.heartbeat(2)
        assert office.tick(1.0) == []


# Fencing


def test_a_silent_broker_is_fenced_after_a_session() -> None:
    """Nothing is heard of broker 2; it is proposed once, until there is a result."""
    office = Office(image_of(broker(1), broker(2)))
    office.heartbeat(1)
    assert office.tick(SESSION_SECONDS - 1.0) == []
    office.heartbeat(1)
    assert office.tick(1.1) == [FenceBroker(2, 20)]
    assert office.tick(1.0) == []


def test_a_proposal_that_failed_is_repeated_after_a_rest() -> None:
    """The quorum was busy: to ask again at once would keep it so."""
    office = Office(image_of(broker(1)))
    [fence] = office.tick(SESSION_SECONDS + TICK_SECONDS)
    assert office.result(fence, None) == []
    assert office.tick(RETRY_SECONDS - TICK_SECONDS) == []
    assert office.tick() == [fence]
    assert office.result(fence, REFUSED) == []
    assert office.tick(RETRY_SECONDS) == [fence]


def test_a_pause_of_the_controller_fences_nobody() -> None:
    """Its process stood still for a minute: the next tick comes before the heartbeats."""
    office = Office(image_of(broker(1)))
    assert office.tick(3.0) == []
    office.now += 60.0
    assert office.tick(SESSION_SECONDS - 3.1) == []
    assert office.tick(0.3) == [FenceBroker(1, 10)]


def test_a_dead_process_is_fenced_at_once() -> None:
    """Reset, refused, refused: no need to wait for the session."""
    office = Office(image_of(broker(1), broker(2)))
    office.heartbeat(2)
    probe = office.first[1]
    [probe] = office.probe(probe, ProbeOutcome.REFUSED)
    office.now += 0.05
    found = office.probe(probe, ProbeOutcome.REFUSED)
    assert commands_in(found) == [FenceBroker(2, 20)]


def test_what_was_heard_before_death_does_not_unfence() -> None:
    """The last heartbeat was half a second ago; only one after the verdict counts."""
    office = Office(image_of(broker(1)))
    office.heartbeat(1)
    [probe] = office.probe(office.first[0], ProbeOutcome.REFUSED)
    [fence] = commands_in(office.probe(probe, ProbeOutcome.REFUSED))
    office.image = with_broker(office.image, broker(1, fenced=True))
    assert office.result(fence) == []
    assert office.tick(1.0) == []
    office.heartbeat(1)
    assert office.tick() == [UnfenceBroker(1, 10)]


def test_a_reset_begins_a_series_of_probes() -> None:
    """The connection of a broker breaks long after the controller took office."""
    office = Office(image_of(broker(1), broker(2, fenced=True)))
    office.probe(office.first[0], ProbeOutcome.ACCEPTED)
    office.now += 20.0
    reset = office.controller.on_connection_reset
    probe = ProbeBroker(1, 10, office.now + PROBE_PAUSE_SECONDS)
    assert reset(1, now=office.now, image=office.image) == [probe]
    assert reset(1, now=office.now, image=office.image) == []
    assert reset(2, now=office.now, image=office.image) == []
    assert reset(3, now=office.now, image=office.image) == []


def test_a_verdict_on_an_incarnation_that_was_replaced() -> None:
    """The process died and is back, registered anew, before the second refusal is told."""
    office = Office(image_of(broker(1)))
    [probe] = office.probe(office.first[0], ProbeOutcome.REFUSED)
    office.image = with_broker(office.image, broker(1, broker_epoch=101))
    assert office.probe(probe, ProbeOutcome.REFUSED) == []


def test_a_frozen_disk_must_not_rule() -> None:
    """Broker 1 heartbeats, but its flush hangs: it is fenced until the disk behaved for a while."""
    office = Office(image_of(broker(1), broker(2)))
    office.heartbeat(2)
    office.heartbeat(1, pending_flush_seconds=2.1)
    [fence] = office.tick()
    assert fence == FenceBroker(1, 10)
    office.image = with_broker(office.image, broker(1, fenced=True))
    office.result(fence)
    for _ in range(4):
        office.heartbeat(1)
        office.heartbeat(2)
        assert office.tick(1.0) == []
    office.heartbeat(1)
    assert office.tick(1.0) == [UnfenceBroker(1, 10)]


def test_frozen_disks_everywhere_fence_nobody() -> None:
    """All disks stall at once: there is nobody to move leadership to."""
    office = Office(image_of(broker(1), broker(2)))
    office.heartbeat(1, pending_flush_seconds=5.0)
    office.heartbeat(2, pending_flush_seconds=5.0)
    assert office.tick() == []
    office.now += 0.5
    office.heartbeat(1, pending_flush_seconds=5.0)
    assert office.tick(4.3) == []
    office.heartbeat(2)
    assert office.tick(0.5) == [FenceBroker(1, 10)]


# Unfencing


def test_a_broker_that_caught_up_is_unfenced() -> None:
    """It registered at 10; it is told that it is fenced until it knows of that."""
    office = Office(image_of(broker(1, fenced=True)))
    assert office.heartbeat(1, metadata_version=9) == HeartbeatAnswer(
        ErrorCode.NONE, is_fenced=True
    )
    assert office.tick() == []
    office.heartbeat(1, metadata_version=10)
    assert office.tick() == [UnfenceBroker(1, 10)]


def test_a_broker_is_not_unfenced_while_it_is_under_review() -> None:
    """It is ready, but somebody may still take it for a leader of the old epoch."""
    office = Office(image_of(broker(1, **FENCED), partitions=[led_by(1)]))
    [first] = commands_in(office.first)
    office.heartbeat(1)
    assert office.tick() == []
    [finish] = office.result(first)
    office.image = with_broker(office.image, broker(1, fenced=True))
    assert office.result(finish) == [UnfenceBroker(1, 10)]


def test_whoever_becomes_active_may_lead_what_has_no_leader() -> None:
    """A broker was unfenced, by whomever: leaderless partitions that it hosts are elected."""
    partitions = [
        PartitionState((1, 2), (2,), 2),
        PartitionState((1, 2), (1,), NO_BROKER),
        PartitionState((3, 1), (3, 1), 3),
    ]
    three = broker(3, fenced=True)
    image = image_of(broker(1, fenced=True), broker(2), three, partitions=partitions)
    office = Office(image)
    [elections] = commands_in(office.first[1:])
    assert elections == ReviewPartitions(2, 20, (key(1),))
    assert office.result(elections) == []
    slots = image_of(broker(1), broker(2)).slots
    office.image = with_broker(image, broker(1))._replace(slots=slots)
    election = ReviewPartitions(1, 10, (key(1), key(2)))
    assert office.tick() == [election]
    assert office.result(election) == []
    office.heartbeat(1)
    office.heartbeat(2)
    assert office.tick(1.0) == []


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (BrokerContact(2, 20, 100), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BrokerContact(1, 9, 100), ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_a_stranger_is_told_to_register(said: BrokerContact, code: ErrorCode) -> None:
    """The broker is unknown, or a newer process has registered in its name."""
    office = Office(image_of(broker(1)))
    answer = office.controller.on_heartbeat(said, now=office.now, image=office.image)
    assert answer == HeartbeatAnswer(code)


# Controlled shutdown


def test_a_broker_stops_once_it_is_not_needed_and_all_know() -> None:
    """It asks; its leaderships are moved; everybody has seen that; then it may go."""
    office = Office(image_of(broker(1), broker(2), partitions=[led_by(1, 2)]))
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    [begin] = office.tick()
    assert begin == BeginControlledShutdown(1, 10)
    stopping = broker(1, in_controlled_shutdown=True)
    pending = replace(stopping, pending=Pending.MOVE_LEADERS, pending_since=101)
    owned = image_of(broker(2)).slots
    office.image = with_broker(office.image, pending)._replace(slots=owned)
    [review] = office.result(begin)
    assert review == ReviewPartitions(1, 10, (key(0),))
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    moved = office.image.partitions.set(key(0), PartitionState((1, 2), (2,), 2))
    office.image = office.image._replace(partitions=moved)
    [finish] = office.result(review)
    office.image = with_broker(office.image, stopping)
    assert office.result(finish) == []
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    office.heartbeat(2, metadata_version=office.image.version - 1)
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    office.heartbeat(2)
    assert office.heartbeat(1, wants_shutdown=True).may_stop is True


def test_what_nobody_else_can_lead_does_not_hold_up_a_broker() -> None:
    """A partition with one replica stays with its leader, which may stop nevertheless."""
    stopping = broker(1, in_controlled_shutdown=True)
    office = Office(image_of(stopping, broker(2), partitions=[led_by(1)]))
    office.heartbeat(2)
    assert office.heartbeat(1, wants_shutdown=True).may_stop is True


def test_what_another_could_lead_does() -> None:
    """The review is through, but a partition is led that another could lead."""
    stopping = broker(1, in_controlled_shutdown=True)
    office = Office(image_of(stopping, broker(2), partitions=[led_by(1, 2)]))
    office.heartbeat(2)
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False


def test_a_fenced_broker_may_stop_and_is_not_unfenced() -> None:
    """It wants to go before it ever came into service."""
    office = Office(image_of(broker(1, fenced=True)))
    assert office.heartbeat(1, wants_shutdown=True).may_stop is True
    assert office.tick(1.0) == []
