"""What a task of Spark reads of real brokers: its range, what is left of it, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq import sync, testing
from raftmq.errors import OffsetOutOfRange, UnknownTopicOrPartition
from raftmq.tag_filter import tag_filter

pytest.importorskip("pyspark")

from spark_io.ranges import OffsetRange
from tests.cluster.spark_io_here import (
    all_rows,
    batch_reader,
    fill,
    ranges_of,
    rows_in,
    rows_of,
    source,
)
from tests.unit.spark_io.tasks import sent_away, struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

HASTE = {"retryTimeoutMs": "300"}
LOSSY = {"failOnDataLoss": "false"}
SOON_BELIEVED_SECONDS = 0.5  # the one broker is never behind


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.broker() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[sync.Client]:
    with sync.connect(server.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client: sync.Client, request: pytest.FixtureRequest) -> str:
    """Of this test alone, with two partitions."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    client.admin.create_topic(name, partitions=2)
    return name


def make_again(client: sync.Client, topic: str, count: int) -> None:
    client.admin.delete_topic(topic)
    client.admin.create_topic(topic, partitions=2)
    fill(client, topic, count)


def offsets(topic: str, first: int, second: int) -> str:
    return f'{{"{topic}": {{"0": {first}, "1": {second}}}}}'


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 30), (3, 7), (5, 25), (10, 20), (19, 21), (0, 1), (29, 30), (12, 12), (30, 30)],
)
def test_a_range(server: Server, client: sync.Client, topic: str, start: int, end: int) -> None:
    """Wherever it lies in three batches of ten."""
    fill(client, topic, 10, 10, 10)
    found = rows_in(batch_reader(server, topic), OffsetRange(topic, 0, start, end))
    assert found == [(b"%d" % number, 0, number) for number in range(start, end)]


def test_a_batch_of_spark(server: Server, client: sync.Client, topic: str) -> None:
    """Planned in the driver; the reader and its partitions travel to tasks."""
    fill(client, topic, 5)
    fill(client, topic, 3, partition=1)
    given = {"startingOffsets": offsets(topic, 1, -2), "endingOffsets": offsets(topic, -1, 2)}
    reader = batch_reader(server, topic, **given)
    planned = reader.partitions()
    assert ranges_of(planned) == [f"{topic}-0[1:5]", f"{topic}-1[0:2]"]
    reader, planned = sent_away((reader, planned))
    found = [rows_of(reader.read(each)) for each in planned]
    assert found == [[*((b"%d" % at, 0, at) for at in range(1, 5)), (b"0", 1, 0), (b"1", 1, 1)]]


def test_topics_by_pattern_and_partitions_by_number(server: Server, client: sync.Client) -> None:
    """The whole name of a topic matches, or it is not read."""
    for name in ("by-a", "by-b", "by-bb", "nearby-b"):
        client.admin.create_topic(name, partitions=2)
        fill(client, name, 2)
    by_pattern = source(server, subscribePattern="by-[ab]").reader(struct("value"))
    assert ranges_of(by_pattern.partitions()) == ["by-a-0[0:2]", "by-b-0[0:2]"]
    by_number = source(server, assign='{"by-a": [1], "by-bb": [0, 1]}').reader(struct("value"))
    assert ranges_of(by_number.partitions()) == ["by-bb-0[0:2]"]


def test_from_a_moment_on(server: Server, client: sync.Client, topic: str) -> None:
    with client.producer() as producer:
        times = [1000, 2000, 3000, 4000]
        producer.send_columns(topic, values=[b"v"] * 4, timestamps=times, partitions=[0] * 4)
    given = {"startingTimestamp": "2000", "startingOffsetsByTimestampStrategy": "latest"}
    reader = batch_reader(server, topic, endingTimestamp="4000", **given)
    assert ranges_of(reader.partitions()) == [f"{topic}-0[1:3]"]


def test_the_end_lies_behind_fences(server: Server, client: sync.Client, topic: str) -> None:
    """Which named producers leave in every partition: no record comes there, and nobody waits."""
    for generation in (1, 2):
        with client.producer(name="etl", generation=generation) as producer:
            producer.enqueue_columns(topic, values=[b"a", b"b"], partitions=[0, 0])
    with client.producer(name="etl", generation=3) as producer:
        producer.enqueue_columns(topic, values=[])
    reader = batch_reader(server, topic)
    assert ranges_of(reader.partitions()) == [f"{topic}-0[0:7]", f"{topic}-1[0:3]"]
    assert all_rows(reader) == [(b"a", 0, 1), (b"b", 0, 2), (b"a", 0, 4), (b"b", 0, 5)]


def test_transactions(server: Server, client: sync.Client, topic: str) -> None:
    """A plan ends where the first open transaction begins, and its tasks reach that without any
    more records: behind the last one there are an aborted one and its marker."""

    def ranges_and_values(**given: str) -> tuple[list[str], list[bytes]]:
        reader = batch_reader(server, topic, **given)
        return ranges_of(reader.partitions()), [value for value, _, _ in all_rows(reader)]

    with client.producer(transaction_id="etl") as producer:
        with producer.transaction() as tx:
            tx.send(topic, b"committed", partition=0)
        with producer.transaction() as tx:
            tx.send(topic, b"aborted", partition=0)
            tx.abort()
        with producer.transaction(wait_visible=True) as tx:
            tx.send(topic, b"elsewhere", partition=1)
        with producer.transaction() as tx:
            tx.send(topic, b"open", partition=0)
            planned, values = ranges_and_values()
            assert planned == [f"{topic}-0[0:4]", f"{topic}-1[0:2]"]
            assert values == [b"committed", b"elsewhere"]
            planned, values = ranges_and_values(**{"kafka.isolation.level": "read_uncommitted"})
            assert planned == [f"{topic}-0[0:5]", f"{topic}-1[0:2]"]
            assert values == [b"committed", b"aborted", b"open", b"elsewhere"]


TAGS = [("us",), ("eu", "paid"), (), ("eu",), ("us", "paid")]
MANY = [("eu" if number % 3 else "us", f"n{number:03}") for number in range(200)]


def fill_with_tags(client: sync.Client, topic: str) -> None:
    """Batches of one tag set, of several, and of so many that some share a chunk, which tasks
    filter themselves. Both partitions end with what has no tag of `eu`."""
    batches = ([TAGS[0]] * 10, TAGS * 4, MANY, [TAGS[1]] * 5, [TAGS[4]] * 15)
    with client.producer() as producer:
        for partition in (0, 1):
            for tags in batches:
                values = [" ".join(each).encode().ljust(12) for each in tags]
                where = [partition] * len(tags)
                producer.send_columns(topic, values=values, tags=tags, partitions=where)


@pytest.mark.parametrize(
    "tags", ["eu", "eu & !paid", "!eu & !us", "us | n004", "!n004 & !n199", "none", "*"]
)
def test_rows_by_their_tags(server: Server, client: sync.Client, topic: str, tags: str) -> None:
    """Those that pass of all that are read without the option, whatever range a task reads; and
    ranges are planned by offsets alike (A12.1)."""
    fill_with_tags(client, topic)
    columns = struct("value", "partition", "offset", "tags")
    given = {"subscribe": topic, "minPartitions": "10"}
    unfiltered = source(server, **given).reader(columns)
    filtered = source(server, **given, tags=tags).reader(columns)
    planned = filtered.partitions()
    assert ranges_of(planned) == ranges_of(unfiltered.partitions())
    asked = tag_filter(tags)
    for each in planned:
        wanted = [
            (*row, told)
            for found in unfiltered.read(each)
            for row, told in zip(rows_of([found]), found.column("tags").to_pylist(), strict=True)
            if asked is None or asked.matches(told)
        ]
        assert [
            (*row, told)
            for found in filtered.read(each)
            for row, told in zip(rows_of([found]), found.column("tags").to_pylist(), strict=True)
        ] == wanted


def test_ranges_of_which_nothing_passes(server: Server, client: sync.Client, topic: str) -> None:
    """Nothing is waited for, at their ends, in the middle of a batch that is left out, or in one
    that is left out in part (A12.1)."""
    fill_with_tags(client, topic)
    reader = batch_reader(server, topic, tags="eu & paid", **HASTE)
    for start, end, found in [
        (0, 10, []),
        (3, 7, []),
        (0, 12, [11]),
        (12, 16, []),
        (12, 17, [16]),
        (30, 230, []),
        (227, 250, [230, 231, 232, 233, 234]),
        (240, 243, []),
        (240, 250, []),
    ]:
        rows = rows_in(reader, OffsetRange(topic, 0, start, end))
        assert [offset for _, _, offset in rows] == found, (start, end)
    assert all_rows(batch_reader(server, topic, tags="none", **HASTE)) == []


def test_records_that_were_deleted_before(server: Server, client: sync.Client, topic: str) -> None:
    """Whoever names an older offset is told so by the driver, or gets what is left."""
    fill(client, topic, 10, 10)
    client.admin.delete_records(topic, {0: 13})
    assert len(all_rows(batch_reader(server, topic))) == 7
    given = {"startingOffsets": offsets(topic, 5, 0)}
    with pytest.raises(OffsetOutOfRange, match=f"{topic}-0 has lost the offsets 5 to 12"):
        batch_reader(server, topic, **given).partitions()
    found = all_rows(batch_reader(server, topic, **given, **LOSSY))
    assert [offset for _, _, offset in found] == list(range(13, 20))


def test_records_that_are_deleted_after_planning(
    server: Server, client: sync.Client, topic: str
) -> None:
    fill(client, topic, 10, 10)
    some, all_of_them = OffsetRange(topic, 0, 5, 18), OffsetRange(topic, 0, 2, 9)
    client.admin.delete_records(topic, {0: 13})
    for asked in (some, all_of_them):
        told = f"{topic}-0: of the offsets {asked.start} to {asked.end} some are gone"
        with pytest.raises(OffsetOutOfRange, match=told):
            rows_in(batch_reader(server, topic), asked)
    found = rows_in(batch_reader(server, topic, **LOSSY), some)
    assert [offset for _, _, offset in found] == list(range(13, 18))
    assert rows_in(batch_reader(server, topic, **LOSSY), all_of_them) == []


def test_a_topic_that_was_made_again_with_fewer_records(
    server: Server, client: sync.Client, topic: str
) -> None:
    """A task begins behind its end, or before it and waits for what will not come."""
    fill(client, topic, 20)
    make_again(client, topic, 4)
    behind, across = OffsetRange(topic, 0, 10, 20), OffsetRange(topic, 0, 2, 20)
    with pytest.raises(OffsetOutOfRange, match="offsets 10 to 20 some are gone, from 10 on"):
        rows_in(batch_reader(server, topic, **HASTE), behind)
    with pytest.raises(OffsetOutOfRange, match="offsets 2 to 20 some are gone, from 4 on"):
        rows_in(batch_reader(server, topic, **HASTE), across)
    lossy = batch_reader(server, topic, **HASTE, **LOSSY)
    assert rows_in(lossy, behind) == []
    assert rows_in(lossy, across) == [(b"2", 0, 2), (b"3", 0, 3)]


def test_a_topic_that_is_gone(
    server: Server, client: sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver says so at once; a task that was planned before, after its time."""
    monkeypatch.setattr("spark_io.lookup.BEHIND_SECONDS", SOON_BELIEVED_SECONDS)
    client.admin.delete_topic(topic)
    with pytest.raises(UnknownTopicOrPartition, match=f"there is no topic '{topic}'"):
        batch_reader(server, topic).partitions()
    gone = OffsetRange(topic, 0, 0, 5)
    with pytest.raises(OffsetOutOfRange, match=f"{topic}-0: of the offsets 0 to 5 some are gone"):
        rows_in(batch_reader(server, topic, **HASTE), gone)
    assert rows_in(batch_reader(server, topic, **HASTE, **LOSSY), gone) == []


def test_a_partition_that_is_not_there(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_io.lookup.BEHIND_SECONDS", SOON_BELIEVED_SECONDS)
    reader = source(server, assign=f'{{"{topic}": [0, 2]}}').reader(struct("value"))
    with pytest.raises(UnknownTopicOrPartition, match="has partitions 0 to 1, and not 2"):
        reader.partitions()
