"""Simulated readers through the SDK, with and without a filter, and the judge of what they get.

Each record is compared with what leaders have committed by then: hidden records are never handed
out, and whatever passes the filter comes without gaps, from where reading began to the position.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import LogTruncation, OffsetOutOfRange, RaftmqError
from raftmq.tag_filter import parse
from tests.simulation.brokers.ledger import Spot
from tests.simulation.brokers.sdk_clients import HEALED_SECONDS_MAX, SdkProgram
from tests.simulation.brokers.tagging import FILTERS, tags_of
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.tag_filter import TagFilter
    from tests.simulation.scheduling.world import SchedulingWorld


class ScheduleReader(SdkProgram):
    """One consumer after the other; the last ones have to come to the end of everything."""

    world: SchedulingWorld

    def __init__(self, world: SchedulingWorld, number: int) -> None:
        super().__init__(world, f"r{number}")
        self._lives = count()

    async def _use(self, client: Client) -> None:
        for _ in range(self._random.randint(1, 3)):
            if self.world.is_closing:
                return
            choose = self._random.choice
            given: dict[str, Any] = {
                "fetch_max_wait_ms": choose((20, 100, 500)),
                "fetch_max_bytes": choose((300, 8 << 20)),
                "max_partition_fetch_bytes": choose((200, 1 << 20)),
                "max_poll_records": choose((1, 7, 500)),
                "isolation_level": choose(("read_committed", "read_committed", "read_uncommitted")),
            }
            await self._live(client, choose(FILTERS), choose((1.0, 5.0, 20.0)), given)
            await self._think()

    async def read_all(self) -> None:
        """When all is well."""
        async with self._client() as client:
            for asked in (None, parse("a"), parse("!a")):
                await self._live(client, asked, HEALED_SECONDS_MAX, {}, to_end=True)

    async def _live(
        self,
        client: Client,
        asked: TagFilter | None,
        seconds: float,
        given: dict[str, Any],
        *,
        to_end: bool = False,
    ) -> None:
        name = f"{self.name}.{next(self._lives)}"
        self.trace(f"{name} {asked} {given}")
        if asked is not None:
            given["tags"] = str(asked)
        topics = tuple(self.world.living_topics())
        is_complete, ends = False, dict[tuple[str, int], int]()
        try:
            async with client.consumer(*topics, start="earliest", **given) as consumer:
                level = given.get("isolation_level", "read_committed")
                reading = _Reading(self.world, consumer, name, asked, level)
                ends = await consumer.end_offsets() if to_end else {}
                with trio.move_on_after(seconds):
                    while not is_complete and (to_end or not self.world.is_closing):
                        with trio.move_on_after(1.0):
                            async for record in consumer:
                                reading.on_record(record)
                        reading.judge_positions()
                        is_complete = to_end and reading.has_reached(ends)
        except (LogTruncation, AssertionError):
            raise
        except OffsetOutOfRange as error:
            self.trace(f"{name} {error!r}")
            demand(self.world.may_delete, f"{name}: {error!r}")
        except RaftmqError as error:
            self.trace(f"{name} {error!r}")
        demand(is_complete or not to_end, f"{name}: does not come to the end: {ends}")


class _Reading:
    """Of one consumer."""

    def __init__(
        self,
        world: SchedulingWorld,
        consumer: Consumer,
        name: str,
        asked: TagFilter | None,
        isolation_level: str,
    ) -> None:
        self._world, self._consumer, self._name, self._asked = world, consumer, name, asked
        self._is_committed = isolation_level == "read_committed"
        # Where the next record may be, by partition; 0 is not known where records go.
        self._following: dict[Spot, int] = {}

    def on_record(self, record: ConsumerRecord) -> None:
        spot, offset = Spot(record.topic, record.partition), record.offset
        where = f"{self._name}: {spot} {offset} {record.value!r}"
        found = self._world.observer.log_of(spot).visible.get(offset)
        self._world.schedules.read += 1
        assert isinstance(record.value, bytes)
        if found is not None or self._is_committed:
            demand(found is not None and found.value == record.value, f"{where}: there is {found}")
            assert found is not None
            demand(found.due_ms == record.due, f"{where}: due {record.due}, not {found.due_ms}")
        passes = self._asked is None or self._asked.matches(tags_of(record.value))
        demand(passes, f"{where} does not pass {self._asked}")
        self._step(spot, offset)
        self._following[spot] = offset + 1

    def _step(self, spot: Spot, offset: int) -> None:
        """Nothing that passes stands in between."""
        start = None if self._world.may_delete else 0
        begin = self._following.get(spot, start)
        demand(begin is None or begin <= offset, f"{self._name}: {spot} {offset} after {begin}")
        # Of what was not committed yet when it was read, a reader of all records had more.
        if begin is None or not self._is_committed:
            return
        for one in self._world.observer.log_of(spot).visible_in(begin, offset):
            passes = self._asked is None or self._asked.matches(tags_of(one.value))
            demand(not passes, f"{self._name}: {spot} goes on at {offset}, without {one}")

    def judge_positions(self) -> None:
        for topic, partition in self._consumer.assignment:
            position, spot = self._consumer.position(topic, partition), Spot(topic, partition)
            known = self._following.get(spot)
            if position is not None and (known is not None or not self._world.may_delete):
                self._step(spot, position)
                self._following[spot] = position

    def has_reached(self, ends: dict[tuple[str, int], int]) -> bool:
        return all((self._consumer.position(*key) or 0) >= end for key, end in ends.items())
