"""Frames: cut out of any stream, and refused before anything of them is kept."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import RemoteProtocolError
from raftmq.wire.frames import FRAME_BYTES_MAX, PREFIX, Frame, FrameReader, encode_frame

FRAME_MAX = 1000
HEADER_MAX = 100
FRAMES = st.lists(
    st.builds(Frame, st.binary(max_size=HEADER_MAX), st.binary(max_size=300)), max_size=5
)


def reader() -> FrameReader:
    return FrameReader(frame_bytes_max=FRAME_MAX, header_bytes_max=HEADER_MAX)


def stream_of(frames: list[Frame]) -> bytes:
    return b"".join(
        encode_frame(frame.header, len(frame.payload)) + bytes(frame.payload) for frame in frames
    )


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 2500)))
def test_frames_survive_any_cutting_of_the_stream(frames: list[Frame], cuts: list[int]) -> None:
    """Several frames arrive in pieces of any size; they come out in order, and nothing is left."""
    data, receiver, start = stream_of(frames), reader(), 0
    arrived: list[Frame] = []
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        arrived += receiver.receive(data[start:end])
        start = end
    assert arrived == frames
    assert receiver.buffered_bytes == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_frame_outlives_the_buffer_it_came_in(
    kind: type[bytes | bytearray | memoryview],
) -> None:
    """A read buffer is used again for the next read: the frame must not change with it."""
    buffer = bytearray(stream_of([Frame(b"head", b"records")]))
    frames = reader().receive(kind(buffer))
    buffer[:] = bytes(len(buffer))
    assert frames == [Frame(b"head", b"records")]


def test_a_frame_one_byte_at_a_time() -> None:
    """The slowest of all streams: the frame comes with its last byte, and not before."""
    receiver, data = reader(), stream_of([Frame(b"head", b"records")])
    arrived = [receiver.receive(bytes([byte])) for byte in data]
    assert arrived[-1] == [Frame(b"head", b"records")]
    assert not any(arrived[:-1])


def test_what_is_buffered_is_what_has_not_come_out() -> None:
    """One frame and five bytes of the next arrive together."""
    receiver, data = reader(), stream_of([Frame(b"head", b"records")])
    receiver.receive(data + data[:5])
    assert receiver.buffered_bytes == 5


def test_the_bytes_of_a_frame() -> None:
    """Little-endian: length of what follows, length of the header, header, payload."""
    frame = encode_frame(b"head", payload_length=7)
    assert frame == b"\x0f\x00\x00\x00\x04\x00\x00\x00head"


def test_the_longest_frame_with_the_longest_header_passes() -> None:
    """Exactly at both limits."""
    frame = Frame(bytes(HEADER_MAX), bytes(FRAME_MAX - HEADER_MAX - 4))
    assert reader().receive(stream_of([frame])) == [frame]


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ((FRAME_MAX + 1).to_bytes(4, "little"), "frame of 1001 bytes, at most 1000: send less"),
        (b"\xff\xff\xff\xff", "frame of 4294967295 bytes, at most 1000"),
        (b"\x03\x00\x00\x00", "frame of 3 bytes, at least 4"),
        (bytes(4), "frame of 0 bytes, at least 4"),
        (PREFIX.pack(FRAME_MAX, HEADER_MAX + 1), "header of 101 bytes, at most 100"),
        (PREFIX.pack(10, 7), "frame of 10 bytes with a header of 7 bytes"),
    ],
)
def test_a_bad_length_is_refused_as_soon_as_it_is_there(start: bytes, problem: str) -> None:
    """Nothing of the frame is waited for, however the length arrives."""
    with pytest.raises(RemoteProtocolError, match=problem):
        reader().receive(start)
    slow = reader()
    with pytest.raises(RemoteProtocolError, match=problem):
        receive_slowly(slow, start)
    assert slow.buffered_bytes <= len(start)


def receive_slowly(receiver: FrameReader, data: bytes) -> None:
    for byte in data:
        receiver.receive(bytes([byte]))


def test_a_bad_frame_behind_a_good_one_is_refused() -> None:
    """Whoever breaks the protocol is not served any more."""
    good = stream_of([Frame(b"head", b"")])
    with pytest.raises(RemoteProtocolError):
        reader().receive(good + b"\xff\xff\xff\xff")


def test_our_own_oversize_frame_is_our_mistake() -> None:
    """More than the length can say stops us, not the peer."""
    with pytest.raises(AssertionError, match="frame of"):
        encode_frame(b"head", payload_length=FRAME_BYTES_MAX)


def test_a_claim_costs_no_memory() -> None:
    """Eight bytes announce 64 MiB; nothing is set aside for them."""
    receiver = FrameReader(frame_bytes_max=64 << 20, header_bytes_max=1 << 20)
    tracemalloc.start()
    try:
        receiver.receive(PREFIX.pack(64 << 20, 1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_a_large_frame_leaves_no_memory_behind() -> None:
    """1 MiB came in pieces and was taken away: the reader has let go of it."""
    receiver = FrameReader(frame_bytes_max=64 << 20, header_bytes_max=1 << 20)
    data = stream_of([Frame(b"head", bytes(1 << 20))])
    tracemalloc.start()
    try:
        for start in range(0, len(data), 1 << 16):
            receiver.receive(data[start : start + (1 << 16)])
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_a_stream_of_noise_is_waited_for_or_refused(noise: list[bytes]) -> None:
    """Somebody who speaks another protocol: frames, a frame that never ends, or an error."""
    receiver = reader()
    with suppress(RemoteProtocolError):
        for data in noise:
            receiver.receive(data)
        assert receiver.buffered_bytes <= FRAME_MAX + 4
