"""A record that always fails, through any number of hands, policies and processes: it is handled as
often as the policy says, waits as long as it says, and is never taken for another one (A12.4).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given

import raftmq
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.letters import plain_headers, read_letter
from raftmq.client.dead_letters.moves import Moves
from raftmq.client.processing.retry_policy import RecordFate

if TYPE_CHECKING:
    from raftmq.client.dead_letters.moves import Move

GROUPS = st.sampled_from(["billing", "billing for EU", "请求"])
NAMES = st.sampled_from(["trace", "raftmq.origin", "raftmq.attempts", "raftmq.redriven"])
HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=9) | st.none()), max_size=4)
POLICIES = st.builds(
    raftmq.RetryPolicy,
    attempts=st.integers(1, 12),
    backoff=st.builds(
        raftmq.Exponential,
        st.floats(0, 100),
        factor=st.floats(1, 10),
        maximum=st.floats(0, 1_000),
    ),
    dead_letters=st.booleans(),
)


class Refusal(Exception):
    """Of the handler."""


def as_read(record: ConsumerRecord, move: Move, offset: int) -> ConsumerRecord:
    """As it comes back: key, value and tags are kept."""
    return ConsumerRecord(
        move.topic, 0, offset, 5_000 + offset, record.key, record.value, move.headers, record.tags
    )


@given(GROUPS, POLICIES, HEADERS, st.integers(0, 1 << 40), st.data())
def test_a_record_that_always_fails(
    group: str,
    policy: raftmq.RetryPolicy,
    headers: list[tuple[str, bytes | None]],
    offset: int,
    data: st.DataObject,
) -> None:
    """Attempts are counted over all members that it comes to, some of which try it several times
    before they move it; what a header of the program says counts for nothing."""
    record = first = ConsumerRecord("orders", 2, offset, 77, b"k", b"v", tuple(headers), ("eu",))
    handled = 0
    while True:
        moves = Moves(group, policy, Random(handled))  # another process
        left = policy.attempts - handled
        tries = data.draw(st.integers(1, left), label="tries")
        handled += tries
        fate = moves.fate(record, tries)
        assert fate is not RecordFate.IN_PLACE
        assert (fate is RecordFate.RETRY_TOPIC) == (handled < policy.attempts)
        if fate is RecordFate.RAISED:
            assert not policy.dead_letters
            error = Refusal("no")
            with pytest.raises(Refusal) as caught:
                moves.retried(record, error, attempts=tries)
            assert caught.value is error
            return
        move = moves.retried(record, Refusal("no"), attempts=tries)
        letter = read_letter(move.headers)
        assert letter.origin == ("orders", 2, offset, 77) == record.origin == first.origin
        assert (letter.attempts, letter.error) == (handled, "Refusal: no")
        assert letter.group == group
        assert plain_headers(move.headers) == plain_headers(first.headers)
        if fate is RecordFate.DEAD_LETTER:
            assert handled == policy.attempts
            assert move.topic.startswith("__dead.")
            assert move.delay is None
            return
        assert move.topic.startswith("__retry.")
        assert move.delay is not None
        backoff = policy.backoff
        expected = min(backoff.first_seconds * backoff.factor ** (handled - 1), backoff.maximum)
        assert 0.79 * expected <= move.delay <= min(1.21 * expected, backoff.maximum)
        record = as_read(record, move, handled)
