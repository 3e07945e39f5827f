"""What changed between two images, and what a broker does about it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.commands import NO_BROKER, PartitionId
from raftmq.metadata.delta import (
    BecomeFollower,
    BecomeLeader,
    ChangeLog,
    LetGo,
    MetadataDelta,
    duties,
)
from raftmq.metadata.image import (
    EMPTY_IMAGE,
    ChangeKind,
    MetadataImage,
    PartitionState,
    SlotState,
    TopicState,
    TouchedKey,
)
from tests.unit.metadata.random_images import BROKERS, random_image
from tests.unit.metadata.states import broker

if TYPE_CHECKING:
    from raftmq.metadata.delta import Duty

TOPIC = b"t" * 16
KEY = PartitionId(TOPIC, 0)
STATE = PartitionState((1, 2, 3), (1, 2, 3), leader=1, leader_epoch=4, partition_epoch=9)


def image_with_slots(version: int, *slots: int, base: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    draft = Draft(base, version)
    for slot in slots:
        draft.put_slot(slot, SlotState(1, version))
    return draft.finish()


def image_with(
    state: PartitionState | None, *, version: int, base: MetadataImage = EMPTY_IMAGE
) -> MetadataImage:
    """One topic with one partition in this state; None: it is deleted."""
    draft = Draft(base, version)
    for broker_id in range(1, 5):
        if draft.broker(broker_id) is None:
            draft.put_broker(broker(broker_id))
    topic = TopicState(TOPIC, "orders", 1)
    if state is not None:
        draft.put_topic(topic)
        draft.put_partition(KEY, state)
    elif draft.partition(KEY) is not None:
        draft.remove_partition(KEY)
        draft.remove_topic(topic)
    return draft.finish()


def changed(**fields: object) -> PartitionState:
    return msgspec.structs.replace(STATE, partition_epoch=10, **fields)


def complete(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    return MetadataDelta(before.version, after, frozenset(after.changes), is_complete=True)


def incomplete(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    return MetadataDelta(before.version, after, frozenset(), is_complete=False)


def both_ways(
    was: PartitionState | None, now: PartitionState | None, *, broker_id: int
) -> tuple[Duty, ...]:
    """The duties, which are the same whether the delta is complete or not."""
    before = image_with(was, version=5)
    after = image_with(now, version=6, base=before)
    found = duties(complete(before, after), broker_id, before)
    assert duties(incomplete(before, after), broker_id, before) == found
    return found


# ChangeLog


def test_a_delta_holds_what_was_touched_since() -> None:
    """Steps at 3, 5 and 9: what is asked for decides which of them count."""
    log, image = ChangeLog(), EMPTY_IMAGE
    for version, slot in ((3, 30), (5, 50), (9, 90 % 64)):
        image = image_with_slots(version, slot, base=image)
        log.add(image)
    touched = {0: {30, 50, 26}, 2: {30, 50, 26}, 3: {50, 26}, 4: {50, 26}, 8: {26}, 9: set()}
    for since, slots in touched.items():
        delta = log.since(since, image)
        assert delta == MetadataDelta(
            since, image, frozenset(TouchedKey(ChangeKind.SLOT, slot) for slot in slots), True
        )


def test_what_is_forgotten_makes_a_delta_incomplete() -> None:
    """Of three steps of two things, a log of five things remembers the last two."""
    log, image = ChangeLog(changes_max=5), EMPTY_IMAGE
    for version in (1, 2, 3):
        image = image_with_slots(version, version, version + 10, base=image)
        log.add(image)
    assert log.since(0, image) == MetadataDelta(0, image, frozenset(), is_complete=False)
    assert log.since(1, image).is_complete
    assert len(log.since(1, image).changes) == 4


def test_a_step_larger_than_the_log_is_forgotten_at_once() -> None:
    """Only who has seen the image that it made knows everything."""
    log = ChangeLog(changes_max=2)
    image = image_with_slots(1, 1, 2, 3)
    log.add(image)
    assert not log.since(0, image).is_complete
    assert log.since(1, image) == MetadataDelta(1, image, frozenset(), is_complete=True)


def test_steps_that_touch_nothing_cost_nothing() -> None:
    """Refused commands raise the version only."""
    log = ChangeLog(changes_max=1)
    log.add(image_with_slots(1, 1))
    for version in range(2, 100):
        log.add(image_with_slots(version))
    delta = log.since(0, image_with_slots(99))
    assert delta.is_complete
    assert delta.changes == {TouchedKey(ChangeKind.SLOT, 1)}


def test_a_snapshot_forgets_everything() -> None:
    """After a reset only what came later is known."""
    log = ChangeLog()
    log.add(image_with_slots(1, 1))
    image = image_with_slots(50, 1, 2)
    log.reset(image)
    assert not log.since(1, image).is_complete
    assert log.since(50, image).is_complete
    image = image_with_slots(51, 7, base=image)
    log.add(image)
    assert log.since(50, image).changes == {TouchedKey(ChangeKind.SLOT, 7)}


def test_somebody_from_the_future_learns_nothing() -> None:
    """Asked for what follows a version that this node has not reached."""
    log = ChangeLog()
    assert not log.since(1, EMPTY_IMAGE).is_complete


def test_versions_only_rise() -> None:
    """The same image twice is a bug of the caller, as is one that was not added."""
    log = ChangeLog()
    image = image_with_slots(1, 1)
    with pytest.raises(AssertionError, match="asked at 1, not 0"):
        log.since(0, image)
    log.add(image)
    with pytest.raises(AssertionError, match="1 after 1"):
        log.add(image)


# Duties


def test_a_new_partition_is_led_and_followed() -> None:
    """The topic is created: its leader leads, its replicas follow, others do nothing."""
    assert both_ways(None, STATE, broker_id=1) == (BecomeLeader(KEY, STATE),)
    assert both_ways(None, STATE, broker_id=2) == (BecomeFollower(KEY, STATE),)
    assert both_ways(None, STATE, broker_id=4) == ()


def test_nothing_happens_where_no_epoch_changed() -> None:
    """The command touched the partition and left it as it was."""
    for broker_id in (1, 2, 4):
        assert both_ways(STATE, STATE, broker_id=broker_id) == ()


def test_another_isr_is_told_to_leader_and_followers() -> None:
    """The leader epoch stays: whoever led goes on, with the new ISR."""
    now = changed(isr=(1, 2))
    assert both_ways(STATE, now, broker_id=1) == (BecomeLeader(KEY, now),)
    assert both_ways(STATE, now, broker_id=3) == (BecomeFollower(KEY, now),)


def test_leadership_moves() -> None:
    """The old leader follows, the new one leads."""
    now = changed(leader=2, leader_epoch=5, isr=(2, 3))
    assert both_ways(STATE, now, broker_id=1) == (BecomeFollower(KEY, now),)
    assert both_ways(STATE, now, broker_id=2) == (BecomeLeader(KEY, now),)


@pytest.mark.parametrize("base", [EMPTY_IMAGE, None], ids=["fresh process", "knows more"])
def test_nobody_leads_on_in_an_epoch_of_before_its_restart(base: MetadataImage | None) -> None:
    """Broker 1 registered anew, its review is to come: the image still names it as the leader."""
    before = image_with(STATE, version=5)
    draft = Draft(before, 6)
    draft.put_broker(broker(1, epoch=6, fenced=True))
    draft.put_partition(KEY, changed())
    after = draft.finish()
    since = before if base is None else base
    waiting = changed(leader=NO_BROKER)
    for delta in (complete(since, after), incomplete(since, after)):
        assert duties(delta, 1, since) == (BecomeFollower(KEY, waiting),)
    assert duties(incomplete(since, after), 2, since) == (BecomeFollower(KEY, changed()),)


def test_a_partition_without_a_leader_is_followed() -> None:
    """Its old leader stops leading and waits."""
    now = changed(leader=NO_BROKER, leader_epoch=5)
    assert both_ways(STATE, now, broker_id=1) == (BecomeFollower(KEY, now),)


def test_replicas_come_and_go() -> None:
    """A reassignment from 1, 2, 3 to 2, 3, 4 with leader 2."""
    now = changed(replicas=(2, 3, 4), isr=(2, 3), leader=2, leader_epoch=5)
    assert both_ways(STATE, now, broker_id=1) == (LetGo(KEY),)
    assert both_ways(STATE, now, broker_id=4) == (BecomeFollower(KEY, now),)


def test_a_deleted_partition_is_let_go_by_its_replicas() -> None:
    """A broker that was no replica has nothing to let go."""
    assert both_ways(STATE, None, broker_id=1) == (LetGo(KEY),)
    assert both_ways(STATE, None, broker_id=3) == (LetGo(KEY),)
    assert both_ways(STATE, None, broker_id=4) == ()


def test_an_older_image_asks_for_nothing() -> None:
    """A node that lags behind does not know the partition: it is not let go, nor demoted."""
    before = image_with(STATE, version=5)
    lagging = image_with(None, version=4)._replace(changes=before.changes)
    assert duties(incomplete(before, lagging), 1, before) == ()
    assert duties(complete(before, lagging), 1, before) == ()
    assert duties(incomplete(before, before), 1, before) == ()


def test_a_delta_with_a_gap_is_not_believed() -> None:
    """It begins after the image that the broker acted upon: everything is compared."""
    before = image_with(STATE, version=5)
    after = image_with(None, version=9, base=before)
    gap = MetadataDelta(8, after, frozenset(), is_complete=True)
    assert duties(gap, 1, before) == (LetGo(KEY),)


def test_duties_come_in_the_order_of_partitions() -> None:
    """Sets have no order of their own; simulations need the same one every time."""
    draft = Draft(EMPTY_IMAGE, 1)
    draft.put_broker(broker(1))
    for number in range(50):
        draft.put_partition(PartitionId(TOPIC, number), STATE)
    image = draft.finish()
    found = duties(complete(EMPTY_IMAGE, image), 1, EMPTY_IMAGE)
    assert [duty.partition_id.partition for duty in found] == list(range(50))


@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_a_complete_delta_says_what_a_full_comparison_says(seed: int, changes_max: int) -> None:
    """Through random images, whatever the log forgot: the duties from any of them to the last."""
    random, log = Random(seed), ChangeLog(changes_max=changes_max)
    images = [EMPTY_IMAGE]
    for _ in range(4):
        images.append(random_image(random, base=images[-1], steps=4))
        log.add(images[-1])
    after = images[-1]
    for before in images:
        delta = log.since(before.version, after)
        for broker_id in BROKERS:
            found = duties(delta, broker_id, before)
            assert found == duties(incomplete(before, after), broker_id, before)
            assert_they_lead_to(after, broker_id, before=before, found=found)


def assert_they_lead_to(
    after: MetadataImage, broker_id: int, *, before: MetadataImage, found: tuple[Duty, ...]
) -> None:
    """Whoever hosted what `before` says, and does its duties, hosts what `after` says; but nobody
    is told to lead while it is fenced.
    """
    hosted = {key: before.partitions[key] for key in before.hosted_by(broker_id)}
    is_fenced = not after.is_unfenced(broker_id)
    for duty in found:
        if isinstance(duty, LetGo):
            del hosted[duty.partition_id]
        else:
            assert isinstance(duty, BecomeLeader) == (duty.state.leader == broker_id)
            hosted[duty.partition_id] = after.partitions[duty.partition_id]
            leader = hosted[duty.partition_id].leader
            must_wait = leader == broker_id and is_fenced
            assert duty.state.leader == (NO_BROKER if must_wait else leader)
    assert hosted == {key: after.partitions[key] for key in after.hosted_by(broker_id)}
