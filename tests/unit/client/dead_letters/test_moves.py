"""Where a record goes that is moved, and what is not moved at all (A12.4, A12.5)."""

from __future__ import annotations

from random import Random

import pytest

import raftmq
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.moves import Moves
from raftmq.errors import InvalidRequest

LETTER = ConsumerRecord("__dead.billing", 0, 5, 0, None, b"v")


def test_a_group_keeps_its_own_dead_letters() -> None:
    """Moved, one would come back, and be moved again, for ever; another group moves it as any."""
    policy = raftmq.RetryPolicy(attempts=1)
    for move in (
        Moves("billing", None, Random(1)).rejected,
        Moves("billing", policy, Random(1)).retried,
    ):
        with pytest.raises(InvalidRequest, match="read it in a group of its own") as caught:
            move(LETTER, "again", attempts=1)
        assert caught.value.definite
    move = Moves("desk", policy, Random(1)).retried
    assert move(LETTER, "again", attempts=1).topic == "__dead.desk"
