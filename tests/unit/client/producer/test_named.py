"""A producer's name in one partition: what is skipped, what leaves, and under which numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.client.producer.batch import ProducerBatch
from raftmq.client.producer.named_producer import (
    RECORDS_MAX,
    Fence,
    Named,
    NamedNumbering,
    TopicFences,
)
from raftmq.client.producer.record import RunningDigest
from raftmq.errors import (
    Closed,
    InvalidRecord,
    LeaderNotAvailable,
    MessageTooLarge,
    ProducerFenced,
    RaftmqError,
    ReplayMismatch,
    UnknownProducerId,
)
from raftmq.model import Compression
from raftmq.wire.batch.fixed_keys import read_account
from raftmq.wire.batch.header import Account, check_batch
from raftmq.wire.batch.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Callable

ID = 1 << 62


def batch(*values: str) -> ProducerBatch:
    made = ProducerBatch("t", 0, 0.0)
    for number, value in enumerate(values):
        made.add(value.encode(), number, number, 300)
    return made


def digest_of(*batches: ProducerBatch) -> int:
    digest = RunningDigest()
    for each in batches:
        digest.add(*each.keys_and_values())
    return digest.value


def named(generation: int = 17, on_end: Callable[[], None] = lambda: None) -> Named:
    return Named("etl", generation, on_end)


def fenced(
    next_sequence: int = 0,
    digest: int = 0,
    epoch: int = 3,
    on_end: Callable[[], None] = lambda: None,
) -> NamedNumbering:
    fences = TopicFences(named(on_end=on_end))
    fences.count = 1
    fences.on_fence(0, Fence(ID, epoch, next_sequence, digest))
    return NamedNumbering(fences, 0)


def sent(numbering: NamedNumbering, made: ProducerBatch) -> list[str] | None:
    """The values that leave."""
    data = numbering.encode(made, Compression.NONE)
    return data and [(value or b"").decode() for value in RecordBatch.decode(data).values]


def test_nothing_begins_before_all_are_fenced() -> None:
    """Two partitions of three are not enough; the last problem is told."""
    fences = TopicFences(named(1))
    numbering = NamedNumbering(fences, 0)
    assert numbering.lacks_id
    fences.count = 3
    for partition in (2, 0):
        fences.on_fence(partition, Fence(ID, 0, 0, 0))
    assert (fences.missing, numbering.may_begin()) == ([1], False)
    assert "not all partitions" in str(numbering.why_not())
    fences.problem = LeaderNotAvailable("nobody leads")
    assert "nobody leads" in str(numbering.why_not())
    fences.on_fence(1, Fence(ID, 0, 0, 0))
    assert numbering.may_begin()
    assert not numbering.lacks_id


def test_numbers_go_on_where_the_partition_is() -> None:
    """Two stand there; the third one has number 2, under the epoch of the fence."""
    numbering = fenced(2, digest_of(batch("a", "b")))
    made = batch("a", "b", "c", "d")
    assert sent(numbering, made) == ["c", "d"]
    header = check_batch(made.encode(Compression.NONE, made.number))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (ID, 3, 2)
    assert (made.skipped, made.unskipped_count, len(made)) == (2, 2, 4)
    assert sent(numbering, batch("e")) == ["e"]
    assert numbering.position == 5


def test_what_a_batch_says() -> None:
    """The generation, and the digest of everything so far, skipped or sent."""
    numbering = fenced(1, digest_of(batch("a")))
    first, second = batch("a", "b"), batch("c")
    expected = [digest_of(batch("a", "b")), digest_of(batch("a", "b"), batch("c"))]
    for made, digest in zip((first, second), expected, strict=True):
        data = numbering.encode(made, Compression.GZIP)
        assert data is not None
        assert read_account(data, 0, check_batch(data)) == Account(17, digest)


def test_all_of_it_stands_there() -> None:
    """Whole batches are nothing to be sent, also where they end exactly there."""
    numbering = fenced(3, digest_of(batch("a", "b"), batch("c")))
    assert sent(numbering, batch("a", "b")) is None
    assert sent(numbering, batch("c")) is None
    assert sent(numbering, batch("d")) == ["d"]


def test_keys_headers_tags_and_times_of_the_rest() -> None:
    """What is skipped takes its own with it, and leaves the others theirs."""
    made = ProducerBatch("t", 0, 0.0)
    values, keys = [b"a", b"b", b"c"], [b"1", b"2", b"3"]
    made.extend(values, keys, [7, 8, 9], 900)
    made.extend_extras([None, None, {"h": b"v"}], [["x"], ["y"], None])
    digest = RunningDigest()
    digest.add(keys[:1], values[:1])
    data = fenced(1, digest.value).encode(made, Compression.NONE)
    assert data is not None
    found = RecordBatch.decode(data)
    assert (list(found.keys), list(found.timestamps)) == ([b"2", b"3"], [8, 9])
    assert [list(tags) for tags in found.tags] == [["y"], []]
    assert [dict(headers) for headers in found.headers] == [{}, {"h": b"v"}]


@pytest.mark.parametrize("values", [("a", "x"), ("b", "a"), ("a", "")])
def test_other_records_than_stand_there(values: tuple[str, ...]) -> None:
    """Told with the place, the number and the way out; also where more follow them."""
    numbering = fenced(2, digest_of(batch("a", "b")))
    made = batch(*values, "c")
    with pytest.raises(ReplayMismatch, match=r"the first 2 records .* higher generation") as caught:
        numbering.encode(made, Compression.NONE)
    assert "producer 'etl', generation 17" in str(caught.value)
    assert "partition 0 of topic 't'" in str(caught.value)
    assert caught.value.definite
    assert not caught.value.retriable
    assert not made.skipped


def test_again_under_the_same_number() -> None:
    """What is sent again is the same bytes, and is not counted again."""
    numbering = fenced()
    made = batch("a", "b")
    first = numbering.encode(made, Compression.NONE)
    assert numbering.encode(made, Compression.NONE) is first
    assert numbering.position == 2
    numbering.end_epoch()
    assert numbering.encode(made, Compression.NONE) is first


def test_nothing_follows_what_was_given_up() -> None:
    """Whatever comes is told the same, with a way out; what may be there is sent again."""
    calls: list[str] = []
    numbering = fenced(on_end=lambda: calls.append("ended"))
    old = batch("a")
    data = numbering.encode(old, Compression.NONE)
    numbering._named.end(MessageTooLarge("too large"))
    numbering._named.end(Closed("later"))
    assert calls == ["ended"]
    with pytest.raises(Closed, match=r"given up before \(too large\).*same name and generation"):
        numbering.encode(batch("b"), Compression.NONE)
    assert numbering.encode(old, Compression.NONE) is data


@pytest.mark.parametrize("error", [ProducerFenced("another one"), ReplayMismatch("others")])
def test_what_speaks_for_itself(error: RaftmqError) -> None:
    """It is about the name, so it is told to everybody."""
    ended = named(1)
    ended.end(error)
    assert ended.error is error


@pytest.mark.parametrize("kind", [ProducerFenced, UnknownProducerId])
def test_what_a_broker_says_of_a_name(kind: type[RaftmqError]) -> None:
    """It knows a number: the program is told the name, and everything else as it was."""
    told = named().told(kind("leave it").at("t", 3))
    assert type(told) is kind
    assert str(told) == "t-3: producer 'etl', generation 17: leave it"


def test_what_is_not_about_the_name() -> None:
    """Said as it is."""
    error = MessageTooLarge("too large")
    assert named().told(error) is error


def test_more_than_a_generation_can_have() -> None:
    """Refused with a way out; the last number of all is given."""
    numbering = fenced(RECORDS_MAX - 1)
    numbering._digest.count = RECORDS_MAX - 1
    assert sent(numbering, batch("a")) == ["a"]
    with pytest.raises(InvalidRecord, match="go on with a higher generation"):
        numbering.encode(batch("b"), Compression.NONE)


def test_less_than_stands_there() -> None:
    """At the end: the first partition of which something is missing is named."""
    fences = TopicFences(named())
    fences.count = 3
    for partition, count in enumerate((0, 5, 2)):
        fences.on_fence(partition, Fence(ID, 0, count, 0))
    fences.check_replayed("t", {0: 9, 1: 5, 2: 2})
    with pytest.raises(ReplayMismatch, match=r"5 records .* partition 1 .* only 4 were") as caught:
        fences.check_replayed("t", {0: 9, 1: 4})
    assert (caught.value.topic, caught.value.partition) == ("t", 1)
