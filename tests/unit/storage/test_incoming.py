"""What a log checks before it takes a batch: from producers everything, from a leader the place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompression,
    UnsupportedVersion,
)
from raftmq.model import RecordFormat, TimestampType
from raftmq.partition.admission import Admission
from raftmq.partition.producers import Producers
from raftmq.partition.scheduling.columns import ScheduledBatch
from raftmq.partition.scheduling.events import Cancelled, Copied, Delivered, Scheduled
from raftmq.partition.storage.incoming import Placement, place_produced, place_replicated
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.head import seal_batch
from raftmq.wire.batch.header import (
    HEADER,
    HEADER_SIZE,
    SCHEDULED_BIT,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    iter_batches,
    pack_prefix,
    read_header,
    seal,
)
from raftmq.wire.batch.records import (
    RecordBatch,
    encode_batch,
    encode_cancel,
    encode_control_batch,
    stamp_log_append_time,
)
from raftmq.wire.batch.scheduling import copy_of, delivery_of
from tests.unit.storage.batches import NOW_MS, batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.wire.batch.header import Buffer


def produced(
    data: Buffer,
    config: TopicConfig | None = None,
    offset: int = 100,
    check_scheduled: Callable[[], None] = lambda: None,
) -> Placement:
    return place_produced(
        data,
        offset=offset,
        position=5000,
        leader_epoch=7,
        config=config or TopicConfig(),
        now_ms=NOW_MS,
        admission=Admission(Producers(), 0.0),
        check_scheduled=check_scheduled,
    )


def bytes_of(placement: Placement) -> bytes:
    return b"".join(placement.buffers)


def test_a_leader_assigns_offsets_and_epoch_and_nothing_else() -> None:
    """Several batches in one buffer: everything behind byte 16 stays as the producer sent it."""
    sent = [batch(b"a", b"b"), batch(b"c"), batch(b"d", b"e", b"f")]
    placement = produced(b"".join(sent))
    written = bytes_of(placement)
    assert placement.length == len(written) == sum(map(len, sent))
    positions = [position for position, _ in iter_batches(written)]
    headers = [header for _, header in iter_batches(written)]
    assert [found.header for found in placement.batches] == headers
    assert [found.position for found in placement.batches] == [5000 + p for p in positions]
    assert [(h.base_offset, h.end_offset, h.leader_epoch) for h in headers] == [
        (100, 102, 7),
        (102, 103, 7),
        (103, 106, 7),
    ]
    for position, original in zip(positions, sent, strict=True):
        assert written[position + 16 : position + len(original)] == original[16:]


def test_bad_crc_is_refused_whole() -> None:
    """One flipped bit in the second of two batches: nothing is taken."""
    data = bytearray(batch(b"a") + batch(b"b"))
    data[-1] ^= 1
    with pytest.raises(CorruptRecord, match="CRC"):
        produced(data)


@pytest.mark.parametrize("cut", [1, 30, HEADER_SIZE])
def test_half_a_batch_is_refused(cut: int) -> None:
    """The buffer ends in the middle of a batch."""
    with pytest.raises(CorruptRecord):
        produced(batch(b"a") + batch(b"b")[:-cut])


def test_an_empty_buffer_is_refused() -> None:
    """An append without a batch would answer with offsets that nobody got."""
    with pytest.raises(CorruptRecord, match="no batch"):
        produced(b"")


def test_a_batch_over_the_limit_is_too_large() -> None:
    """The error names the limit's key (A2.4)."""
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes is 500"):
        produced(batch(b"x" * 500), TopicConfig(max_message_bytes=500))


def test_producers_write_no_control_batches() -> None:
    """A forged commit marker."""
    forged = encode_control_batch(
        kind=ControlType.COMMIT,
        coordinator_epoch=0,
        producer_id=1,
        producer_epoch=0,
        timestamp=NOW_MS,
    )
    with pytest.raises(InvalidRecord, match="control"):
        produced(forged)


def test_offsets_without_gaps() -> None:
    """Last offset delta 5 with 3 records: as after a compaction, not from a producer."""
    data = encode_batch(values=[b"a", b"b", b"c"], timestamp=NOW_MS, offset_deltas=[0, 2, 5])
    with pytest.raises(InvalidRecord, match="gaps"):
        produced(data)


@pytest.mark.parametrize("sent", list(RecordFormat))
def test_the_topic_says_which_encoding(sent: RecordFormat) -> None:
    """A topic of Kafka records holds nothing that a Kafka client could not read."""
    data = encode_batch(values=[b"a"], timestamp=NOW_MS, record_format=sent)
    assert produced(data, TopicConfig(record_format=sent)).batches
    other = next(each for each in RecordFormat if each is not sent)
    with pytest.raises(InvalidRecord, match=f"encoded as {sent}.*is {other}.*record.format={sent}"):
        produced(data, TopicConfig(record_format=other))


@pytest.mark.parametrize("codec", [2, 5, 7])
def test_codecs_that_raftmq_has_not(codec: int) -> None:
    """A batch names a codec that only Kafka's clients know: stored unread in Kafka's encoding,
    refused in columns, whose directory a broker reads.
    """
    for record_format in RecordFormat:
        data = encode_batch(values=[b"a"], timestamp=NOW_MS, record_format=record_format)
        header = read_header(data)
        HEADER.pack_into(data, 0, *header._replace(attributes=header.attributes | codec))
        seal(data)
        config = TopicConfig(record_format=record_format)
        if record_format is RecordFormat.KAFKA:
            assert produced(bytes(data), config).batches
        else:
            with pytest.raises(UnsupportedCompression):
                produced(bytes(data), config)


def test_timestamps_far_in_the_future_are_refused() -> None:
    """An hour is allowed: retention by time would never remove such a segment."""
    assert produced(batch(timestamp=NOW_MS + 3_600_000)).batches
    with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.after\.max\.ms"):
        produced(batch(timestamp=NOW_MS + 3_600_001))


def test_only_brokers_stamp_records() -> None:
    """The batch claims the broker's time in a topic of producers' times."""
    forged = bytearray(batch(b"a"))
    stamp_log_append_time(forged, 5)
    with pytest.raises(InvalidRecord, match="only a broker"):
        produced(forged)


def test_log_append_time() -> None:
    """The broker's clock for every record, with a CRC that fits; the producer's buffer stays."""
    sent = batch(b"a", timestamp=5) + batch(b"b", timestamp=NOW_MS + 10**9)
    kept = bytes(sent)
    config = TopicConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    written = bytes_of(produced(sent, config))
    assert sent == kept
    for position, header in iter_batches(written):
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert list(RecordBatch.decode(written, position).timestamps) == [NOW_MS]


def replicated(data: Buffer, offset: int = 100, epoch: int = 7, leader_epoch: int = 7) -> Placement:
    return place_replicated(data, offset=offset, position=0, epoch=epoch, leader_epoch=leader_epoch)


def test_a_follower_takes_the_leaders_bytes_as_they_are() -> None:
    """What the leader wrote is what the follower writes."""
    data = bytes_of(produced(batch(b"a", b"b") + batch(b"c")))
    placement = replicated(data)
    assert bytes_of(placement) == data
    assert [found.header.base_offset for found in placement.batches] == [100, 102]


@pytest.mark.parametrize(
    ("offset", "epoch", "leader_epoch", "problem"),
    [
        (99, 7, 7, "base offset 100, expected 99"),  # a gap
        (101, 7, 7, "base offset 100, expected 101"),  # a repetition
        (100, 8, 9, "leader epoch 7, expected 8 to 9"),  # epochs never fall
        (100, 5, 6, "leader epoch 7, expected 5 to 6"),  # nor come from the future
    ],
)
def test_a_follower_checks_the_place(
    offset: int, epoch: int, leader_epoch: int, problem: str
) -> None:
    """Header bytes 0-15 lie outside the CRC, so their meaning is checked."""
    with pytest.raises(CorruptRecord, match=problem):
        replicated(bytes_of(produced(batch(b"a"))), offset, epoch, leader_epoch)


def test_a_follower_checks_the_crc() -> None:
    """The wire, or the leader's disk, flipped a bit."""
    data = bytearray(bytes_of(produced(batch(b"a"))))
    data[-1] ^= 1
    with pytest.raises(CorruptRecord, match="CRC"):
        replicated(data)


@pytest.mark.parametrize("size", [HEADER_SIZE, HEADER_SIZE + 4])
def test_a_follower_keeps_a_batch_without_a_directory(size: int) -> None:
    """A sound CRC, and nothing behind it, at the end of what came: its readers refuse it."""
    data = bytes_of(produced(batch(b"a")))
    short = seal(bytearray(data[:HEADER_SIZE].ljust(size, b"\0")))
    placement = replicated(short)
    assert (bytes_of(placement), list(placement.events)) == (bytes(short), [])


@pytest.mark.parametrize("record_format", list(RecordFormat))
@pytest.mark.parametrize("kind", list(TimestampType))
def test_too_many_records_are_too_large_and_not_corrupt(
    record_format: RecordFormat, kind: TimestampType
) -> None:
    """Who is told that its bytes are corrupt sends them again; this is an answer."""
    config = TopicConfig(record_format=record_format, message_timestamp_type=kind)
    first = encode_batch(values=[b"a"], timestamp=NOW_MS, record_format=record_format)
    sent = first + many(record_format, 65_537)
    with pytest.raises(MessageTooLarge, match="65537 records, at most 65536"):
        produced(sent, config)
    with pytest.raises(CorruptRecord, match="record count 65537"):
        produced(sent[:-1], config)  # not whole
    with pytest.raises(CorruptRecord, match="record count 65537"):
        produced(sent[:-1] + bytes([sent[-1] ^ 1]), config)
    with pytest.raises(CorruptRecord, match="record count -1"):
        produced(many(record_format, -1), config)


def many(record_format: RecordFormat, count: int) -> bytearray:
    """A batch whose header claims so many records, and vouches for it."""
    data = encode_batch(values=[b"a"], timestamp=NOW_MS, record_format=record_format)
    header = BatchHeader._make(HEADER.unpack_from(data))
    header = header._replace(record_count=count, last_offset_delta=max(count - 1, 0))
    HEADER.pack_into(data, 0, *header)
    return seal(data)


def test_a_refusal_names_the_limit() -> None:
    """So that who sent several records can tell which of them are meant."""
    with pytest.raises(MessageTooLarge) as large:
        produced(batch(b"a" * 100), TopicConfig(max_message_bytes=90))
    assert large.value.allowed == 90
    late = encode_batch(values=[b"a"], timestamp=NOW_MS + 9_000)
    with pytest.raises(InvalidTimestamp) as ahead:
        produced(late, TopicConfig(message_timestamp_after_max_ms=1_000))
    assert ahead.value.allowed == NOW_MS + 1_000


# -- scheduled records ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(TimestampType))
def test_a_scheduled_batch_says_where_it_stands(kind: TimestampType) -> None:
    """A12.2, A12.3."""
    config = TopicConfig(message_timestamp_type=kind)
    first = batch(b"a")
    placement = produced(first + scheduled(), config)
    size = placement.batches[1].header.size
    due_ms = NOW_MS + 1000
    expected = Scheduled(ScheduledBatch(101, 2, due_ms, 5000 + len(first), size))
    assert list(placement.events) == [expected]
    (moved,) = placement.moved_to(0).events
    assert moved == Scheduled(expected.batch._replace(position=len(first)))


def test_what_is_due_too_late_is_refused() -> None:
    """A segment would be kept for as long. The error names the limit. A12.2."""
    with pytest.raises(InvalidTimestamp, match=r"over delay.max.ms, 0.899 s \(899\)") as late:
        produced(batch(b"a") + scheduled(), TopicConfig(delay_max_ms=899))
    assert late.value.allowed == NOW_MS + 999
    # A tick beyond, by which a producer may have rounded up.
    assert produced(scheduled(), TopicConfig(delay_max_ms=900)).events


def test_who_may_not_take_scheduled_batches_says_why() -> None:
    """As below the feature level. A12.2."""

    def refuse() -> None:
        raise UnsupportedVersion("not yet")

    with pytest.raises(UnsupportedVersion):
        produced(batch(b"a") + scheduled(), check_scheduled=refuse)
    assert produced(batch(b"a"), check_scheduled=refuse).batches


def test_what_settles_a_scheduled_batch_is_not_taken_from_a_producer() -> None:
    """It would settle records of others. A12.2, A12.3."""
    stamped = TopicConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    delivery = delivery_of(scheduled(), original_offset=7, now_ms=NOW_MS)
    unstamped = cleared(delivery, TIMESTAMP_TYPE_BIT)
    copy = copy_of(scheduled(), replaces=7, first=7, left_out=[1])
    with pytest.raises(InvalidRecord, match=r"deliveries, .* by brokers only") as refused:
        produced(unstamped)
    assert refused.value.definite
    with pytest.raises(InvalidRecord, match="only a broker stamps"):
        produced(delivery)
    for sent, config in [(unstamped, stamped), (cleared(copy, SCHEDULED_BIT), None)]:
        with pytest.raises(InvalidRecord, match=r"deliveries, .* by brokers only"):
            produced(sent, config)
    with pytest.raises(InvalidRecord, match=r"copies .* by brokers only"):
        produced(copy)


def test_a_follower_hears_what_its_leader_has_written() -> None:
    """In the order of the log, and where it stands. A12.2, A12.3."""
    original = scheduled()
    delivery = delivery_of(original, original_offset=0, now_ms=NOW_MS)
    copy = copy_of(original, replaces=0, first=0, left_out=[1])
    cancel = encode_cancel([1], timestamp=NOW_MS)
    sent, offset = b"", 0
    for each in (original, batch(b"a"), cancel, copy, delivery):
        header = read_header(each)
        sent += pack_prefix(header, base_offset=offset, leader_epoch=0) + bytes(each[16:])
        offset += header.last_offset_delta + 1
    placement = place_replicated(sent, offset=0, position=10, epoch=0, leader_epoch=0)
    due_ms, places = NOW_MS + 1000, [found.position for found in placement.batches]
    stands = ScheduledBatch(0, 2, due_ms, 10, len(original))
    follows = ScheduledBatch(4, 2, due_ms, places[3], len(copy))
    assert list(placement.events) == [
        Scheduled(stands),
        Cancelled(3, (1,)),
        Copied(follows, 0, 0, (1,)),
        Delivered(6, 0),
    ]


def scheduled() -> bytes:
    return bytes(encode_batch(values=[b"a", b"b"], timestamp=NOW_MS, due_ms=NOW_MS + 1000))


def cleared(data: Buffer, bit: int) -> bytearray:
    """Without that attribute, and sound otherwise."""
    changed = bytearray(data)
    header = BatchHeader._make(HEADER.unpack_from(changed))
    HEADER.pack_into(changed, 0, *header._replace(attributes=header.attributes & ~bit))
    return seal_batch(changed)
