"""Simulated programs that read through the SDK, in all the ways that it has.

Owns their options, records or batches, cancellations and seeks. What they get is judged by
`sdk_reading.py`, and by the ledger.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import RaftmqError, UnknownTopicId, UnknownTopicOrPartition
from raftmq.tag_filter import parse
from tests.simulation.brokers.sdk_clients import HEALED_SECONDS_MAX, SdkProgram
from tests.simulation.brokers.sdk_reading import Reading
from tests.simulation.brokers.tagging import FILTERS
from tests.simulation.raft.checks import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from tests.simulation.brokers.sdk_reading import Key
    from tests.simulation.brokers.world import World

GONE = (UnknownTopicId, UnknownTopicOrPartition)


class SdkConsumer(SdkProgram):
    """One consumer after the other; the last one has to come to the end of everything."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"sc{number}")
        self._lives = count()

    async def run(self) -> None:
        await super().run()
        async with self._client() as client:
            given = {"start": "earliest", "fetch_max_wait_ms": 100}
            if topics := self.world.living_topics():
                await self._live(client, tuple(topics), given)
            asked = self._random.choice(FILTERS)
            if asked and (topics := list(filter(self.world.has_tags, self.world.living_topics()))):
                await self._live(client, tuple(topics), {**given, "tags": str(asked)})

    async def _use(self, client: Client) -> None:
        for _ in range(self._random.randint(1, 3)):
            topics = self.world.living_topics()
            names, given = self._draw(topics) if topics else ((), {})
            if not self.world.is_closing and (names or "assign" in given):
                await self._live(client, names, given)
            else:
                await self._think()

    async def _live(self, client: Client, topics: tuple[str, ...], given: dict[str, Any]) -> None:
        name = f"{self.name}.{next(self._lives)}"
        self.trace(f"{name} {topics} {given}")
        try:
            async with client.consumer(*topics, **given) as consumer:
                await _Life(self, consumer, name, given).live()
        except GONE as error:  # it was deleted, or is not known everywhere
            self.trace(f"{name} {error!r}")

    def _draw(self, topics: list[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
        choose = self._random.choice
        given: dict[str, Any] = {
            "start": choose(("earliest", "earliest", "latest", 0)),
            "auto_offset_reset": choose(("none", "none", "earliest", "latest")),
            "fetch_min_bytes": choose((1, 1, 2000)),
            "fetch_max_wait_ms": choose((20, 100, 500)),
            "fetch_max_bytes": choose((300, 8 << 20)),
            "max_partition_fetch_bytes": choose((200, 1 << 20)),
            "max_poll_records": choose((1, 7, 500)),
            "prefetch_bytes": choose((1000, 32 << 20)),
        }
        asked = choose(FILTERS)
        if asked is not None:  # which topics without tags refuse
            given["tags"] = str(asked)
            topics = [topic for topic in topics if self.world.has_tags(topic)]
        if not topics:
            return (), given
        if self._random.random() < 0.5:
            return tuple(self._random.sample(topics, self._random.randint(1, len(topics)))), given
        keys = [(spot.topic, spot.partition) for spot in self.world.spots() if spot.topic in topics]
        given["assign"] = self._random.sample(keys, self._random.randint(1, len(keys)))
        return (), given


class _Life:
    """Of one consumer."""

    def __init__(
        self, program: SdkConsumer, consumer: Consumer, name: str, given: dict[str, Any]
    ) -> None:
        self._program, self._world, self._name = program, program.world, name
        self._random, self._consumer = program._random, consumer
        reset = given.get("auto_offset_reset", "none")
        asked = parse(given["tags"]) if "tags" in given else None
        self._reading = Reading(self._world, consumer, name, reset=reset, asked=asked)
        self._start = given["start"]
        self._ways: tuple[Callable[[], Any], ...] = (
            self._read_batches, self._read_batches, self._read_records, self._read_records,
            self._seek, self._pause, self._resume, self._resume,
        )  # fmt: skip

    async def live(self) -> None:
        self._reading.begin(self._start)
        until = trio.current_time() + self._random.choice((1.0, 5.0, 30.0))
        while trio.current_time() < until and not self._world.is_closing:
            await self._random.choice(self._ways)()
            self._reading.judge_positions()
            if self._random.random() < 0.5 or self._world.is_repaired:
                await self._program._think()
        if self._world.is_closing and all(map(self._reading.is_alive, self._consumer.assignment)):
            await self._catch_up()

    # Reading

    async def _read_batches(self) -> None:
        """For a while, or not even that; or until there were enough."""
        count_max, records_max = self._random.choice((1, 3, 50)), self._random.choice((None, 1, 5))
        with self._going_on(), trio.move_on_after(self._draw_patience()):
            async for batch in self._consumer.batches(max_records=records_max):
                for offset, value in zip(batch.offsets, batch.values, strict=True):
                    self._note((batch.topic, batch.partition), offset, value)
                if (count_max := count_max - 1) == 0:
                    return

    async def _read_records(self) -> None:
        count_max = self._random.choice((1, 5, 200))
        with self._going_on(), trio.move_on_after(self._draw_patience()):
            async for record in self._consumer:
                self._note((record.topic, record.partition), record.offset, record.value)
                if (count_max := count_max - 1) == 0:
                    return

    def _note(self, key: Key, offset: int, value: object) -> None:
        assert isinstance(value, bytes), f"a value that nobody sends: {value!r}"
        self._reading.on_record(key, offset, value)

    def _draw_patience(self) -> float:
        return self._random.choice((0.0, 0.02, 0.3, 2.0))

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """After an error, too; where a place is lost, with the first record that there is."""
        try:
            yield
        except GONE:
            raise
        except RaftmqError as error:
            self._program.trace(f"{self._name} {error!r}")
            key = self._reading.on_error(error)
            if key is not None:
                self._go_to_start(key)
        finally:
            self._reading.flush()

    # Elsewhere

    async def _seek(self) -> None:
        key = self._draw_key()
        if key is None:
            return
        expected = self._reading.expected.get(key)
        if expected is None or self._random.random() < 0.2:
            self._go_to_start(key)
            return
        offset = self._random.choice((0, max(0, expected - 3), expected))
        self._reading.on_seek(key, offset=offset)
        self._consumer.seek(*key, offset=offset)

    def _go_to_start(self, key: Key) -> None:
        self._reading.on_seek(key, offset=None)
        self._consumer.seek(*key, timestamp=0)

    async def _pause(self) -> None:
        if key := self._draw_key():
            self._consumer.pause(key)

    async def _resume(self) -> None:
        self._consumer.resume(*self._consumer.paused)

    def _draw_key(self) -> Key | None:
        keys = self._consumer.assignment
        return self._random.choice(keys) if keys else None

    # When all is well

    async def _catch_up(self) -> None:
        """After all its faults this consumer reaches the end of all its partitions."""
        consumer = self._consumer
        consumer.resume(*consumer.paused)
        ends: dict[Key, int] = {}
        with trio.move_on_after(HEALED_SECONDS_MAX) as scope:
            ends = await self._find_ends()
            while self._behind(ends):
                await self._read_up_to(ends)
        if scope.cancelled_caught:
            raise Violation(f"{self._name}: does not come to the end of {self._behind(ends)}")
        self._reading.judge_positions()

    async def _find_ends(self) -> dict[Key, int]:
        while True:
            try:
                return await self._consumer.end_offsets()
            except RaftmqError as error:
                self._program.trace(f"{self._name} {error!r}")

    async def _read_up_to(self, ends: dict[Key, int]) -> None:
        with self._going_on(), trio.move_on_after(1.0):
            async for record in self._consumer:
                self._note((record.topic, record.partition), record.offset, record.value)
                if not self._behind(ends):
                    return

    def _behind(self, ends: dict[Key, int]) -> list[tuple[Key, int | None, int]]:
        positions = ((key, self._consumer.position(*key), end) for key, end in ends.items())
        return [(key, at, end) for key, at, end in positions if at is None or at < end]
