"""What may be said of a send after its records have been answered, or not."""

from __future__ import annotations

import pytest

from jepsen_like.history.event import Type
from jepsen_like.workloads.sending import outcome_of
from raftmq.errors import DeliveryTimedOut, OutcomeUnknown, RaftmqError

NEVER, MAYBE = DeliveryTimedOut("nobody took it"), OutcomeUnknown("no answer")


@pytest.mark.parametrize(
    ("results", "kind", "offsets"),
    [
        ([7, 8], Type.OK, [7, 8]),
        ([NEVER, NEVER], Type.FAIL, [None, None]),
        ([MAYBE, MAYBE], Type.INFO, [None, None]),
        ([7, NEVER], Type.INFO, [7, None]),
        ([7, MAYBE], Type.INFO, [7, None]),
        ([NEVER, MAYBE], Type.INFO, [None, None]),
    ],
)
def test_it_fails_only_if_nothing_of_it_happened(
    results: list[int | RaftmqError], kind: Type, offsets: list[int | None]
) -> None:
    """All acknowledged is ok, all refused is fail, anything else nobody knows."""
    outcome = outcome_of(results)
    assert (outcome.type, outcome.offsets) == (kind, offsets)


def test_values_that_certainly_were_not_appended_are_told_apart() -> None:
    """Of others of the same send nobody knows."""
    assert outcome_of([7, NEVER, MAYBE, NEVER]).failed == [1, 3]
    assert not outcome_of([7, MAYBE]).failed


def test_the_error_that_leaves_most_open_is_told() -> None:
    """One value was refused, of another nothing is known."""
    assert outcome_of([NEVER, MAYBE]).error == "OutcomeUnknown: no answer"
    assert outcome_of([3]).error is None
