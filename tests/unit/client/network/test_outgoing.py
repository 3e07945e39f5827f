"""What waits to leave: joined where it is small, as it is where it is large, never in halves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.network.outgoing import JOINED_BYTES_MAX, STEP_BYTES, Outgoing

if TYPE_CHECKING:
    from raftmq.wire.batch.header import Buffer


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


def test_a_small_frame_leaves_at_once() -> None:
    """Only the first in line, and while no write is under way; the writing task gets the rest."""
    sent: list[bytes] = []
    wakes: list[None] = []

    def send_now(data: Buffer) -> int:
        sent.append(bytes(data[:5]))
        return len(sent[-1])

    outgoing = Outgoing(wake=lambda: wakes.append(None), send_now=send_now)
    outgoing.put(b"he", (b"a", b"d"))
    outgoing.flush(at_once=True)
    assert (sent, wakes, outgoing.queued_bytes, outgoing.is_empty) == ([b"head"], [], 0, True)
    outgoing.put(b"header")
    outgoing.flush(at_once=True)
    assert (sent.pop(), wakes, outgoing.queued_bytes) == (b"heade", [None], 1)
    outgoing.put(b"b")
    outgoing.flush(at_once=True)  # behind the rest of another
    assert outgoing.take(0.0) == [b"rb"]
    outgoing.put(b"c")
    outgoing.flush(at_once=True)  # while that is being written
    outgoing.on_sent()
    assert (sent, len(wakes), outgoing.take(0.0)) == ([b"head"], 3, [b"c"])


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


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.lists(SIZES, max_size=4)), max_size=6),
    st.lists(st.sampled_from([None, 0, 1, 50, STEP_BYTES]), max_size=6),
)
def test_all_bytes_in_order(
    frames: list[tuple[bytes, list[int]]], spaces: list[int | None]
) -> None:
    """Whatever is put, and however much of it leaves at once, in part or whole: the same bytes come
    out, and the count of them returns to 0."""
    expected, taken = bytearray(), bytearray()
    space = 0

    def send_now(data: Buffer) -> int:
        sent = bytes(data)[:space]
        taken.extend(sent)
        return len(sent)

    outgoing = Outgoing(wake=lambda: None, send_now=send_now)
    for number, (head, sizes) in enumerate(frames):
        payload = [bytes([number]) * size for size in sizes]
        outgoing.put(head, payload)
        expected += head + b"".join(payload)
        if spaces and (found := spaces.pop()) is not None:
            space = found
            outgoing.flush(at_once=True)
    assert outgoing.queued_bytes == len(expected) - len(taken)
    while not outgoing.is_empty:
        for buffer in outgoing.take(0.0):
            assert 0 < len(buffer) <= STEP_BYTES
            taken += buffer
        outgoing.on_sent()
    assert taken == expected
    assert not outgoing.queued_bytes
