"""`Admin`: offsets of partitions, and the deletion of old records."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import (
    InvalidConfig,
    LeaderNotAvailable,
    OffsetOutOfRange,
    OutcomeUnknown,
    UnknownTopicOrPartition,
)
from raftmq.wire.messages.topics import DeleteRecords, DeleteRecordsReply
from tests.producing import produce
from tests.unit.client.administration.bureau import LOST, open_bureau
from tests.unit.client.transactions_in_logs import in_transaction
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.administration.admin import Admin


async def filled(admin: Admin) -> None:
    """Topic "u": two partitions with three and one records."""
    await admin.create_topic("u", partitions=2)
    for partition in (0, 0, 0, 1):
        await produce(admin._cluster, "u", partition, batch("a"))


async def test_offsets(autojump_clock: MockClock) -> None:
    """Of all partitions or of some; None where no record is so young."""
    async with open_bureau() as (_, admin):
        await filled(admin)
        assert await admin.offsets("u", "latest") == {0: 3, 1: 1}
        assert await admin.offsets("u", "earliest", partitions=[1]) == {1: 0}
        late = datetime(2126, 1, 1, tzinfo=UTC)
        assert await admin.offsets("u", late) == {0: None, 1: None}
        with pytest.raises(UnknownTopicOrPartition, match=r"has 2 partitions.*there is no 2, 7"):
            await admin.offsets("u", "latest", partitions=[7, 0, 2])


async def test_offsets_beside_an_open_transaction(autojump_clock: MockClock) -> None:
    """Where readers go on: "latest" is before what may still commit, and a time finds nothing
    behind it, unless the reader takes what is open, too (A11.3)."""
    async with open_bureau() as (bureau, admin):
        await filled(admin)
        log = bureau.world.topics["u"].partitions[1]
        for data in (in_transaction(7, "b"), batch("c")):
            log.place(data)
        assert await admin.offsets("u", "latest") == {0: 3, 1: 1}
        everything = await admin.offsets("u", "latest", isolation_level="read_uncommitted")
        assert everything == {0: 3, 1: 3}
        details = (await admin.describe_topic("u")).partitions
        ends = [(one.end_offset, one.last_stable_offset) for one in details]
        assert ends == [(3, 3), (3, 1)]
        with pytest.raises(InvalidConfig, match="did you mean 'read_committed'"):
            await admin.offsets("u", "latest", isolation_level="committed")  # type: ignore[arg-type]


async def test_offsets_without_a_leader(autojump_clock: MockClock) -> None:
    """They are waited for, and what is missing is told."""
    async with open_bureau() as (bureau, admin):
        await filled(admin)
        bureau.world.lead("u", 1, -1)
        with pytest.raises(LeaderNotAvailable, match="u-1"):
            await admin.with_timeout(1).offsets("u", "latest")


async def test_records_are_deleted(autojump_clock: MockClock) -> None:
    """At their leaders; once more if the answer is lost; never backwards."""
    async with open_bureau() as (bureau, admin):
        await filled(admin)
        bureau.world.lead("u", 1, 2)
        bureau.errors = [LOST]
        assert await admin.delete_records("u", {0: 2, 1: "latest"}) == {0: 2, 1: 1}
        assert await admin.offsets("u", "earliest") == {0: 2, 1: 1}
        assert await admin.delete_records("u", {0: 1}) == {0: 2}


async def test_records_that_are_not_there(autojump_clock: MockClock) -> None:
    """Where nothing was deleted the error is definite; where something was, it says what."""
    async with open_bureau() as (_, admin):
        await filled(admin)
        with pytest.raises(OffsetOutOfRange):
            await admin.delete_records("u", {0: 9})
        with pytest.raises(OutcomeUnknown) as caught:
            await admin.delete_records("u", {0: 9, 1: 1})
        assert "partition 1: starts at 1 now" in str(caught.value)
        assert isinstance(caught.value.__cause__, OffsetOutOfRange)
        with pytest.raises(UnknownTopicOrPartition, match="there is no 5"):
            await admin.delete_records("u", {0: 1, 5: 1})
        assert (await admin.offsets("u", "earliest"))[0] == 0


async def test_an_answer_about_other_partitions(autojump_clock: MockClock) -> None:
    """Nobody knows what was done."""
    async with open_bureau() as (bureau, admin):
        bureau.lie(DeleteRecords, DeleteRecordsReply())
        with pytest.raises(OutcomeUnknown, match="answered DeleteRecords for others"):
            await admin.delete_records("t", {0: 0})
