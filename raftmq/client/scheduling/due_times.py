"""When a record is due, as programs say it: by a delay, a moment, or the number of a level.

Owns the checks, the rounding to the tick of brokers, and the levels of topics, which are asked for
once and kept for some minutes. A relative time counts from the call, by this machine's clock; the
leader delivers by its own.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import anyio

from raftmq.client.administration.checks import check_topic
from raftmq.client.administration.topics import describe_config
from raftmq.client.moments import MILLISECOND
from raftmq.client.producer.record import given_timestamp
from raftmq.errors import InvalidRecord, UnsupportedVersion
from raftmq.model import DELAY_TICK_MS
from raftmq.topic_config import delay_levels_ms
from raftmq.wire.batch.columns import INT64_MAX
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.moments import GivenTimestamp
    from raftmq.client.routing.cluster import Cluster

    GivenDelay: TypeAlias = float | timedelta

LEVELS_SECONDS = 300.0  # after that the levels of a topic are asked for again


def due_ms_of(
    delay: GivenDelay | None, deliver_at: GivenTimestamp | None, *, now_ms: int
) -> int | None:
    """The due time, in milliseconds since 1970-01-01 UTC; None: neither is given.

    Raises:
        InvalidRecord: both are given, or what is given is no time.
    """
    if delay is None and deliver_at is None:
        return None
    if delay is None:
        assert deliver_at is not None, "one of both"
        return _rounded(given_timestamp(deliver_at, "deliver_at"), f"deliver_at = {deliver_at!r}")
    if deliver_at is not None:
        raise InvalidRecord("delay and deliver_at: give one of them")
    return _rounded(now_ms + _delay_ms(delay), f"delay = {delay!r}")


def check_level(level: object, delay: GivenDelay | None, deliver_at: GivenTimestamp | None) -> None:
    """What can be said of a level before the topic's are known.

    Raises:
        InvalidRecord: it is given beside another time, or is no number.
    """
    for name, given in (("delay", delay), ("deliver_at", deliver_at)):
        if given is not None:
            raise InvalidRecord(f"{name} and delay_level: give one of them")
    if not isinstance(level, int) or isinstance(level, bool):
        raise InvalidRecord(f"delay_level is {kind_of(level)}, expected a number, from 1 on")


def _delay_ms(delay: object) -> int:
    if isinstance(delay, timedelta):
        milliseconds = math.ceil(delay / MILLISECOND)
    elif isinstance(delay, int | float) and not isinstance(delay, bool):
        if not math.isfinite(delay):
            raise InvalidRecord(f"delay = {delay!r}: expected seconds")
        milliseconds = math.ceil(delay * 1000)
    else:
        raise InvalidRecord(f"delay is {kind_of(delay)}, expected seconds, or a timedelta")
    if milliseconds < 0:
        raise InvalidRecord(f"delay = {delay!r}: expected 0 or more")
    return milliseconds


def _rounded(due_ms: int, what: str) -> int:
    rounded = -(-due_ms // DELAY_TICK_MS) * DELAY_TICK_MS
    if rounded > INT64_MAX:
        raise InvalidRecord(f"{what}: more milliseconds than 64 bits hold")
    return rounded


# -- Levels ---------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """The delays of a topic's levels, and their text."""

    delays_ms: tuple[int, ...]
    text: str
    until: float


class DueTimes:
    """Of one producer: knows the levels of topics, as brokers have told them."""

    def __init__(
        self, cluster: Cluster, now_ms: Callable[[], int], *, timeout_seconds: float
    ) -> None:
        self._cluster, self._now_ms, self._seconds = cluster, now_ms, timeout_seconds
        self._known: dict[str, _Known] = {}
        self._lock: anyio.Lock | None = None  # made where there is a loop

    async def due_ms(
        self,
        topic: str,
        delay: GivenDelay | None,
        deliver_at: GivenTimestamp | None,
        level: int | None,
    ) -> int | None:
        """When a record that is sent now is due. Waits only for the levels of a topic.

        Raises:
            InvalidRecord: more than one is given, or no time; or the topic has no such level.
            RaftmqError: no broker has said which levels there are.
        """
        now_ms = self._now_ms()  # before the wait, which is no delay that was asked for
        if level is None:
            return due_ms_of(delay, deliver_at, now_ms=now_ms)
        check_level(level, delay, deliver_at)
        known = self._known.get(check_topic(topic))
        if known is None or known.until <= anyio.current_time():
            known = await self._learn(topic)
        return _due_by(known, topic, level, now_ms)

    def due_ms_now(
        self,
        topic: str,
        delay: GivenDelay | None,
        deliver_at: GivenTimestamp | None,
        level: int | None,
    ) -> int | None:
        """The same without waiting, by the levels that were told last, however long ago.

        Raises:
            InvalidRecord: also where none were told yet.
        """
        if level is None:
            return due_ms_of(delay, deliver_at, now_ms=self._now_ms())
        check_level(level, delay, deliver_at)
        known = self._known.get(topic)
        if known is None:
            raise InvalidRecord(
                f"delay_level = {level}: the levels of topic {topic!r} are not known yet, and"
                " send_nowait cannot wait for them: send the first record with `send` or"
                " `enqueue`, or give a delay"
            )
        return _due_by(known, topic, level, self._now_ms())

    async def _learn(self, topic: str) -> _Known:
        if self._lock is None:
            self._lock = anyio.Lock()
        async with self._lock:  # one question for many records
            known = self._known.get(topic)
            if known is not None and known.until > anyio.current_time():
                return known
            deadline = anyio.current_time() + self._seconds
            config = await describe_config(self._cluster, topic, deadline=deadline)
            found = config.get("delay.levels")
            if found is None:
                raise UnsupportedVersion(
                    f"topic {topic!r}: the cluster has no delay.levels yet: all brokers have to be"
                    " of a version with scheduled records"
                ).at(topic)
            until = anyio.current_time() + LEVELS_SECONDS
            self._known[topic] = _Known(delay_levels_ms(found.value), found.value, until)
            return self._known[topic]


def _due_by(known: _Known, topic: str, level: int, now_ms: int) -> int:
    if not 1 <= level <= len(known.delays_ms):
        raise InvalidRecord(
            f"delay_level = {level}: topic {topic!r} has levels 1 to {len(known.delays_ms)}:"
            f" {known.text}"
        )
    return _rounded(now_ms + known.delays_ms[level - 1], f"delay_level = {level}")
