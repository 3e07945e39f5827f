"""A cluster, its clients and its troubles, under virtual time: one seed, one story.

Owns the acts: brokers start, topics are made, clients work while the nemesis strikes; then all is
repaired, the cluster must be whole within HEAL_SECONDS_MAX, and every promise is judged. Brokers,
quorum and clients are the real ones; only disks, network and clock are simulated.

    python -m tests.simulation.brokers --seed N
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.metadata.commands import PartitionId
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.model import Address, RecordFormat
from tests.simulation.brokers.clients import Consumer, Operator, Producer, send
from tests.simulation.brokers.examination import (
    damaged,
    judge_logs,
    judge_rest,
    what_is_missing,
)
from tests.simulation.brokers.hosts import NAME, BrokerHost
from tests.simulation.brokers.ledger import ACKS_ALL, Ledger, Outcome, Spot
from tests.simulation.brokers.plan import draw_plan, tuned
from tests.simulation.brokers.troubles import Troubles
from tests.simulation.deterministic import run
from tests.simulation.network import SimulatedNetwork
from tests.simulation.raft.checks import TooLittle, Violation, demand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.metadata.image import MetadataImage, PartitionState

SECONDS = 20.0
HEAL_SECONDS_MAX = 60.0
REST_SECONDS = 12.0  # longer than any client waits
DONE_MIN = 20  # in a world that is SECONDS long
LOGGER = logging.getLogger("raftmq")


class World:
    """Attributes:
    seed: everything else follows from it, and from `kinds`: the faults, if they are not drawn.
    topics: how many partitions each has, by name; 0 if nobody knows whether it was made.
    formats: of the records of each topic.
    deleted: topics that somebody has asked to delete.
    is_closing: clients finish what they do, and begin nothing.
    heal_seconds: from the repairs until the cluster was whole.
    """

    nursery: trio.Nursery  # for as long as the world is

    def __init__(self, seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> None:
        self.seed, self.plan = seed, draw_plan(seed, seconds, kinds)
        self._kinds = kinds
        self.lines: list[str] = []
        self.ledger = Ledger()
        self.network = SimulatedNetwork(
            Random(f"{seed}/network"),
            latency=self.plan.latency,
            silence_seconds_max=8.0,
            trace=self._trace_line,
        )
        voters = range(1, self.plan.voter_count + 1)
        self.voter_addresses = {voter: Address(f"n{voter}", 9000) for voter in voters}
        self.hosts = [BrokerHost(self, number + 1) for number in range(self.plan.broker_count)]
        self.voters = [host for host in self.hosts if host.is_voter]
        self.nemesis = Troubles(self)  # type: ignore[arg-type]
        self.operator = Operator(self, "operator")
        self.topics: dict[str, int] = {}
        self.formats: dict[str, RecordFormat] = {}
        self.deleted: set[str] = set()
        self.is_closing = False
        self.heal_seconds = self.end_seconds = 0.0
        self._probes = 0

    # Telling

    def trace(self, what: str) -> None:
        self._trace_line(f"{trio.current_time():.6f} {what}")

    def _trace_line(self, line: str) -> None:
        self.lines.append(line)

    @property
    def command(self) -> str:
        """That shows this world once more."""
        options = f"--seed {self.seed} --seconds {self.plan.seconds:g}"
        faults = f" --kinds {','.join(self.plan.kinds)}" if self._kinds else ""
        return f"python -m tests.simulation.brokers {options}{faults}"

    @property
    def digest(self) -> str:
        return sha256("\n".join(self.lines).encode()).hexdigest()

    def __str__(self) -> str:
        ledger = self.ledger
        return (
            f"seed {self.seed}: {self.plan.broker_count} brokers, {ledger.acknowledged} done,"
            f" {ledger.unknown} unknown, {ledger.failed} failed, {ledger.reads} read,"
            f" {self.nemesis.counts.total()} faults, {ledger.lost_lightly} lost lightly,"
            f" healed in {self.heal_seconds:.1f} s, {self.end_seconds:.0f} s, {self.digest[:16]}"
        )

    # What there is

    @property
    def client_names(self) -> list[str]:
        producers = [f"p{number}" for number in range(self.plan.producer_count)]
        return [*producers, *(f"c{number}" for number in range(self.plan.consumer_count))]

    def living_topics(self) -> list[str]:
        return [name for name, count in self.topics.items() if count and name not in self.deleted]

    def spots(self) -> list[Spot]:
        return [Spot(name, at) for name in self.living_topics() for at in range(self.topics[name])]

    def record_format_of(self, topic: str) -> RecordFormat:
        return self.formats[topic]

    def is_there(self, spot: Spot) -> bool:
        return spot.topic not in self.deleted

    def newest_image(self) -> MetadataImage:
        images = [host.quorum.image for host in self.hosts if host.quorum is not None]
        return max(images, key=lambda image: image.version, default=EMPTY_IMAGE)

    def topic_id_of(self, name: str) -> bytes | None:
        topics = self.newest_image().topics
        return next((key for key, topic in topics.items() if topic.name == name), None)

    def state_of(self, spot: Spot) -> PartitionState | None:
        topic_id = self.topic_id_of(spot.topic)
        if topic_id is None:
            return None
        return self.newest_image().partitions.get(PartitionId(topic_id, spot.partition))

    @property
    def is_whole(self) -> bool:
        return not what_is_missing(self)

    @property
    def is_calm(self) -> bool:
        return self.is_whole

    # The acts

    def play(self) -> None:
        """
        Raises:
            Violation: a promise was broken; or whatever the code under test raised.
        """
        try:
            with _logged(self), tuned(self.plan):
                run(f"{self.seed}", self._main)
        finally:
            gc.unfreeze()

    async def _main(self) -> None:
        with trio.fail_after(20 * (self.plan.seconds + HEAL_SECONDS_MAX)):
            async with trio.open_nursery() as self.nursery:
                await self._acts()
                self.nursery.cancel_scope.cancel()

    async def _acts(self) -> None:
        self.trace(f"{self.plan}")
        for host in self.hosts:
            host.start()
        await self.nursery.start(self.operator.run)
        await self._begin()
        await self._trouble()
        await self._judge()
        if self.plan.ends_dark and not self.plan.trusts_page_cache:
            await self._darken()
            await self._judge()
        if self.ledger.acknowledged < DONE_MIN * self.plan.seconds / SECONDS:
            raise TooLittle(f"too little happened: {self}")
        await self._stop()
        self.end_seconds = trio.current_time()

    async def _begin(self) -> None:
        await self._wait_whole("after the start")
        for topic in self.plan.topics:
            demand(await self.operator.make_topic(topic), "no topic can be made")

    async def _trouble(self) -> None:
        async with trio.open_nursery() as clients:
            for number in range(self.plan.producer_count):
                clients.start_soon(Producer(self, number).run)
            for number in range(self.plan.consumer_count):
                clients.start_soon(Consumer(self, f"c{number}").run)
            with trio.move_on_after(self.plan.seconds):
                await self.nemesis.run()
            self._repair()
            began_at = trio.current_time()
            await self._wait_whole("after the repairs", is_busy=True)
            self.heal_seconds = trio.current_time() - began_at
            await self._probe()
            self.is_closing = True

    def _repair(self) -> None:
        self.trace("repair")
        self.network.heal()
        for host in self.hosts:
            for other in self.hosts:
                if host is not other:
                    self.network.slow(host.name, other.name, self.plan.latency)
            host.disk_seconds = self.plan.disk_seconds
            host.thaw()
            host.disarm()
            host.disk._faults.clear()
            if host.is_up and host.is_paused:
                host.resume()
            self.nursery.start_soon(self._bring_up, host)

    async def _bring_up(self, host: BrokerHost) -> None:
        """Also whoever was stopping, or has lost a log to its disk."""
        if host.leaving.is_set() and host.is_up:
            await host.ended.wait()
        if host.is_up and not host.end and host.disk.has_failed:
            host.crash(power_lost=False)
        await host.wait_dead()
        if not host.is_up:
            host.start()

    async def _wait_whole(self, when: str, *, is_busy: bool = False) -> None:
        """While clients work, replicas are never quite even: that is asked for afterwards."""
        with trio.move_on_after(HEAL_SECONDS_MAX):
            while missing := what_is_missing(self, is_busy=is_busy):  # noqa: ASYNC110
                await trio.sleep(0.05)
            return
        raise Violation(f"not whole {HEAL_SECONDS_MAX} s {when}: {missing}")

    async def _probe(self) -> None:
        """Every partition takes records, but for one that has a damaged replica."""
        NAME.set("operator")
        for spot in (spot for spot in self.spots() if not damaged(self, spot)):
            self._probes += 1
            values = (f"probe/{self._probes}".encode(),)
            sent = await send(
                self, self.operator.cluster, spot, values, acks=ACKS_ALL, seconds=10.0
            )
            demand(sent.outcome is Outcome.OK, f"{spot} takes nothing after the repairs")

    async def _judge(self) -> None:
        await trio.sleep(REST_SECONDS)
        await self._wait_whole("at rest")
        judge_logs(self)
        judge_rest(self)
        self.ledger.judge_order()

    async def _darken(self) -> None:
        self.trace("all go dark")
        for host in self.hosts:
            host.crash(power_lost=True)
        for host in self.hosts:
            await host.wait_dead()
            host.start()
        await self._wait_whole("after the dark")

    async def _stop(self) -> None:
        for host in self.hosts:
            host.stop()
        for host in self.hosts:
            await host.ended.wait()


@contextmanager
def _logged(world: World) -> Iterator[None]:
    handler, level = _LogTrace(world), LOGGER.level
    propagates = LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        LOGGER.propagate = propagates


class _LogTrace(logging.Handler):
    """What the code says of itself is part of the story, and some of it must never be said."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._world.trace(f"log {NAME.get()} {record.levelname} {text}")
        if record.exc_info and record.exc_info[1] is not None:
            raise Violation(f"{NAME.get()}: {text}: {record.exc_info[1]!r}") from record.exc_info[1]
        if "committed records cut" in text or "protocol_error" in text:
            raise Violation(f"{NAME.get()}: {text}")


def failure(seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    world = World(seed, seconds=seconds, kinds=kinds)
    try:
        world.play()
    except TooLittle:
        return None
    except Exception as error:
        return f"seed {seed}: {error!r}\nreplay it: {world.command} --trace"
    return None
