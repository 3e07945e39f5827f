"""Which epoch wrote which offsets: assignments, cuts, trims and the questions of KIP-101/279."""

from __future__ import annotations

import pytest

from raftmq.partition.epochs import UNDEFINED_EPOCH, EpochEnd, EpochStart, LeaderEpochs


def table(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs.replay(EpochStart(*entry) for entry in entries)


def test_an_epoch_is_noted_once() -> None:
    """The same leader appends twice: only its first offset is an entry."""
    epochs = LeaderEpochs()
    assert epochs.assign(3, 0)
    assert not epochs.assign(3, 10)
    assert epochs.entries == [EpochStart(3, 0)]


def test_an_epoch_without_records_gives_way() -> None:
    """A leader is deposed before it appends: its successor starts at the same offset."""
    epochs = table((1, 0), (2, 10))
    epochs.assign(4, 10)
    assert epochs.entries == [EpochStart(1, 0), EpochStart(4, 10)]


def test_epochs_never_go_back() -> None:
    """An older epoch behind a newer one is a bug of the caller."""
    with pytest.raises(AssertionError):
        table((5, 0)).assign(4, 10)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (0, EpochEnd(0, 0)),  # older than all that is known: ends where the first known starts
        (1, EpochEnd(1, 10)),
        (2, EpochEnd(1, 10)),  # never led: the largest below it
        (3, EpochEnd(3, 25)),
        (5, EpochEnd(5, 40)),  # current: the log end
        (6, None),  # newer than all
    ],
)
def test_end_of(asked: int, answer: EpochEnd | None) -> None:
    """A follower asks where an epoch ended."""
    assert table((1, 0), (3, 10), (5, 25)).end_of(asked, 40) == answer


def test_end_of_in_an_empty_table() -> None:
    """A log without records knows no epoch."""
    assert LeaderEpochs().end_of(1, 0) is None
    assert LeaderEpochs().latest == UNDEFINED_EPOCH


def test_truncate_forgets_what_began_at_or_after_the_cut() -> None:
    """A diverging tail goes, and its epochs with it."""
    epochs = table((1, 0), (3, 10), (5, 25))
    epochs.truncate(25)
    assert epochs.entries == [EpochStart(1, 0), EpochStart(3, 10)]


def test_trim_moves_the_first_epoch_to_the_log_start() -> None:
    """Retention removes the oldest records: the epoch of the first kept one begins there."""
    epochs = table((1, 0), (3, 10), (5, 25))
    epochs.trim(12)
    assert epochs.entries == [EpochStart(3, 12), EpochStart(5, 25)]
    epochs.trim(12)
    assert epochs.entries == [EpochStart(3, 12), EpochStart(5, 25)]


def test_epoch_at() -> None:
    """A reader checks that a batch carries the epoch that wrote its offset."""
    epochs = table((1, 5), (3, 10))
    assert [epochs.epoch_at(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 1, 1, 3, 3]


def test_replay_understands_cuts() -> None:
    """The file is only appended to: a cut repeats the epoch that was the latest then."""
    history = [(1, 0), (5, 80), (1, 50), (6, 60)]
    assert table(*history).entries == [EpochStart(1, 0), EpochStart(6, 60)]
    assert table((1, 0), (UNDEFINED_EPOCH, 0)).entries == []
