"""Damaged frames: a second of them at every run, a million before a release."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.property import frame_fuzz

INPUTS = 20_000
SOAK_INPUTS = 1_000_000


def test_damaged_frames() -> None:
    """They are refused with the protocol's own errors, waited for, or valid; nothing else."""
    outcomes = frame_fuzz.run(seed=1, count=INPUTS)
    assert outcomes.total() == INPUTS
    # A fuzzer whose inputs all die at the door, or are not damaged at all, tests nothing.
    assert outcomes["RemoteProtocolError"] > INPUTS // 3
    assert outcomes["decoded"] > INPUTS // 10
    assert outcomes["UnsupportedVersion"] > INPUTS // 1_000
    assert outcomes["waited for"] > INPUTS // 200


def test_any_input_can_be_replayed_alone() -> None:
    """The line that a failure prints leads to the same input."""
    together = frame_fuzz.run(seed=7, count=40)
    alone = sum(
        (frame_fuzz.run(seed=7, first=index, count=1) for index in range(40)),
        start=frame_fuzz.Counter(),
    )
    assert together == alone


def test_nothing_of_an_input_stays_in_memory() -> None:
    """After two thousand inputs as much is held as before them."""
    frame_fuzz.run(seed=2, first=1, count=99)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for start in range(1, 2_000, 100):  # not those that are measured by themselves
            frame_fuzz.run(seed=2, first=start, count=99)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.soak
def test_a_million_damaged_frames() -> None:
    """The same with a count at which leaks and slow inputs show."""
    assert frame_fuzz.run(seed=3, count=SOAK_INPUTS).total() == SOAK_INPUTS
