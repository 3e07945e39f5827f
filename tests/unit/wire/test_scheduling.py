"""Scheduled batches, deliveries and copies: bytes, marks, and what is left out (A12.2, A12.3).

Nothing writes them yet: brokers refuse them (`unit/storage/test_incoming.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import CorruptRecord, InvalidRecord
from raftmq.model import Compression, RecordFormat, TimestampType
from raftmq.tag_filter import TagFilter, parse
from raftmq.wire.batch.directory import join_directory, read_directory
from raftmq.wire.batch.fixed_keys import (
    ACCOUNT_END,
    check_position,
    is_marked,
    pack_fixed_keys,
    read_account,
)
from raftmq.wire.batch.head import believed_directory, head_length, seal_batch
from raftmq.wire.batch.header import (
    COLUMNS_BIT,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    NAMED_FIRST,
    SCHEDULED_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Account,
    BatchHeader,
    check_batch,
    read_header,
    seal,
)
from raftmq.wire.batch.records import Record, RecordBatch, check_structure, encode_batch
from raftmq.wire.batch.scheduling import ScheduleMark, copy_of, delivery_of, read_mark
from tests.unit.wire.batches import PACK, RawChunk, entry_of, with_directory
from tests.unit.wire.partial import read, sent

# The CRCs were computed bit by bit, by a program that shares nothing with this one.
ORIGINAL = bytes.fromhex(
    "0000000000000000 00000074 ffffffff 02 d52ad53d 6010 00000001"  # .. last offset delta
    "00000000000003e8 00000000000003ed 000000000000002a 0007 00000009 00000002"
    "0000001f 83 cc82 ce40b0e51e cc83 cf0000000000002328"  # {130: CRC of the head, 131: due time,
    "00 91 95 02 20 ceac9ad56e 20 90"  # 0: [[2, 32, crc, 32, []]]}
    "00000000 00000003 00000000 00000009 00000000 92 00 05 92 c4027631 c4027632"
)
DELIVERY = bytes.fromhex(
    "0000000000000000 00000083 ffffffff 02 cd5a107b 4008 00000001"
    "00000000000003e8 0000000000002339 ffffffffffffffff ffff ffffffff 00000002"
    "0000002e 85 cc82 ce38f2813b cc83 cf0000000000002328 cc84 cf0000000000000005"  # 132: original
    "00 91 95 02 20 ceac9ad56e 20 90 cc86 91 01"  # 134: [1]
    "00000000 00000003 00000000 00000009 00000000 92 00 05 92 c4027631 c4027632"
)
COPY = bytes.fromhex(
    "0000000000000000 0000008d ffffffff 02 2f4897fc 6000 00000001"
    "00000000000003e8 00000000000003ed ffffffffffffffff ffff ffffffff 00000002"
    "00000038 85 cc82 ce7a2f4f8e cc83 cf0000000000002328"
    "cc85 92 cf0000000000000005 cf0000000000000003"  # 133: [replaced, first]
    "00 91 95 02 20 ceac9ad56e 20 90 cc86 91 01"
    "00000000 00000003 00000000 00000009 00000000 92 00 05 92 c4027631 c4027632"
)
DUE = 9000


def scheduled(count: int = 3, **more: Any) -> bytearray:
    columns: dict[str, Any] = {
        "values": [b"value %d" % index for index in range(count)],
        "timestamps": [1000 + index for index in range(count)],
        "due_ms": DUE,
    }
    return encode_batch(**columns | more)


def header_of(batch: bytes | bytearray) -> BatchHeader:
    return check_batch(batch)


def mark_of(batch: bytes | bytearray) -> ScheduleMark | None:
    return read_mark(batch, 0, header_of(batch))


def opened(batch: bytes | bytearray) -> RecordBatch:
    return RecordBatch.decode(batch)


def records_of(batch: bytes | bytearray) -> list[Record]:
    return list(opened(batch).records())


def forged(batch: bytes | bytearray, directory: bytes | None = None, **changes: int) -> bytearray:
    """With other header fields, another directory, and CRCs that vouch for both."""
    header = BatchHeader._make(HEADER.unpack_from(batch))
    changed = HEADER.pack(*header._replace(**changes))
    end = HEADER_SIZE + 4 + int.from_bytes(batch[HEADER_SIZE : HEADER_SIZE + 4], "big")
    kept = batch[HEADER_SIZE:end] if directory is None else directory
    return seal_batch(bytearray(changed + kept + batch[end:]))


# -- bytes --------------------------------------------------------------------------------------


def test_byte_for_byte() -> None:
    """As docs/PROTOCOL.md lays them out: an original of a transaction, its delivery, and a copy of
    a copy, the last two without a record that is cancelled. A12.2, A12.3."""
    batch = encode_batch(
        values=[b"v1", b"v2"],
        timestamps=[1000, 1005],
        producer_id=42,
        producer_epoch=7,
        base_sequence=9,
        transactional=True,
        due_ms=DUE,
    )
    assert batch == ORIGINAL
    assert delivery_of(batch, original_offset=5, now_ms=9017, left_out=[1]) == DELIVERY
    copy = copy_of(batch, replaces=3, first=3, left_out=[1])
    assert copy_of(copy, replaces=5, first=3) == COPY
    assert mark_of(ORIGINAL) == ScheduleMark(DUE)
    assert mark_of(DELIVERY) == ScheduleMark(DUE, delivers=5, left_out=(1,))
    assert mark_of(COPY) == ScheduleMark(DUE, replaces=5, first=3, left_out=(1,))


def test_what_readers_get() -> None:
    """Of a delivery the moment of delivery and that of the record, in columns. A12.2."""
    delivery = RecordBatch.decode(DELIVERY)
    assert delivery.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert delivery.header.record_count == 1
    assert delivery.header.end_offset == 2
    assert list(delivery.records()) == [Record(0, 9017, None, b"v1", (), ())]
    assert list(delivery.scheduled_at or ()) == [1000]
    assert delivery.mark == mark_of(DELIVERY)
    assert delivery.packed("values") is None
    for batch in (opened(ORIGINAL), opened(COPY)):
        assert batch.scheduled_at is None
        assert list(batch.timestamps) == [1000, 1005][: batch.header.record_count]


@pytest.mark.parametrize("attributes", [SCHEDULED_BIT, SCHEDULED_BIT | COLUMNS_BIT | CONTROL_BIT])
def test_only_records_in_columns_are_scheduled(attributes: int) -> None:
    """Kafka's format has no place for a due time, and a marker is for now. A12.2."""
    batch = forged(ORIGINAL, attributes=attributes)
    with pytest.raises(CorruptRecord, match="not a batch of columns with records"):
        header_of(batch)


def test_other_unknown_bits_stay_unknown() -> None:
    batch = forged(ORIGINAL, attributes=SCHEDULED_BIT | COLUMNS_BIT | 1 << 12)
    with pytest.raises(CorruptRecord, match="unknown attribute bits 0x1000"):
        header_of(batch)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_format": RecordFormat.KAFKA}, "KAFKA, which has no place for a due time"),
        ({"offset_deltas": [0, 2, 3]}, "without gaps"),
        ({"due_ms": -1}, "due_ms is -1"),
        ({"due_ms": 1 << 63}, "due_ms is 9223372036854775808"),
    ],
)
def test_what_cannot_be_scheduled(changes: dict[str, Any], message: str) -> None:
    """The program is told before anything is sent. A12.3."""
    with pytest.raises(InvalidRecord, match=message):
        scheduled(**changes)


# -- forms --------------------------------------------------------------------------------------

ACCOUNT = Account(17, 0xDEADBEEF)
NAMED = {"producer_id": NAMED_FIRST + 3, "producer_epoch": 2, "base_sequence": 5}
FORMS = {
    "original": scheduled(),
    "of a producer": scheduled(producer_id=5, producer_epoch=1, base_sequence=0),
    "named": scheduled(account=ACCOUNT, **NAMED),
    "tagged": scheduled(tags=[["a"], ["b"], None], compression=Compression.GZIP),
    "delivery": delivery_of(scheduled(), original_offset=7, now_ms=DUE),
    "delivery of some": delivery_of(scheduled(), original_offset=7, now_ms=DUE, left_out=[0, 2]),
    "copy": copy_of(scheduled(account=ACCOUNT, **NAMED), replaces=7, first=7),
    "copy of some": copy_of(scheduled(), replaces=9, first=7, left_out=[1]),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_read_from_its_head(form: str) -> None:
    """By the functions that read today's, in any place of a buffer; older readers step over the
    keys, and decode the directory as a map. A12.2."""
    batch = FORMS[form]
    header = header_of(batch)
    length = head_length(batch, 0, header)
    shifted = b"xyz" + bytes(batch[:length])
    assert read_mark(shifted, 3, header) == mark_of(batch)
    assert is_marked(shifted, 3)
    assert believed_directory(shifted, 3, header) is not None
    assert (read_account(batch[:ACCOUNT_END], 0, header) is not None) is (form == "named")
    assert check_position(batch, 0) == (ACCOUNT_END if form == "named" else 69)
    check_structure(batch, 0, header)
    fields = msgspec.msgpack.decode(bytes(batch[65:length]))
    assert [key for key in fields if key < 128] == [0]
    assert fields[131] == DUE


@pytest.mark.parametrize("form", FORMS)
def test_every_bit_of_the_head_counts(form: str) -> None:
    """A mark is read as it was written, or not at all; where none is found any more, the CRC of the
    head does not vouch for that. A12.2, A12.3."""
    batch = FORMS[form]
    length = head_length(batch, 0, header_of(batch))
    for bit in range(21 * 8, length * 8):
        flipped = batch[:length]
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            header = read_header(flipped)
            mark = read_mark(flipped, 0, header)
        except CorruptRecord:  # noticed
            continue
        assert mark is None, bit
        if 0 < head_length(flipped, 0, header) <= length:
            assert believed_directory(flipped, 0, header) is None, bit


@pytest.mark.parametrize("form", FORMS)
def test_every_bit_of_the_batch_counts(form: str) -> None:
    """Nothing is sealed anew that has changed on the disk. A12.2."""
    for bit in (*range(8 * 8, 12 * 8), *range(16 * 8, len(FORMS[form]) * 8)):
        flipped = bytearray(FORMS[form])
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            delivery_of(flipped, original_offset=7, now_ms=DUE)
        with pytest.raises(CorruptRecord):
            copy_of(flipped, replaces=7, first=7)


TODAY = {
    "chunks": ({"has_check": False}, "81 00", None, None),
    "account": ({"has_check": False, "account": ACCOUNT, **NAMED},
                "83 cc80 cedeadbeef cc81 cf0000000000000011 00", ACCOUNT, None),
    "check": ({}, "82 cc82 ce", None, 69),
    "account and check": ({"account": ACCOUNT, **NAMED},
                          "84 cc80 cedeadbeef cc81 cf0000000000000011 cc82 ce", ACCOUNT, 87),
}  # fmt: skip


@pytest.mark.parametrize("form", TODAY)
def test_forms_of_today(form: str) -> None:
    """They are written and read as before, and say nothing of a schedule. A12.2."""
    more, begin, account, check = TODAY[form]
    batch = scheduled(**{"due_ms": None} | more)  # type: ignore[dict-item]
    header = check_batch(batch)
    assert batch[65:].startswith(bytes.fromhex(begin))
    assert read_account(batch, 0, header) == account
    assert check_position(batch, 0) == check
    assert not is_marked(batch, 0)
    assert read_mark(batch, 0, header) is None
    assert RecordBatch.decode(batch).mark is None
    assert RecordBatch.decode(batch).values == [b"value 0", b"value 1", b"value 2"]


RAW = RawChunk(2, b"\x92" + PACK(b"a") + PACK(b"b"))
STORED = RAW.pack()
ENTRIES = PACK([entry_of(RAW, STORED)])
CHECK = "cc82 ce 00000000"
DUE_KEY = "cc83 cf 0000000000002328"
DELIVERS = "cc84 cf 0000000000000005"


def raw(begin: str, behind: bytes = b"", attributes: int = COLUMNS_BIT) -> bytearray:
    """A batch of two records whose directory begins with these bytes."""
    batch = with_directory(bytes.fromhex(begin) + b"\0" + ENTRIES + behind, STORED, 2)
    return forged(batch, attributes=attributes)


@pytest.mark.parametrize(
    ("begin", "behind"),
    [
        ("82" + DUE_KEY, ""),  # without the CRC of the head
        ("82" + DELIVERS, ""),
        ("83" + CHECK + DELIVERS, ""),  # without a due time
        ("83" + CHECK + "cc83 cd2328", ""),  # in the shortest form
        ("83" + DUE_KEY + CHECK, ""),  # in another order
        ("83" + CHECK, "cc83 cf 0000000000002328"),  # behind the chunks
        ("83" + CHECK, "cc86 91 00"),  # left out of nothing that has a mark
        ("83 cc82 ce 00000000 ccc8 aa cc83cf41414141414141", ""),  # within another key's value
    ],
)
def test_whatever_is_not_at_its_place_is_no_mark(begin: str, behind: str) -> None:
    """Keys from 128 on are nobody's concern then, and the batch is as readable as any: an earlier
    version has taken it. With the bit of scheduled batches it is damage. A12.2."""
    batch = raw(begin, bytes.fromhex(behind))
    assert not is_marked(batch, 0)
    assert mark_of(batch) is None
    assert RecordBatch.decode(batch).values == [b"a", b"b"]
    with pytest.raises(CorruptRecord, match="without a due time"):
        mark_of(raw(begin, bytes.fromhex(behind), COLUMNS_BIT | SCHEDULED_BIT))


def test_keys_behind_the_chunks_of_today() -> None:
    """Nobody has written them without a due time: what stands before them means nothing, as to the
    versions before. A12.2."""
    said = "cc80 cedeadbeef cc81 cf0000000000000011"
    for begin in ("83" + CHECK, "85" + said + CHECK):
        batch = raw(begin, bytes.fromhex("ccc8 c0"))
        assert check_position(batch, 0) is None
        assert read_account(batch, 0, header_of(batch)) is None
        assert RecordBatch.decode(batch).values == [b"a", b"b"]


def test_keys_of_later_versions_behind_a_mark() -> None:
    """They may say more of a delivery; what this version knows holds. A12.2."""
    begin, behind = CHECK + DUE_KEY + DELIVERS, bytes.fromhex("ccc8 c0 cc86 91 01")
    batch = raw("86" + begin, behind, COLUMNS_BIT | TIMESTAMP_TYPE_BIT)
    assert mark_of(batch) == ScheduleMark(DUE, delivers=5, left_out=(1,))
    assert RecordBatch.decode(batch).values == [b"a"]
    twice = raw("86" + begin, bytes.fromhex("cc86 91 00 cc86 91 01"))
    with pytest.raises(CorruptRecord, match="a key occurs twice"):
        mark_of(twice)


def test_a_head_that_is_cut_off() -> None:
    """Wherever it ends, it is no mark. A12.2."""
    batch = FORMS["delivery of some"]
    header = header_of(batch)
    for length in range(HEADER_SIZE, head_length(batch, 0, header)):
        try:
            assert read_mark(batch[:length], 0, header) is None
        except CorruptRecord:
            continue


# -- contradictions -----------------------------------------------------------------------------

KIND = COLUMNS_BIT | TIMESTAMP_TYPE_BIT  # of a delivery


def directory(**keys: Any) -> bytes:
    """Of `scheduled()`, with other keys."""
    batch, header = scheduled(), header_of(scheduled())
    entries, _ = read_directory(batch, 0, header)
    left_out = keys.pop("left_out", [])
    return join_directory(PACK(entries), left_out, **{"due_ms": DUE} | keys)


@pytest.mark.parametrize(
    ("keys", "changes", "message"),
    [
        ({"delivers": 5}, {"attributes": KIND | SCHEDULED_BIT}, "a delivery that is scheduled"),
        ({"copy_of": (5, 3)}, {"attributes": COLUMNS_BIT}, "a due time of nothing scheduled"),
        ({}, {"attributes": COLUMNS_BIT}, "a due time of nothing scheduled"),
        ({"delivers": 5, "copy_of": (5, 3)}, {}, "a delivery and a copy at once"),
        ({"delivers": 5}, {"attributes": COLUMNS_BIT}, "without the broker's time"),
        ({"delivers": 5}, {"attributes": KIND, "producer_id": 5}, "of a producer"),
        ({"delivers": 5}, {"attributes": KIND | TRANSACTIONAL_BIT}, "of a producer"),
        ({"copy_of": (5, 3)}, {"producer_id": 5}, "of a producer"),
        ({"due_ms": 1 << 63}, {}, "more than 63 bits"),
        ({"delivers": 1 << 63}, {"attributes": KIND}, "more than 63 bits"),
        ({"copy_of": (1 << 63, 3)}, {}, "more than 63 bits"),
        ({"copy_of": (5, 1 << 63)}, {}, "more than 63 bits"),
        ({"copy_of": (5, 6)}, {}, "a copy of 5, whose first original is 6"),
        ({}, {"last_offset_delta": 3}, "gaps between their offsets"),
        ({"delivers": 5}, {"attributes": KIND, "last_offset_delta": 3}, "gaps"),
        ({"left_out": [1]}, {}, "left out of an original"),
        ({"copy_of": (5, 3), "left_out": [3]}, {}, "that it does not have"),
        ({"copy_of": (5, 3), "left_out": [1, 0]}, {}, "that it does not have"),
        ({"copy_of": (5, 3), "left_out": [1, 1]}, {}, "that it does not have"),
        ({"copy_of": (5, 3), "left_out": [0, 1, 2]}, {}, "all records left out"),
        ({"copy_of": (5, 3), "left_out": [-1]}, {}, "Expected `int` >= 0"),
        ({"copy_of": (5, 3), "left_out": [65_536]}, {}, "Expected `int` <= 65535"),
        ({"copy_of": (5, 3), "left_out": ["1"]}, {}, "Expected `int`, got `str`"),
        ({"copy_of": (5, 3), "left_out": {1: 2}}, {}, "Expected `array`"),
    ],
)
def test_contradictions(keys: dict[str, Any], changes: dict[str, int], message: str) -> None:
    """With the right CRCs: whoever wrote them broke the rules. No reader picks one side. A12.3."""
    batch = forged(scheduled(), directory(**keys), **changes)
    with pytest.raises(CorruptRecord, match=message):
        mark_of(batch)
    with pytest.raises(CorruptRecord, match=message):
        opened(batch)


def test_copies_have_no_account() -> None:
    """They are of no producer; who writes one beside such a mark has written neither. A12.2."""
    begin = pack_fixed_keys(ACCOUNT, due_ms=DUE, copy_of=(5, 3)).hex()
    with pytest.raises(CorruptRecord, match="without a due time"):
        mark_of(raw(begin, attributes=COLUMNS_BIT | SCHEDULED_BIT))
    batch = raw(begin)
    assert mark_of(batch) is None
    assert read_account(batch, 0, header_of(batch)) is None


def test_an_empty_list_of_what_is_left_out() -> None:
    """One form for each batch. A12.3."""
    begin = pack_fixed_keys(due_ms=DUE, delivers=5, more=1)
    with pytest.raises(CorruptRecord, match="length >= 1"):
        mark_of(raw(begin.hex(), bytes.fromhex("cc86 90"), KIND))


def test_a_mark_whose_crc_is_wrong() -> None:
    """Also if the batch's own is right. A12.2."""
    batch = bytearray(ORIGINAL)
    batch[83] ^= 1  # in the due time
    with pytest.raises(CorruptRecord, match="CRC-32C of the head"):
        mark_of(seal(batch))


def test_two_chunks_with_the_record_that_is_left_out() -> None:
    """One of them would be handed out, or one record too few. A12.3."""
    chunks = [RawChunk(1, b"\x91" + PACK(b"a"), tags=[tag]) for tag in ("x", "y")]
    stored = [chunk.pack() for chunk in chunks]
    entries = PACK([entry_of(*pair) for pair in zip(chunks, stored, strict=True)])
    named = join_directory(entries, [0], due_ms=DUE, delivers=5)
    batch = forged(with_directory(named[4:], b"".join(stored), 2), attributes=KIND)
    with pytest.raises(CorruptRecord, match="do not have each record that is left out once"):
        RecordBatch.decode(batch)


@pytest.mark.parametrize("batch", [encode_batch(values=[b"a"], timestamp=0), DELIVERY])
def test_only_a_scheduled_batch_is_delivered(batch: bytes) -> None:
    """A leader whose lists are wrong does not deliver what is none. A12.2."""
    with pytest.raises(CorruptRecord, match="not a scheduled batch"):
        delivery_of(batch, original_offset=7, now_ms=DUE)
    with pytest.raises(CorruptRecord, match="not a scheduled batch"):
        copy_of(batch, replaces=7, first=7)


@pytest.mark.parametrize("left_out", [[0, 1, 2], [3], [-1]])
def test_what_is_left_out_is_some_of_the_records(left_out: list[int]) -> None:
    """A batch whose records are all cancelled is settled. A12.3."""
    with pytest.raises(AssertionError):
        delivery_of(scheduled(), original_offset=7, now_ms=DUE, left_out=left_out)
    with pytest.raises(AssertionError):
        copy_of(scheduled(), replaces=7, first=7, left_out=left_out)


def test_no_chunk_is_opened() -> None:
    """Chunks that nobody could decompress are handed on as they are. A12.2."""
    batch = scheduled(200, compression=Compression.GZIP)
    _, position = read_directory(batch, 0, header_of(batch))
    garbage = forged(batch[:position] + bytes(len(batch) - position))
    for made in (
        delivery_of(garbage, original_offset=7, now_ms=DUE, left_out=[3]),
        copy_of(garbage, replaces=7, first=7, left_out=[3]),
    ):
        entries, at = read_directory(made, 0, header_of(made))
        assert entries == read_directory(batch, 0, header_of(batch)).entries
        assert bytes(made[at:]) == bytes(len(batch) - position)


def test_the_largest_batch() -> None:
    """65,536 records, of which all but one are cancelled, fit. A12.3."""
    batch = encode_batch(values=[None] * 65_536, timestamp=0, due_ms=DUE)
    delivery = delivery_of(batch, original_offset=7, now_ms=DUE, left_out=range(1, 65_536))
    assert RecordBatch.decode(delivery).values == [None]
    assert RecordBatch.decode(delivery).header.end_offset == 65_536


# -- any records --------------------------------------------------------------------------------

filters = st.sampled_from(["t1", "!t1", "t1 | odd", "odd & !t2", "nobody", "!nobody"]).map(parse)


@st.composite
def originals(draw: st.DrawFn) -> bytearray:
    """Batches with and without tags, a mixed chunk, and compression."""
    count = draw(st.integers(2, 9) | st.sampled_from([80, 150]))
    kinds = draw(st.sampled_from([0, 1, 3, 90]))
    tags = kinds and [["odd", f"t{index % kinds}"][index % 2 :] for index in range(count)]
    named: dict[str, Any] = draw(st.sampled_from([{}, {"account": ACCOUNT, **NAMED}]))
    return scheduled(
        count,
        keys=[b"%d" % index for index in range(count)],
        headers=draw(st.sampled_from([None, [{"n": b"%d" % n} for n in range(count)]])),
        tags=tags or None,
        compression=draw(st.sampled_from([Compression.NONE, Compression.GZIP])),
        **named,
    )


def some_of(data: st.DataObject, batch: bytearray, survivor: int) -> set[int]:
    count = header_of(batch).record_count
    return data.draw(st.sets(st.integers(0, count - 1), max_size=20)) - {survivor}


@given(originals(), st.data(), st.integers(0, 1 << 40))
def test_what_is_delivered_is_what_was_scheduled(
    original: bytearray, data: st.DataObject, now_ms: int
) -> None:
    """Also of a copy of a copy: each record but those that were cancelled at any time, as it was,
    at its delta. A12.2, A12.3."""
    expected = records_of(original)
    survivor = data.draw(st.integers(0, len(expected) - 1))
    chunks = original[read_directory(original, 0, header_of(original)).chunks_position :]
    batch, gone = original, set[int]()
    for replaces in data.draw(st.lists(st.integers(7, 99), max_size=2)):
        cancelled = some_of(data, original, survivor)
        batch = copy_of(batch, replaces=replaces, first=7, left_out=cancelled)
        gone |= cancelled
        assert mark_of(batch) == ScheduleMark(DUE, None, replaces, 7, tuple(sorted(gone)))
        assert records_of(batch) == [one for one in expected if one.offset not in gone]
    cancelled = some_of(data, original, survivor)
    delivery = delivery_of(batch, original_offset=5, now_ms=now_ms, left_out=cancelled)
    gone |= cancelled
    assert mark_of(delivery) == ScheduleMark(DUE, 5, left_out=tuple(sorted(gone)))
    assert delivery.endswith(chunks)
    decoded, kept = RecordBatch.decode(delivery), [r for r in expected if r.offset not in gone]
    assert list(decoded.records()) == [one._replace(timestamp=now_ms) for one in kept]
    assert list(decoded.scheduled_at or ()) == [one.timestamp for one in kept]
    assert decoded.header.record_count == len(kept)


@given(originals(), st.data(), filters)
def test_filters_of_deliveries(original: bytearray, data: st.DataObject, asked: TagFilter) -> None:
    """What a broker sends in part, or whole, has no record that is cancelled. A12.1, A12.3."""
    gone = some_of(data, original, survivor=0)
    delivery = delivery_of(original, original_offset=5, now_ms=DUE, left_out=gone)
    expected = [one for one in records_of(delivery) if asked.matches(one.tags)]
    assert read(delivery, asked) == expected
    assert read(sent(delivery, asked), asked) == expected
    assert not gone & {one.offset for one in expected}
