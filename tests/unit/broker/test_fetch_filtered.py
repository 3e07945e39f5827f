"""Fetches with a filter of tags: what is sent, when, and how far the reader has come (A12.1)."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.requests import fetched_records, record_readers
from raftmq.broker.requests.fetched_records import LOOK_UNITS
from raftmq.broker.requests.record_readers import FilteredRecords
from raftmq.client.consumer.completed_fetches import CompletedFetch
from raftmq.client.consumer.fetch_response import Expected, check_answer
from raftmq.errors import ErrorCode, InvalidRequest
from raftmq.model import RecordFormat
from raftmq.partition.filtered_read import BATCH_UNITS
from raftmq.tag_filter import parse
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.messages.fetch import NEW_SESSION
from tests.unit.broker.consuming import Parked
from tests.unit.broker.copying import body_of, payload_of, told_of
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.readers import Reader, reading
from tests.unit.broker.transacting import end, open_id
from tests.unit.storage.batches import NOW_MS
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.partition.filtered_read import FilteredSlice
    from raftmq.partition.replica import Replica
    from raftmq.rpc.reply import Reply

WAIT_MS = 20_000


def append(replica: Replica, *tag_sets: str, size: int = 1) -> None:
    """One batch, with a record for each of them, as in "eu test"."""
    tags = [each.split() for each in tag_sets]
    values = [b"x" * size] * len(tags)
    replica.append(bytes(encode_batch(values=values, tags=tags, timestamp=NOW_MS)), acks=1)


def ranges_in(reply: Reply) -> list[tuple[int, int]]:
    return [(one.start_offset, one.end_offset) for one in told_of(reply)[0].left_out]


def read(reply: Reply, offset: int, tags: str) -> tuple[list[int], int]:
    """The offsets that a consumer hands out, and where it goes on; it checks all of it."""
    told, asked = told_of(reply)[0], parse(tags)
    assert told.error == ErrorCode.NONE, told.message
    end_offset = told.last_stable_offset
    expected = Expected(offset, -1, 99, end_offset, "t", told.aborted, asked, told.left_out)
    pieces, damage = check_answer(payload_of(reply), expected)
    assert damage is None, f"{damage}"
    offsets: list[int] = []
    for piece in pieces:
        if isinstance(piece, CompletedFetch) and not piece.is_passed_over:
            offsets += piece.batch.offsets if piece.batch.header.record_count else []
    return offsets, pieces[-1].end_offset if pieces else offset


async def read_on(reader: Reader, offset: int, tags: str, **more: int) -> tuple[list[int], int]:
    found, position = read(await reader.ask(offset, tags=tags, **more), offset, tags)
    return found, position


async def test_what_passes_and_what_does_not(autojump_clock: MockClock) -> None:
    """Whole batches, parts of batches, and ranges between and behind them."""
    async with reading() as (_, _, replica, reader):
        for tag_sets in (["us"], ["us"], ["eu", "us", "eu"], ["eu"], ["us", "us"], [""]):
            append(replica, *tag_sets)
        await settle()
        reply = await reader.ask(0, tags="eu")
        assert ranges_in(reply) == [(0, 2), (6, 9)]
        assert read(reply, 0, "eu") == ([2, 4, 5], 9)
        assert await read_on(reader, 3, "eu") == ([2, 4, 5], 9)  # the consumer drops the first
        assert await read_on(reader, 0, "!us & !eu") == ([8], 9)
        assert await read_on(reader, 0, "eu | !eu") == ([*range(9)], 9)


async def test_nothing_that_passes_does_not_end_the_wait(autojump_clock: MockClock) -> None:
    """An idle consumer asks as seldom as without a filter, and learns at the end of its wait how
    far it has come; what passes is answered at once. (A7.2)"""
    async with reading() as (_, _, replica, reader):
        for ending in ("us", "eu"):
            parked, offset = Parked(), replica.log.log_end_offset
            began_at = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(parked.run, reader.ask(offset, tags="eu", wait_ms=WAIT_MS))
                for _ in range(5):
                    await trio.sleep(1.0)
                    append(replica, "us")
                    await settle()
                    assert parked.is_waiting
                append(replica, ending)
                seconds = trio.current_time() - began_at
            [reply] = parked.replies
            expected = WAIT_MS / 1000 if ending == "us" else seconds
            assert parked.ended_at == pytest.approx(expected, abs=0.1)
            assert ranges_in(reply) == [(offset, offset + (6 if ending == "us" else 5))]
            assert read(reply, offset, "eu")[1] == offset + 6


async def test_it_goes_on_where_it_has_looked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New data does not make a request look again at what it has passed over."""
    async with reading() as (_, node, replica, reader):
        looks: list[int] = []
        look = node.directory.look_filtered_now

        def counted(log: Any, offset: int, *arguments: Any, **more: Any) -> FilteredSlice:
            looks.append(offset)
            return look(log, offset, *arguments, **more)

        monkeypatch.setattr(node.directory, "look_filtered_now", counted)
        parked = Parked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parked.run, reader.ask(0, tags="eu", wait_ms=WAIT_MS))
            for tag in ("us", "us", "us", "eu"):
                await trio.sleep(1.0)
                append(replica, tag)
        assert looks == [0, 1, 2, 3]
        assert read(parked.replies[0], 0, "eu") == ([3], 4)


async def test_a_long_way_without_anything_is_answered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns with other requests, and so many batches at a time; then the reader is told."""
    monkeypatch.setattr(record_readers, "LOOK_UNITS", 36)
    monkeypatch.setattr(fetched_records, "LOOKED_MAX", 20)
    async with reading() as (_, _, replica, reader):
        for _ in range(50):
            append(replica, "us")
        append(replica, "eu")
        await settle()
        offset, found, answers = 0, [], 0
        while offset < 51:
            offers, offset = await read_on(reader, offset, "eu", wait_ms=WAIT_MS)
            found += offers
            answers += 1
        assert (found, answers, trio.current_time() < WAIT_MS / 1000) == ([50], 3, True)


async def test_batches_on_the_disk_are_looked_at_in_a_thread(autojump_clock: MockClock) -> None:
    """As any read that the page cache does not have."""
    disk = Disk()
    async with reading(run_sync=disk) as (_, _, replica, reader):
        for tag in ("us", "eu us", "us"):
            append(replica, tag, "us", size=5_000)
        await settle()
        replica.log.files.cold, disk.seconds = True, 1.0  # type: ignore[attr-defined]
        began_at = trio.current_time()
        assert await read_on(reader, 0, "eu") == ([2], 6)
        assert trio.current_time() > began_at


async def test_a_slow_disk_holds_up_nobody_for_long(autojump_clock: MockClock) -> None:
    """3,000 batches at 10 ms each: the request is answered after a tenth of a second and one look,
    with what another partition has, and the next one goes on where it has come."""
    disk = Disk()
    async with reading(partitions=2, run_sync=disk) as (_, node, replica, reader):
        for _ in range(3_000):
            append(replica, "us")
        append(node.replicas.get(TOPIC_ID, 1), "eu")
        await settle()
        replica.log.files.cold, disk.seconds = True, 0.64  # type: ignore[attr-defined]
        began_at = trio.current_time()
        told = told_of(await reader.ask(0, 0, tags="eu", wait_ms=500))
        assert trio.current_time() - began_at < 1.0
        assert told[0].left_out[0].end_offset == 64
        replica.log.files.cold = False  # type: ignore[attr-defined]


async def test_many_partitions_have_one_turn_together(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop looks at so much in one go, of however many partitions."""
    async with reading(partitions=20) as (_, node, _, reader):
        for number in range(20):
            for _ in range(30):
                append(node.replicas.get(TOPIC_ID, number), "us")
        await settle()
        goes: list[int] = []
        look, begin = node.directory.look_filtered_now, FilteredRecords.begin

        def counted(*arguments: Any, **more: Any) -> FilteredSlice:
            found = look(*arguments, **more)
            goes[-1] += found.units
            return found

        def begin_to_count(self: FilteredRecords) -> None:
            goes.append(0)
            begin(self)

        monkeypatch.setattr(node.directory, "look_filtered_now", counted)
        monkeypatch.setattr(FilteredRecords, "begin", begin_to_count)
        told = told_of(await reader.ask(*[0] * 20, tags="eu", wait_ms=500))
        assert max(goes) <= LOOK_UNITS + BATCH_UNITS
        assert [told[number].left_out[0].end_offset for number in range(20)] == [30] * 20


@pytest.mark.parametrize("is_known", [False, True])
async def test_what_is_before_damage_is_answered(autojump_clock: MockClock, is_known: bool) -> None:
    """Also where a later look meets it, and where it is known: then it is an error, there."""
    async with reading() as (_, _, replica, reader):
        append(replica, "eu")
        for _ in range(70):
            append(replica, "us")
        await settle()
        position = replica.log.active.locate(68).position
        replica.log.active._known.clear()
        replica.log.active.file.write(position + 16, [b"\x09"])
        for _ in range(3 if is_known else 1):
            assert await read_on(reader, 0, "eu") == ([0], 68)
            refused = await reader.told(68, tags="eu")
            assert refused.error == ErrorCode.CORRUPT_MESSAGE
            await trio.sleep(60)


async def test_nothing_is_kept_of_what_was_answered(autojump_clock: MockClock) -> None:
    """A session would hold its bytes, and the files of deleted segments, until its next request."""
    async with reading() as (_, _, replica, reader):
        for _ in range(20):
            append(replica, "eu", "us", size=3_000)
        await settle()
        reply = await reader.ask(0, session=(0, NEW_SESSION), tags="eu")
        session = reader._requests.sessions._sessions[body_of(reply).session_id]
        assert [one.looked for one in session.partitions.values()] == [None]


class Gates:
    """A worker thread, which goes on when its caller is cancelled."""

    def __init__(self) -> None:
        self.is_on = False
        self.waiting: list[trio.Event] = []

    async def __call__(self, function: Callable[[], Any]) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_on:
            gate = trio.Event()
            self.waiting.append(gate)
            with trio.CancelScope(shield=True):
                await gate.wait()
        return function()


async def test_a_superseded_look_touches_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread cannot be cancelled; what it finds must not go into the next request, which would
    hand out what was aborted."""
    monkeypatch.setattr(record_readers, "LOOK_UNITS", 36)
    for first in (0, 1):  # which of the two threads ends first
        gates = Gates()
        async with reading(run_sync=gates) as (cluster, _, replica, reader):
            reply = await reader.ask(0, session=(0, NEW_SESSION), tags="!us")
            session_id = body_of(reply).session_id
            for _ in range(4):
                append(replica, "eu", size=1000)
            producer = await open_id(cluster)
            producer.send(replica)
            await end(cluster, producer, is_commit=False)
            await settle()  # its marker is written
            for _ in range(6):
                append(replica, "eu", size=1000)
            await settle()
            gates.is_on = replica.log.files.cold = True  # type: ignore[attr-defined]
            asked = [Parked(), Parked()]
            async with trio.open_nursery() as nursery:
                for number, parked in enumerate(asked, 1):
                    ask = reader.ask(session=(session_id, number), tags="!us", bytes_max=9_000)
                    nursery.start_soon(parked.run, ask)
                    await trio.sleep(0.001)
                assert len(gates.waiting) == 2
                gates.waiting[first].set()
                await trio.sleep(0.001)
                gates.is_on = False
                for gate in gates.waiting:
                    gate.set()
            offsets, end_offset = read(asked[1].replies[0], 0, "!us")
            assert offsets == [one for one in (0, 1, 2, 3, 6, 7, 8, 9, 10, 11) if one < end_offset]
            assert len(offsets) > 4


async def test_only_what_is_committed_is_passed_over(autojump_clock: MockClock) -> None:
    """What a transaction has written may not pass, yet its outcome is not known; and what was
    aborted is told as without a filter. (A11.4)"""
    async with reading() as (cluster, _, replica, reader):
        append(replica, "us")
        producer = await open_id(cluster)
        producer.send(replica)
        append(replica, "us", "eu")
        await settle()
        assert await read_on(reader, 0, "eu") == ([], 1)
        await end(cluster, producer, is_commit=False)
        await settle()
        reply = await reader.ask(0, tags="!us")
        assert len(told_of(reply)[0].aborted) == 1
        assert read(reply, 0, "!us") == ([3], replica.log.log_end_offset)
        assert await read_on(reader, 0, "eu") == ([3], replica.log.log_end_offset)


async def test_a_session_is_of_one_filter(autojump_clock: MockClock) -> None:
    """What one reader was told is not what another one wants."""
    async with reading() as (_, _, replica, reader):
        append(replica, "eu")
        await settle()
        session_id = body_of(await reader.ask(0, session=(0, NEW_SESSION), tags="eu")).session_id
        with pytest.raises(Exception, match="begin one"):
            await reader.ask(session=(session_id, 1), tags="us")


async def test_a_filter_that_is_not_in_the_normal_form(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters are compared by it, so it is refused, and says what it should be."""
    async with reading() as (_, _, _, reader):
        asked = parse("b | a")
        twisted = asked._replace(clauses=asked.clauses[::-1])
        monkeypatch.setattr("tests.unit.broker.readers.tag_filter", lambda _: twisted)
        with pytest.raises(
            InvalidRequest, match=r"filter of tags b \| a: its normal form is a \| b"
        ):
            await reader.ask(0)


async def test_topics_without_tags_refuse(autojump_clock: MockClock) -> None:
    """In Kafka's format there are none: a filter is most likely a mistake."""
    async with reading() as (_, _, replica, reader):
        replica.log.config = replica.log.config.__class__(record_format=RecordFormat.KAFKA)
        told = await reader.told(0, tags="eu")
        assert told.error == ErrorCode.INVALID_REQUEST
        assert "record.format=kafka" in told.message
        assert (await reader.told(0)).error == ErrorCode.NONE


@pytest.mark.parametrize("seed", range(6))
async def test_everything_that_passes_from_everywhere(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random batches and transactions, read in pieces by random limits."""
    monkeypatch.setattr(record_readers, "LOOK_UNITS", 27)
    monkeypatch.setattr(fetched_records, "LOOKED_MAX", 10)
    monkeypatch.setattr(fetched_records, "LEFT_OUT_MAX", 2)
    random, names = Random(seed), ("eu", "us", "eu test", "", "paid us")
    tags = random.choice(("eu", "!eu", "(eu | paid) & !test", "us"))
    async with reading() as (cluster, _, replica, reader):
        passing: list[int] = []
        for _ in range(60):
            if random.random() < 0.15:
                producer = await open_id(cluster)
                offset, is_commit = replica.log.log_end_offset, random.random() < 0.5
                producer.send(replica)
                await end(cluster, producer, is_commit=is_commit)
                await settle()
                passing += [offset] * (is_commit and parse(tags).matches(()))
                continue
            chosen = random.choices(names, k=random.randint(1, 4))
            start = replica.log.log_end_offset
            append(replica, *chosen)
            await settle()
            passing += [
                start + index
                for index, each in enumerate(chosen)
                if parse(tags).matches(each.split())
            ]
        for start in range(0, replica.log.log_end_offset, 7):
            offset, found = start, list[int]()
            while offset < replica.last_stable_offset:
                bytes_max = random.choice((1, 300, 1 << 20))
                offers, offset = await read_on(reader, offset, tags, bytes_max=bytes_max)
                found += offers
            assert [one for one in found if one >= start] == [
                one for one in passing if one >= start
            ]
