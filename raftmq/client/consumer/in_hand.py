"""What a program is working on: handed out, and not finished. Pure.

Owns the one thing that was handed out last, which is finished once the next is asked for, and what
is held beyond that (`Consumer.processing`). Nothing is noted per record: of records that are handed
out one by one, whoever does so knows the last (`more` below). What was handed out in an earlier
tenure of a partition holds up nothing of a later one.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from raftmq.client.consumer.tenure import tenure_of
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.tenure import Tenure, Work

    Place: TypeAlias = tuple[Tenure | None, int]  # with the first offset


class InHand:
    """
    Args:
        on_finished: called when something is finished.
    """

    def __init__(self, on_finished: Callable[[], None]) -> None:
        self._on_finished = on_finished
        self._current: Place | None = None
        self._held: dict[int, Place] = {}
        self._failed: list[Place] = []
        self._tokens = count()

    def take(self, work: Work) -> None:
        """It was handed out."""
        self._current = place_of(work)

    def put_down(self) -> None:
        """The next is asked for: the program has got over whatever went wrong."""
        if self._current is not None or self._failed:
            self._current = None
            self._failed.clear()
            self._on_finished()

    def hold(self, work: Work) -> int:
        """It is not finished before `release` is called with what this returns."""
        token = next(self._tokens)
        self._held[token] = place_of(work)
        return token

    def release(self, token: int, *, is_finished: bool = True) -> None:
        """What has failed is not done as long as the program may end over it. Nobody waits for
        it.
        """
        place = self._held.pop(token, None)
        if place is not None and not is_finished:
            self._failed.append(place)
        self._on_finished()

    def drop_all(self) -> None:
        """Nobody works on anything any more, finished or not."""
        self._current = None
        self._held.clear()
        self._failed.clear()
        self._on_finished()

    @property
    def is_held(self) -> bool:
        """Somebody has said that it takes long."""
        return bool(self._held)

    def is_busy(self, tenures: Collection[Tenure | None], more: Work | None) -> bool:
        """Whether the program works on something that was handed out in one of these."""
        return any(tenure in tenures for tenure, _ in self._in_work(more))

    def first_offset(self, tenure: Tenure | None, more: Work | None) -> int | None:
        """Of what is not finished of a tenure; None: nothing is in hand."""
        places = (*self._in_work(more), *self._failed)
        return min((offset for at, offset in places if at is tenure), default=None)

    def _in_work(self, more: Work | None) -> Iterator[Place]:
        yield from self._held.values()
        if self._current is not None:
            yield self._current
        if more is not None:
            yield place_of(more)


def place_of(work: Work) -> Place:
    """Where what was handed out begins."""
    return tenure_of(work), work.offset if isinstance(work, tuple) else work.base_offset


def end_of(work: Work) -> tuple[Key, int]:
    """Partition, and where reading goes on after it."""
    offset = work.offset + 1 if isinstance(work, tuple) else work.end_offset
    return (work.topic, work.partition), offset


def epoch_before_end(work: Work) -> int:
    """Of the leader that has appended the last record; -1: not known."""
    return ABSENT if isinstance(work, tuple) else work.epoch_before(work.end_offset)
