"""Readers of committed records: what they are handed out, and where they stand then (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.administration.offsets import list_offset
from raftmq.client.consumer.partition_state import Start, StartKind
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import seal
from raftmq.wire.messages.fetch import Fetch, PartitionFetched
from raftmq.wire.messages.offsets import LATEST
from tests.unit.client.consumer.pure_world import TOPIC_ID, PureWorld, fetched
from tests.unit.client.consumer.reading import consumer, reading, take, take_all
from tests.unit.client.transactions_in_logs import committed_offsets, in_transaction, marker
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.logs import Partition
    from tests.unit.client.world import World

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def log_of(world: World | PureWorld) -> Partition:
    return world.partitions[0] if isinstance(world, PureWorld) else world.topics["u"].partitions[0]


def place(world: World | PureWorld, *batches: bytes) -> None:
    for each in batches:
        log_of(world).place(each)


MIXED = (
    batch("a"),  # 0
    in_transaction(7, "x", "x"),  # 1, 2
    in_transaction(8, "b"),  # 3
    batch("c"),  # 4
    marker(8, COMMIT),  # 5
    in_transaction(7, "x"),  # 6
    marker(7, ABORT),  # 7
    in_transaction(7, "d"),  # 8
    marker(7, COMMIT),  # 9
)


async def test_aborted_records_are_passed_over(autojump_clock: MockClock) -> None:
    """The same producer id counts again after its marker; batches without a transaction stay."""
    async with reading(1) as (world, client):
        place(world, *MIXED)
        async with consumer(client) as c:
            assert await take(c, 4) == ["a", "b", "c", "d"]
            assert await take_all(c) == []
            # Behind the marker, too: a group at the end has no lag.
            assert (c.position("u", 0), c.lag("u", 0), c.high_watermark("u", 0)) == (10, 0, 10)


async def test_all_that_is_there(autojump_clock: MockClock) -> None:
    """With "read_uncommitted" aborted and open transactions come, too."""
    async with reading(1) as (world, client):
        place(world, *MIXED, in_transaction(9, "e"), batch("f"))
        async with consumer(client, isolation_level="read_uncommitted") as c:
            assert await take_all(c) == ["a", "x", "x", "b", "c", "x", "d", "e", "f"]
            assert (c.position("u", 0), c.lag("u", 0)) == (12, 0)
            assert await c.end_offsets() == {("u", 0): 12}


async def test_an_open_transaction_holds_what_is_behind_it(autojump_clock: MockClock) -> None:
    """Until it is decided; meanwhile the end of what can be read is the end for lag, too."""
    async with reading(1) as (world, client):
        place(world, batch("a"), in_transaction(7, "b"), batch("c"))
        async with consumer(client) as c:
            assert await take_all(c) == ["a"]
            assert (c.position("u", 0), c.lag("u", 0), c.high_watermark("u", 0)) == (1, 0, 3)
            assert await c.end_offsets() == {("u", 0): 1}
            place(world, marker(7, COMMIT))
            assert await take(c, 2) == ["b", "c"]


async def test_latest_is_before_an_open_transaction(autojump_clock: MockClock) -> None:
    """Else what commits a moment later would be skipped (hazard of "latest")."""
    async with reading(1) as (world, client):
        place(world, batch("a"), in_transaction(7, "b"), batch("c"))
        async with consumer(client, start="latest") as c:
            assert c.position("u", 0) == 1
            place(world, marker(7, COMMIT))
            assert await take(c, 2) == ["b", "c"]
        assert await list_offset(client, "u", 0, LATEST) == 4


async def test_a_time_behind_an_open_transaction(autojump_clock: MockClock) -> None:
    """Nothing is found there; reading begins at the end of what can be read."""
    async with reading(1) as (world, client):
        place(world, in_transaction(7, "b"), batch("c"))
        async with consumer(client) as c:
            c.seek("u", 0, timestamp=1000)
            assert await take_all(c) == []
            assert c.position("u", 0) == 0
            place(world, marker(7, ABORT))
            assert await take_all(c) == ["c"]


@pytest.mark.parametrize("offset", range(11))
async def test_a_seek_to_anywhere(offset: int, autojump_clock: MockClock) -> None:
    """Into an aborted transaction, to its marker, behind it."""
    async with reading(1) as (world, client):
        place(world, *MIXED)
        expected = [each for each in committed_offsets(log_of(world).data) if each >= offset]
        async with consumer(client) as c:
            c.seek("u", 0, offset=offset)
            found = []
            for _ in expected:
                record = await anext(c)
                found.append(record.offset)
            assert found == expected
            assert await take_all(c) == []
            assert c.position("u", 0) == 10


async def test_batches_of_columns(autojump_clock: MockClock) -> None:
    """They hold what is committed, and end behind what is passed over in their midst."""
    async with reading(1) as (world, client):
        place(world, *MIXED)
        async with consumer(client) as c:
            found = await anext(c.batches())
            assert found.values == [b"a", b"b", b"c", b"d"]
            assert found.offsets == [0, 3, 4, 8]
            assert c.position("u", 0) == 10


def asked_once(*batches: bytes) -> PureWorld:
    world = PureWorld(1)
    place(world, *batches)
    world.start()
    question = world.ask(1)
    assert question is not None
    world.answer(question)
    return world


def test_what_is_aborted_is_never_decoded() -> None:
    """A codec that this machine lacks is no error there."""
    strange = bytearray(in_transaction(7, "x"))
    strange[22] |= 7  # no codec has this number
    world = asked_once(bytes(seal(strange)), marker(7, ABORT), batch("a"))
    taken = world.delivery.take(10)
    assert taken is not None
    assert taken.values == [b"a"]
    assert world.state(0).position == 3


def test_what_is_aborted_must_be_whole_nevertheless() -> None:
    """Whose batch it is only a header says whose CRC is right; so its damage is damage."""
    world = PureWorld(1)
    place(world, in_transaction(7, "xxxx"), marker(7, ABORT))
    base, end, data = log_of(world).batches[0]
    log_of(world).batches[0] = base, end, data[:-1] + bytes([data[-1] ^ 1])
    world.start()
    question = world.ask(1)
    assert question is not None
    assert isinstance(question.body, Fetch)
    raw = b"".join(data for _, _, data in log_of(world).batches)
    told = PartitionFetched(TOPIC_ID, 0, 0, 2, 0, len(raw), last_stable_offset=2)
    world.give(question, fetched([told], [raw]))
    assert world.state(0).damage is not None
    assert not world.state(0).undelivered


def test_a_broker_that_knows_no_transactions() -> None:
    """Of an older version: it tells no last stable offset, and everything comes."""
    world = PureWorld(1)
    world.append(0, "a", "b")
    world.start()
    question = world.ask(1)
    assert question is not None
    data = log_of(world).read(0)
    world.give(question, fetched([PartitionFetched(TOPIC_ID, 0, 0, 2, 0, len(data))], [data]))
    taken = world.delivery.take(10)
    assert taken is not None
    assert taken.values == [b"a", b"b"]
    assert world.state(0).end_offset == 2


def test_records_beyond_the_last_stable_offset() -> None:
    """A leader that sends them has a log that is damaged: they might still be aborted."""
    world = PureWorld(1)
    place(world, batch("a"), batch("b"))
    world.start()
    question = world.ask(1)
    assert question is not None
    data = log_of(world).read(0)
    told = PartitionFetched(TOPIC_ID, 0, 0, 2, 0, len(data), last_stable_offset=1)
    world.give(question, fetched([told], [data]))
    taken = world.delivery.take(10)
    assert taken is not None
    assert taken.values == [b"a"]


# A log, made step by step: what a producer does, or one without transactions.
LOG_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "write", "write", "commit", "abort"]),
        st.integers(1, 3),  # producer id
        st.integers(1, 3),  # records
    ),
    max_size=25,
)


def fill(world: PureWorld, steps: list[tuple[str, int, int]]) -> None:
    is_open: set[int] = set()
    for kind, producer_id, count in steps:
        values = [f"{log_of(world).end_offset + each}" for each in range(count)]
        if kind == "plain":
            place(world, batch(*values))
        elif kind == "write":
            place(world, in_transaction(producer_id, *values))
            is_open.add(producer_id)
        elif producer_id in is_open:
            place(world, marker(producer_id, COMMIT if kind == "commit" else ABORT))
            is_open.discard(producer_id)


@given(LOG_STEPS, LOG_STEPS, st.integers(0, 60), st.integers(1, 500), st.integers(1, 4))
@settings(max_examples=300)
def test_any_log_read_from_anywhere_in_any_pieces(
    before: list[tuple[str, int, int]],
    after: list[tuple[str, int, int]],
    start: int,
    bytes_max: int,
    records_max: int,
) -> None:
    """What comes is what a walk over the whole log says, whatever a single answer holds; what comes
    while the log grows stays true.
    """
    world = PureWorld(1, max_partition_fetch_bytes=bytes_max)
    fill(world, before)
    start = min(start, log_of(world).end_for(1))
    world.start()
    world.state(0).seek(Start(StartKind.OFFSET, start))
    found: list[int] = []
    drain(world, found, records_max)
    assert found == offsets_from(world, start)
    fill(world, after)
    drain(world, found, records_max)
    assert found == offsets_from(world, start)
    assert world.state(0).position == max(start, log_of(world).end_for(1))


def offsets_from(world: PureWorld, start: int) -> list[int]:
    return [each for each in committed_offsets(log_of(world).data) if each >= start]


def drain(world: PureWorld, found: list[int], records_max: int) -> None:
    """Ask and take until the reader stands at the end of what it may read."""
    while True:
        question = world.ask(1)
        if question is not None:
            offset = world.state(0).fetch_offset
            world.answer(question)
            is_at_end = world.state(0).fetch_offset == offset
        while (taken := world.delivery.take(records_max)) is not None:
            found += taken.offsets
        if question is not None and is_at_end:
            return
