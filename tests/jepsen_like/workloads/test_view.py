"""Who leads what, out of what a broker tells of all topics."""

from __future__ import annotations

from jepsen_like.workloads.view import LiveView, Snapshot, snapshot_of
from raftmq.wire.messages.metadata import MetadataReply, PartitionMetadata, TopicMetadata

ID = bytes(16)
WELL = PartitionMetadata(0, 0, leader=2, replicas=(1, 2, 3), isr=(2, 3, 1))
BEHIND = PartitionMetadata(0, 1, leader=3, replicas=(1, 2, 3), isr=(3, 1))
GONE = PartitionMetadata(0, 2, leader=1, replicas=(1, 2), isr=(1, 2), offline=(2,))
NOT_LED = PartitionMetadata(5, 3, replicas=(1, 2), isr=(1, 2))


def reply(*partitions: PartitionMetadata, controller_id: int = 1) -> MetadataReply:
    topic = TopicMetadata(0, "all-1", ID, partitions)
    return MetadataReply(5, "c", controller_id, topics=(topic,))


def test_a_snapshot_counts_what_is_led_and_whole() -> None:
    """One is well; one has a replica behind, one a replica that is away, one no leader."""
    snapshot = snapshot_of(reply(WELL, BEHIND, GONE, NOT_LED))
    assert snapshot.leaders == {"all-1-0": 2, "all-1-1": 3, "all-1-2": 1}
    assert snapshot.told == {"partitions": 4, "led": 3, "whole": 1}
    assert not snapshot.is_whole


def test_a_view_shows_the_last_snapshot() -> None:
    """Before the first one nothing is known, and nothing is in sync."""
    view = LiveView()
    assert (view.leaders(), view.controller(), view.in_sync()) == ({}, None, False)
    view.show(snapshot_of(reply(WELL)))
    assert (view.leaders(), view.controller(), view.in_sync()) == ({"all-1-0": 2}, 1, True)
    view.show(Snapshot())
    assert view.controller() is None


def test_in_silence_nobody_counts_as_in_sync() -> None:
    """Who led is still the best guess; that all is well is none."""
    view = LiveView()
    view.show(snapshot_of(reply(WELL)))
    view.doubt()
    assert (view.leaders(), view.in_sync()) == ({"all-1-0": 2}, False)


def test_coordinators_stay_as_they_were_told_last() -> None:
    """By group; nobody at first."""
    view = LiveView()
    assert view.coordinators() == {}
    view.show_coordinators({"g": 2})
    view.doubt()
    assert view.coordinators() == {"g": 2}


def test_no_controller_is_none() -> None:
    """-1 is how a broker says it."""
    assert snapshot_of(reply(WELL, controller_id=-1)).controller is None
