"""The garbage collector beside a node: put back as it was, and never long over the same objects."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from raftmq.metadata.raft.gc_control import GcControl

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.unfreeze()
    assert gc.isenabled()
    assert (gc.get_threshold(), gc.callbacks) == (thresholds, callbacks)


class Clock:
    """Each look at it is `step` seconds after the one before."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_nothing_is_collected_during_a_pause_and_what_was_made_is_frozen() -> None:
    """Two pauses that overlap: the collector runs again after the second, past what they made."""
    collector = GcControl()
    frozen_before = gc.get_freeze_count()
    with collector.paused():
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen_before + len(kept)


def test_a_pause_that_fails_ends_like_any_other() -> None:
    """The image was damaged: the collector goes on."""
    with suppress(ValueError), GcControl().paused():
        raise ValueError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    """Whoever embeds the node has switched it off: it is not ours to switch on."""
    gc.disable()
    try:
        with GcControl().paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_took_long_to_pass_over_is_frozen() -> None:
    """A full collection takes a second: the next one has nothing left to pass over."""
    with GcControl(clock=Clock(step=1.0)).bounded():
        frozen_before, kept = gc.get_freeze_count(), [[] for _ in range(10_000)]
        gc.collect()
        # Frozen objects of other tests may go meanwhile, which the count shows, too.
        assert gc.get_freeze_count() >= frozen_before + len(kept) // 2


def test_what_is_there_when_a_node_opens_is_passed_over_at_once() -> None:
    """The modules of the process: the first request must not wait for that."""
    frozen_before = gc.get_freeze_count()
    with GcControl(clock=Clock(step=1.0)).bounded():
        assert gc.get_freeze_count() > frozen_before


def test_short_and_young_collections_freeze_nothing() -> None:
    """Neither a quick full collection nor a slow young one is a reason."""
    frozen_before = gc.get_freeze_count()
    with GcControl(clock=Clock(step=0.0)).bounded():
        gc.collect()
    assert gc.get_freeze_count() <= frozen_before  # some may have gone
    with GcControl(clock=Clock(step=1.0)).bounded():
        frozen_before = gc.get_freeze_count()
        gc.collect(0)
        gc.collect(1)
        assert gc.get_freeze_count() <= frozen_before


def test_two_nodes_share_the_bounds_until_the_last_one_closes() -> None:
    """The thresholds come back with the last node that goes."""
    collector, thresholds = GcControl(), gc.get_threshold()
    with collector.bounded():
        changed = gc.get_threshold()
        assert changed != thresholds
        with collector.bounded():
            pass
        assert gc.get_threshold() == changed
    assert gc.get_threshold() == thresholds


def test_a_process_that_is_somebody_else_s_is_left_alone() -> None:
    """A guest's image is made, and a full collection is slow: nothing is frozen for ever."""
    collector = GcControl(Clock(step=1.0))
    found = (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count())
    with collector.left_alone():
        with collector.bounded(), collector.paused():
            assert not gc.isenabled()
        with collector.bounded():
            gc.collect()
            assert (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()) == found
