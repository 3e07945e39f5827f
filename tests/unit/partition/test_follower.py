"""A follower's rules: when it asks, what it believes, where it cuts."""

from __future__ import annotations

import pytest

from raftmq.partition.epochs import EpochStart, LeaderEpochs
from raftmq.partition.follower import Follower
from raftmq.partition.leader import (
    Assignment,
    Diverged,
    FetchFromLeader,
    HighWatermarkRose,
    Leader,
    StartOver,
    Truncate,
)


def a_follower(high_watermark: int = 0) -> Follower:
    return Follower(1, 5, high_watermark=high_watermark, answer_seconds_max=1.0)


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs.replay(EpochStart(*entry) for entry in entries)


def test_one_fetch_at_a_time() -> None:
    """It asks again when the answer is late, with another token."""
    follower = a_follower()
    assert follower.next_fetch(3, 2, now=0.0) == FetchFromLeader(1, 3, 2)
    assert follower.next_fetch(3, 2, now=0.9) is None
    assert follower.next_fetch(3, 2, now=1.0) == FetchFromLeader(2, 3, 2)


def test_an_answer_is_accepted_once() -> None:
    """Late ones and doubles are dropped."""
    follower = a_follower()
    follower.next_fetch(0, -1, now=0.0)
    follower.next_fetch(0, -1, now=1.0)
    assert not follower.accepts(1)
    assert follower.accepts(2)
    assert not follower.accepts(2)


def test_the_high_watermark_is_bounded_by_the_log() -> None:
    """The leader is ahead; what is not here is not known to be committed here."""
    follower = a_follower()
    assert follower.on_appended(9, log_end_offset=4) == [HighWatermarkRose(4)]
    assert follower.on_appended(3, log_end_offset=4) == []
    assert follower.high_watermark == 4


def test_it_agrees_only_after_an_answer() -> None:
    """Before, and after it was told to cut, it must not tell what it holds."""
    follower = a_follower()
    assert not follower.agrees
    follower.on_appended(0, log_end_offset=4)
    assert follower.agrees
    follower.cut(Diverged(1, 2), epochs((1, 0)), log_start_offset=0, log_end_offset=4)
    assert not follower.agrees


@pytest.mark.parametrize(
    ("diverged", "own", "expected"),
    [
        (Diverged(2, 6), ((2, 0),), 6),  # the same epoch is longer here
        (Diverged(2, 9), ((2, 0), (3, 7)), 7),  # shorter here, another one follows
        (Diverged(2, 9), ((1, 0), (3, 5)), 5),  # not known here
        (Diverged(4, 5), ((1, 0), (3, 5)), 5),  # newer than all that is here
        (Diverged(1, 3), ((3, 0),), 0),  # older than all that is here
    ],
)
def test_it_cuts_where_the_logs_may_agree(
    diverged: Diverged, own: tuple[tuple[int, int], ...], expected: int
) -> None:
    """The smaller of the two ends of the epoch."""
    follower = a_follower(high_watermark=1)
    action = follower.cut(diverged, epochs(*own), log_start_offset=0, log_end_offset=10)
    assert action == Truncate(expected)
    assert follower.high_watermark == min(1, expected)


def test_a_log_that_begins_behind_the_divergence_begins_anew() -> None:
    """It must get what the leader has from its start, and not only from where they part."""
    follower = a_follower(high_watermark=60)
    action = follower.cut(Diverged(1, 20), epochs((3, 50)), log_start_offset=50, log_end_offset=70)
    assert action == StartOver(0)
    assert follower.high_watermark == 0


def test_it_starts_over_where_the_leader_begins() -> None:
    """Retention was faster; a late word of that changes nothing."""
    follower = a_follower()
    assert follower.start_over(5, log_end_offset=5) is None
    assert follower.start_over(8, log_end_offset=5) == StartOver(8)
    assert follower.high_watermark == 8


def test_logs_of_many_epochs_meet_in_several_steps() -> None:
    """KIP-279: each took turns to lead alone; question and answer end where they really agree."""
    theirs, their_end = epochs((1, 0), (3, 10), (6, 30)), 40
    mine, my_end = epochs((1, 0), (2, 8), (4, 15), (5, 25)), 35
    leader = Leader(
        1,
        Assignment(1, 6, 9, (1, 2), (1,), 1),
        log_end_offset=their_end,
        held_end_offset=their_end,
        high_watermark=0,
        lag_seconds_max=1.0,
        epoch_of=lambda _: 1,
        now=0.0,
    )
    follower, steps = a_follower(), 0
    while (diverged := leader.divergence(mine.latest, my_end, theirs)) is not None:
        action = follower.cut(diverged, mine, log_start_offset=0, log_end_offset=my_end)
        assert isinstance(action, Truncate)
        assert action.offset < my_end, "each step cuts something"
        my_end, steps = action.offset, steps + 1
        mine.truncate(my_end)
    assert (my_end, mine.entries) == (8, [EpochStart(1, 0)])
    assert steps == 2
