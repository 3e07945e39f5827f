"""Frames of the quorum: what goes in comes out, and rubbish ends in RemoteProtocolError."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from enum import IntEnum
from random import Random
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import RemoteProtocolError
from raftmq.metadata.raft.net import messages
from raftmq.metadata.raft.net.messages import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    AnyMessage,
    AppendEntries,
    KeepAlive,
    MessageReader,
    NodeHello,
    ObserverFetch,
    Refusal,
    Role,
    SnapshotChunk,
    VoteReply,
    encode_frame,
)

CLASSES = get_args(AnyMessage)
# Tags are on the wire and never change.
TAGS = {
    "NodeHello": 1, "Refusal": 2, "KeepAlive": 3, "StandingChanged": 4, "PreVote": 5,
    "PreVoteReply": 6, "RequestVote": 7, "VoteReply": 8, "AppendEntries": 9, "AppendReply": 10,
    "SnapshotOffer": 11, "SnapshotFetch": 12, "SnapshotChunk": 13, "SnapshotGone": 14,
    "ObserverFetch": 15, "ObserverEntries": 16, "ObserverOffer": 17, "StatusRequest": 18,
    "StatusReply": 19, "Welcome": 20,
}  # fmt: skip
HELLO = NodeHello(protocol_version=1, cluster_id="c", role=Role.VOTER, node_id=1, disk_id=b"d")
APPEND = AppendEntries(
    term=3, commit_index=7, previous_index=7, previous_term=2, round=9,
    entries=((b"x", 8, 3), (b"y" * 300, 9, 3)),
)  # fmt: skip
CHUNK = SnapshotChunk(
    index=5, snapshot_term=2, size_bytes=900, crc=77, offset=100, data=bytes(range(256))
)


def frame_of(payload: bytes) -> bytes:
    return FRAME_HEADER.pack(len(payload), crc32c(payload)) + payload


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Whatever a field may hold."""
    if isinstance(hint, type) and issubclass(hint, IntEnum | bool):
        return st.sampled_from(list(hint)) if issubclass(hint, IntEnum) else st.booleans()
    if get_origin(hint) is tuple:
        first, *_, last = get_args(hint)
        if last is ...:
            return st.lists(values_of(first), max_size=4).map(tuple)
        return st.tuples(*map(values_of, get_args(hint)))
    if isinstance(hint, UnionType):
        return st.one_of(*map(values_of, get_args(hint)))
    return {
        NoneType: st.none(),
        int: st.integers(0, 2**63 - 1),
        str: st.text(max_size=255),
        bytes: st.binary(max_size=64),
    }[hint]


def messages_of(kind: type[AnyMessage]) -> st.SearchStrategy[AnyMessage]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_message_survives_the_wire(kind: type[AnyMessage], data: st.DataObject) -> None:
    """Any message of any class is encoded, cut anywhere, and read back equal."""
    message = data.draw(messages_of(kind))
    frame = encode_frame(message)
    cut = data.draw(st.integers(0, len(frame)))
    reader = MessageReader()
    assert [*reader.receive(frame[:cut]), *reader.receive(frame[cut:])] == [message]
    assert reader.buffered_bytes == 0


def test_numbers_on_the_wire_stay() -> None:
    """Each class keeps its number for ever, and none is forgotten in the union."""
    assert {kind.__name__: kind.__struct_config__.tag for kind in CLASSES} == TAGS


def test_a_newer_version_may_add_fields() -> None:
    """A VoteReply with one field more than we know is read without it."""
    frame = frame_of(msgspec.msgpack.encode([8, 3, "a field of the future"]))
    assert MessageReader().receive(frame) == [VoteReply(3)]


def test_an_older_version_may_lack_fields() -> None:
    """A Hello that ends after the node id gets the defaults."""
    frame = frame_of(msgspec.msgpack.encode([1, 1, "c", 0, 1]))
    assert MessageReader().receive(frame) == [msgspec.structs.replace(HELLO, disk_id=b"")]


def test_bytes_come_one_at_a_time() -> None:
    """Three frames arrive byte by byte; each message comes out with its last byte."""
    reader, sent = MessageReader(), [HELLO, APPEND, KeepAlive()]
    data = b"".join(encode_frame(message) for message in sent)
    arrived = [message for byte in data for message in reader.receive(bytes([byte]))]
    assert arrived == sent


def test_a_frame_that_is_too_long_is_refused_by_its_header() -> None:
    """The length alone is enough: nothing of the frame is waited for."""
    header = FRAME_HEADER.pack(FRAME_BYTES_MAX + 1, 0)
    with pytest.raises(RemoteProtocolError, match=f"{FRAME_BYTES_MAX + 1} bytes, at most"):
        MessageReader().receive(header)


def test_the_longest_frame_passes() -> None:
    """A frame of exactly the limit is sent and read."""
    overhead = len(encode_frame(messages.StatusReply(b"x" * (1 << 20)))) - (1 << 20)
    reply = messages.StatusReply(b"x" * (FRAME_BYTES_MAX - overhead + FRAME_HEADER.size))
    assert MessageReader().receive(encode_frame(reply)) == [reply]


def test_our_own_oversize_frame_is_our_mistake() -> None:
    """Encoding more than the limit stops us, not the peer."""
    with pytest.raises(AssertionError, match="StatusReply of"):
        encode_frame(messages.StatusReply(b"x" * FRAME_BYTES_MAX))


def test_every_flipped_bit_is_noticed() -> None:
    """One bit of a frame is flipped: an error, or a longer frame is waited for; never a message."""
    frame = encode_frame(CHUNK)
    for bit in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with suppress(RemoteProtocolError):
            assert MessageReader().receive(damaged) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",  # nil
        b"\x90",  # no tag
        b"\x91\xcc\xff",  # an unknown tag
        b"\x92\x02\xa3\xff\xff\xff",  # a reason that is no UTF-8
        b"\x99\x03" + b"\x91" * 100_000,  # nested deeper than any stack
        b"\x92\x0f\xff",  # next_index -1
        b"\x92\x0f\xcf" + b"\xff" * 8,  # next_index 2**64 - 1
        b"\x93\x04\x07\x01",  # a standing that does not exist
        b"\x91\x03\x00",  # bytes after the message
        msgspec.msgpack.encode([1, 1, "c" * 256, 0, 1]),  # a name that would fill the log
        msgspec.msgpack.encode([1, 1, "c", 0, 1, b"d" * 65]),
    ],
    ids=lambda payload: payload[:8].hex() or "empty",
)
def test_rubbish_with_a_right_crc_is_a_protocol_error(payload: bytes) -> None:
    """Whoever sends it knows how to compute a CRC; still only its connection may suffer."""
    with pytest.raises(RemoteProtocolError):
        MessageReader().receive(frame_of(payload))


@pytest.mark.parametrize(
    "claim", [b"\x97\x09\x01\x01\x01\x01\xdd\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff"]
)
def test_a_claim_of_many_items_costs_no_memory(claim: bytes) -> None:
    """Eleven bytes claim four thousand million entries; nothing is set aside for them."""
    peaks = []
    # More than once, as other threads count, too: those of a broker that other tests use.
    for _ in range(5):
        tracemalloc.start()
        try:
            with pytest.raises(RemoteProtocolError):
                MessageReader().receive(frame_of(claim))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < 100_000


@given(st.binary(max_size=200))
def test_any_payload_is_a_message_or_an_error(payload: bytes) -> None:
    """Random payloads: nothing but RemoteProtocolError comes out."""
    with suppress(RemoteProtocolError):
        assert len(MessageReader().receive(frame_of(payload))) == 1


@given(seed=st.integers(0, 2**32))
def test_changed_messages_are_messages_or_errors(seed: int) -> None:
    """A few bytes of a good payload are replaced, the CRC is right: nothing else may come out."""
    random = Random(seed)
    payload = bytearray(encode_frame(random.choice([HELLO, APPEND, CHUNK, Refusal("no")])))[8:]
    for _ in range(random.randrange(1, 5)):
        payload[random.randrange(len(payload))] = random.randrange(256)
    with suppress(RemoteProtocolError):
        assert len(MessageReader().receive(frame_of(bytes(payload)))) == 1


@given(st.binary(max_size=100))
def test_a_stream_of_noise_is_waited_for_or_refused(noise: bytes) -> None:
    """Somebody who speaks another protocol: an error, or a frame that never completes."""
    reader = MessageReader()
    with suppress(RemoteProtocolError):
        assert reader.receive(noise) == []
        assert reader.buffered_bytes == len(noise)


def test_the_largest_index_passes() -> None:
    """2**63 - 1 fits all structs that store it."""
    fetch = ObserverFetch(next_index=2**63 - 1)
    assert MessageReader().receive(encode_frame(fetch)) == [fetch]
