"""How far each microbatch of Spark goes on real brokers, and what its checkpoint holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from raftmq import sync, testing
from raftmq.errors import InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.cluster.spark_io_here import (
    COLUMNS,
    fill,
    ranges_of,
    rows_of,
    source,
    stream_reader,
)
from tests.unit.spark_io.tasks import sent_away, struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server
    from spark_io.stream_reader import StreamReader

pytestmark = pytest.mark.cluster

Offsets = dict[str, dict[str, int]]
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


@pytest.fixture
def readers() -> Iterator[list[StreamReader]]:
    """To be stopped at the end of the test, which Spark does by ending the process."""
    opened: list[StreamReader] = []
    yield opened
    for reader in opened:
        reader.stop()


@pytest.fixture
def stream(server: Server, topic: str, readers: list[StreamReader]) -> Any:
    def open_reader(**options: str) -> StreamReader:
        readers.append(stream_reader(server, topic, **options))
        return readers[-1]

    return open_reader


def step(reader: StreamReader, start: Offsets) -> Offsets:
    """As Spark does it: offsets go through the texts of its checkpoint."""
    found = reader.latestOffset(json.loads(json.dumps(start)), reader.getDefaultReadLimit())
    parsed: Offsets = json.loads(json.dumps(found))
    return parsed


def steps(reader: StreamReader, start: Offsets, topic: str) -> list[tuple[int, ...]]:
    """Until there is nothing new: where both partitions end."""
    found: list[tuple[int, ...]] = []
    while (end := step(reader, start)) != start:
        found.append(tuple(end[topic].values()))
        start = end
    return found


def test_where_a_query_begins(client: sync.Client, topic: str, stream: Any) -> None:
    fill(client, topic, 7)
    assert stream().initialOffset() == {topic: {"0": 0, "1": 0}}
    assert stream(startingOffsets="latest").initialOffset() == {topic: {"0": 7, "1": 0}}
    given = f'{{"{topic}": {{"0": 3, "1": -1}}}}'
    assert stream(startingOffsets=given).initialOffset() == {topic: {"0": 3, "1": 0}}


def test_a_microbatch(client: sync.Client, topic: str, stream: Any) -> None:
    """Planned in the driver, read by a copy of the reader, and the next one goes on there."""
    reader = stream()
    start = reader.initialOffset()
    fill(client, topic, 3)
    end = step(reader, start)
    assert end == reader.reportLatestOffset() == {topic: {"0": 3, "1": 0}}
    [planned] = reader.partitions(start, end)
    away, part = sent_away((reader, planned))
    assert away._lookup._client is None
    assert rows_of(away.read(part)) == [(b"0", 0, 0), (b"1", 0, 1), (b"2", 0, 2)]
    reader.commit(end)
    assert step(reader, end) == end
    assert reader.partitions(end, end) == []


def test_equal_offsets_are_equal_texts(server: Server, client: sync.Client) -> None:
    """Spark compares them; partitions are in the order of their numbers, and topics by name."""
    for name in ("text-b", "text-a"):
        client.admin.create_topic(name, partitions=12)
    fill(client, "text-a", 2, partition=10)
    texts = []
    for _ in range(2):
        reader = source(server, subscribe="text-b,text-a", startingOffsets="earliest").streamReader(
            struct(*COLUMNS)
        )
        start = reader.initialOffset()
        texts.append((json.dumps(start), json.dumps(step(reader, start))))
        assert json.dumps(reader.latestOffset(start, ReadAllAvailable())) == texts[-1][1]
        reader.stop()
    assert texts[0] == texts[1]
    end: Offsets = json.loads(texts[0][1])
    assert list(end) == ["text-a", "text-b"]
    assert list(end["text-a"]) == [str(number) for number in range(12)]
    assert end["text-a"]["10"] == 2


def test_at_most_so_many_records(client: sync.Client, topic: str, stream: Any) -> None:
    """Partitions share them by what they have, and none starves."""
    fill(client, topic, 30)
    fill(client, topic, 10, partition=1)
    reader = stream(maxOffsetsPerTrigger="16")
    start = reader.initialOffset()
    assert steps(reader, start, topic) == [(12, 4), (24, 8), (30, 10)]
    assert reader.reportLatestOffset() == {topic: {"0": 30, "1": 10}}


def test_at_least_so_many_records(client: sync.Client, topic: str, stream: Any) -> None:
    """They are waited for; what the checkpoint holds meanwhile is the same text."""
    reader = stream(minOffsetsPerTrigger="5", maxTriggerDelay="1d")
    start = reader.initialOffset()
    fill(client, topic, 3)
    assert json.dumps(step(reader, start)) == json.dumps(start)
    assert reader.reportLatestOffset() == {topic: {"0": 3, "1": 0}}
    fill(client, topic, 2, partition=1)
    end = step(reader, start)
    assert end == {topic: {"0": 3, "1": 2}}
    fill(client, topic, 4)
    assert step(reader, end) == end
    assert reader.latestOffset(end, ReadAllAvailable()) == {topic: {"0": 7, "1": 2}}


def test_nobody_waits_longer_than_the_delay(client: sync.Client, topic: str, stream: Any) -> None:
    reader = stream(minOffsetsPerTrigger="5", maxTriggerDelay="0s")
    start = reader.initialOffset()
    fill(client, topic, 3)
    assert step(reader, start) == {topic: {"0": 3, "1": 0}}


def test_a_query_that_ends(client: sync.Client, topic: str, stream: Any) -> None:
    """At what was there when it began, in steps of the limit; nothing is waited for."""
    fill(client, topic, 25)
    reader = stream(maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10", maxTriggerDelay="1d")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(client, topic, 100)
    assert steps(reader, start, topic) == [(10, 0), (20, 0), (25, 0)]
    assert reader.reportLatestOffset() == {topic: {"0": 25, "1": 0}}


def test_partitions_that_are_added(client: sync.Client, topic: str, stream: Any) -> None:
    """They are read from their beginning, whatever the query began with."""
    fill(client, topic, 3)
    reader = stream(startingOffsets="latest", maxOffsetsPerTrigger="100")
    start = reader.initialOffset()
    client.admin.create_partitions(topic, 4)
    fill(client, topic, 5, partition=3)
    end = step(reader, start)
    assert end == {topic: {"0": 3, "1": 0, "2": 0, "3": 5}}
    assert ranges_of(reader.partitions(start, end)) == [f"{topic}-3[0:5]"]


def test_topics_that_are_added(
    server: Server, client: sync.Client, readers: list[StreamReader]
) -> None:
    reader = source(server, subscribePattern="grow-.*").streamReader(struct(*COLUMNS))
    readers.append(reader)
    start = reader.initialOffset()
    assert start == step(reader, start) == {}
    client.admin.create_topic("grow-a", partitions=1)
    fill(client, "grow-a", 2)
    end = step(reader, start)
    assert end == {"grow-a": {"0": 2}}
    assert ranges_of(reader.partitions(start, end)) == ["grow-a-0[0:2]"]


def test_a_query_that_is_started_again(client: sync.Client, topic: str, stream: Any) -> None:
    """The microbatch that was under way is planned anew, by offsets out of the checkpoint."""
    fill(client, topic, 9)
    first, second = stream(minPartitions="3"), stream(minPartitions="3")
    start = first.initialOffset()
    end = step(first, start)
    fill(client, topic, 9)
    planned = first.partitions(start, end)
    assert ranges_of(planned) == [f"{topic}-0[{at}:{at + 3}]" for at in (0, 3, 6)]
    assert second.partitions(start, end) == planned


def test_records_that_were_deleted_before_they_were_read(
    client: sync.Client, topic: str, stream: Any
) -> None:
    fill(client, topic, 20)
    start: Offsets = {topic: {"0": 4, "1": 0}}
    client.admin.delete_records(topic, {0: 15})
    careful, lossy = stream(), stream(failOnDataLoss="false", maxOffsetsPerTrigger="2")
    with pytest.raises(OffsetOutOfRange, match=f"{topic}-0 has lost the offsets 4 to 14"):
        careful.partitions(start, step(careful, start))
    end = step(lossy, start)
    assert end == {topic: {"0": 17, "1": 0}}
    assert ranges_of(lossy.partitions(start, end)) == [f"{topic}-0[15:17]"]


def test_a_topic_that_was_made_again(client: sync.Client, topic: str, stream: Any) -> None:
    """Where it ends before the query has come to, the query reads it from its beginning."""
    start: Offsets = {topic: {"0": 20, "1": 0}}
    fill(client, topic, 3)
    careful, lossy = stream(), stream(failOnDataLoss="false", maxOffsetsPerTrigger="2")
    with pytest.raises(OffsetOutOfRange, match=f"{topic}-0 ends before offset 20"):
        careful.partitions(start, step(careful, start))
    end = step(lossy, start)
    assert end == {topic: {"0": 2, "1": 0}}
    assert ranges_of(lossy.partitions(start, end)) == [f"{topic}-0[0:2]"]
    assert ranges_of(lossy.partitions(end, step(lossy, end))) == [f"{topic}-0[2:3]"]


def test_a_topic_that_is_gone(
    client: sync.Client, topic: str, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was named is missed; what a checkpoint has of it may be passed over."""
    monkeypatch.setattr("spark_io.lookup.BEHIND_SECONDS", SOON_BELIEVED_SECONDS)
    fill(client, topic, 3)
    careful, lossy = stream(), stream(failOnDataLoss="false")
    start = careful.initialOffset()
    end = step(careful, start)
    client.admin.delete_topic(topic)
    with pytest.raises(UnknownTopicOrPartition, match=f"no topic '{topic}': make it"):
        careful.latestOffset(start, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRange, match=f"{topic}-0 is gone"):
        careful.partitions(start, end)
    assert lossy.partitions(start, end) == []


def test_a_topic_that_is_not_chosen_any_more(
    server: Server, client: sync.Client, topic: str, stream: Any
) -> None:
    """It is told before a checkpoint has forgotten where the query was, unless that is wanted."""
    fill(client, topic, 3)
    start = stream().initialOffset()
    client.admin.create_topic(f"{topic}-other", partitions=1)
    with pytest.raises(
        OffsetOutOfRange, match=f"checkpoint of this query has {topic}-0, {topic}-1"
    ):
        stream(subscribe=f"{topic}-other").latestOffset(start, ReadAllAvailable())
    lossy = stream(subscribe=f"{topic}-other", failOnDataLoss="false")
    assert lossy.latestOffset(start, ReadAllAvailable()) == {f"{topic}-other": {"0": 0}}


def test_offsets_of_another_source(stream: Any) -> None:
    """As of a checkpoint that two queries share."""
    with pytest.raises(InvalidConfig, match=r"offsets in the checkpoint.*of its own"):
        stream().latestOffset({"0": 1000}, ReadAllAvailable())


def test_a_reader_that_was_stopped_can_be_asked_again(topic: str, stream: Any) -> None:
    """Spark makes no promise about the order."""
    reader = stream()
    reader.stop()
    assert reader.initialOffset() == {topic: {"0": 0, "1": 0}}
    reader.stop()
    reader.stop()
