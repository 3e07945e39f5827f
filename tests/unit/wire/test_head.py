"""The head of a batch, by which chunks may be left out, and partial batches (A12.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import CorruptRecord
from raftmq.model import Compression, RecordFormat
from raftmq.tag_filter import TagFilter, parse
from raftmq.wire.batch.directory import encode_directory, read_directory
from raftmq.wire.batch.head import (
    PARTIAL_MAGIC,
    believed_directory,
    head_length,
    is_partial,
    iter_sent,
    renumbered,
    seal_batch,
)
from raftmq.wire.batch.header import HEADER_SIZE, Account, check_batch, read_header
from raftmq.wire.batch.records import RecordBatch, encode_batch, stamp_log_append_time
from tests.unit.wire.partial import read, sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.wire.batch.records import Record

EU = parse("eu & !test")
TAGS = [["eu"], None, ["eu", "test"], ["us"], ["eu"]]


def tagged(tags: Sequence[Sequence[str] | None] = TAGS, **more: object) -> bytearray:
    values = [b"value %d" % index for index in range(len(tags))]
    stamps = [1000 + index for index in range(len(tags))]
    return encode_batch(values=values, tags=tags, timestamps=stamps, **more)  # type: ignore[arg-type]


def matching(batch: bytes | bytearray, asked: TagFilter) -> list[Record]:
    return [one for one in RecordBatch.decode(batch).records() if asked.matches(one.tags)]


# -- the CRC ------------------------------------------------------------------------------------


@pytest.mark.parametrize("account", [None, Account(3, 7)])
def test_every_bit_of_the_head_counts(account: Account | None) -> None:
    """A head is believed as it was written, and with no other bit in it: nothing would be left out
    by wrong tags, nor the outcome of a transaction be taken from another producer."""
    batch = tagged(producer_id=9, producer_epoch=1, account=account, has_check=True)
    header = check_batch(batch)
    length = head_length(batch, 0, header)
    assert believed_directory(batch[:length], 0, header) == read_directory(batch, 0, header)
    for bit in range(21 * 8, length * 8):
        flipped = batch[:length]
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            shown = read_header(flipped)
        except CorruptRecord:  # noticed before
            continue
        if head_length(flipped, 0, shown) <= len(flipped):
            assert believed_directory(flipped, 0, shown) is None, bit


def test_who_changes_the_header_writes_it_again() -> None:
    """Producers change numbers, leaders put timestamps in."""
    changed = renumbered(tagged(), producer_id=5, producer_epoch=2, base_sequence=7)
    assert believed_directory(changed, 0, check_batch(changed)) is not None
    stamp_log_append_time(changed, 5_000)
    assert believed_directory(changed, 0, check_batch(changed)) is not None


def test_a_batch_without_it_is_not_believed() -> None:
    """Of an earlier version, or in Kafka's format: it is sent whole."""
    old = tagged(has_check=False)
    assert believed_directory(old, 0, check_batch(old)) is None
    kafka = encode_batch(values=[b"a" * 99], timestamp=0, record_format=RecordFormat.KAFKA)
    assert head_length(kafka, 0, check_batch(kafka)) == 0
    assert believed_directory(kafka, 0, check_batch(kafka)) is None


def test_a_head_whose_sums_are_wrong_is_not_believed() -> None:
    """Its CRC only says that somebody wrote it so."""
    batch = tagged()
    header = check_batch(batch)
    entries, position = read_directory(batch, 0, header)
    wrong = encode_directory([*entries[:-1]])
    batch[HEADER_SIZE:position] = wrong
    seal_batch(batch)
    assert believed_directory(batch, 0, check_batch(batch)) is None


# -- partial batches ----------------------------------------------------------------------------


def test_a_partial_batch() -> None:
    """Only what passes is there, at its offsets, with its own timestamps and tags."""
    batch = tagged(base_offset=100, leader_epoch=3)
    data = sent(batch, EU)
    assert is_partial(data, 0)
    assert not is_partial(batch, 0)
    assert len(data) < len(batch)
    [(position, length, header)] = iter_sent(data, EU)
    assert (position, length) == (0, len(data))
    assert header == check_batch(batch)._replace(crc=header.crc)
    assert read(data, EU) == matching(batch, EU)
    assert [one.offset for one in read(data, EU)] == [100, 104]


def test_only_who_asked_for_a_filter_reads_it() -> None:
    """For every other reader it is no batch; nor would a broker take it from a producer."""
    data = sent(tagged(), EU)
    with pytest.raises(CorruptRecord, match=f"magic {PARTIAL_MAGIC}, expected 2"):
        list(iter_sent(data, None))
    with pytest.raises(CorruptRecord, match="magic"):
        check_batch(data)


def test_whole_batches_are_filtered_by_the_reader() -> None:
    """An older broker sends everything, in either format."""
    batches = [
        tagged(),
        tagged(has_check=False),
        encode_batch(values=[b"a"], timestamp=0, record_format=RecordFormat.KAFKA),
    ]
    for batch in batches:
        for asked in (EU, parse("!eu"), parse("nobody")):
            assert read(batch, asked) == matching(batch, asked)


def test_the_mixed_chunk_is_filtered_by_the_reader() -> None:
    """Behind 64 tag sets; its records carry their own tags."""
    tags = [[f"{index % 90:02}", "odd" if index % 2 else "even"] for index in range(180)]
    batch = tagged(tags, keys=list(range(180)), headers=[{"n": b"%d" % n} for n in range(180)])
    for asked in (parse("89"), parse("odd & !71"), parse("none"), parse("!none")):
        assert read(batch, asked) == matching(batch, asked)
        assert read(sent(batch, asked), asked) == matching(batch, asked)


def test_every_bit_of_a_partial_batch_counts() -> None:
    """All but base offset and leader epoch, which every reader checks by what stands around."""
    batch = tagged(compression=Compression.GZIP)
    data = sent(batch, EU)
    for bit in (*range(8 * 8, 12 * 8), *range(16 * 8, len(data) * 8)):
        if 17 * 8 <= bit < 21 * 8:  # the CRC of the whole batch, of no use here
            continue
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            list(iter_sent(flipped, EU))


@pytest.mark.parametrize("length", [1, 61, 64, 70, 110])
def test_a_partial_batch_that_is_cut_off(length: int) -> None:
    with pytest.raises(CorruptRecord):
        list(iter_sent(sent(tagged(), EU)[:length], EU))


def test_another_filter_than_was_asked_for() -> None:
    """Which chunks are there follows from the filter alone."""
    with pytest.raises(CorruptRecord, match=r"asked for|CRC-32C of a chunk"):
        list(iter_sent(sent(tagged(), parse("us")), EU))


tag_sets = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3, unique=True)
filters = st.sampled_from(["a", "!a", "a & b", "a | !c", "(a | b) & !c", "d", "!d"]).map(parse)


@given(
    st.lists(st.lists(tag_sets, min_size=1, max_size=8), min_size=1, max_size=4),
    filters,
    st.sampled_from([Compression.NONE, Compression.GZIP]),
    st.data(),
)
def test_what_is_sent_reads_as_what_passes(
    batches: list[list[list[str]]], asked: TagFilter, compression: Compression, data: st.DataObject
) -> None:
    """Whole and partial batches in one answer, in any mixture."""
    answer, expected, offset = b"", list[object](), 0
    for tags in batches:
        batch = tagged(tags, compression=compression, base_offset=offset)
        answer += sent(batch, asked) if data.draw(st.booleans()) else bytes(batch)
        expected += matching(batch, asked)
        offset += len(tags)
    assert read(answer, asked) == expected
