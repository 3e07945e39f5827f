"""Good frames of requests and responses, and the ways in which they are damaged.

Bytes are changed anywhere; fields are changed with everything around them left in order, so that
damage gets past the frame and the header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from raftmq.wire.envelopes import encode_request, encode_response
from raftmq.wire.frames import PREFIX, encode_frame
from tests.unit.wire.random_bodies import REPLY_CLASSES, REQUEST_CLASSES, random_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from raftmq.wire.bodies import Body

PAYLOAD_BYTES_MAX = 200
COPIES_BYTES_MAX = 20_000
SHARE_UNHARMED = 0.03
# The beginnings of what is large, deep, or nothing at all in msgpack.
EVIL = (
    b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xde\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc1",
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xca\x7f\xc0\x00\x00", b"\x91" * 500,
    b"\x81" * 500, b"\x91" * 2_000, b"\xa3\xff\xfe\xfd", b"\xc7\x0c\xff" + b"\xff" * 12, bytes(64),
)  # fmt: skip
VALUES = tuple(
    msgspec.Raw(msgspec.msgpack.encode(value))
    for value in (
        None, True, False, 0, 1, -1, -2, 255, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63),
        0.5, float("nan"), float("inf"), "", "x", "x" * 300, b"", bytes(16), bytes(17), [], [[]],
        [None] * 40, {}, {"a": "b"}, {1: 2}, {"a": None}, [[[[[[]]]]]],
    )
)  # fmt: skip
# Around the format's own limit, around those of interpreters, and beyond all of them.
DEEP = tuple(msgspec.Raw(b"\x91" * depth + b"\xc0") for depth in (28, 32, 40, 950, 2_000))


class Sample(NamedTuple):
    """A frame, and what it answers; None for a request."""

    stream: bytes
    reply: type[Body] | None


def corpus(random: Random, *, of_each: int) -> list[Sample]:
    """Frames of every message, some with a payload."""
    samples = []
    for kind in REQUEST_CLASSES * of_each:
        length = random.choice([0, 0, random.randint(1, PAYLOAD_BYTES_MAX)])
        frame = encode_request(
            random.randint(0, 1 << 40), random_body(kind, random),
            payload_length=length, trace=random.choice([None, {"traceparent": "00-1-2-01"}]),
        )  # fmt: skip
        samples.append(Sample(frame + random.randbytes(length), None))
    for reply in REPLY_CLASSES * of_each:
        length = random.choice([0, 0, random.randint(1, PAYLOAD_BYTES_MAX)])
        frame = encode_response(
            random.randint(0, 1 << 40), random_body(reply, random), payload_length=length
        )
        samples.append(Sample(frame + random.randbytes(length), reply))
    return samples


def damage(random: Random, samples: Sequence[Sample]) -> Sample:
    """One of `samples`, damaged once or a few times; a few stay whole."""
    sample = random.choice(samples)
    if random.random() < SHARE_UNHARMED:
        return sample
    if random.random() < 0.5:
        return Sample(_with_other_fields(random, sample.stream), sample.reply)
    stream = bytearray(sample.stream)
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        random.choice(_WAYS)(random, stream, samples)
    if random.random() < 0.5:
        _mend_lengths(stream)
    return Sample(bytes(stream), sample.reply)


def _with_other_fields(random: Random, stream: bytes) -> bytes:
    """Up to three values anywhere in the header are replaced, doubled, or removed."""
    _, header_length = PREFIX.unpack_from(stream)
    payload_start = PREFIX.size + header_length
    fields = msgspec.msgpack.decode(stream[PREFIX.size : payload_start])
    for _ in range(random.randint(0, 2)):
        _change_a_field(random, fields, ways=3)
    _change_a_field(random, fields, ways=4)  # copies once only: they would multiply
    payload = stream[payload_start:]
    return encode_frame(msgspec.msgpack.encode(fields), len(payload)) + payload


def _change_a_field(random: Random, fields: list[Any], *, ways: int) -> None:
    while (inner := [item for item in fields if isinstance(item, list)]) and random.random() < 0.7:
        fields = random.choice(inner)
    if not fields:
        fields.append(random.choice(VALUES + DEEP))
        return
    position = random.randrange(len(fields))
    change = random.randrange(ways)
    if change == 0:
        del fields[position]
    elif change == 1:
        fields.insert(position, random.choice(VALUES + DEEP))
    elif change == 2:
        fields[position] = random.choice(VALUES)
    else:
        room = COPIES_BYTES_MAX // len(msgspec.msgpack.encode(fields[position]))
        fields[position:position] = [fields[position]] * min(random.choice([1, 2, 2_000]), room)


def _flip(random: Random, stream: bytearray, _: Sequence[Sample]) -> None:
    if stream:
        stream[random.randrange(len(stream))] ^= 1 << random.randrange(8)


def _overwrite(random: Random, stream: bytearray, _: Sequence[Sample]) -> None:
    if stream:
        stream[random.randrange(len(stream))] = random.randrange(256)


def _cut(random: Random, stream: bytearray, _: Sequence[Sample]) -> None:
    del stream[random.randint(0, len(stream)) :]


def _remove(random: Random, stream: bytearray, _: Sequence[Sample]) -> None:
    start = random.randint(0, len(stream))
    del stream[start : start + random.randint(1, 20)]


def _insert_evil(random: Random, stream: bytearray, _: Sequence[Sample]) -> None:
    position = random.randint(0, len(stream))
    stream[position:position] = random.choice(EVIL)


def _splice(random: Random, stream: bytearray, samples: Sequence[Sample]) -> None:
    """The rest of another frame in place of the own one, or behind it."""
    other = random.choice(samples).stream
    start = random.choice([random.randint(0, len(stream)), len(stream)])
    stream[start:] = other[random.choice([0, random.randint(0, len(other))]) :]


def _mend_lengths(stream: bytearray) -> None:
    """Both lengths of the first frame fit what is there, so that its header is decoded."""
    if len(stream) < PREFIX.size:
        return
    header_length = min(PREFIX.unpack_from(stream)[1], len(stream) - PREFIX.size)
    PREFIX.pack_into(stream, 0, len(stream) - 4, header_length)


_WAYS: tuple[Callable[[Random, bytearray, Sequence[Sample]], None], ...] = (
    _flip, _overwrite, _cut, _remove, _insert_evil, _splice,
)  # fmt: skip
