"""`Admin.group_lag(with_ages=True)`: how old the oldest record is that a group has not read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

from raftmq.client.administration.groups.ages import BYTES_MAX
from raftmq.errors import ErrorCode
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.messages.fetch import Fetch
from tests.unit.client.administration.groups.registry import open_registry
from tests.unit.client.transactions_in_logs import in_transaction, marker

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.administration.admin import Admin
    from tests.unit.client.administration.groups.registry import Registry
    from tests.unit.client.logs import Partition

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock stands still."""
    monkeypatch.setattr(time, "time", lambda: NOW_MS / 1000)


def written(*ages_ms: int) -> bytes:
    """A batch of records that were written so long ago."""
    timestamps = [NOW_MS - age for age in ages_ms]
    return bytes(encode_batch(values=[b"x"] * len(ages_ms), timestamps=timestamps))


def log_of(registry: Registry, *batches: bytes) -> Partition:
    """A topic "v" with one partition, of which the group has read nothing."""
    (found,) = registry.world.add_topic("v", 1).partitions
    for each in batches:
        found.append(each)
    registry.commit("g", {("v", 0): 0})
    return found


async def age(admin: Admin) -> float | None:
    (row,) = await admin.group_lag("g", with_ages=True)
    return row.age_seconds


@pytest.mark.parametrize(
    ("committed", "seconds"), [(0, 9.0), (1, 8.0), (2, 7.0), (4, 0.0), (7, 0.0)]
)
async def test_ages(committed: int, seconds: float, autojump_clock: MockClock) -> None:
    """The first unread record counts, also within a batch; 0 where nothing is left, and behind the
    end, as after an unclean election. A9.3."""
    async with open_registry() as (registry, admin):
        log_of(registry, written(9000, 8000), written(7000, 6000))
        registry.commit("g", {("v", 0): committed})
        assert await age(admin) == seconds


async def test_the_plain_call_fetches_nothing(autojump_clock: MockClock) -> None:
    """Ages cost a fetch from each partition that lags, and only where they are wanted."""
    async with open_registry() as (registry, admin):
        log_of(registry, written(9000))
        (row,) = await admin.group_lag("g")
        assert (row.lag, row.age_seconds, registry.bureau.count(Fetch)) == (1, None, 0)
        assert await age(admin) == 9.0
        assert [one.bytes_max for one in registry.bureau.asked(Fetch)] == [BYTES_MAX]
        registry.commit("g", {("v", 0): 1})
        assert (await age(admin), registry.bureau.count(Fetch)) == (0.0, 1)


async def test_what_was_deleted_is_not_waited_for(autojump_clock: MockClock) -> None:
    """The committed offset lies before the log: its oldest record is the first unread one."""
    async with open_registry() as (registry, admin):
        log_of(registry, written(9000, 8000), written(7000)).log_start_offset = 1
        assert await age(admin) == 8.0


async def test_control_batches_are_passed_over(autojump_clock: MockClock) -> None:
    """Named producers write them: a record behind them is unread, they themselves are not."""
    async with open_registry() as (registry, admin):
        log = log_of(registry)
        for generation in range(60):  # more than one answer holds
            log.fence("p", generation)
        (row,) = await admin.group_lag("g", with_ages=True)
        assert (row.lag, row.age_seconds) == (60, 0.0)
        log.append(written(5000))
        assert await age(admin) == 5.0


async def test_what_is_scheduled_is_passed_over(autojump_clock: MockClock) -> None:
    """It is no record yet, as of a topic of retries; what stands behind it is (A12.2, A12.4)."""
    waits = bytes(encode_batch(values=[b"x"], timestamps=[NOW_MS - 9000], due_ms=NOW_MS + 9000))
    async with open_registry() as (registry, admin):
        log = log_of(registry, waits, waits)
        (row,) = await admin.group_lag("g", with_ages=True)
        assert (row.lag, row.age_seconds) == (2, 0.0)
        log.append(written(5000))
        log.append(waits)
        assert await age(admin) == 5.0


@pytest.mark.parametrize(("timestamp", "seconds"), [(-1, None), (NOW_MS + 5000, 0.0), (0, 1.7e9)])
async def test_odd_timestamps(
    timestamp: int, seconds: float | None, autojump_clock: MockClock
) -> None:
    """A record without a timestamp, one from the future, and one of 1970."""
    async with open_registry() as (registry, admin):
        log_of(registry, bytes(encode_batch(values=[b"x"], timestamp=timestamp)))
        assert await age(admin) == seconds


@pytest.mark.parametrize("error", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_ages_that_are_not_known(error: ErrorCode, autojump_clock: MockClock) -> None:
    """The record is deleted between the two questions, or its leader does not answer for it: the
    lag is told all the same, within a few seconds."""
    async with open_registry() as (registry, admin):
        log_of(registry, written(9000))
        registry.world.brokers[1].fetches = [lambda turn: turn.refuse(error)] * 1000
        begin = anyio.current_time()
        (row,) = await admin.group_lag("g", with_ages=True)
        assert (row.lag, row.age_seconds) == (1, None)
        assert anyio.current_time() - begin < 6


async def test_other_batches_than_asked_for(autojump_clock: MockClock) -> None:
    """A broker sends a damaged batch: no age is made up from it."""
    async with open_registry() as (registry, admin):
        log = log_of(registry, written(9000))
        base, end, data = log.batches[0]
        log.batches[0] = (base, end, data[:-1] + bytes([data[-1] ^ 1]))
        assert await age(admin) is None


async def test_aborted_records_are_of_no_age(autojump_clock: MockClock) -> None:
    """The first record that a reader of committed ones gets counts."""
    async with open_registry() as (registry, admin):
        log = log_of(registry)
        log.place(in_transaction(7, "x"))
        log.place(marker(7, ControlType.ABORT))
        assert await age(admin) == 0.0
        log.place(written(3000))
        assert await age(admin) == 3.0
