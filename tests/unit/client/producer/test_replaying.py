"""Runs of one task that die, overlap and are repeated: each row stands there once, in order."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.producer.batch import BatchMetadata
from tests.unit.client.producer.replay_model import Run, Shared


def draw_run(random: Random, shared: Shared, keys: list[int | None], **options: Any) -> Run:
    """However it is set up, rows go where they went before."""
    drawn = {
        "batch_size": random.choice((1, 20, 100)),
        "linger_ms": random.choice((0, 5, 500)),
        "max_request_size": random.choice((1, 100, 1000)),
        "delivery_timeout_ms": random.choice((2_000, 120_000)),
        "request_timeout_ms": random.choice((500, 30_000)),
        "retries": random.choice((None, 0, 3)),
    }
    return Run(random.randrange(1 << 32), shared, keys, **{**drawn, **options})


@given(
    seed=st.integers(0, 1 << 32),
    trouble=st.sampled_from([0.0, 0.1, 0.5]),
    runs=st.integers(0, 4),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_once_and_in_order(seed: int, trouble: float, runs: int) -> None:
    """The last run is told of each row that it stands there, whatever the others left behind."""
    random = Random(seed)
    keys = [random.choice((None, random.randrange(9))) for _ in range(random.randrange(1, 150))]
    shared = Shared(3)
    old: list[Run] = []
    for _ in range(runs):
        run = draw_run(random, shared, keys)
        run.trouble = trouble
        go_on(run, old, random.randrange(60), random)
        run.is_needed = False
        old.append(run)
    last = draw_run(
        random, shared, keys, retries=None, delivery_timeout_ms=1e6, request_timeout_ms=1e5
    )
    go_on(last, old, 500, random)
    check(last, shared)
    there = [list(log) for log in shared.logs]
    for part in [part for run in old for request in run.requests for part in request.parts]:
        last.append(part)
    assert shared.logs == there, "somebody who was fenced has written"


def go_on(run: Run, old: list[Run], steps: int, random: Random) -> None:
    """Those that nobody needs go on, too."""
    for _ in range(steps):
        if run.is_done:
            return
        run.tick(run.trouble)
        for each in old:
            if random.random() < 0.2:
                each.tick(each.trouble)


def check(last: Run, shared: Shared) -> None:
    """All rows, each in the partition where the last run has put it."""
    assert last.is_done
    assert last.used_bytes == 0
    assert all(isinstance(outcome, BatchMetadata) for outcome in last.outcomes.values())
    expected: list[list[int]] = [[] for _ in shared.logs]
    for name, batch in last.batches.items():
        expected[batch.partition] += last.records[name]
    assert shared.rows == expected
    last.topic.check_replayed()
