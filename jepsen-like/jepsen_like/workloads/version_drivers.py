"""Drivers of a shared transaction: each works on versions 0, 1, 2 ..., and commits each of them.

Owns the life of a driver, who follows whom, and how a commit is recorded: which members it lists,
and what was answered. A driver is killed before, while and after it commits, and the next one
begins with the version of which nobody has noted that it is committed; two may be at work at a
time. What one of them has not listed must not be seen by anybody.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.bench import Pace, wait_stop
from jepsen_like.workloads.mortal_network import MortalNetwork
from jepsen_like.workloads.transaction_bench import TIMEOUT_MS
from jepsen_like.workloads.transaction_block import Notes
from jepsen_like.workloads.version_member import Attempt, Process, VersionName
from jepsen_like.workloads.version_plan import (
    VersionEnd,
    draw_attempt,
    draw_version,
    row_count,
)
from raftmq.errors import OutcomeUnknown, RaftmqError, ReplayMismatch, TransactionAborted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.workloads.bench import Stop
    from jepsen_like.workloads.transaction_bench import TransactionBench
    from jepsen_like.workloads.version_plan import AttemptPlan, VersionPlan

NAME = "versions"  # the id
LINEAGE, STRANGER = "checkpoint 1", "checkpoint 2"
TRIES_MAX = 3  # of a task, and of a version, by one driver
ASKED_MAX = 5  # times for a commit that has no answer
VERSIONS_MAX = 40  # of one driver: then the next one begins in order
PAUSE_SECONDS = 1.3 * TIMEOUT_MS / 1000
HELD_SECONDS = 2.0
CRASH_SECONDS_MAX = 0.05  # from the moment in which a commit is asked
NEXT_SECONDS = 0.2  # until the next driver begins

logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """A version by its attempts: of each task the one that is listed."""

    name: VersionName
    attempts: tuple[Attempt, ...]

    @property
    def members(self) -> list[int]:
        """As the history lists them. Where one of them was told that the version is committed, the
        commit only looks whether it is, and lists nobody.
        """
        if any(one.is_done for one in self.attempts):
            return []
        return [one.tx for one in self.attempts]


class Driver:
    """
    Args:
        processes: in which its tasks run.

    Attributes:
        wants_next: the next driver may begin; this one need not be over.
    """

    def __init__(self, shared: TransactionBench, pace: Pace, processes: Sequence[Process]) -> None:
        self._shared, self._bench, self._pace = shared, shared.bench, pace
        self._processes = processes
        self._random = Random(self._bench.random.getrandbits(64))
        self._keys = (*shared.inputs, *shared.outputs)
        self._network = MortalNetwork(self._bench.new_network("driver"))
        self._notes = Notes(self._bench, self._network)
        self._scope = trio.CancelScope()
        self.wants_next = trio.Event()

    async def live(self, stop: Stop) -> None:
        try:
            with self._scope:
                async with (
                    self._bench.new_client("driver", self._network) as client,
                    trio.open_nursery() as nursery,
                ):
                    self._client, self._nursery = client, nursery
                    await self._work(stop)
                    nursery.cancel_scope.cancel()
        except* RaftmqError as group:
            logger.info("driver: reason=%s", group.exceptions[0])
        finally:
            self.wants_next.set()

    async def _work(self, stop: Stop) -> None:
        for _ in range(VERSIONS_MAX):
            await self._pace.wait()
            if stop.is_set() or self.wants_next.is_set():
                return
            version = self._shared.version(NAME)
            plan = draw_version(self._random, version, self._keys)
            if plan.end is VersionEnd.SKIPPED:
                version += 1
            await self._run(VersionName(NAME, LINEAGE, version), plan)

    # -- one version -----------------------------------------------------------------------

    async def _run(self, name: VersionName, plan: VersionPlan) -> None:
        if plan.begins_with_abort:
            await self._abort(name)
        if plan.end is VersionEnd.RIVAL:
            self.wants_next.set()
        elif plan.end is VersionEnd.STRANGER and name.version:  # else the id would be its own
            await self._be_stranger(name, plan)
        if plan.has_echo and name.version:
            self._start(name._replace(version=name.version - 1), plan.tasks[:1], trio.Event())
        is_over = trio.Event()
        try:
            for number in range(TRIES_MAX):
                tried = plan if number == 0 else plan._replace(end=VersionEnd.COMMIT)
                written = await self._write(name, tried.tasks, is_over)
                if written is None or await self._end(written, tried, is_over):
                    return
        finally:
            is_over.set()

    async def _end(self, written: Written, plan: VersionPlan, is_over: trio.Event) -> bool:
        """Whether that is all: else it was aborted, and its tasks may run again."""
        end, name = plan.end, written.name
        if end is VersionEnd.ABORT:
            await self._abort(name)
            return True  # it is begun again with the next turn
        if end is VersionEnd.STALE:
            return await self._commit_stale(written, plan, is_over)
        if end is VersionEnd.PAUSE:
            await trio.sleep(PAUSE_SECONDS)
        elif end is VersionEnd.KILLED_BEFORE:
            await self._crash(0)
        elif end is VersionEnd.KILLED_AS:
            self._nursery.start_soon(self._crash, self._random.uniform(0, CRASH_SECONDS_MAX))
        elif end is VersionEnd.HELD:
            self.wants_next.set()
            self._nursery.start_soon(self._network.hold, HELD_SECONDS)
            await trio.lowlevel.checkpoint()
        is_committed = await self._commit(written, is_visible_first=plan.is_visible_first)
        if is_committed and end is VersionEnd.KILLED_AFTER:
            await self._crash(0)
        if is_committed:
            self._shared.on_committed(NAME, name.version)
            is_over.set()
        if is_committed and end is VersionEnd.TWICE:
            await self._commit(written)
        return is_committed

    async def _commit_stale(self, before: Written, plan: VersionPlan, is_over: trio.Event) -> bool:
        """What was written before the abort must not count, nor anything in its place."""
        if self._random.random() < 0.5:
            await self._abort(before.name)
        else:
            with suppress(RaftmqError):  # nobody may have joined, or it is not known
                await self._client.admin.abort_transaction(NAME)
        written = await self._write(before.name, plan.tasks, is_over)
        if await self._commit(before) or written is None:
            return True
        if is_committed := await self._commit(written):
            self._shared.on_committed(NAME, before.name.version)
        return is_committed

    async def _be_stranger(self, name: VersionName, plan: VersionPlan) -> None:
        """Its versions count from 0: all of it is to be refused."""
        strange = VersionName(name.id, STRANGER, self._random.randrange(name.version + 2))
        written = await self._write(strange, plan.tasks, trio.Event(), tries_max=1)
        with suppress(RaftmqError):
            if written is not None:
                await self._commit(written)

    # -- its tasks -------------------------------------------------------------------------

    async def _write(
        self,
        name: VersionName,
        tasks: Sequence[Sequence[AttemptPlan]],
        is_over: trio.Event,
        *,
        tries_max: int = TRIES_MAX,
    ) -> Written | None:
        """All tasks, one beside the other. None: one of them was not done."""
        listed = [attempts[-1] for attempts in self._start(name, tasks, is_over)]
        for place, attempts in enumerate(tasks):
            for _ in range(1, tries_max):
                await listed[place].has_ended.wait()
                if listed[place].receipt is not None:
                    break
                again = draw_attempt(self._random, row_count(attempts), self._keys)
                ((listed[place],),) = self._start(name, [[again]], is_over)
            await listed[place].has_ended.wait()
        if any(one.receipt is None for one in listed):
            return None
        return Written(name, tuple(listed))

    def _start(
        self, name: VersionName, tasks: Sequence[Sequence[AttemptPlan]], is_over: trio.Event
    ) -> list[list[Attempt]]:
        started = [
            [Attempt(self._shared, name, plan, is_over) for plan in attempts] for attempts in tasks
        ]
        for attempts in started:
            for attempt in attempts:
                self._random.choice(self._processes).start(attempt)
        return started

    # -- its ends --------------------------------------------------------------------------

    async def _commit(self, written: Written, *, is_visible_first: bool = False) -> bool:
        """Whether it is committed, by this one or by another.

        Raises:
            RaftmqError: this driver cannot go on.
        """
        receipts = [one.receipt for one in written.attempts if one.receipt is not None]
        told = {
            **written.name._asdict(),
            "members": written.members,
            "count": sum(one.count for one in receipts),
        }
        for _ in range(ASKED_MAX):
            self._notes.invoke("commit-version", told)
            try:
                outcome = await written.name.of(self._client).commit(
                    receipts, wait_visible=is_visible_first
                )
            except RaftmqError as error:
                kind = Type.FAIL if error.definite else Type.INFO
                self._notes.record(kind, "commit-version", error=error)
                if isinstance(error, (TransactionAborted, ReplayMismatch)):
                    return isinstance(error, ReplayMismatch)
                if not isinstance(error, OutcomeUnknown):
                    raise
            else:
                answer = {"is_repeated": outcome.is_repeated, "count": outcome.count}
                self._notes.record(Type.OK, "commit-version", {**told, **answer})
                return True
        return False

    async def _abort(self, name: VersionName) -> None:
        self._notes.invoke("abort-version", name._asdict())
        try:
            committed = await name.of(self._client).abort()
        except RaftmqError as error:
            kind = Type.FAIL if error.definite else Type.INFO
            self._notes.record(kind, "abort-version", error=error)
        else:
            kind = Type.OK if committed is None else Type.FAIL
            self._notes.record(kind, "abort-version", name._asdict())

    async def _crash(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._notes.record(Type.INFO, "crash")
        self._network.is_dead = True
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._network.die()
        await trio.sleep_forever()


async def run_drivers(shared: TransactionBench, stop: Stop, *, process_count: int) -> None:
    """Until `stop` is set, and all attempts are over."""
    settings = shared.bench.settings
    chance = Random(shared.bench.random.getrandbits(64))
    pace = Pace(chance, settings.processes / settings.rate / 2)  # most are over at once
    processes = [Process(shared, f"task-{number}") for number in range(process_count)]
    async with trio.open_nursery() as nursery:
        for process in processes:
            nursery.start_soon(process.live)
        async with trio.open_nursery() as lives:
            while not stop.is_set():
                driver = Driver(shared, pace, processes)
                lives.start_soon(driver.live, stop)
                await driver.wants_next.wait()
                await wait_stop(stop, NEXT_SECONDS)
        for process in processes:
            process.close()
