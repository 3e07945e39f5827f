"""Whoever waits for an offset: released in order, failed, expired, abandoned, forgotten."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from raftmq.errors import NotLeaderOrFollower, RequestTimedOut
from raftmq.partition.acknowledgements import OffsetWaiters

if TYPE_CHECKING:
    from raftmq.errors import RaftmqError
    from raftmq.partition.acknowledgements import Waiter

FOR_EVER = float("inf")


class Crowd:
    """Many that wait, and what became of each."""

    def __init__(self) -> None:
        self.waiters = OffsetWaiters()
        self.outcomes: dict[int, str] = {}

    def join(self, *offsets: int, deadline: float = FOR_EVER) -> list[Waiter]:
        return [
            self.waiters.add(offset, partial(self._on_end, offset), deadline=deadline)
            for offset in offsets
        ]

    def _on_end(self, offset: int, error: RaftmqError | None) -> None:
        assert offset not in self.outcomes, "told twice"
        self.outcomes[offset] = type(error).__name__ if error else "done"


def test_an_offset_releases_all_up_to_it() -> None:
    """Whoever waits for more goes on waiting."""
    crowd = Crowd()
    crowd.join(5, 3, 7)
    crowd.waiters.release(5)
    assert crowd.outcomes == {3: "done", 5: "done"}
    assert len(crowd.waiters) == 1


def test_failing_tells_everybody() -> None:
    """The part is laid down: nobody knows what becomes of the records."""
    crowd = Crowd()
    crowd.join(1, 2)
    crowd.waiters.fail(NotLeaderOrFollower("over"))
    assert crowd.outcomes == dict.fromkeys((1, 2), "NotLeaderOrFollower")
    assert not crowd.waiters


def test_reached_with_too_few_replicas_is_told() -> None:
    """Released with an error: the record is there, but not as safe as was asked."""
    crowd = Crowd()
    crowd.join(4)
    crowd.waiters.release(4, NotLeaderOrFollower("too few"))
    assert crowd.outcomes == {4: "NotLeaderOrFollower"}


def test_whose_time_is_over_leaves() -> None:
    """Only they; the others keep their order."""
    crowd = Crowd()
    crowd.join(1, 4, deadline=1.0)
    crowd.join(3, 2)
    crowd.waiters.expire(1.0)
    assert crowd.outcomes == dict.fromkeys((1, 4), RequestTimedOut.__name__)
    assert len(crowd.waiters) == 2
    crowd.waiters.release(2)
    assert crowd.outcomes[2] == "done"
    assert 3 not in crowd.outcomes


def test_nothing_is_kept_of_waiters_while_nothing_is_acknowledged() -> None:
    """A high watermark that stands still, producers that come and give up, one that stays."""
    crowd = Crowd()
    crowd.join(1)
    for offset in range(2, 50):
        for waiter in crowd.join(offset):
            waiter.abandon()
        crowd.waiters.expire(0.0)
    assert len(crowd.waiters) == 1
    crowd.waiters.release(1)
    assert crowd.outcomes == {1: "done"}
