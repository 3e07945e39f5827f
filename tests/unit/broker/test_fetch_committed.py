"""What READ_COMMITTED shows: nothing that is open, and what of the rest was aborted (A11.4)."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.requests import fetched_records, record_readers
from raftmq.broker.requests.offsets import ListOffsetsRequests, RecordDeletion
from raftmq.errors import ErrorCode
from raftmq.model import IsolationLevel
from raftmq.wire.messages.fetch import (
    NEW_SESSION,
    AbortedTransaction,
)
from raftmq.wire.messages.offsets import EARLIEST, LATEST, ListOffsets, WantedOffset
from raftmq.wire.messages.topics import DeleteRecords, RecordsToDelete
from tests.unit.broker import asking
from tests.unit.broker.consuming import Parked
from tests.unit.broker.copying import body_of, told_of
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.readers import batches_in, offsets_in, reading
from tests.unit.broker.transacting import HERE, end, open_id
from tests.unit.storage.batches import NOW_MS, batch
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from raftmq.wire.batch.header import BatchHeader
    from tests.simulation.quorum_fake import FakeCluster

PRODUCERS = 3  # at a time

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


async def test_nothing_open_is_shown(autojump_clock: MockClock) -> None:
    """Up to the first open transaction, also of what is committed behind it; a reader of
    everything gets it all, and hears nothing of transactions."""
    async with reading() as (cluster, _, replica, reader):
        producer = await open_id(cluster)
        replica.append(batch(b"plain"), acks=1)
        producer.send(replica)
        replica.append(batch(b"behind"), acks=1)
        await settle()
        reply = await reader.ask(0)
        assert offsets_in(reply) == [0]
        told = told_of(reply)[0]
        assert (told.high_watermark, told.last_stable_offset, told.aborted) == (3, 1, ())
        told = await reader.told(1)
        assert (told.error, told.length, told.last_stable_offset) == (ErrorCode.NONE, 0, 1)
        reply = await reader.ask(0, level=UNCOMMITTED)
        assert offsets_in(reply) == [0, 1, 2]
        told = told_of(reply)[0]
        assert (told.last_stable_offset, told.aborted) == (-1, ())


async def test_aborted_transactions_are_named(autojump_clock: MockClock) -> None:
    """Those that meet the records of the answer, wherever it begins; committed ones are not."""
    async with reading() as (cluster, _, replica, reader):
        kept, dropped = await open_id(cluster, "kept"), await open_id(cluster, "dropped")
        kept.send(replica)
        dropped.send(replica)
        replica.append(batch(b"plain"), acks=1)
        await end(cluster, dropped, "dropped", is_commit=False)
        await settle()
        await end(cluster, kept, "kept")
        await settle()
        again = dropped.next
        again.send(replica)
        await end(cluster, again, "dropped", is_commit=False)
        await settle()
        first = AbortedTransaction(dropped.producer_id, 1, 3)
        second = AbortedTransaction(dropped.producer_id, 5, 6)
        for offset in range(7):
            told = await reader.told(offset)
            assert told.last_stable_offset == 7
            assert first in told.aborted if offset < 3 else first not in told.aborted
            assert second in told.aborted if offset < 6 else second not in told.aborted
            assert len(told.aborted) <= 2
        assert (await reader.told(0, bytes_max=1)).aborted == ()
        assert (await reader.told(0, level=UNCOMMITTED)).aborted == ()


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_long_poll_ends_with_the_transaction(
    autojump_clock: MockClock, *, is_commit: bool
) -> None:
    """Not with its records, nor with those behind it."""
    async with reading() as (cluster, _, replica, reader), trio.open_nursery() as nursery:
        producer, parked = await open_id(cluster), Parked()
        nursery.start_soon(parked.run, reader.ask(0, wait_ms=20_000))
        producer.send(replica)
        replica.append(batch(b"behind"), acks=1)
        await trio.sleep(5.0)
        assert parked.is_waiting
        await end(cluster, producer, is_commit=is_commit)
        await settle()
        assert not parked.is_waiting
        assert parked.ended_at < 6.0
        assert offsets_in(parked.replies[0]) == [0, 1, 2]
        assert len(told_of(parked.replies[0])[0].aborted) == (not is_commit)


@pytest.mark.parametrize("delay", [1.5, 2.5])
async def test_a_log_that_is_trimmed_while_it_is_read(
    autojump_clock: MockClock, delay: float
) -> None:
    """Its records are found, then their segment is deleted, with what it knew to be aborted: none
    of them is handed out as if it counted."""
    disk = Disk()
    async with reading(run_sync=disk) as (cluster, node, replica, reader):
        dropped, log = await open_id(cluster), replica.log
        for sequence in range(3):
            dropped.send(replica, sequence=sequence)
        await end(cluster, dropped, is_commit=False)
        await settle()
        log.roll()
        for _ in range(2):  # idle for so long, that it does not know where its batches are
            log.segments[0].release_idle()
        replica.append(batch(b"later"), acks=1)
        await settle()
        parked = Parked()
        log.files.cold, disk.seconds = True, 1.0  # type: ignore[attr-defined]  # simulated ones
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.directory.delete_records, log, 4)
            await trio.sleep(delay)
            nursery.start_soon(parked.run, reader.ask(1))
        assert log.log_start_offset == log.segments[0].base_offset == 4
        told = told_of(parked.replies[0])[0]
        assert told.error == ErrorCode.OFFSET_OUT_OF_RANGE or told.aborted, f"{told}"


async def test_a_session_is_of_one_level(autojump_clock: MockClock) -> None:
    """What is no news to one reader is news to the other."""
    async with reading() as (cluster, _, replica, reader):
        producer = await open_id(cluster)
        producer.send(replica)
        await settle()
        reply = await reader.ask(0, session=(0, NEW_SESSION))
        assert offsets_in(reply) == []
        session_id = body_of(reply).session_id
        reply = await reader.ask(session=(session_id, 1))
        assert offsets_in(reply) == []
        with pytest.raises(Exception, match="begin one"):
            await reader.ask(session=(session_id, 2), level=UNCOMMITTED)
        await end(cluster, producer)
        await settle()
        reply = await reader.ask(session=(session_id, 2))
        assert offsets_in(reply) == [0, 1]


async def test_offsets_by_level(autojump_clock: MockClock) -> None:
    """The latest offset, and a search by time, end at the last stable one; the earliest stays."""
    async with reading() as (cluster, node, replica, _):
        replica.append(batch(b"old", timestamp=NOW_MS - 1000), acks=1)
        producer = await open_id(cluster)
        producer.send(replica)
        await settle()

        async def find(timestamp: int, level: IsolationLevel) -> int:
            wanted = WantedOffset(TOPIC_ID, 0, -1, timestamp)
            handler = ListOffsetsRequests(node.replicas, node.directory).list_offsets
            reply = await asking.ask(handler, ListOffsets((wanted,), level))
            found: int = reply.partitions[0].offset
            return found

        times = LATEST, EARLIEST, NOW_MS - 1000, NOW_MS
        assert [await find(time, COMMITTED) for time in times] == [1, 0, 0, -1]
        assert [await find(time, UNCOMMITTED) for time in times] == [2, 0, 0, 1]
        await end(cluster, producer)
        await settle()
        assert [await find(time, COMMITTED) for time in times] == [3, 0, 0, 1]


async def test_no_transaction_loses_its_beginning(autojump_clock: MockClock) -> None:
    """Everything, is up to the first open one; more is refused, and says why."""
    async with reading() as (cluster, node, replica, _):
        deletion = RecordDeletion(
            HERE,
            node.replicas,
            node.directory,
            asking.changes(cluster),
            broker_epoch=node.epoch.get,
        )
        replica.append(batch(b"plain"), acks=1)
        producer = await open_id(cluster)
        producer.send(replica)
        await settle()

        async def delete(before_offset: int) -> Any:
            wanted = RecordsToDelete(TOPIC_ID, 0, before_offset)
            reply = await asking.ask(deletion.delete, DeleteRecords((wanted,), 5000))
            return reply.partitions[0]

        refused = await delete(2)
        assert refused.error == ErrorCode.OFFSET_OUT_OF_RANGE
        assert "a transaction is open from offset 1 on" in refused.message
        done = await delete(-1)
        assert (done.error, done.log_start_offset) == (ErrorCode.NONE, 1)
        await end(cluster, producer)
        await settle()
        assert (await delete(-1)).log_start_offset == 3


@pytest.mark.parametrize("seed", range(8))
async def test_readers_drop_what_was_aborted_and_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Transactions that interleave, read in pieces from everywhere, with few told at a time."""
    for module in (fetched_records, record_readers):
        monkeypatch.setattr(module, "ABORTED_MAX", PRODUCERS)
    random = Random(seed)
    async with reading() as (cluster, _, replica, reader):
        expected = await _interleaved(random, cluster, replica)
        for start in range(0, replica.log.log_end_offset, 3):
            offset, seen = start, []
            while offset < replica.last_stable_offset:
                reply = await reader.ask(offset, bytes_max=random.choice((1, 300, 1000, 1 << 20)))
                aborted = told_of(reply)[0].aborted
                assert len(aborted) <= PRODUCERS
                batches = batches_in(reply)
                seen += [one.base_offset for one in batches if _counts(one, aborted)]
                assert batches, f"nothing at {offset}"
                offset = batches[-1].end_offset
            assert seen == [one for one in expected if one >= start]


async def _interleaved(random: Random, cluster: FakeCluster, replica: Replica) -> list[int]:
    """Offsets of the records that count."""
    names = [f"id-{number}" for number in range(PRODUCERS)]
    producers = {name: await open_id(cluster, name) for name in names}
    written: dict[str, list[int]] = {name: [] for name in names}
    expected = []
    for _ in range(80):
        name = random.choice(names)
        if random.random() < 0.15:
            expected.append(replica.append(batch(b"plain"), acks=1).base_offset)
        elif written[name] and random.random() < 0.5:
            is_commit = random.random() < 0.4
            await end(cluster, producers[name], name, is_commit=is_commit)
            await settle()
            expected += written[name] if is_commit else []
            producers[name], written[name] = producers[name].next, []
        else:
            sequence = len(written[name])
            written[name].append(producers[name].send(replica, sequence=sequence))
    for name in names:
        await end(cluster, producers[name], name, is_commit=False)
    await settle()
    assert replica.last_stable_offset == replica.log.log_end_offset
    return sorted(expected)


def _counts(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    """As clients judge it."""
    return not header.is_control and not any(
        one.producer_id == header.producer_id
        and one.first_offset <= header.base_offset < one.marker_offset
        for one in aborted
    )
