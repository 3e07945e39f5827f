"""What a leader believes of a follower: how far it is, what it holds, since when it lags."""

from __future__ import annotations

from raftmq.partition.leader import NEVER, FollowerProgress


def fetched(offset: int = 10, *, broker_epoch: int = 5) -> FollowerProgress:
    progress = FollowerProgress(caught_up_at=NEVER)
    progress.on_fetch(broker_epoch, offset)
    return progress


def test_nothing_is_known_before_the_first_fetch() -> None:
    """A new leader has heard of nobody."""
    progress = FollowerProgress(caught_up_at=0.0)
    assert not progress.has_fetched
    assert (progress.fetch_offset, progress.held_offset) == (0, 0)


def test_held_is_bounded_by_the_fetch() -> None:
    """Word of what it holds overtakes its fetch: what was not shown to agree does not count."""
    progress = fetched(10)
    progress.on_held(15)
    assert progress.held_offset == 10


def test_held_does_not_go_back() -> None:
    """Two messages overtake each other."""
    progress = fetched(10)
    progress.on_held(8)
    progress.on_held(3)
    assert progress.held_offset == 8


def test_a_new_incarnation_begins_at_nothing() -> None:
    """The process was started again, perhaps without its page cache."""
    progress = fetched(10)
    progress.on_held(10)
    progress.on_fetch(6, 10)
    assert (progress.broker_epoch, progress.held_offset) == (6, 0)


def test_an_old_incarnation_is_ignored() -> None:
    """A fetch of a dead process arrives after one of its successor."""
    progress = fetched(4, broker_epoch=6)
    progress.on_held(4)
    progress.on_fetch(5, 10)
    assert (progress.broker_epoch, progress.fetch_offset, progress.held_offset) == (6, 4, 4)


def test_divergence_takes_everything_back() -> None:
    """It will cut its log; the incarnation stays known, so that an older one is still ignored."""
    progress = fetched(10)
    progress.on_held(10)
    progress.on_diverging()
    assert not progress.has_fetched
    assert (progress.broker_epoch, progress.held_offset) == (5, 0)
    progress.on_fetch(4, 10)
    assert not progress.has_fetched


def test_who_is_level_does_not_lag() -> None:
    """Nothing was written for an hour."""
    progress = fetched(10)
    progress.on_held(10)
    progress.look(log_end_offset=10, now=0.0)
    assert not progress.lags(log_end_offset=10, now=3600.0, lag_seconds_max=1.0)


def test_who_says_nothing_lags() -> None:
    """It was level, and more was written since."""
    progress = fetched(10)
    progress.on_held(10)
    progress.look(log_end_offset=10, now=0.0)
    assert not progress.lags(log_end_offset=11, now=1.0, lag_seconds_max=1.0)
    assert progress.lags(log_end_offset=11, now=1.1, lag_seconds_max=1.0)


def test_a_disk_that_is_always_a_little_behind_does_not_lag() -> None:
    """A record each millisecond, a word each millisecond, and a disk that is 50 ms behind."""
    progress = FollowerProgress(caught_up_at=0.0)
    for millisecond in range(5000):
        progress.on_fetch(5, millisecond)
        progress.on_held(max(0, millisecond - 50))
        progress.look(log_end_offset=millisecond + 1, now=millisecond / 1000)
        lags = progress.lags(
            log_end_offset=millisecond + 1, now=millisecond / 1000, lag_seconds_max=0.2
        )
        assert not lags, f"after {millisecond} ms"


def test_a_disk_that_falls_behind_lags() -> None:
    """It writes half of what comes."""
    progress = FollowerProgress(caught_up_at=0.0)
    for now in range(100):
        progress.on_fetch(5, now)
        progress.on_held(now // 2)
        progress.look(log_end_offset=now, now=float(now))
    assert progress.lags(log_end_offset=100, now=100.0, lag_seconds_max=20.0)
