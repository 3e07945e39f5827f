"""How deep msgpack may be nested follows from its bytes: at every door, on every interpreter.

A reader that stands deep in its own stack has less of the interpreter's recursion left than one
that does not; both must say the same about the same bytes.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import raftmq
from raftmq.broker.requests.proposals import decode_result, encode_result
from raftmq.client.group.planning import unpack
from raftmq.errors import RaftmqError
from raftmq.metadata.commands import DeleteTopic, Done, decode_command, encode_command
from raftmq.metadata.image_format import decode_header, decode_section
from raftmq.metadata.raft.engine.replication import Enrol, own_entry, quorum_entry
from raftmq.metadata.raft.net.messages import FRAME_HEADER, KeepAlive, MessageReader
from raftmq.metadata.raft.snapshot.contents import read_picture
from raftmq.metadata.raft.status import decode_status
from raftmq.wire.batch.header import check_batch
from raftmq.wire.batch.records import RecordBatch, check_structure
from raftmq.wire.envelopes import decode_reply, decode_request, decode_response
from raftmq.wire.messages.cluster import Ping
from raftmq.wire.messages.groups import Numbered, interest_in
from raftmq.wire.messages.produce import ProduceReply
from raftmq.wire.nesting import NESTING_MAX, check_nesting
from tests.unit.wire.batches import PACK, RawChunk, array, entry_of, with_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

DEPTHS = (1, NESTING_MAX - 4, NESTING_MAX + 1, 200, 900, 990, 1_000, 20_000, 100_000)
CHUNK = RawChunk(1, array([PACK(b"a")]))


def nested(depth: int, *, maps: bool = False) -> msgspec.Raw:
    """So many arrays, or maps, around a nil."""
    return msgspec.Raw((b"\x81\x01" if maps else b"\x91") * depth + b"\xc0")


def with_field(data: bytes, value: msgspec.Raw) -> bytes:
    """One field more at the end of a short array."""
    assert 0x90 <= data[0] < 0x9F, "a short array"
    return bytes([data[0] + 1]) + data[1:] + bytes(value)


def batch(value: msgspec.Raw) -> bytearray:
    stored = CHUNK.pack()
    return with_directory(PACK({200: value, 0: [entry_of(CHUNK, stored)]}), stored, 1)


def to_broker(value: msgspec.Raw) -> None:
    data = batch(value)
    check_structure(data, 0, check_batch(data))


def to_quorum(value: msgspec.Raw) -> None:
    payload = with_field(PACK(KeepAlive()), value)
    MessageReader().receive(FRAME_HEADER.pack(len(payload), crc32c(payload)) + payload)


def to_asker(value: msgspec.Raw) -> None:
    reply = [1, 0, "", 0, 1, msgspec.Raw(with_field(PACK(ProduceReply(())), value))]
    decode_reply(ProduceReply, decode_response(PACK(reply)).body)


def to_member(value: msgspec.Raw) -> None:
    unpack(PACK([1, value]), Numbered, version=1, what="it")


def to_coordinator(value: msgspec.Raw) -> None:
    if interest_in(PACK([1, ["topic"], b"", "", value])) is None:
        raise ValueError("unreadable")


PING = int(Ping.api_key), Ping.version, 1
IMAGE = b"\x92\x01"  # how a header and a section of an image begin
DOORS: dict[str, Callable[[msgspec.Raw], object]] = {
    "reader of a batch": lambda value: RecordBatch.decode(batch(value)),
    "broker's check of a batch": to_broker,
    "request": lambda value: decode_request(PACK([*PING, [], {}, value])),
    "body of a request": lambda value: decode_request(PACK([*PING, [value], {}])),
    "response": lambda value: decode_response(PACK([1, 0, "", 0, 1, None, value])),
    "body of a response": to_asker,
    "subscription": to_coordinator,
    "part of a member": to_member,
    "command": lambda value: decode_command(with_field(encode_command(DeleteTopic(b"")), value)),
    "field of a command": lambda value: decode_command(PACK([1, [9, b"", value], None])),
    "result of a command": lambda value: decode_result(
        with_field(encode_result(Done()), value)
    ),
    "message of the quorum": to_quorum,
    "entry of the quorum": lambda value: own_entry(
        quorum_entry(Enrol(1, b""))[:2] + PACK([1, 1, b"", value])
    ),
}  # fmt: skip


def verdict(door: Callable[[Any], object], value: object) -> bool:
    """Whether it is let in."""
    try:
        door(value)
    except (RaftmqError, ValueError):
        return False
    return True


def deep_in_the_stack(frames: int, call: Callable[[], bool]) -> bool:
    return deep_in_the_stack(frames - 1, call) if frames else call()


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_every_door_has_the_same_limit(door: str, maps: bool) -> None:
    """What nobody knows yet is overlooked up to the limit, and refused beyond it."""
    for depth in DEPTHS:
        value = nested(depth, maps=maps)
        assert verdict(DOORS[door], value) == (depth < NESTING_MAX), f"{depth} levels"


@pytest.mark.parametrize("door", DOORS)
def test_the_stack_of_the_reader_does_not_matter(door: str) -> None:
    """Neither broker nor reader may depend on who has called it."""
    for depth in DEPTHS:
        value = nested(depth)
        found = deep_in_the_stack(700, lambda value=value: verdict(DOORS[door], value))
        assert found == verdict(DOORS[door], value), f"{depth} levels"


@pytest.mark.parametrize("depth", DEPTHS)
def test_images_and_snapshots(depth: int) -> None:
    """They come from other voters; nothing in them is nested at all."""
    tail = bytes(nested(depth))
    for number in range(1, 9):
        assert not verdict(lambda data: decode_section(1, data), b"\x93" + bytes([number]) + tail)
    with pytest.raises(RaftmqError):
        decode_header(b"\x92" + b"\x01" + tail)
    with pytest.raises(RaftmqError):
        read_picture(None, [b"\x94\x01\x80\xa0" + tail])  # type: ignore[arg-type]


@pytest.mark.parametrize("mark", [b"[", b'{"a":'])
def test_status_of_a_voter(mark: bytes) -> None:
    """It is JSON, read by people's commands."""
    for depth in DEPTHS:
        assert not verdict(decode_status, b'{"more":' + mark * depth)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=20))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.integers(0, 9), inner),
    max_leaves=40,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(value=VALUES, around=st.integers(0, NESTING_MAX + 3), wide=st.booleans())
def test_levels_are_counted_right(value: Any, around: int, wide: bool) -> None:
    """Whatever stands before, behind and between, in every way that msgpack has to write it."""
    for number in range(around):
        value = {number: value, -1: b"after"} if number % 2 else [[], value, {1: 2}, "after"]
    data = msgspec.msgpack.encode([value, *[[1]] * 20] if wide else value)
    levels = depth_of(value) + 1 if wide else depth_of(value)
    assert verdict(check_nesting, data) == (levels <= NESTING_MAX)


@given(
    run=st.lists(st.sampled_from([b"\x90", b"\x80", b"\xc0", b"\x07", b"\xff", b"\x91\x01"])),
    around=st.integers(0, NESTING_MAX + 1),
)
def test_runs_of_short_items(run: list[bytes], around: int) -> None:
    """Longer and shorter than the scan steps over at once; what is empty is a level, too."""
    items = b"".join(run * 5)
    data = b"\x91" * around + b"\xdc" + (5 * len(run) + 1).to_bytes(2, "big") + items + b"\x91\x01"
    levels = around + 2
    assert verdict(check_nesting, data) == (levels <= NESTING_MAX)


@pytest.mark.parametrize("item", [b"\xc0", b"\x07", b"\x90", b"\x80"])
def test_many_short_items_cost_few_steps(item: bytes) -> None:
    """A header full of them is looked at by the loop that serves everybody else."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    data = b"\xdd" + (2_000_000).to_bytes(4, "big") + item * 2_000_000 + b"\x91" * NESTING_MAX
    before = sys.gettrace()
    sys.settrace(count)
    try:
        check_nesting(data)
    finally:
        sys.settrace(before)
    assert lines < 1_000


@given(data=st.binary(max_size=200), marks=st.integers(0, 60))
def test_whatever_is_no_msgpack_is_left_to_the_decoder(data: bytes, marks: int) -> None:
    """It ends, and raises nothing else."""
    verdict(check_nesting, data + b"\x92\x01" * marks + data)


def test_nothing_else_decodes_what_may_be_skipped() -> None:
    """A module that makes decoders of its own says here why nothing in them is skipped."""
    flat = {
        "columns.py", "record_headers.py",  # bytes, numbers and nil, of known length
        "lists.py",  # behind a CRC, and events forbid unknown fields
        "directory.py",  # entries forbid unknown fields; the map goes by `nesting`
        "bodies.py", "envelopes.py", "commands.py",  # behind `check_nesting` of what is around
        "nesting.py",
    }  # fmt: skip
    found = set()
    for path in Path(raftmq.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "msgspec.msgpack.Decoder", "msgspec.msgpack.decode",
            ):  # fmt: skip
                found.add(path.name)
    assert found <= flat
