"""What is drawn for the blocks of transactions."""

from __future__ import annotations

from collections import Counter
from random import Random

from jepsen_like.workloads.transaction_plan import (
    COPIES_MAX,
    KEYS_MAX,
    STEPS_MAX,
    VALUES_MAX,
    Copy,
    End,
    Poll,
    Send,
    draw_block,
)

INPUTS = tuple(f"in-{number}" for number in range(4))
OUTPUTS = tuple(f"out-{number}" for number in range(4))
BLOCKS = 2_000


def test_every_end_comes() -> None:
    """Most are committed, and no end is so rare that a run would not see it."""
    ends = Counter[End]()
    for seed in range(BLOCKS):
        block = draw_block(Random(seed), inputs=INPUTS, outputs=OUTPUTS, is_copying=False)
        ends[block.end] += 1
        assert 1 <= len(block.steps) <= STEPS_MAX
        sends = [step for step in (*block.steps, *block.late) if isinstance(step, Send)]
        assert all(1 <= send.values <= VALUES_MAX for send in sends)
        assert len({send.key for send in sends}) <= KEYS_MAX
        assert all(isinstance(step, Send | Poll) for step in block.steps)
        assert bool(block.late) == (block.end in (End.PAUSE, End.OVERTAKEN))
    assert set(ends) == set(End) - {End.HELD}
    assert ends[End.COMMIT] > BLOCKS / 2


def test_copies_send_results_only() -> None:
    """What belongs to no input would be no result of one. Some commits are held."""
    ends = set[End]()
    for seed in range(BLOCKS):
        block = draw_block(Random(seed), inputs=INPUTS, outputs=OUTPUTS, is_copying=True)
        assert 1 <= len(block.steps) <= COPIES_MAX
        assert all(isinstance(step, Copy) and step.key in OUTPUTS for step in block.steps)
        assert not block.late
        ends.add(block.end)
    assert ends == set(End) - {End.PAUSE}


def test_the_same_chance_draws_the_same() -> None:
    """A run can be repeated."""
    first, second = (
        draw_block(Random(3), inputs=INPUTS, outputs=OUTPUTS, is_copying=False) for _ in range(2)
    )
    assert first == second
