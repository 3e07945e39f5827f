"""Simulated programs that write through the SDK, in all the ways that it has.

Owns their options, the calls by which records are handed in, waits, cancellations, and how a
producer ends. Outcomes go to their account (`sdk_account.py`).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from raftmq.client.producer.options import ProducerOptions
from raftmq.client.producer.partitioners import HASHES
from raftmq.errors import BufferFull, RaftmqError
from tests.simulation.brokers.ledger import ANYWHERE, Outcome, Spot
from tests.simulation.brokers.sdk_account import Account
from tests.simulation.brokers.sdk_clients import HEALED_SECONDS_MAX, SdkProgram
from tests.simulation.brokers.tagging import tags_of
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer
    from tests.simulation.brokers.sdk_account import Parcel
    from tests.simulation.brokers.world import World

KEYS = (b"", b"a", b"bc", b"def", b"ghij")
CANCELLED_SHARE = 0.15  # of waits
MANY_MAX = 30
PROBES_MAX = 2  # the first one may meet a connection whose other end is gone


class Abandoned(Exception):
    """What a program raises in the middle of a producer's block."""


class SdkProducer(SdkProgram):
    """One producer after the other."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"sp{number}")
        self._numbers, self._lives = count(), count()

    async def _use(self, client: Client) -> None:
        for _ in range(self._random.randint(1, 4)):
            if not self.world.is_closing:
                await _Life(self, client, f"{self.name}.{next(self._lives)}").live()

    def draw_options(self) -> dict[str, Any]:
        choose = self._random.choice
        return {
            "acks": choose(("all", "all", "all", 1, 2)),
            "linger_ms": choose((0, 5, 50)),
            "batch_size": choose((100, 1000, 64 << 10)),
            "buffer_memory": choose((64 << 10, 32 << 20)),
            "max_request_size": choose((1000, 64 << 10)),
            "compression": choose((None, None, "gzip")),
            "partitioner": choose(sorted(HASHES)),
            "retries": choose((None, None, None, 0, 2)),
            "retry_backoff_ms": choose((10, 100)),
            "request_timeout_ms": choose((300, 2000, 10_000)),
            "delivery_timeout_ms": choose((400, 3000, 20_000)),
        }

    def new_value(self) -> bytes:
        padding = "." * self._random.randint(0, self.world.plan.padding_bytes)
        return f"{self.name}/{next(self._numbers)}{padding}".encode()


class _Life:
    """Of one producer."""

    def __init__(self, program: SdkProducer, client: Client, name: str) -> None:
        self._program, self._world, self._name = program, program.world, name
        self._random = program._random
        given = program.draw_options()
        self._options = ProducerOptions(**given)
        self._producer: Producer = client.producer(**given)
        self._account = Account(self._world, client, self._producer, self._options, name)
        self._line = self._account.new_line()
        self._ways: tuple[Callable[[trio.Nursery], Any], ...] = (
            self._enqueue_all, self._enqueue_all, self._enqueue_all, self._send_nowait,
            self._send_nowait, self._send, self._send_many, self._flush,
        )  # fmt: skip

    async def live(self) -> None:
        ending = self._random.choice(("leave", "leave", "leave", "raise", "cancel"))
        self._program.trace(f"{self._name} {self._options} {ending}")
        async with trio.open_nursery() as waits:
            await self._enter(waits, ending)
        self._account.on_closed()

    async def _enter(self, waits: trio.Nursery, ending: str) -> None:
        told: RaftmqError | None = None
        with trio.CancelScope() as scope:
            try:
                async with self._producer:
                    await self._work(waits)
                    ended_at = trio.current_time()
                    if ending == "raise":
                        raise Abandoned
                    if ending == "cancel":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
            except Abandoned:
                return
            except RaftmqError as error:
                told = error
        if scope.cancelled_caught:
            seconds = trio.current_time() - ended_at
            demand(seconds < 0.01, f"{self._name}: cancelled, and went on for {seconds} s")
        else:
            self._account.on_flushed(told, ended_at)

    async def _work(self, waits: trio.Nursery) -> None:
        until = trio.current_time() + self._random.choice((0.2, 2.0, 8.0))
        while trio.current_time() < until and not self._world.is_closing:
            await self._random.choice(self._ways)(waits)
            await self._program._think()
        if self._world.is_closing and self._is_patient:
            await self._probe()

    # Ways to hand in

    async def _enqueue_all(self, waits: trio.Nursery) -> None:
        """Some records, with a wait for each, a callback, or neither."""
        for _ in range(self._random.randint(1, 8)):
            if (place := self._draw_place()) is None:
                return
            parcel, given = self._hand_in(*place)
            if self._random.random() < 0.3:
                given["on_delivery"] = self._account.on_delivery(parcel)
            with self._impatient() as scope:
                self._account.taken(parcel, await self._producer.enqueue(**given))
            if scope.cancelled_caught:
                parcel.is_told = False
                self._account.refuse(parcel, "the wait for room was cancelled")
            elif "on_delivery" not in given and self._random.random() < 0.7:
                waits.start_soon(self._wait, parcel)

    async def _send_nowait(self, waits: trio.Nursery) -> None:
        for _ in range(self._random.randint(1, 8)):
            if (place := self._draw_place()) is None:
                return
            parcel, given = self._hand_in(*place)
            if self._random.random() < 0.7:
                given["on_delivery"] = self._account.on_delivery(parcel)
            try:
                self._account.taken(parcel, self._producer.send_nowait(**given))
            except BufferFull as error:
                self._account.refuse(parcel, repr(error))

    async def _send(self, waits: trio.Nursery) -> None:
        """Its order is told among what this task hands in, for it waits."""
        if (place := self._draw_place()) is None:
            return
        parcel, given = self._hand_in(*place, is_told=True)
        before = self._producer.statistics.repeated_records
        with self._impatient() as scope:
            try:
                self._account.on_sent(parcel, await self._producer.send(**given), before)
            except RaftmqError as error:
                self._account.on_sent(parcel, error, before)
        if scope.cancelled_caught:
            self._account.lose([parcel])

    async def _send_many(self, waits: trio.Nursery) -> None:
        if (place := self._draw_place()) is None:
            return
        if self._random.random() < 0.5:
            await self._many(place[0], self._line)
        else:  # beside what this task does next
            waits.start_soon(self._many, place[0], self._account.new_line())

    async def _many(self, spot: Spot, line: str) -> None:
        """Into one partition, or where their keys say."""
        account = self._account
        rows = [(self._draw_key(), self._program.new_value()) for _ in range(self._draw_size())]
        given: dict[str, Any] = {
            "value": lambda row: row[1],
            "key": lambda row: row[0],
            "tags": lambda row: tags_of(row[1]),
        }
        places = [self._place_of(spot, key) for key, _ in rows]
        if self._random.random() < 0.5:
            places = [self._random.randrange(self._world.topics[spot.topic])] * len(rows)
            given["partition"] = places[0]
        parcels: list[Parcel] = []
        last: dict[int, Parcel] = {}
        for place, (_, value) in zip(places, rows, strict=True):
            at, after = spot._replace(partition=place), last.get(place)
            last[place] = account.hand_in(at, value, line, is_told=True, after=after)
            parcels.append(last[place])
        with self._impatient() as scope:
            try:
                told = await self._producer.send_many(spot.topic, rows, **given)
                account.on_sent_many(parcels, told, places)
            except RaftmqError as error:
                account.on_sent_many(parcels, error, places)
        if scope.cancelled_caught:
            account.lose(parcels)

    async def _flush(self, waits: trio.Nursery) -> None:
        began_at, told = trio.current_time(), None
        with self._impatient() as scope:
            try:
                await self._producer.flush()
            except RaftmqError as error:
                told = error
        if not scope.cancelled_caught:
            self._account.on_flushed(told, began_at)

    async def _wait(self, parcel: Parcel) -> None:
        """Now and then cancelled by a time-out."""
        with self._impatient():
            await self._account.wait(parcel)

    def _impatient(self) -> trio.CancelScope:
        seconds = self._random.choice((0.0, 0.01, 0.3))
        is_impatient = self._random.random() < CANCELLED_SHARE
        return trio.move_on_after(seconds if is_impatient else float("inf"))

    # What is handed in

    def _draw_place(self) -> tuple[Spot, dict[str, Any]] | None:
        """Where to, and how it is said: by partition, by key, or not at all."""
        world = self._world
        topics = [
            topic
            for topic, plan in world.topic_plans.items()
            if plan.configs["record.format"] == "columns"
            and world.is_there(Spot(topic, 0, world.lives[topic]))
        ]
        if not topics:
            return None
        topic = self._random.choice(topics)
        spot = Spot(topic, ANYWHERE, world.lives[topic])
        match self._random.choice(("partition", "key", "key", "nothing")):
            case "partition":
                partition = self._random.randrange(world.topics[topic])
                return spot._replace(partition=partition), {"partition": partition}
            case "key":
                key = self._draw_key()
                return spot._replace(partition=self._place_of(spot, key)), {"key": key}
        return spot, {}

    def _draw_key(self) -> bytes:
        return self._random.choice(KEYS)

    def _draw_size(self) -> int:
        return self._random.randint(1, MANY_MAX)

    def _place_of(self, spot: Spot, key: bytes) -> int:
        assert isinstance(self._options.partitioner, str)
        return HASHES[self._options.partitioner](key, self._world.topics[spot.topic])

    def _hand_in(
        self, spot: Spot, given: dict[str, Any], *, is_told: bool = False
    ) -> tuple[Parcel, dict[str, Any]]:
        value = self._program.new_value()
        parcel = self._account.hand_in(spot, value, self._line, is_told=is_told)
        return parcel, {"topic": spot.topic, "value": value, "tags": tags_of(value), **given}

    # When all is well

    @property
    def _is_patient(self) -> bool:
        options = self._options
        return options.delivery_seconds > 10.0 and options.retries is None

    async def _probe(self) -> None:
        """Every partition takes records from this producer, after all its faults."""
        world = self._world
        for spot in world.spots():
            if world.topic_plans[spot.topic].configs["record.format"] != "columns":
                continue
            outcomes = [await self._send_probe(spot) for _ in range(PROBES_MAX)]
            demand(Outcome.OK in outcomes, f"{self._name}: {spot} takes nothing after the repairs")

    async def _send_probe(self, spot: Spot) -> Outcome:
        parcel, given = self._hand_in(spot, {"partition": spot.partition}, is_told=True)
        before = self._producer.statistics.repeated_records
        with trio.fail_after(HEALED_SECONDS_MAX):
            try:
                self._account.on_sent(parcel, await self._producer.send(**given), before)
            except RaftmqError as error:
                self._account.on_sent(parcel, error, before)
        return parcel.sent.outcome
