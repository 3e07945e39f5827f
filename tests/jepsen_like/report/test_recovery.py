"""How long a fault kept others waiting: each rule with the history that it is about."""

from __future__ import annotations

from typing import Any

import pytest

from jepsen_like.history.event import Type
from jepsen_like.report.recovery import NEVER, Recovery, recoveries_of
from tests.jepsen_like.report.histories import PARTITIONS, Pen

BEFORE = [6.0, 7.0, 8.0, 9.0]
STEADY = [9 + tenth / 10 for tenth in range(10)]


def one_fault(pen: Pen) -> Recovery:
    (found,) = recoveries_of(pen.history)
    return found


def test_until_the_first_acknowledgement() -> None:
    """Killed at 10; a send that was invoked at 12 is acknowledged at 12.5."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.fault("kill", begin=10, end=20, nodes=(2,), whom="leader")
    pen.send("a", 4, begin=12, end=12.5)
    found = one_fault(pen)
    assert (found.kind, found.whom, found.nodes) == ("kill", "leader", (2,))
    assert found.ack_seconds == 2.5


def test_what_was_under_way_does_not_count() -> None:
    """A send of before the fault may have been done by then, whenever its answer comes."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.send("a", 4, begin=9.9, end=10.1, process=5)
    pen.fault("kill", begin=10, end=20)
    pen.send("a", 5, begin=13, end=14)
    assert one_fault(pen).ack_seconds == 4


def test_the_slowest_key_counts() -> None:
    """One key goes on at once, the other after 6 seconds."""
    pen = Pen()
    for process, (key, again) in enumerate({"a": 11.0, "b": 15.0}.items()):
        pen.sends(key, BEFORE, process=process)
        pen.send(key, 9, begin=again, end=again + 1, process=process)
    pen.fault("kill", begin=10, end=20)
    assert one_fault(pen).ack_seconds == 6


@pytest.mark.parametrize("acks", [0, 1])
def test_only_full_acknowledgements_count(acks: int) -> None:
    """A leader that nobody follows any more still says yes to those who ask for little."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.fault("partition", begin=10, end=20)
    pen.send("a", 4, begin=11, end=12, acks=acks)
    pen.send("a", 5, begin=13, end=14)
    assert one_fault(pen).ack_seconds == 4


def test_a_key_that_was_silent_before_cannot_tell() -> None:
    """Its last acknowledgement is 5.5 seconds old: who knows what it had."""
    pen = Pen()
    pen.sends("a", [4.5])
    pen.fault("kill", begin=10.01, end=20)
    pen.send("a", 1, begin=15, end=16)
    found = one_fault(pen)
    assert (found.ack_seconds, found.gap_seconds) == (None, None)


def test_a_key_that_nobody_writes_to_any_more_cannot_tell() -> None:
    """It was given up by the clients, not by the brokers."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.fault("kill", begin=10, end=20)
    assert one_fault(pen).ack_seconds is None


def test_never_again() -> None:
    """Somebody tried, and nobody ever got through."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.fault("kill", begin=10, end=20)
    pen.send("a", None, begin=12, end=30, outcome=Type.INFO)
    assert one_fault(pen).ack_seconds == NEVER


def test_who_asks_late_and_is_answered_at_once_cannot_tell() -> None:
    """The key was well at 15; whether it was at 10 nobody asked."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.fault("kill", begin=10, end=20)
    pen.send("a", 4, begin=15, end=15.1)
    assert one_fault(pen).ack_seconds is None


def test_who_asks_late_and_waits_has_felt_it() -> None:
    """Asked at 12, answered at 14: the key was not well, and so since the fault."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.fault("kill", begin=10, end=20)
    pen.send("a", 4, begin=12, end=14)
    assert one_fault(pen).ack_seconds == 4


def test_a_writer_that_is_stuck_asks_all_the_time() -> None:
    """Its send of 9.9 is given up at 13, and the next one is answered at once."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.send("a", None, begin=9.9, end=13, outcome=Type.INFO, process=5)
    pen.fault("kill", begin=10, end=20)
    pen.send("a", 5, begin=13.5, end=13.6)
    assert one_fault(pen).ack_seconds == pytest.approx(3.6)


def test_the_longest_silence_within_the_fault() -> None:
    """Answers at 11 and 16 of a fault from 10 to 20: the silence between them is the longest."""
    pen = Pen()
    pen.sends("a", STEADY)
    pen.fault("partition", begin=10, end=20)
    for time in (11.0, 16.0, 25.0):
        pen.send("a", 4, begin=time - 0.1, end=time)
    assert one_fault(pen).gap_seconds == 5


def test_a_silence_ends_with_the_fault() -> None:
    """Nothing from 11 on, though somebody asked; what is silent after 20 is not of this fault."""
    pen = Pen()
    pen.sends("a", STEADY)
    pen.fault("partition", begin=10, end=20)
    pen.send("a", 4, begin=10.9, end=11)
    pen.send("a", 5, begin=11.1, end=41)
    assert one_fault(pen).gap_seconds == 9


def test_a_silence_is_counted_from_the_fault_on() -> None:
    """The only send was under way before, and stays so until after the end."""
    pen = Pen()
    pen.sends("a", STEADY)
    pen.send("a", None, begin=9.99, end=30, outcome=Type.INFO, process=5)
    pen.fault("pause", begin=10, end=14)
    assert one_fault(pen).gap_seconds == 4


def test_where_nobody_asks_nobody_is_silent() -> None:
    """The writer gave up this key at 11: the rest of the time is not held against anybody."""
    pen = Pen()
    pen.sends("a", STEADY)
    pen.fault("partition", begin=10, end=20)
    pen.send("a", 4, begin=10.9, end=11)
    assert one_fault(pen).gap_seconds == 1


def test_silence_needs_a_steady_writer() -> None:
    """A key that is written to once a second is silent most of the time."""
    pen = Pen()
    pen.sends("a", BEFORE)
    pen.fault("partition", begin=10, end=20)
    pen.send("a", 4, begin=15, end=16)
    assert one_fault(pen).gap_seconds is None


def test_until_all_are_in_sync_again() -> None:
    """Healed at 20, seen whole at 23; what was seen before the end does not count."""
    pen = Pen()
    pen.fault("kill", begin=10, end=20)
    pen.in_sync(10.1, whole=PARTITIONS)
    pen.in_sync(21, whole=2)
    pen.in_sync(23, whole=PARTITIONS)
    assert one_fault(pen).whole_seconds == 3


def test_never_whole_again() -> None:
    """The run came to its final reads, and the cluster was still not whole."""
    pen = Pen()
    pen.fault("kill", begin=10, end=20)
    pen.in_sync(21, whole=2)
    pen.phase(90, "final")
    assert one_fault(pen).whole_seconds == NEVER


def test_a_killed_run_does_not_know() -> None:
    """It might have been whole a second later."""
    pen = Pen()
    pen.fault("kill", begin=10, end=20)
    pen.in_sync(21, whole=2)
    assert one_fault(pen).whole_seconds is None


def test_a_fault_that_was_never_over_was_not_healed() -> None:
    """The run ended within it."""
    pen = Pen()
    pen.fault("kill", begin=10, end=None)
    pen.in_sync(21, whole=PARTITIONS)
    found = one_fault(pen)
    assert (found.end, found.whole_seconds) == (21, None)


def test_nobody_watched() -> None:
    """Without a watch nobody knows; the fault is clean all the same."""
    pen = Pen()
    pen.fault("kill", begin=10, end=20)
    pen.fault("kill", begin=25, end=30)
    assert [(one.whole_seconds, one.is_clean) for one in recoveries_of(pen.history)] == [
        (None, True),
        (None, True),
    ]


def test_faults_that_overlap_are_not_clean() -> None:
    """Paused while another was cut off; the third, much later, stands alone."""
    pen = Pen()
    pen.fault("partition", begin=10, end=20)
    pen.fault("pause", begin=15, end=18, nodes=(2,))
    pen.in_sync(21, whole=PARTITIONS)
    pen.fault("kill", begin=30, end=31)
    pen.in_sync(32, whole=PARTITIONS)
    found = recoveries_of(pen.history)
    assert [one.is_clean for one in found] == [False, False, True]
    assert [one.whole_seconds for one in found] == [1, None, 1]


def test_a_fault_in_the_middle_of_recovering_is_not_clean() -> None:
    """The second begins before all are in sync: so it is not clean, and the first cannot tell."""
    pen = Pen()
    pen.fault("kill", begin=10, end=20)
    pen.in_sync(21, whole=2)
    pen.fault("pause", begin=22, end=24)
    pen.in_sync(26, whole=PARTITIONS)
    first, second = recoveries_of(pen.history)
    assert (first.is_clean, first.whole_seconds) == (True, None)
    assert (second.is_clean, second.whole_seconds) == (False, 2)


def test_a_skipped_fault_disturbs_nobody() -> None:
    """It was planned and could not be done."""
    pen = Pen()
    pen.fault("partition", begin=11, end=12, skipped="no network of its own")
    pen.fault("kill", begin=10, end=20)
    assert one_fault(pen).is_clean


def test_two_of_a_kind_end_apart() -> None:
    """Two nodes are paused, and the later one goes on first: its end is its own."""
    pen = Pen()
    pen.fault("pause", begin=10, end=20, nodes=(1,))
    pen.fault("pause", begin=12, end=15, nodes=(2,))
    ends = {one.nodes: one.end for one in recoveries_of(pen.history)}
    assert ends == {(1,): 20, (2,): 15}


def test_a_part_that_was_guessed_is_told() -> None:
    """Nobody knew who leads: the node that was hit may play no part at all."""
    pen = Pen()
    value = {"nodes": [1], "whom": "leader", "guessed": True}
    pen.raw.append((1.0, "nemesis", Type.INVOKE, "kill", value, None))
    assert one_fault(pen).whom == "leader?"


@pytest.mark.parametrize("told", [{"killed": []}, {"stopped": []}, {"error": "OSError: no"}])
def test_a_fault_that_hit_nobody_is_not_clean(told: dict[str, Any]) -> None:
    """The node did not run anyway, or it went wrong: its times would be too good."""
    pen = Pen()
    pen.raw.append((1.0, "nemesis", Type.INVOKE, "kill", {"nodes": [1]}, None))
    pen.raw.append((2.0, "nemesis", Type.INFO, "kill", {"nodes": [1], **told}, None))
    assert not one_fault(pen).is_clean
