"""One operation of the disk fails; after a restart nothing that was reported durable is missing.

A quarter of the operations of one script here, more with
`python -m tests.simulation.crash_sweep --mode failure --seeds N`.
"""

from __future__ import annotations

import pytest

from tests.simulation.crash_case import OPERATIONS, Case
from tests.simulation.failing_disk import FailingDisk, failures_of

SEED = 0


def test_a_failing_operation_breaks_no_promise() -> None:
    """The log goes offline at the most, and a restart finds everything that was durable."""
    failures = list(failures_of(SEED, range(1, OPERATIONS + 1, 4)))
    assert failures == [], "\n".join(map(str, failures))


@pytest.mark.parametrize("number", [20, 120, 220])
def test_the_failure_strikes(number: int) -> None:
    """A disk that never failed would prove nothing."""
    broker = FailingDisk(Case(SEED, number, "failure"))
    broker.run()
    assert broker.disk.has_failed
