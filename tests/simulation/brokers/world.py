"""The world of whole brokers under virtual time: one seed replays everything.

Owns the acts: brokers start, topics are made, clients work while the nemesis injects faults; then
everything is repaired, the cluster must be whole within HEAL_SECONDS_MAX, and every promise is
judged. Brokers, quorum and clients are the real ones; only disks, network and clock are simulated.

    python -m tests.simulation.brokers --seed N
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

import trio

from raftmq.metadata.commands import PartitionId
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.model import Address, RecordFormat
from tests.simulation.brokers.clients import Consumer, Operator, Producer, send
from tests.simulation.brokers.examination import (
    judge_logs,
    judge_rest,
    what_is_missing,
)
from tests.simulation.brokers.history import History
from tests.simulation.brokers.hosts import NAME, BrokerHost
from tests.simulation.brokers.ledger import ACKS_ALL, Ledger, Outcome, Spot
from tests.simulation.brokers.log_starts import PromisedStarts, watch_log_starts
from tests.simulation.brokers.nemesis import nemesis_of
from tests.simulation.brokers.plan import draw_plan, tuned
from tests.simulation.brokers.sdk_consumers import SdkConsumer
from tests.simulation.brokers.sdk_members import SdkGroup
from tests.simulation.brokers.sdk_producers import SdkProducer
from tests.simulation.brokers.sdk_tasks import SdkTask
from tests.simulation.brokers.task_logs import judge_names
from tests.simulation.raft.checks import TooLittle, Violation, demand
from tests.simulation.simulated_world import SimulatedWorld, failure_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from raftmq.metadata.image import MetadataImage, PartitionState
    from tests.simulation.brokers.plan import Plan, TopicPlan
    from tests.simulation.nemesis import Nemesis

    Scenario: TypeAlias = Callable[[], Awaitable[None]]

# Virtual seconds
SECONDS = 20.0  # of faults: several sessions of 9 s, and some seconds of real time
HEAL_SECONDS_MAX = 60.0  # after the repair: sessions expire, replicas catch up
REST_SECONDS = 12.0  # longer than any client waits
PROBES_MAX = 2  # for each partition
DONE_MIN = 20  # in a world that is SECONDS long
LEADS = "leads: log="
FORBIDDEN_WORDS = ("committed records cut", "protocol_error")


class World(SimulatedWorld):
    """Attributes:
    topics: how many partitions each has, by name; 0 if it is unknown whether it was made.
    topic_plans, lives: of the newest topic of each name; how many had that name before.
    topic_ids: by name and life.
    formats: of the records of each topic.
    deleted: topics that a client has requested to delete.
    reborn: those of them that get a successor; clients go on meanwhile.
    promised_starts: what was told of deleted records.
    is_repaired: nothing bad happens any more.
    """

    module = "tests.simulation.brokers"
    logger = logging.getLogger("raftmq")
    plan: Plan

    def __init__(
        self,
        seed: int,
        *,
        seconds: float = SECONDS,
        kinds: tuple[str, ...] = (),
        history_file: Path | None = None,
        scenario: Scenario | None = None,
    ) -> None:
        """`scenario`: what is done in place of faults and clients that the seed draws."""
        super().__init__(seed, self._draw_plan(seed, seconds, kinds), wanted=kinds)
        self.history, self._history_file = self._new_history(), history_file
        self._scenario = scenario or self._inject_faults
        self.ledger = Ledger(self.history)
        voters = range(1, self.plan.voter_count + 1)
        self.voter_addresses = {voter: Address(f"n{voter}", 9000) for voter in voters}
        self.hosts = [BrokerHost(self, number + 1) for number in range(self.plan.broker_count)]
        self.voters = [host for host in self.hosts if host.is_voter]
        self.nemesis = self._new_nemesis()
        self.operator = Operator(self, "operator")
        self.topics: dict[str, int] = {}
        self.formats: dict[str, RecordFormat] = {}
        self.topic_plans: dict[str, TopicPlan] = {}
        self.lives: dict[str, int] = {}
        self.topic_ids: dict[tuple[str, int], bytes] = {}
        self.deleted: set[str] = set()
        self.reborn: set[str] = set()
        self.groups = [SdkGroup(self, plan) for plan in self.plan.groups]
        self.tasks = [SdkTask(self, number, plan) for number, plan in enumerate(self.plan.tasks)]
        self.promised_starts = PromisedStarts()
        self.is_repaired = False
        self.end_seconds = 0.0
        self._probes = 0

    # What worlds of another kind have in place of this

    def _draw_plan(self, seed: int, seconds: float, kinds: tuple[str, ...]) -> Plan:
        return draw_plan(seed, seconds, kinds)

    def _new_history(self) -> History:
        return History(self)

    def _new_nemesis(self) -> Nemesis:
        return nemesis_of(self)

    # Telling

    def on_struck(self, kind: str, what: object) -> None:
        super().on_struck(kind, what)
        self.history.on_struck(kind, what)

    def fault_span(self) -> AbstractContextManager[None]:
        return self.history.fault_span()

    def on_log(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.trace(f"log {NAME.get()} {record.levelname} {text}")
        if text.startswith(LEADS):
            self.history.on_leads(NAME.get(), *record.args)  # type: ignore[arg-type,misc]
        if record.exc_info and record.exc_info[1] is not None:
            raise Violation(f"{NAME.get()}: {text}: {record.exc_info[1]!r}") from record.exc_info[1]
        for words in FORBIDDEN_WORDS:
            demand(words not in text, f"{NAME.get()}: {text}")

    def __str__(self) -> str:
        ledger = self.ledger
        return (
            f"seed {self.seed}: {self.plan.broker_count} brokers, {ledger.acknowledged} done,"
            f" {ledger.unknown} unknown, {ledger.failed} failed, {ledger.reads} read,"
            f" {self.nemesis.counts.total()} faults, {ledger.lost_lightly} lost lightly,"
            f" {ledger.copies} twice,"
            f" {sum(group.ledger.handed for group in self.groups)} in groups,"
            f"{self._told_of_tasks()}"
            f" healed in {self.heal_seconds:.1f} s, {self.end_seconds:.0f} s, {self.digest[:16]}"
        )

    def _told_of_tasks(self) -> str:
        ledgers = [task.ledger for task in self.tasks]
        finished, runs = sum(one.finished for one in ledgers), sum(one.runs for one in ledgers)
        return f" {finished} generations in {runs} runs," if ledgers else ""

    # What there is

    @property
    def client_names(self) -> list[str]:
        plan = self.plan
        counts = {
            "p": plan.producer_count, "c": plan.consumer_count,
            "sp": plan.sdk_producer_count, "sc": plan.sdk_consumer_count,
        }  # fmt: skip
        names = [f"{kind}{number}" for kind, end in counts.items() for number in range(end)]
        names += [name for group in self.groups for name in group.client_names]
        return [*names, *(run.machine for task in self.tasks for run in task.ledger.under_way)]

    def living_topics(self) -> list[str]:
        return [name for name, count in self.topics.items() if count and name not in self.deleted]

    def has_tags(self, topic: str) -> bool:
        return self.topic_plans[topic].configs["record.format"] == "columns"

    def spots(self) -> list[Spot]:
        return [
            Spot(name, at, self.lives[name])
            for name in self.living_topics()
            for at in range(self.topics[name])
        ]

    def on_topic(self, name: str, life: int, plan: TopicPlan, topic_id: bytes | None) -> None:
        """A client has made it."""
        assert topic_id is not None, "whoever made it knows"
        self.topics[name], self.lives[name] = plan.partition_count, life
        self.topic_plans[name], self.topic_ids[name, life] = plan, topic_id
        if life:
            self.deleted.discard(name)

    def record_format_of(self, topic: str) -> RecordFormat:
        return self.formats[topic]

    def is_there(self, spot: Spot) -> bool:
        is_wanted = spot.topic not in self.deleted or spot.topic in self.reborn
        return is_wanted and spot.life == self.lives[spot.topic]

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
        try:
            super().play()
        finally:
            if self._history_file is not None:
                self.history.write(self._history_file)

    def tuned(self) -> AbstractContextManager[None]:
        return tuned(self.plan)

    def is_busy(self) -> bool:
        return self.ledger.acknowledged >= DONE_MIN * self.plan.seconds / SECONDS

    def has_done_enough(self) -> bool:
        return self.is_busy() and all(task.ledger.has_done_enough for task in self.tasks)

    async def main(self) -> None:
        with trio.fail_after(30 * (self.plan.seconds + HEAL_SECONDS_MAX)):
            async with trio.open_nursery() as self.nursery:
                try:
                    await self._acts()
                finally:
                    self._wake()
                self.nursery.cancel_scope.cancel()

    def _wake(self) -> None:
        """A paused or frozen broker is resumed first, as it could not end."""
        for host in self.hosts:
            host.thaw()
            if host.is_up and host.is_paused:
                host.resume()

    async def _acts(self) -> None:
        self.trace(f"{self.plan}")
        self.history.on_phase("load")
        for host in self.hosts:
            host.start()
        await self.nursery.start(self.operator.run)
        self.nursery.start_soon(watch_log_starts, self)
        await self._begin()
        await self._scenario()
        self.history.on_phase("final")
        await self._judge()
        if self.plan.ends_dark and not self.plan.trusts_page_cache:
            await self._darken()
            await self._judge()
        self.history.on_phase("end")
        self.history.judge()
        if not self.has_done_enough():
            raise TooLittle(f"too little happened: {self}")
        await self._stop()
        self.end_seconds = trio.current_time()

    async def _begin(self) -> None:
        await self.wait_whole("after the start")
        for topic in self.plan.topics:
            demand(await self.operator.make_topic(topic), "no topic can be made")

    async def _inject_faults(self) -> None:
        self.history.on_phase("faults")
        async with trio.open_nursery() as clients:
            for number in range(self.plan.producer_count):
                clients.start_soon(Producer(self, number).run)
            for number in range(self.plan.consumer_count):
                clients.start_soon(Consumer(self, f"c{number}").run)
            for number in range(self.plan.sdk_producer_count):
                clients.start_soon(SdkProducer(self, number).run)
            for number in range(self.plan.sdk_consumer_count):
                clients.start_soon(SdkConsumer(self, number).run)
            for group in self.groups:
                clients.start_soon(group.run)
            for task in self.tasks:
                clients.start_soon(task.run)
            with trio.move_on_after(self.plan.seconds) as faults:
                clients.start_soon(self.prolong, faults)
                await self.nemesis.run()
            self.repair()
            began_at = trio.current_time()
            await self.wait_whole("after the repairs", is_busy=True)
            self.heal_seconds = trio.current_time() - began_at
            await self.probe()
            self.is_closing = True

    def repair(self) -> None:
        self.is_repaired = True
        self.history.on_phase("heal")
        self.mend()
        for host in self.hosts:
            host.thaw()
            host.disk._faults.clear()
            self.nursery.start_soon(self._bring_up, host)

    async def _bring_up(self, host: BrokerHost) -> None:
        """Also brokers that were stopping. Damage of their disks brokers repair themselves."""
        if host.leaving.is_set() and host.is_up:
            await host.ended.wait()
        await host.wait_dead()
        if not host.is_up:
            host.start()

    async def wait_whole(self, when: str, *, is_busy: bool = False) -> None:
        """While clients work, replicas are never quite even: that is asked for afterwards."""
        with trio.move_on_after(HEAL_SECONDS_MAX):
            while missing := self._leaving() or what_is_missing(self, is_busy=is_busy):  # noqa: ASYNC110
                await trio.sleep(0.05)
            return
        raise Violation(f"not whole {HEAL_SECONDS_MAX} s {when}: {missing}")

    def _leaving(self) -> str:
        """Who is there, and stops in order."""
        leaving = [host.name for host in self.hosts if host.is_up and host.leaving.is_set()]
        return f"{leaving} are about to stop" if leaving else ""

    async def probe(self) -> None:
        """Every partition takes records, though the first one may leave over a connection whose
        other end is gone.
        """
        NAME.set("operator")
        for spot in self.spots():
            outcomes = [await self._send_probe(spot) for _ in range(PROBES_MAX)]
            demand(Outcome.OK in outcomes, f"{spot} takes nothing after the repairs")

    async def _send_probe(self, spot: Spot) -> Outcome:
        self._probes += 1
        values = (f"probe/{self._probes}".encode(),)
        sent = await send(self, self.operator.cluster, spot, values, acks=ACKS_ALL, seconds=10.0)
        return sent.outcome

    async def _judge(self) -> None:
        await trio.sleep(REST_SECONDS)
        await self.wait_whole("at rest")
        self.history.take_replicas()
        judge_logs(self)
        judge_rest(self)
        self.ledger.judge_order()
        judge_names(self)
        for task in self.tasks:
            task.ledger.judge()

    async def _darken(self) -> None:
        self.trace("all go dark")
        with self.fault_span():
            self.history.on_struck("power_of_all", [host.name for host in self.hosts])
            for host in self.hosts:
                host.crash(power_lost=True)
            for host in self.hosts:
                await host.wait_dead()
                host.start()
            await self.wait_whole("after the dark")

    async def _stop(self) -> None:
        for host in self.hosts:
            host.stop()
        for host in self.hosts:
            await host.ended.wait()


def failure(seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    return failure_of(World(seed, seconds=seconds, kinds=kinds))
