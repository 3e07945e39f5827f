"""What a consumer makes of scheduled records: gaps, deliveries, and what must never reach it."""

from __future__ import annotations

import json
import pickle
from copy import copy

import pytest

from raftmq.client.consumer.batch import BatchPart, ConsumedBatch
from raftmq.client.consumer.fetch_response import Expected, check_answer
from raftmq.client.consumer.record import ConsumerRecord, Deserializers, PartitionOwnership
from raftmq.errors import CorruptRecord
from raftmq.tag_filter import parse
from raftmq.wire.batch.header import HEADER, read_header, seal
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.batch.scheduling import delivery_of
from raftmq.wire.messages.fetch import Fetch, LeftOutRange
from tests.unit.client.consumer.gaps import END, ask_again, begun, told
from tests.unit.client.consumer.pieces import control_at, data_at, piece

MADE, DUE, NOW = 1000, 5000, 5100


def scheduled(base_offset: int, *values: str, **columns: object) -> bytes:
    return data_at(base_offset, *values, due_ms=DUE, **columns)


def delivered(base_offset: int, *values: str, left_out: tuple[int, ...] = ()) -> bytes:
    """As a leader appends it."""
    original = encode_batch(
        values=[value.encode() for value in values],
        timestamps=[MADE + index for index in range(len(values))],
        due_ms=DUE,
    )
    made = delivery_of(original, original_offset=3, now_ms=NOW, left_out=left_out)
    HEADER.pack_into(made, 0, *read_header(made).placed(base_offset, 0))
    return bytes(seal(made))


# -- gaps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [None, "!test"])
def test_it_says_that_it_takes_gaps(tags: str | None) -> None:
    """With each request, whether it has a filter or not (A12.2)."""
    _, question = begun(tags=tags)
    assert isinstance(question.body, Fetch)
    assert question.body.takes_gaps


def test_positions_move_over_what_is_scheduled() -> None:
    """Without a filter as with one: at the beginning, between batches, at the end; offset and
    epoch (A12.2)."""
    world, question = begun()
    world.give(question, told(data_at(3, "a", epoch=1), left_out=[(0, 3, 0), (4, 9, 1)]))
    state = world.state(0)
    assert (state.position, state.position_epoch) == (3, 0)
    assert (state.fetch_offset, state.fetch_epoch) == (9, 1)
    batch = world.delivery.take(10)
    assert batch is not None
    assert (batch.offsets, batch.end_offset) == (range(3, 4), 4)
    assert (state.position, state.position_epoch, state.failures) == (9, 1, 0)
    assert ask_again(world).body.partitions[0].fetch_offset == 9  # type: ignore[union-attr]


def test_a_partition_where_all_is_scheduled() -> None:
    """Nothing is handed out, and what waits for the position is woken: a group commits it."""
    world, question = begun()
    passed = world.state(0)._events.passed
    world.give(question, told(left_out=[(0, 15, 2)]))
    state = world.state(0)
    assert (state.position, state.position_epoch, state.fetch_offset) == (15, 2, 15)
    assert passed.is_set()
    assert world.delivery.take(10) is None


@pytest.mark.parametrize(
    ("batches", "left_out", "message"),
    [
        ([data_at(4, "a")], [(0, 3, 0)], "base offset 4, expected 3"),
        ([data_at(1, "a")], [], "offsets 1 to 2 came, 0 was asked for"),
        ([data_at(0, "a"), data_at(2, "b")], [], "base offset 2, expected 1"),
        ([data_at(0, "a")], [(2, 4, 0)], "base offset 2, expected 1"),
        ([], [(0, 21, 0)], "end offset 21, committed is up to 20"),
        ([data_at(2, "a", epoch=1)], [(0, 2, 3)], "leader epoch 1 after 3"),
    ],
)
def test_a_gap_that_is_not_said_stays_damage(
    batches: list[bytes], left_out: list[tuple[int, int, int]], message: str
) -> None:
    """The broker has to say what it hides (A12.2)."""
    ranges = [LeftOutRange(*one) for one in left_out]
    damage = check_answer(b"".join(batches), Expected(0, -1, 7, END, "t-0", left_out=ranges)).damage
    assert damage is not None
    assert message in str(damage)


# -- what must not come ---------------------------------------------------------------------------


@pytest.mark.parametrize("tags", [None, "!test"])
def test_what_is_scheduled_still_is_never_handed_out(tags: str | None) -> None:
    """A fault of the broker, which is named; what came before it is good (A12.2)."""
    asked = None if tags is None else parse(tags)
    data = data_at(0, "a") + scheduled(1, "early") + data_at(2, "b")
    pieces, damage = check_answer(data, Expected(0, -1, 7, END, "t-0", asked=asked))
    assert [one.base_offset for one in pieces] == [0]
    assert isinstance(damage, CorruptRecord)
    assert "a scheduled batch at offset 1: nobody gets one before its delivery" in str(damage)


def test_a_bit_that_makes_a_batch_scheduled_is_found_by_the_checksum() -> None:
    """It is damage, and not a fault of the broker."""
    data = bytearray(data_at(0, "a"))
    data[21] ^= 0x20  # of its attributes
    damage = check_answer(data, Expected(0, -1, 7, END, "t-0")).damage
    assert damage is not None
    assert "CRC-32C is" in str(damage)


# -- deliveries -----------------------------------------------------------------------------------


def test_a_delivery_says_when_it_was_made_and_was_due() -> None:
    """Beside the timestamp, which is the moment of delivery (A12.2)."""
    world, question = begun()
    world.give(question, told(data_at(0, "now"), delivered(1, "a", "b"), control_at(3)))
    batch = world.delivery.take(10)
    assert batch is not None
    assert list(batch.timestamps) == [MADE, NOW, NOW]
    assert list(batch.scheduled_at) == [None, MADE, MADE + 1]
    assert list(batch.due) == [None, DUE, DUE]
    plain, first, second = batch
    assert (plain.scheduled_at, plain.due) == (None, None)
    assert (first.scheduled_at, first.due, first.timestamp) == (MADE, DUE, NOW)
    assert second.scheduled_at == MADE + 1
    assert "scheduled_at" not in repr(plain)
    assert repr(first).endswith("tags=(), scheduled_at=1000, due=5000)")


def test_plain_records_say_neither() -> None:
    batch = ConsumedBatch("t", 0, [piece(data_at(0, "a")).part(0, records_max=9)], high_watermark=9)
    assert (list(batch.scheduled_at), list(batch.due)) == ([None], [None])
    assert [*batch] == [ConsumerRecord("t", 0, 0, 1000, None, b"a")]


def test_cancelled_records_of_a_delivery_are_no_records() -> None:
    """The others keep their times (A12.3)."""
    part: BatchPart = piece(delivered(4, "a", "b", "c", "d", left_out=(0, 3))).part(
        4, records_max=9
    )
    batch = ConsumedBatch("t", 0, [part], high_watermark=20)
    assert list(batch.offsets) == [5, 6]
    assert list(batch.scheduled_at) == [MADE + 1, MADE + 2]
    assert [(one.value, one.due) for one in batch] == [(b"b", DUE), (b"c", DUE)]
    assert batch.end_offset == 8


def test_deserialized_and_owned_deliveries() -> None:
    """What a program gets of a group, with a deserializer; copies and pickles have the times."""
    part = piece(delivered(0, "7")).part(0, records_max=9)
    batch = ConsumedBatch(
        "t",
        0,
        [part],
        high_watermark=9,
        ownership=PartitionOwnership(),
        deserializers=Deserializers(value=json.loads),
    )
    (record,) = batch
    assert (record.value, record.scheduled_at, record.due) == (7, MADE, DUE)
    (raw,) = batch.raw
    for again in (copy(raw), pickle.loads(pickle.dumps(raw))):
        assert again == raw
        assert (again.scheduled_at, again.due) == (MADE, DUE)
    other = ConsumerRecord("t", 0, 0, NOW, None, b"7", (), (), MADE, DUE + 100)
    assert raw != other
