"""The world of transactions in whole brokers under virtual time: one seed replays everything.

Owns its clients, and what is judged at the end. Brokers, faults and acts are those of the world of
brokers; programs and checkers are those of real runs (`jepsen_like`).

    python -m tests.simulation.transacting --seed N
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.transaction_bench import MEMBER_TIMEOUT_MS
from tests.simulation.brokers.examination import judge_rest, replicas_of
from tests.simulation.brokers.hosts import NAME
from tests.simulation.brokers.injector import BrokerInjector
from tests.simulation.brokers.nemesis import nemesis_of
from tests.simulation.brokers.world import SECONDS, World
from tests.simulation.raft.checks import demand
from tests.simulation.simulated_world import failure_of
from tests.simulation.transacting.decisions import Decisions
from tests.simulation.transacting.faults import TransactionFaults
from tests.simulation.transacting.helpers import RESULTS, behind, judge_results
from tests.simulation.transacting.history import TransactionHistory
from tests.simulation.transacting.judge import judge_logs, judge_views, views
from tests.simulation.transacting.plan import draw_transaction_world, draw_transactions, tuned
from tests.simulation.transacting.programs import Programs

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterator

    from tests.simulation.brokers.history import History
    from tests.simulation.brokers.plan import Plan
    from tests.simulation.nemesis import Nemesis
    from tests.simulation.transacting.judge import View

DECIDED_MIN = 20  # of transactions, in a world that is SECONDS long
COMMIT_SECONDS_MAX = 30.0  # for all programs to go on, when all is well
# From the last client's end, which may leave open what is aborted by its timeout only.
SETTLED_SECONDS_MAX = MEMBER_TIMEOUT_MS / 1000 + 10.0
# What leaders look for once a second is what nothing should leave behind.
FORBIDDEN_WORDS = ("decided transactions were still open",)
# For helpers to read on: a dead member's session, a dead transaction, and its producer's next one.
HELPED_SECONDS_MAX = 60.0
STILL_SECONDS, PROPOSED_MAX = 5.0, 3  # some commands come by the clock
ENDED_SECONDS = 3.0  # for brokers to notice that the last readers are gone


class TransactionWorld(World):
    """Attributes:
    transactions: what its clients do.
    machines: of clients, by name.
    """

    module = "tests.simulation.transacting"
    history: TransactionHistory

    def __init__(self, seed: int, *, seconds: float = SECONDS, **given: object) -> None:
        super().__init__(seed, seconds=seconds, **given)  # type: ignore[arg-type]
        self.transactions = draw_transactions(seed, self._wanted)
        self.machines: set[str] = set()
        self._programs: Programs | None = None
        self.decisions = Decisions(self)

    def _draw_plan(self, seed: int, seconds: float, kinds: tuple[str, ...]) -> Plan:
        return draw_transaction_world(seed, seconds, kinds)

    def _new_history(self) -> History:
        return TransactionHistory(self)

    def _new_nemesis(self) -> Nemesis:
        injector = BrokerInjector(self)
        return nemesis_of(self, injector, TransactionFaults(self, injector).faults)

    @contextmanager
    def tuned(self) -> Iterator[None]:
        with super().tuned(), tuned(self.transactions):
            yield

    # Telling

    def on_log(self, record: logging.LogRecord) -> None:
        super().on_log(record)
        for words in FORBIDDEN_WORDS:
            demand(words not in record.getMessage(), f"{NAME.get()}: {record.getMessage()}")

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.plan.broker_count} brokers,"
            f" {self.count('end', 'committed')} committed, {self.count('end', 'aborted')} aborted,"
            f" {self.count('resolve')} resolved, {self.count('open')} owners,"
            f"{self._told_versions()} {self.nemesis.counts.total()} faults,"
            f" healed in {self.heal_seconds:.1f} s, {self.end_seconds:.0f} s, {self.digest[:16]}"
        )

    def _told_versions(self) -> str:
        if not self.transactions.member_processes:
            return ""
        return f" {self.count('commit-version')} versions of {self.count('join')} members,"

    def count(self, f: str, outcome: str | None = None) -> int:
        """How often something ended well; with which outcome."""
        return sum(
            event.f == f
            and event.type is Type.OK
            and (outcome is None or (event.value or {}).get("outcome") == outcome)
            for event in self.history.recorder.events
        )

    @property
    def client_names(self) -> list[str]:
        return sorted(self.machines)

    @property
    def programs(self) -> Programs:
        assert self._programs is not None, "it has not begun"
        return self._programs

    def is_busy(self) -> bool:
        return self.count("end", "committed") >= DECIDED_MIN * self.plan.seconds / SECONDS

    # The acts

    async def _begin(self) -> None:
        await self.wait_whole("after the start")
        self.nursery.start_soon(self.decisions.watch)
        self._programs = Programs(self)
        for name, topic in zip(self.programs.topics, self.plan.topics, strict=True):
            demand(await self.operator.make_topic(topic, name=name), "no topic can be made")
            self.programs.on_made(name)
        if self.transactions.helper_count:
            topic = self.plan.topics[0]
            demand(await self.operator.make_topic(topic, name=RESULTS), "no topic can be made")

    async def _inject_faults(self) -> None:
        self.history.on_phase("faults")
        stop, stop_helpers = trio.Event(), trio.Event()
        async with trio.open_nursery() as helpers:
            helpers.start_soon(self.programs.help, stop_helpers)
            await self._run_clients(stop)
            if self.transactions.helper_count:
                await self._wait_helped()
            stop_helpers.set()

    async def _run_clients(self, stop: trio.Event) -> None:
        """They have ended then, and all is well."""
        async with trio.open_nursery() as clients:
            clients.start_soon(self.programs.run, stop)
            with trio.move_on_after(self.plan.seconds) as faults:
                clients.start_soon(self.prolong, faults)
                await self.nemesis.run()
            self.repair()
            began_at = trio.current_time()
            await self.wait_whole("after the repairs", is_busy=True)
            self.heal_seconds = trio.current_time() - began_at
            await self._wait_commits()
            self.is_closing = True
            stop.set()

    async def _wait_commits(self) -> None:
        """All is well: each owner goes on."""
        wanted = self.count("end", "committed") + self.transactions.id_count
        versions = self.count("commit-version") + bool(self.transactions.member_processes)
        with trio.move_on_after(COMMIT_SECONDS_MAX):
            while (  # noqa: ASYNC110  # of many programs
                self.count("end", "committed") < wanted or self.count("commit-version") < versions
            ):
                await trio.sleep(0.2)
            return
        demand(False, "nothing is committed after the repairs")

    async def _wait_helped(self) -> None:
        """The helpers have read all that there is."""
        topic = self.programs.input_topic
        with trio.move_on_after(HELPED_SECONDS_MAX):
            while behind(self, topic):  # noqa: ASYNC110  # of many logs
                await trio.sleep(0.5)
            return
        demand(False, f"{HELPED_SECONDS_MAX} s after all clients: {behind(self, topic)}")

    def views(self) -> dict[str, View]:
        return views(self)

    async def _judge(self) -> None:
        await self.wait_whole("at rest")
        await self._wait_settled()
        self.history.take_rest()
        await self.programs.read_everything()
        await trio.sleep(ENDED_SECONDS)
        await self._judge_still()
        self.history.take_replicas()
        known = self.views()
        judge_logs(self, known)
        judge_views(self, known)
        if self.transactions.helper_count:
            judge_results(self, self.programs.input_topic, known)
        judge_rest(self)

    async def _judge_still(self) -> None:
        """When nobody does anything, nothing is proposed again and again."""
        before = self.newest_image().version
        await trio.sleep(STILL_SECONDS)
        count = self.newest_image().version - before
        demand(count <= PROPOSED_MAX, f"at rest {count} commands in {STILL_SECONDS} s")

    async def _wait_settled(self) -> None:
        """X5: what clients have left behind is over in all logs, and forgotten."""
        with trio.move_on_after(SETTLED_SECONDS_MAX):
            while self._unsettled():  # noqa: ASYNC110  # of many logs
                await trio.sleep(0.2)
            return
        demand(False, f"X5: not settled {SETTLED_SECONDS_MAX} s after: {self._unsettled()}")

    def _unsettled(self) -> str:
        image = self.newest_image()
        unsettled = [name for name, state in image.transactions.items() if state.settling]
        if unsettled:
            return f"commits of {unsettled}"
        for spot in self.spots():
            for name, replica in replicas_of(self, spot).items():
                found, stable = replica.open_transactions(), replica.last_stable_offset
                if found or stable != replica.high_watermark:
                    end = replica.high_watermark
                    return f"{spot} on {name}: open {found}, stable {stable} of {end}"
        return ""


def failure(seed: int, *, seconds: float = SECONDS, kinds: tuple[str, ...] = ()) -> str | None:
    """What goes wrong in one world, with the command that shows it again."""
    return failure_of(TransactionWorld(seed, seconds=seconds, kinds=kinds))
