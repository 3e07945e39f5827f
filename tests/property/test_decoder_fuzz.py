"""A few seconds of the fuzzer at every run; `python -m tests.property.fuzz` runs it for longer."""

from __future__ import annotations

from tests.property import fuzz

INPUTS = 5_000


def test_damaged_batches() -> None:
    """They are refused with CorruptRecord or UnsupportedCompression, and nothing else."""
    outcomes = fuzz.run(seed=1, count=INPUTS)
    assert outcomes.total() == INPUTS
    # A fuzzer whose inputs all die at the door, or are not damaged at all, tests nothing.
    assert outcomes["CorruptRecord"] > INPUTS // 2
    assert outcomes["decoded"] > INPUTS // 50
    assert outcomes["UnsupportedCompression"] > 0


def test_any_input_can_be_replayed_alone() -> None:
    """The line that a failure prints leads to the same input."""
    together = fuzz.run(seed=7, count=40)
    alone = sum(
        (fuzz.run(seed=7, first=index, count=1) for index in range(40)), start=fuzz.Counter()
    )
    assert together == alone
