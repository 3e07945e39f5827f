"""When a record is due: delays, moments and levels, as programs hand them in (A12.2, A12.3)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.scheduling.due_times import LEVELS_SECONDS, due_ms_of
from raftmq.errors import InvalidRecord, UnknownTopicOrPartition, UnsupportedVersion
from raftmq.model import DELAY_TICK_MS
from raftmq.topic_config import TopicConfig
from raftmq.wire.messages.configs import (
    ConfigEntry,
    DescribeConfigs,
    DescribeConfigsReply,
    TopicConfigDescription,
)
from tests.unit.client.administration.bureau import Bureau
from tests.unit.client.producer.shell import NOW_MS, open_stage
from tests.unit.client.scheduling.due import due_in
from tests.unit.client.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.client.producer.producer import Producer

MOMENT = datetime(2026, 12, 24, 18, 0, 0, 1000, tzinfo=UTC)
MOMENT_MS = 1_798_135_200_100  # rounded up


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (0, 0),
        (30, 30_000),
        (0.1, 100),
        (0.1001, 200),
        (2.3, 2300),
        (1e-9, 100),
        (1800.0, 1_800_000),
        (timedelta(minutes=30), 1_800_000),
        (timedelta(microseconds=1), 100),
        (timedelta(0), 0),
    ],
)
def test_delays(delay: float | timedelta, milliseconds: int) -> None:
    """Rounded up to the tick: never early."""
    assert due_ms_of(delay, None, now_ms=NOW_MS) == NOW_MS + milliseconds


def test_a_delay_from_between_two_ticks() -> None:
    assert due_ms_of(1, None, now_ms=12_345) == 13_400
    assert due_ms_of(0, None, now_ms=12_345) == 12_400
    assert DELAY_TICK_MS == 100


@pytest.mark.parametrize(
    "moment",
    [MOMENT, MOMENT.astimezone(timezone(timedelta(hours=9))), MOMENT_MS - 50, MOMENT_MS],
)
def test_moments(moment: datetime | int) -> None:
    assert due_ms_of(None, moment, now_ms=NOW_MS) == MOMENT_MS


def test_a_moment_that_is_over() -> None:
    """It is scheduled all the same: delivered at once."""
    assert due_ms_of(None, NOW_MS - 60_000, now_ms=NOW_MS) == NOW_MS - 60_000


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"delay": -1}, "delay = -1: expected 0 or more"),
        ({"delay": timedelta(seconds=-1)}, "expected 0 or more"),
        ({"delay": float("nan")}, "delay = nan: expected seconds"),
        ({"delay": float("inf")}, "delay = inf: expected seconds"),
        ({"delay": 1e30}, "more milliseconds than 64 bits hold"),
        ({"delay": True}, "delay is a bool, expected seconds, or a timedelta"),
        ({"delay": "30m"}, "delay is a str, expected seconds, or a timedelta"),
        ({"deliver_at": datetime(2026, 1, 1)}, "deliver_at = .* has no time zone"),
        ({"deliver_at": "2026"}, "deliver_at is a str, expected int milliseconds, or a datetime"),
        ({"deliver_at": 1_798_135_200}, "deliver_at = 1798135200: seconds, most likely"),
        ({"deliver_at": -1}, "deliver_at = -1: expected milliseconds since 1970"),
        ({"deliver_at": (1 << 63) - 1}, "more milliseconds than 64 bits hold"),
        ({"delay": 1, "deliver_at": MOMENT}, "delay and deliver_at: give one of them"),
        ({"delay": 1, "delay_level": 1}, "delay and delay_level: give one of them"),
        ({"deliver_at": 0, "delay_level": 1}, "deliver_at and delay_level: give one of them"),
        ({"delay_level": "5"}, "delay_level is a str, expected a number, from 1 on"),
        ({"delay_level": True}, "delay_level is a bool, expected a number"),
        ({"delay_level": 1.0}, "delay_level is a float, expected a number"),
    ],
)
async def test_times_that_are_none(
    autojump_clock: MockClock, given: dict[str, Any], told: str
) -> None:
    """Each call says what is wrong, and sends nothing (A2.6)."""
    async with open_stage() as (world, _, client), client.producer() as producer:
        for send in (producer.send, producer.enqueue):
            with pytest.raises(InvalidRecord, match=told):
                await send("t", b"", **given)
        with pytest.raises(InvalidRecord, match=told):
            producer.send_nowait("t", b"", **given)
        await producer.flush()
        assert due_in(world) == []


# -- levels ---------------------------------------------------------------------------------------


@asynccontextmanager
async def open_levels(levels: str) -> AsyncIterator[tuple[Bureau, World, Producer]]:
    world = World(2)
    bureau = Bureau(world)
    bureau.configs["t"] = {"delay.levels": levels}
    async with open_stage(world) as stage, stage.client.producer() as producer:
        yield bureau, stage.world, producer


async def test_levels_are_those_of_the_topic(autojump_clock: MockClock) -> None:
    """Counted from 1, and asked for once."""
    async with open_levels(TopicConfig().delay_levels) as (bureau, world, producer):
        for level in (1, 5, 18):
            await producer.send("t", b"", delay_level=level)
        assert due_in(world) == [NOW_MS + 1000, NOW_MS + 60_000, NOW_MS + 7_200_000]
        producer.send_nowait("t", b"", delay_level=2)
        await producer.flush()
        assert due_in(world)[-1] == NOW_MS + 5000
        assert bureau.count(DescribeConfigs) == 1


@pytest.mark.parametrize("level", [0, -1, 4, 19])
async def test_a_level_that_the_topic_has_not(autojump_clock: MockClock, level: int) -> None:
    """The error names the levels that there are."""
    async with open_levels("1s 10m 2h") as (_, world, producer):
        with pytest.raises(
            InvalidRecord,
            match=f"^delay_level = {level}: topic 't' has levels 1 to 3: 1s 10m 2h$",
        ):
            await producer.send("t", b"", delay_level=level)
        with pytest.raises(InvalidRecord, match="has levels 1 to 3"):
            producer.send_nowait("t", b"", delay_level=level)
        assert due_in(world) == []


async def test_levels_are_asked_for_again(autojump_clock: MockClock) -> None:
    """After some minutes; what never waits goes by what was told last."""
    async with open_levels("1s") as (bureau, world, producer):
        await producer.send("t", b"", delay_level=1)
        bureau.configs["t"] = {"delay.levels": "7s"}
        await producer.send("t", b"", delay_level=1)
        await trio.sleep(LEVELS_SECONDS)
        await producer.send_nowait("t", b"", delay_level=1)
        await producer.send("t", b"", delay_level=1)
        assert due_in(world) == [NOW_MS + 1000] * 3 + [NOW_MS + 7000]
        assert bureau.count(DescribeConfigs) == 2


async def test_one_question_for_many_records(autojump_clock: MockClock) -> None:
    async with open_levels("1s 2s") as (bureau, world, producer), trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(partial(producer.send, "t", b"", delay_level=2))
        await trio.sleep(1)
        assert due_in(world) == [NOW_MS + 2000] * 20
        assert bureau.count(DescribeConfigs) == 1


async def test_a_level_without_waiting_for_it(autojump_clock: MockClock) -> None:
    """The way out is named."""
    async with open_levels("1s") as (_, _, producer):
        with pytest.raises(InvalidRecord, match="are not known yet, and send_nowait cannot wait"):
            producer.send_nowait("t", b"", delay_level=1)


async def test_a_level_of_a_cluster_of_an_earlier_version(autojump_clock: MockClock) -> None:
    """Its topics have no such key."""
    async with open_levels("1s") as (bureau, world, producer):
        topic_id = world.topics["t"].topic_id
        entries = (ConfigEntry("retention.ms", "1"),)
        told = TopicConfigDescription(topic_id, config_epoch=1, entries=entries)
        bureau.lie(DescribeConfigs, DescribeConfigsReply((told,)))
        with pytest.raises(UnsupportedVersion, match=r"'t': the cluster has no delay\.levels yet"):
            await producer.send("t", b"", delay_level=1)


async def test_a_level_of_no_topic(autojump_clock: MockClock) -> None:
    async with open_levels("1s") as (_, _, producer):
        with pytest.raises(UnknownTopicOrPartition):
            await producer.send("missing", b"", delay_level=1)
