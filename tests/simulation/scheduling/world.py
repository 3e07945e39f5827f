"""The world of scheduled records in whole brokers under virtual time: one seed replays everything.

Owns its clients, and what is judged at the end. Brokers, faults and acts are those of the world of
brokers. The end is when everything was due.

    python -m tests.simulation.scheduling --seed N
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NoReturn

import pytest
import trio

from raftmq.broker.replication import replicas
from tests.simulation.brokers.examination import (
    content_of,
    judge_rest,
    replicas_of,
    what_is_missing,
)
from tests.simulation.brokers.history import History
from tests.simulation.brokers.hosts import now_ms
from tests.simulation.brokers.injector import BrokerInjector
from tests.simulation.brokers.ledger import Outcome
from tests.simulation.brokers.nemesis import nemesis_of
from tests.simulation.brokers.world import REST_SECONDS, SECONDS, World
from tests.simulation.raft.checks import demand
from tests.simulation.scheduling.faults import ScheduleFaults
from tests.simulation.scheduling.ledger import SchedulingLedger
from tests.simulation.scheduling.observer import Observer
from tests.simulation.scheduling.plan import draw_scheduling, draw_scheduling_world, tuned
from tests.simulation.scheduling.programs import OldReader, Owner, Scheduler
from tests.simulation.scheduling.readers import ScheduleReader
from tests.simulation.simulated_world import failure_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.brokers.plan import Plan
    from tests.simulation.nemesis import Nemesis

DONE_MIN = 30  # scheduled batches that are acknowledged, in a world that is SECONDS long
LOOK_SECONDS = 0.25  # between checks of all replicas
DELIVERED_SECONDS_MAX = 10.0  # from the last due time, when all is well: what failed is tried again


class _NoHistory(History):
    """Scheduled records stand twice, which the checkers of histories do not know."""

    def take_replicas(self) -> None: ...
    def judge(self) -> None: ...


class SchedulingWorld(World):
    """Attributes:
    scheduling: what its clients do.
    schedules: what they sent and were told.
    observer: what leaders have committed.
    """

    module = "tests.simulation.scheduling"

    def __init__(self, seed: int, *, seconds: float = SECONDS, **given: object) -> None:
        super().__init__(seed, seconds=seconds, **given)  # type: ignore[arg-type]
        self.scheduling = draw_scheduling(seed)
        self.random = Random(f"{seed}/choices")
        self.schedules, self.observer = SchedulingLedger(), Observer(self)
        self._readers = [
            ScheduleReader(self, number) for number in range(self.scheduling.reader_count)
        ]

    def _draw_plan(self, seed: int, seconds: float, kinds: tuple[str, ...]) -> Plan:
        return draw_scheduling_world(seed, seconds, kinds)

    def _new_history(self) -> History:
        return _NoHistory(self)

    def _new_nemesis(self) -> Nemesis:
        injector = BrokerInjector(self)
        return nemesis_of(self, injector, ScheduleFaults(self, injector).faults)

    @contextmanager
    def tuned(self) -> Iterator[None]:
        with super().tuned(), tuned(self.scheduling), pytest.MonkeyPatch.context() as patch:
            lag_seconds = self.plan.lag_seconds
            observed = partial(self.observer.new_replica, lag_seconds_max=lag_seconds)
            patch.setattr(replicas, "Replica", observed)
            yield

    # Telling

    def __str__(self) -> str:
        count, late = self.schedules.count, self.observer.late_ms
        logs, answers = self.observer.logs.values(), self.schedules.answers
        delivered = sum(sum(map(len, log.delivered.values())) for log in logs)
        return (
            f"seed {self.seed}: {self.plan.broker_count} brokers,"
            f" {count(Outcome.OK, is_scheduled=True)} scheduled,"
            f" {count(Outcome.UNKNOWN, is_scheduled=True)} unknown,"
            f" {count(Outcome.OK, is_scheduled=False)} plain,"
            f" {delivered} records delivered in {len(late)} batches,"
            f" {sum(log.copies for log in logs)} copies, {answers['']} cancelled,"
            f" {answers['delivered']} too late, {self.schedules.read} read,"
            f" {len(self.schedules.transactions)} transactions,"
            f" {self.nemesis.counts.total()} faults, healed in {self.heal_seconds:.1f} s,"
            f" {self.end_seconds:.0f} s, {self.digest[:16]}"
        )

    @property
    def client_names(self) -> list[str]:
        plan = self.scheduling
        counts = {
            "s": plan.scheduler_count, "r": plan.reader_count, "t": plan.transaction_ids, "o": 1
        }  # fmt: skip
        return [f"{kind}{number}" for kind, end in counts.items() for number in range(end)]

    @property
    def may_delete(self) -> bool:
        """Records go away, by themselves or on purpose."""
        is_asked = any(ledger.deleted_to for ledger in self.ledger.partitions.values())
        return is_asked or any(topic.expires for topic in self.plan.topics)

    def is_busy(self) -> bool:
        done = self.schedules.count(Outcome.OK, is_scheduled=True)
        return done >= DONE_MIN * self.plan.seconds / SECONDS

    # The acts

    def play(self) -> None:
        """What breaks within a turn of a broker is told as it is, not as the broker tells it."""
        try:
            super().play()
        except Exception:
            if self.observer.violation is not None:
                raise self.observer.violation from None
            raise

    async def _begin(self) -> None:
        await super()._begin()
        self.nursery.start_soon(self._watch_pending)

    async def _watch_pending(self) -> NoReturn:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self._judge_kept()

    def _judge_kept(self) -> None:
        """No replica has deleted what is not settled."""
        if self.observer.violation is not None:
            raise self.observer.violation
        for spot, log in self.observer.logs.items():
            pending = [seen for seen in log.unsettled() if seen.end_offset <= log.end_offset]
            for name, replica in replicas_of(self, spot).items() if pending else ():
                start = replica.log.log_start_offset
                gone = [seen.base_offset for seen in pending if seen.end_offset <= start]
                is_there = replica.log.is_sound and not replica.log.is_being_cut
                demand(
                    not (gone and is_there),
                    f"{name}: {spot} starts at {start}, and {gone[:5]} are not settled",
                )

    async def _inject_faults(self) -> None:
        self.history.on_phase("faults")
        plan = self.scheduling
        async with trio.open_nursery() as clients:
            for number in range(plan.scheduler_count):
                clients.start_soon(Scheduler(self, number).run)
            for number in range(plan.transaction_ids):
                clients.start_soon(Owner(self, number).run)
            for reader in self._readers:
                clients.start_soon(reader.run)
            clients.start_soon(OldReader(self, "o0").run)
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
        for host in self.hosts:
            host.clock_ahead_ms = 0
            host.disk.cold = False
        super().repair()

    async def _judge(self) -> None:
        await trio.sleep(REST_SECONDS)
        await self._wait_delivered()
        await self.wait_whole("at rest")
        self._judge_kept()
        for reader in self._readers:
            await reader.read_all()
        await trio.sleep(REST_SECONDS)
        self._judge_logs()
        judge_rest(self)
        self.schedules.judge(self.observer.logs)

    async def _wait_delivered(self) -> None:
        """All is well: what is due is delivered, and transactions are over."""
        due = [sent.due_ms for sent in self.schedules.sent if sent.due_ms is not None]
        await trio.sleep(max(0.0, (max(due, default=0) - now_ms()) / 1000))
        with trio.move_on_after(DELIVERED_SECONDS_MAX):
            while any(log.unsettled() for log in self.observer.logs.values()):  # noqa: ASYNC110
                await trio.sleep(0.1)

    def _judge_logs(self) -> None:
        """What was committed stands in all replicas, byte for byte, and none has anything left."""
        missing = what_is_missing(self)
        demand(not missing, missing)
        for spot in self.spots():
            known, found = self.observer.log_of(spot), replicas_of(self, spot)
            start = max(replica.log.log_start_offset for replica in found.values())
            contents = {content_of(replica, start) for replica in found.values()}
            demand(len(contents) == 1, f"{spot}: logs differ from {start}")
            for name, replica in found.items():
                end, pending = replica.high_watermark, replica.log.schedule.pending_count
                demand(end == known.end_offset, f"{name}: {spot} ends at {end}, {known.end_offset}")
                demand(not pending, f"{name}: {spot} has {pending} pending")
                known.judge_schedule(replica.log.schedule.entries(), name)


def failure(seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    return failure_of(SchedulingWorld(seed, seconds=seconds, kinds=kinds))
