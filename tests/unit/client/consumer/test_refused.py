"""What a program is told whose commit comes too late."""

from __future__ import annotations

import pytest

from raftmq.client.consumer.group_commits import too_late
from raftmq.client.consumer.record import PartitionOwnership
from raftmq.client.group.effects import LossCause
from raftmq.client.group.member_options import MemberOptions

MEMBER = MemberOptions(group="billing", max_poll_interval_ms=7000, rebalance_timeout_ms=6000)


def told(cause: LossCause) -> str:
    ownership = PartitionOwnership()
    ownership.cause = cause
    return str(too_late(("orders", 3), ownership, MEMBER))


@pytest.mark.parametrize("cause", LossCause)
def test_what_is_always_told(cause: LossCause) -> None:
    """What it is about, that nothing happened, and who has the records."""
    assert told(cause).startswith("orders-3 ")
    assert "nothing was committed, and the member that reads it now gets these records" in told(
        cause
    )


def test_a_program_that_did_not_ask() -> None:
    """Three ways out."""
    words = told(LossCause.NOT_ASKED)
    assert "group 'billing', as its program has asked for nothing for" in words
    assert "max_poll_interval_ms = 7000" in words
    assert words.endswith(
        "inside `with consumer.processing(...)`, or take a longer max_poll_interval_ms, or a "
        "smaller max_poll_records"
    )


def test_a_program_that_did_not_finish() -> None:
    """It held up the others for too long, which `processing` does not help."""
    words = told(LossCause.NOT_FINISHED)
    assert "rebalance_timeout_ms = 6000" in words
    assert words.endswith("Take a longer rebalance_timeout_ms, or a smaller max_poll_records")


def test_whatever_else() -> None:
    """Nothing is blamed on the program."""
    assert "max_poll" not in told(LossCause.OTHER)
    assert str(too_late(("orders", 3), None, MEMBER)) == told(LossCause.OTHER)
