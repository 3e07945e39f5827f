"""What waits to leave: joined where it is small, as it is where it is large, never in halves."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.network.outgoing import JOINED_BYTES_MAX, STEP_BYTES, Outgoing


def test_what_waits_leaves_together() -> None:
    """Three frames in one write; nothing is left, and what comes next is the next write."""
    outgoing = Outgoing(wake=lambda: None)
    for head in (b"a", b"b", b"c"):
        outgoing.put(head, (head * 2,))
    assert outgoing.take(0.0) == [b"aaabbbccc"]
    outgoing.put(b"d")
    assert outgoing.queued_bytes == 10
    outgoing.on_sent()
    assert outgoing.take(0.0) == [b"d"]


def test_a_large_payload_is_not_copied() -> None:
    """It leaves as views of itself, of a MiB at most."""
    payload = bytes(3 * STEP_BYTES + 1)
    outgoing = Outgoing(wake=lambda: None)
    outgoing.put(b"head", (payload,))
    head, *parts = outgoing.take(0.0)
    assert head == b"head"
    assert [len(part) for part in parts] == [STEP_BYTES] * 3 + [1]
    assert all(isinstance(part, memoryview) and part.obj is payload for part in parts)


def test_a_mib_at_a_time() -> None:
    """More than that waits for the next turn, or small frames would wait for all of it."""
    outgoing = Outgoing(wake=lambda: None)
    for _ in range(10):
        outgoing.put(bytes(STEP_BYTES // 4))
    assert sum(map(len, outgoing.take(0.0))) == STEP_BYTES
    assert outgoing.queued_bytes == 10 * STEP_BYTES // 4
    outgoing.on_sent()
    assert outgoing.queued_bytes == 6 * STEP_BYTES // 4


def test_how_long_a_write_lasts() -> None:
    """From `take` on, anew with every buffer that has left; only writes of much are progress."""
    outgoing = Outgoing(wake=lambda: None)
    outgoing.put(b"short")
    outgoing.take(1.0)
    outgoing.on_write(2.0)
    assert (outgoing.writes_since, outgoing.pushed_at) == (2.0, -math.inf)
    outgoing.on_sent()
    assert outgoing.writes_since == math.inf
    outgoing.put(bytes(STEP_BYTES))
    outgoing.take(3.0)
    outgoing.on_write(4.0)
    assert outgoing.pushed_at == 4.0


SIZES = st.sampled_from([0, 1, 2, 100, JOINED_BYTES_MAX // 2, JOINED_BYTES_MAX, STEP_BYTES + 1])


@given(st.lists(st.tuples(st.binary(max_size=9), st.lists(SIZES, max_size=4)), max_size=6))
def test_all_bytes_in_order(frames: list[tuple[bytes, list[int]]]) -> None:
    """Whatever is put: the same bytes come out, and the count of them returns to 0."""
    outgoing, expected, taken = Outgoing(wake=lambda: None), bytearray(), bytearray()
    for number, (head, sizes) in enumerate(frames):
        payload = [bytes([number]) * size for size in sizes]
        outgoing.put(head, payload)
        expected += head + b"".join(payload)
    assert outgoing.queued_bytes == len(expected)
    while not outgoing.is_empty:
        for buffer in outgoing.take(0.0):
            assert 0 < len(buffer) <= STEP_BYTES
            taken += buffer
        outgoing.on_sent()
    assert taken == expected
    assert not outgoing.queued_bytes
