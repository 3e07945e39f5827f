"""What brokers answer about topics, records and producers, for every implementation there is.

With `autojump_clock`.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from raftmq.errors import ErrorCode
from raftmq.wire.batch.header import Account, iter_batches, named_producer_id
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.fetch import Diverging, Fetch, FetchPartition
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.offsets import EARLIEST, LATEST, FoundOffset, ListOffsets, WantedOffset
from raftmq.wire.messages.produce import Produce, ProducePartition
from raftmq.wire.messages.producers import FenceProducer, InitProducerId, PartitionToFence
from tests.unit.client.conformance.harness import (
    ACKS_ALL,
    BYTES_MAX,
    PATIENCE_SECONDS,
    TIMESTAMP,
    Harness,
    Place,
    Scenario,
    batch,
    collect_into,
    fetch,
    metadata_of,
    place_of,
    produce,
    topic,
)

DATA_SCENARIOS: list[Scenario] = []
scenario = collect_into(DATA_SCENARIOS)

NOWHERE = Place(b"n" * 16, 0, 1, 0, 2)
FUTURE = 1000  # epochs from now
NAME = "etl/3"


def values_in(data: bytes) -> list[bytes]:
    found = []
    for position, header in iter_batches(data):
        decoded = RecordBatch.decode(data[position : position + header.size])
        found += [] if decoded.is_control else [bytes(value or b"") for value in decoded.values]
    return found


# Metadata


@scenario
async def metadata_names_leaders_and_what_is_not_there(here: Harness) -> None:
    """A topic of three partitions, and one that nobody has made."""
    await here.add_topic("t", 3)
    told = await metadata_of(here, "t", "nowhere")
    known, unknown = told.topics
    assert (known.name, known.error, len(known.topic_id)) == ("t", ErrorCode.NONE, 16)
    assert [one.partition for one in known.partitions] == [0, 1, 2]
    assert not any(one.error for one in known.partitions)
    brokers = [row.broker_id for row in told.brokers]
    assert brokers == sorted(brokers)
    assert {one.leader for one in known.partitions} <= set(brokers)
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (unknown.topic_id, unknown.partitions) == (None, ())
    assert told.is_complete
    assert told.metadata_version > 0


@scenario
async def metadata_of_all_topics_comes_in_pages(here: Harness) -> None:
    """Sorted by name; a page says whether another one follows."""
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        await here.add_topic(name, 1)
    found, after, is_complete = [], "", False
    while not is_complete:
        told = (await here.ask(1, Metadata(None, after, topics_max=2))).body
        page, is_complete = [one.name for one in told.topics], told.is_complete
        assert len(page) == (1 if is_complete else 2)
        found += page
        after = page[-1]
    assert found == names


@scenario
async def a_name_twice_is_told_once(here: Harness) -> None:
    await here.add_topic("t", 1)
    assert [one.name for one in (await metadata_of(here, "t", "t")).topics] == ["t"]


# Produce


@scenario
async def batches_follow_each_other(here: Harness) -> None:
    """Each answer says where the first record of its first batch stands."""
    place = await topic(here)
    first = await produce(here, place, batch(b"a", b"b"))
    second = await produce(here, place, batch(b"c"), batch(b"d"), acks=1)
    third = await produce(here, place, batch(b"e"))
    for found, base_offset in ((first, 0), (second, 2), (third, 4)):
        assert (found.error, found.message) == (ErrorCode.NONE, "")
        assert (found.base_offset, found.base_offsets) == (base_offset, ())
        assert (found.log_start_offset, found.log_append_time_ms) == (0, -1)
        assert (found.leader, found.leader_epoch, found.allowed) == (-1, -1, -1)
    assert values_in((await fetch(here, place, 0)).data) == [b"a", b"b", b"c", b"d", b"e"]


@scenario
async def each_partition_has_its_own_outcome(here: Harness) -> None:
    """Two of a request are unknown, and the one between them is appended."""
    place, data = await topic(here), batch(b"a")
    wanted = [
        ProducePartition(*one, len(data))
        for one in (
            (NOWHERE.topic_id, 0, 0),
            (place.topic_id, 0, place.leader_epoch),
            (place.topic_id, 7, -1),
        )
    ]
    answer = await here.ask(place.leader, Produce(ACKS_ALL, 5000, tuple(wanted)), data * 3)
    assert [(one.error, one.base_offset) for one in answer.body.partitions] == [
        (ErrorCode.UNKNOWN_TOPIC_ID, -1),
        (ErrorCode.NONE, 0),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


@scenario
async def only_the_leader_takes_records(here: Harness) -> None:
    """Another broker says who leads, and appends nothing."""
    place = await topic(here)
    refused = await produce(here, place, batch(b"a"), by=place.other)
    assert (refused.error, refused.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert (refused.leader, refused.leader_epoch) == (place.leader, place.leader_epoch)
    assert (await produce(here, place, batch(b"a"))).base_offset == 0


@scenario
async def epochs_of_leaders_are_compared(here: Harness) -> None:
    """One that has ended, one that is not known yet, and any, for those who know none."""
    place = await topic(here)
    await produce(here, place, batch(b"a"))
    await here.move_leader("t")
    now = await place_of(here, by=place.other)
    assert (now.leader, now.leader_epoch) > (0, place.leader_epoch)
    for epoch, error in (
        (place.leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
        (now.leader_epoch + FUTURE, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.NONE),
    ):
        asked = now._replace(leader_epoch=epoch)
        sent = await produce(here, asked, batch(b"b"), acks=1)
        assert (sent.error, sent.base_offset) == (error, -1 if error else 1)
        assert (await fetch(here, asked, 0)).told.error == error
        assert (await list_offset(here, asked, EARLIEST)).error == error
    assert (sent.leader, sent.leader_epoch) == (-1, -1)


@scenario
async def bytes_that_are_no_batch_are_refused(here: Harness) -> None:
    """Whole requests: nothing is appended, neither of them nor of what stands beside them."""
    place = await topic(here)
    flipped = bytearray(batch(b"a"))
    flipped[-1] ^= 1
    for wrong in (bytes(flipped), batch(b"a")[:-1], b"x" * 100):
        refused = await produce(here, place, batch(b"b"), wrong)
        assert (refused.error, refused.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert (await produce(here, place, batch(b"c"))).base_offset == 0


# Producers with numbers


@scenario
async def producer_ids_are_given_out_once(here: Harness) -> None:
    replies = [(await here.ask(broker_id, InitProducerId())).body for broker_id in (1, 2, 1, 2)]
    assert [reply.error for reply in replies] == [ErrorCode.NONE] * 4
    assert len({reply.producer_id for reply in replies}) == 4
    assert all(reply.producer_id > 0 for reply in replies)


def numbered(first: int, count: int = 1, *, epoch: int = 0, producer_id: int = 5) -> bytes:
    values = [b"%d" % number for number in range(first, first + count)]
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


@scenario
async def what_stands_there_is_not_appended_again(here: Harness) -> None:
    """Where one of a request was repeated, each is told where it stands."""
    place = await topic(here)
    assert (await produce(here, place, numbered(0, 2))).base_offset == 0
    assert (await produce(here, place, batch(b"x"))).base_offset == 2
    assert (await produce(here, place, numbered(2))).base_offset == 3
    again = await produce(here, place, numbered(0, 2))
    assert (again.error, again.base_offset, again.base_offsets) == (ErrorCode.NONE, 0, (0,))
    both = await produce(here, place, numbered(2), numbered(3))
    assert (both.error, both.base_offset, both.base_offsets) == (ErrorCode.NONE, 3, (3, 4))
    apart = await produce(here, place, numbered(0, 2), numbered(2))
    assert (apart.base_offset, apart.base_offsets) == (0, (0, 3))
    expected = [b"0", b"1", b"x", b"2", b"3"]
    assert values_in((await fetch(here, place, 0)).data) == expected


@scenario
async def a_batch_with_a_wrong_number_is_refused(here: Harness) -> None:
    """Unknown producers begin with 0, epochs never fall, and numbers have no gaps."""
    place = await topic(here)
    assert (await produce(here, place, numbered(0, epoch=3))).base_offset == 0
    for data, error in (
        (numbered(4, producer_id=6), ErrorCode.UNKNOWN_PRODUCER_ID),
        (numbered(1, epoch=2), ErrorCode.INVALID_PRODUCER_EPOCH),
        (numbered(2, epoch=3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (numbered(1, epoch=4), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (numbered(1, epoch=3) + numbered(5, epoch=3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ):
        refused = await produce(here, place, data)
        assert (refused.error, refused.base_offset) == (error, -1)
    assert (await produce(here, place, numbered(1, epoch=3))).base_offset == 1


@scenario
async def what_was_long_ago_is_a_duplicate_all_the_same(here: Harness) -> None:
    """Where it stands is forgotten once five others have come, each apart from the one before."""
    place = await topic(here)
    for number in range(7):
        await produce(here, place, numbered(number))
        await produce(here, place, batch(b"between"))
    forgotten = await produce(here, place, numbered(0))
    assert (forgotten.error, forgotten.base_offset) == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1)
    assert (await produce(here, place, numbered(2))).base_offset == 4


# Producers with names


async def fence(here: Harness, place: Place, generation: int, partition_count: int = 0) -> Any:
    wanted = PartitionToFence(place.topic_id, place.partition, place.leader_epoch)
    request = FenceProducer(NAME, generation, (wanted,), partition_count=partition_count)
    reply = (await here.ask(place.leader, request)).body
    assert reply.producer_id == named_producer_id(NAME)
    (found,) = reply.partitions
    return found


def named(first: int, *, epoch: int, generation: int, digest: int = 0) -> bytes:
    account = Account(generation, digest, 0)
    return batch(
        b"%d" % first,
        producer_id=named_producer_id(NAME),
        producer_epoch=epoch,
        base_sequence=first,
        account=account,
    )


@scenario
async def a_fence_says_what_stands_there(here: Harness) -> None:
    """Of a name that is new, of the same generation, of a higher one, and of a lower one."""
    place = await topic(here)
    new = await fence(here, place, 1, partition_count=1)
    assert (new.error, new.producer_epoch, new.next_sequence) == (ErrorCode.NONE, 0, 0)
    assert (new.digest, new.partition_count) == (0, 1)
    assert (await produce(here, place, named(0, epoch=0, generation=1, digest=77))).error == 0
    again = await fence(here, place, 1)
    assert (again.producer_epoch, again.next_sequence, again.digest) == (1, 1, 77)
    assert again.partition_count == 1
    late = await produce(here, place, named(1, epoch=0, generation=1))
    assert late.error == ErrorCode.PRODUCER_FENCED
    higher = await fence(here, place, 2)
    assert (higher.producer_epoch, higher.next_sequence, higher.digest) == (2, 0, 0)
    lower = await fence(here, place, 1)
    assert (lower.error, lower.producer_epoch) == (ErrorCode.PRODUCER_FENCED, -1)
    assert values_in((await fetch(here, place, 0)).data) == [b"0"]


@scenario
async def a_name_begins_with_a_fence(here: Harness) -> None:
    place = await topic(here)
    refused = await produce(here, place, named(0, epoch=0, generation=1))
    assert refused.error == ErrorCode.UNKNOWN_PRODUCER_ID
    unknown = await fence(here, NOWHERE._replace(leader=place.leader), 1)
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_ID
    elsewhere = await fence(here, place._replace(leader=place.other), 1)
    assert elsewhere.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


# Fetch


@scenario
async def a_fetch_begins_with_the_batch_of_its_offset(here: Harness) -> None:
    """Whole batches, in the middle of one, too; with where the log begins and ends."""
    place = await topic(here)
    for values in ((b"a", b"b"), (b"c",), (b"d", b"e", b"f")):
        await produce(here, place, batch(*values))
    for offset, expected in ((0, b"abcdef"), (1, b"abcdef"), (2, b"cdef"), (5, b"def"), (6, b"")):
        told, data = await fetch(here, place, offset)
        assert (told.error, told.message, told.diverging) == (ErrorCode.NONE, "", None)
        assert (told.high_watermark, told.log_start_offset) == (6, 0)
        assert b"".join(values_in(data)) == expected


@scenario
async def a_fetch_outside_of_the_log_is_refused(here: Harness) -> None:
    place = await topic(here)
    await produce(here, place, batch(b"a"))
    told, _ = await fetch(here, place, 2)
    assert told.error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (told.high_watermark, told.log_start_offset) == (1, 0)
    told, _ = await fetch(here, place, 0, by=place.other)
    assert told.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (told.leader, told.leader_epoch) == (place.leader, place.leader_epoch)
    told, _ = await fetch(here, NOWHERE._replace(leader=place.leader), 0)
    assert told.error == ErrorCode.UNKNOWN_TOPIC_ID
    told, _ = await fetch(here, place._replace(partition=7), 0)
    assert told.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@scenario
async def the_first_batch_comes_whole(here: Harness) -> None:
    """However few bytes are wanted; of those behind it, as many as fit or fewer."""
    place = await topic(here)
    one = batch(b"x" * 100)
    await produce(here, place, one, one, one)
    for bytes_max in (1, len(one), 2 * len(one) - 1, 2 * len(one), 3 * len(one)):
        found = (await fetch(here, place, 0, bytes_max=bytes_max)).data
        assert len(found) % len(one) == 0
        assert len(one) <= len(found) <= max(len(one), bytes_max)
    assert len(found) == 3 * len(one)


@scenario
async def partitions_share_the_bytes_of_an_answer(here: Harness) -> None:
    """In the order in which they were asked for: what is behind a full answer is not told of."""
    await here.add_topic("t", 9)
    places = [await place_of(here, partition=number) for number in range(9)]
    first, second, empty = [one for one in places if one.leader == places[0].leader][:3]
    data = batch(b"x" * 100)
    for place in (first, second):
        await produce(here, place, data, data)
    wanted = [
        FetchPartition(place.topic_id, place.partition, 0, place.leader_epoch)
        for place in (first, second, empty)
    ]
    for bytes_max, batches in (
        (BYTES_MAX, [2, 2, 0]),
        (3 * len(data), [2, 1]),
        (2 * len(data), [2]),
        (1, [1]),
    ):
        request = Fetch(0, 1, bytes_max, partitions=tuple(wanted))
        told = (await here.ask(first.leader, request)).body.partitions
        assert [one.length // len(data) for one in told] == batches
        assert [one.partition for one in told] == [one.partition for one in wanted[: len(told)]]


@scenario
async def a_fetch_waits_for_records(here: Harness) -> None:
    """As long as it says; an append ends the wait, an error never begins it."""
    place = await topic(here)
    begin = trio.current_time()
    assert (await fetch(here, place, 0, max_wait_ms=500)).data == b""
    assert trio.current_time() - begin == pytest.approx(0.5, abs=0.1)
    async with trio.open_nursery() as nursery:
        found = []

        async def wait() -> None:
            found.append(await fetch(here, place, 0, max_wait_ms=10_000))

        nursery.start_soon(wait)
        await trio.sleep(1.0)
        assert not found
        with trio.fail_after(1.0):
            await produce(here, place, batch(b"a"))
            while not found:  # noqa: ASYNC110  # an answer on its way has no event
                await trio.sleep(0.01)
    assert values_in(found[0].data) == [b"a"]
    with trio.fail_after(1.0):
        told, _ = await fetch(here, place, 5, max_wait_ms=10_000)
    assert told.error == ErrorCode.OFFSET_OUT_OF_RANGE


@scenario
async def a_reader_of_another_log_is_told_where_they_part(here: Harness) -> None:
    """It has read in an epoch that ended before it says, or that never was."""
    place = await topic(here)
    await produce(here, place, batch(b"a", b"b"))
    await here.move_leader("t")
    now = await place_of(here, by=place.other)
    await produce(here, now, batch(b"c"), acks=1)
    for epoch, offset, expected in (
        (place.leader_epoch, 2, None),
        (place.leader_epoch, 3, Diverging(place.leader_epoch, 2)),
        (now.leader_epoch, 3, None),
    ):
        told, data = await fetch(here, now, offset, last_fetched_epoch=epoch)
        assert (told.error, told.diverging) == (ErrorCode.NONE, expected)
        assert not (expected and data)


# Offsets


async def list_offset(here: Harness, place: Place, timestamp: int) -> FoundOffset:
    wanted = WantedOffset(place.topic_id, place.partition, place.leader_epoch, timestamp)
    answer = await here.ask(place.leader, ListOffsets((wanted,)))
    (found,) = answer.body.partitions
    return found


@scenario
async def offsets_of_both_ends_and_of_times(here: Harness) -> None:
    """The first record at that time or later, with its own time; none where all are older."""
    place = await topic(here)
    epoch = place.leader_epoch
    for late, values in ((0, (b"a", b"b")), (1000, (b"c",)), (500, (b"d",))):
        await produce(here, place, batch(*values, timestamp=TIMESTAMP + late))
    for wanted, timestamp, offset in (
        (EARLIEST, -1, 0),
        (LATEST, -1, 4),
        (0, TIMESTAMP, 0),
        (TIMESTAMP, TIMESTAMP, 0),
        (TIMESTAMP + 1, TIMESTAMP + 1000, 2),
        (TIMESTAMP + 1000, TIMESTAMP + 1000, 2),
    ):
        found = await list_offset(here, place, wanted)
        told = found.error, found.timestamp, found.offset, found.leader_epoch
        assert told == (ErrorCode.NONE, timestamp, offset, epoch), wanted
    found = await list_offset(here, place, TIMESTAMP + 1001)
    assert (found.error, found.timestamp, found.offset) == (ErrorCode.NONE, -1, -1)
    assert found.leader_epoch == -1


@scenario
async def offsets_of_what_is_not_here(here: Harness) -> None:
    place = await topic(here)
    for asked, error in (
        (place._replace(leader=place.other), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (NOWHERE._replace(leader=place.leader), ErrorCode.UNKNOWN_TOPIC_ID),
        (place._replace(partition=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        for timestamp in (EARLIEST, LATEST, 0):
            found = await list_offset(here, asked, timestamp)
            assert (found.error, found.offset) == (error, -1)


@scenario
async def no_answer_to_acks_of_none(here: Harness) -> None:
    """The next request over the same connection is answered, and finds the record."""
    place, data = await topic(here), batch(b"a")
    wanted = ProducePartition(place.topic_id, 0, place.leader_epoch, len(data))
    with trio.move_on_after(1.0):
        await here.ask(place.leader, Produce(0, 5000, (wanted,)), data)
    with trio.fail_after(PATIENCE_SECONDS):
        while not (await fetch(here, place, 0)).data:  # noqa: ASYNC110  # no answer, no event
            await trio.sleep(0.1)
