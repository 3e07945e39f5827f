"""The tasks of a group member: requests to the coordinator, timers, rebalance callbacks, commits.

Carries out the effects that the rules in `membership.py` return. `RebalanceListeners` below applies
them to the partitions; `PeriodicCommits` commits in the background.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from math import inf
from typing import TYPE_CHECKING, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from raftmq.client.group.coordinator import CoordinatorLookup, checked
from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    Fail,
    ForgetCoordinator,
    Left,
    LossCause,
    Lost,
    Rebalance,
    Revoke,
    State,
    WatchTopics,
)
from raftmq.client.group.member_log import MemberLog
from raftmq.client.group.member_requests import VERDICTS, asks_for_id
from raftmq.client.group.membership import GroupMembership
from raftmq.client.group.offsets import MemberOffsets, OffsetCommits
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.errors import RaftmqError, RebalanceInProgress, RequestTimedOut
from raftmq.wire.messages.groups import LeaveGroup, LeavingMember

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable
    from random import Random

    from anyio.abc import TaskGroup

    from raftmq.client.consumer.group_reader import GroupReader
    from raftmq.client.consumer.options import GroupReading
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect, Position
    from raftmq.client.routing.cluster import Cluster


logger = logging.getLogger("raftmq.client")


# -- Rebalance listeners --------------------------------------------------------------------------
# Changes of a member's partitions, carried out one after the other.
#
# Owns the order of the steps. Assigned partitions: look up committed offsets, call `on_rebalance`,
# hand out. Revoked ones: hold back, wait until finished, commit, call `on_rebalance`, release. Lost
# ones are released at once, even during another change; `on_rebalance` hears of them in turn.
#
# Invariant: no partition is handed over before its finished records are committed, as the commit
# mode says; but after the deadline another member begins all the same, and reads them again.


PAUSE_SECONDS = 0.2  # between attempts while a rebalance refuses them; short against any rebalance


@dataclass(frozen=True, slots=True)
class Renewed:
    """The topic of these was deleted and created anew. Records of the old one count as lost; the
    partitions stay with this member, and are assigned next.
    """

    partitions: tuple[Key, ...]


Change: TypeAlias = Assign | Revoke | Lost | Renewed


class RebalanceListeners:
    """Applies changes to the reader, the program's callback and the offsets.

    Args:
        on_revoked: called with the token of a revocation that is finished and committed.
        on_failed: called with the error over which the program, or the cluster, cannot go on.
            Revoked partitions are handed over all the same.
    """

    def __init__(
        self,
        options: GroupReading,
        membership: GroupMembership,
        offsets: MemberOffsets,
        reader: GroupReader,
        on_revoked: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._options, self._membership = options, membership
        self._offsets, self._reader = offsets, reader
        self._on_revoked, self._on_failed = on_revoked, on_failed
        self._commits = options.commits_by_itself  # before a partition is handed over
        self._waiting: deque[Change] = deque()
        self._current: tuple[Change, anyio.CancelScope] | None = None
        self._lost: set[Key] = set()  # lost since the current change began
        self._added = anyio.Event()

    def add(self, change: Change) -> None:
        """Queue a change. A revocation names all that is revoked by now, and replaces earlier
        ones.
        """
        if isinstance(change, Revoke | Lost):
            self._drop_revocations()
        if isinstance(change, Revoke):
            self._reader.hold_back(change.partitions)
        elif isinstance(change, Lost | Renewed):
            cause = change.cause if isinstance(change, Lost) else LossCause.OTHER
            self._let_go(change.partitions, cause)
            self._withdraw(change.partitions)
        self._waiting.append(change)
        self._added.set()

    def stop_committing(self) -> None:
        """Hand partitions over as they are committed: the member leaves, and the last commit, which
        comes before that, is not repeated.
        """
        self._commits = False

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._added = anyio.Event()
            while self._waiting:
                change = self._waiting.popleft()
                self._lost.clear()
                with anyio.CancelScope() as scope:
                    self._current = change, scope
                    # Cancelled by `add` when a later change makes a revocation pointless.
                    await self._carry_out(change)
                self._current = None
            await self._added.wait()

    def _drop_revocations(self) -> None:
        self._waiting = deque(one for one in self._waiting if not isinstance(one, Revoke))
        # A revocation may be waiting for the program; the later change must not wait with it.
        if self._current is not None and isinstance(self._current[0], Revoke):
            self._current[1].cancel()

    def _withdraw(self, keys: tuple[Key, ...]) -> None:
        """Remove lost partitions from assignments that wait; they may be assigned anew
        afterwards.
        """
        self._lost.update(keys)
        for place, one in enumerate(self._waiting):
            if isinstance(one, Assign):
                rest = tuple(key for key in one.partitions if key not in keys)
                self._waiting[place] = Assign(rest, one.generation)

    def _let_go(self, keys: tuple[Key, ...], cause: LossCause = LossCause.OTHER) -> None:
        self._reader.release(keys, cause)
        self._offsets.forget(keys)

    async def _carry_out(self, change: Change) -> None:
        try:
            if isinstance(change, Assign):
                await self._assign(change)
            elif isinstance(change, Revoke):
                await self._revoke(change)
            else:
                await self._call_on_rebalance(Rebalance(lost=change.partitions))
        except RaftmqError as error:  # one that no repetition resolves
            self._on_failed(error)

    async def _assign(self, change: Assign) -> None:
        committed = await self._find_committed(change)
        mine = self._still_held(change.partitions)
        # Lost while the offsets were looked up.
        if committed is None or not mine:
            return
        self._reader.assign(committed, mine)
        # Records come only after the callback: it may prepare for them, or seek.
        if await self._call_on_rebalance(Rebalance(assigned=mine, generation=change.generation)):
            self._reader.hand_out(self._to_hand_out(mine))

    async def _find_committed(self, change: Assign) -> dict[Key, Position] | None:
        """Committed offsets, repeated until they come. None: the partitions are not this member's
        any more.
        """
        while keys := self._still_held(change.partitions):
            try:
                # Ends with the coordinator's answer, or after COMMIT_SECONDS_MAX.
                return await self._offsets.find(keys)
            except RaftmqError as error:
                # VERDICTS: a rebalance is under way, and decides what is still held.
                if not (error.retriable or isinstance(error, VERDICTS)):
                    raise
            await anyio.sleep(PAUSE_SECONDS)
        return None

    async def _revoke(self, change: Revoke) -> None:
        keys = change.partitions
        # Ends when the program asks for more; at the deadline the rules send Lost, which cancels
        # this.
        await self._reader.wait_finished(keys)
        # Not with "manual" or "none", nor after the program has failed.
        if self._commits:
            with suppress(RaftmqError):  # the next owner reads these records again
                await self._offsets.commit_last(keys, deadline=change.deadline)
        # The partitions are still this member's: the callback may commit.
        await self._call_on_rebalance(
            Rebalance(revoked=keys, generation=self._membership.generation)
        )
        self._let_go(keys)
        self._on_revoked(change.token)

    def _still_held(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        held = self._membership.held
        return tuple(key for key in keys if key in held and key not in self._lost)

    def _to_hand_out(self, keys: Iterable[Key]) -> list[Key]:
        """Without those that are to be revoked next: they stay held back."""
        now, may = anyio.current_time(), self._membership.may_hand_out
        return [key for key in self._still_held(keys) if may(key, now=now)]

    async def _call_on_rebalance(self, rebalance: Rebalance) -> bool:
        """Call `on_rebalance`. False: it has raised."""
        if self._options.on_rebalance is None:  # nothing to call
            return True
        try:
            answer = self._options.on_rebalance(rebalance)
            # The callback may be a plain or an async function.
            if isawaitable(answer):
                await answer
        except Exception as error:  # the program's function may raise anything
            self._on_failed(error)
            return False
        return True


# -- Periodic commits -----------------------------------------------------------------------------
# Commits that no caller waits for: the program's progress, start offsets, and the last commit.
#
# Owns when these are made, and repeated. What was refused is committed later; records of partitions
# that other members own by then, these read again.


COMMITTING_SHARE = 0.8  # of the time for leaving; the rest is for LeaveGroup


class PeriodicCommits:
    """The background commits of one member. While the program has chosen its partitions itself
    (`assign`), the membership is not started, and refusals are final.
    """

    def __init__(
        self,
        options: GroupReading,
        membership: GroupMembership,
        offsets: MemberOffsets,
        reader: GroupReader,
    ) -> None:
        self._options, self._membership = options, membership
        self._offsets, self._reader = offsets, reader

    async def along(self) -> None:
        """Commit the program's progress. What it finishes during a commit, or what was refused, is
        committed next, even if no further record ever comes.
        """
        while True:
            finished = self._reader.events.finished
            if await self._failure(self._offsets.commit_done()) is None:
                # Nothing more to commit before the program finishes something.
                await finished.wait()
            else:
                await anyio.sleep(PAUSE_SECONDS)
            # At most one commit per interval, however fast the program is.
            await anyio.sleep(self._options.commit_interval_ms / 1000)

    async def passed(self) -> None:
        """Commit control batches that were skipped, for modes in which only the program's calls
        commit: behind the last record they would show as lag.
        """
        while True:
            # Set when reading has skipped a control batch.
            await self._reader.events.passed.wait()
            while True:
                # The program's next commit usually covers it: wait first.
                await anyio.sleep(self._options.commit_interval_ms / 1000)
                if await self._failure(self._offsets.commit_passed()) is None:
                    break
                await anyio.sleep(PAUSE_SECONDS)

    async def beginnings(self) -> None:
        """Commit where reading began: if a member ends before it has finished any record, the next
        one begins there, and records that came since are not skipped.
        """
        while True:
            begun = self._reader.events.begun
            error = await self._failure(self._offsets.commit_beginnings())
            # With `assign` a refusal is final.
            if error and (self._membership.is_started or error.retriable):
                await anyio.sleep(PAUSE_SECONDS)
            else:
                # Until another partition's start offset is found.
                await begun.wait()

    async def _failure(self, commit: Awaitable[None]) -> RaftmqError | None:
        """The error of a commit; None: it was made."""
        try:
            await commit
        except RaftmqError as error:
            logger.debug("not committed: group=%s %s", self._options.member.group, error)
            return error
        return None

    async def at_last(self) -> RaftmqError | None:
        """The last commit, in most of the time for leaving: during a rebalance the coordinator
        refuses commits. Returns its error, if it failed; the next owners read those records again.
        """
        now, group = anyio.current_time(), self._options.member.group
        deadline = now + COMMITTING_SHARE * (anyio.current_effective_deadline() - now)
        problem: RaftmqError = RequestTimedOut(
            f"group {group!r}: the coordinator has not answered in time: what was handed out "
            "last may not be committed, and comes again then"
        )
        with anyio.CancelScope(deadline=deadline):
            while True:
                try:
                    await self._offsets.commit_last(deadline=deadline)
                    return None
                except RaftmqError as error:
                    problem = error
                    is_passing = self._membership.is_started and isinstance(error, VERDICTS)
                    if not (error.retriable or is_passing):
                        break
                await anyio.sleep(PAUSE_SECONDS)
        return problem


# -- Member shell ---------------------------------------------------------------------------------


class MemberShell:
    """One group member at work.

    Attributes:
        options: of the member.
        membership: its rules.
        offsets: its commits.
        problem: why it is no member any more.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: GroupReading,
        topics: Iterable[str],
        reader: GroupReader,
        *,
        random: Random,
    ) -> None:
        self._cluster, self.options, self._reader = cluster, options, reader
        group = options.member.group
        self._coordinator = CoordinatorLookup(cluster, group)
        self.membership = GroupMembership(options.member, topics, random=random)
        self.problem: Exception | None = None
        self._asks: deque[AskCoordinator] = deque()
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._named = anyio.Event()  # the answer that names the member is not on its way
        self._named.set()
        self._last_counts: dict[str, int] = {}
        self._woken, self._asked, self._left = anyio.Event(), anyio.Event(), anyio.Event()
        # The one circle: a refused commit is an input of the rules, whose effects are changes of
        # partitions, which commit. A queue in between would let records be handed out after the
        # refusal, so these call back at once; nothing is refused before `run`.
        commits = OffsetCommits(self._coordinator, group, self.membership, self._on_refused)
        self.offsets = MemberOffsets(
            cluster, commits, reader, commits_first=options.commit == "before"
        )
        self._changes = RebalanceListeners(
            options, self.membership, self.offsets, reader, self._on_revoked, self._fail
        )
        self._commits = PeriodicCommits(options, self.membership, self.offsets, reader)
        self._log = MemberLog(options.member)

    # -- tasks -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._dispatch, tasks)
                tasks.start_soon(self._changes.run)
                tasks.start_soon(self._watch_time)
                if self.options.commit != "none":  # "manual" must not skip records after a crash
                    tasks.start_soon(self._commits.beginnings)
                if self.options.commit == "batch":
                    tasks.start_soon(self._commits.along)
                elif self.options.commits_by_itself:  # the others commit as the program asks
                    tasks.start_soon(self._commits.passed)
                self._maybe_start()
        finally:
            self._left.set()  # cancelled while it leaves: nothing else ends that wait

    async def leave(self, *, is_clean: bool) -> None:
        """Commit what is done, and leave. `is_clean`: if that cannot be committed, it is a
        `problem`.
        """
        if self.options.commits_by_itself:  # with "manual" and "none" only the program commits
            problem = await self._commits.at_last()
            if is_clean:
                self.problem = self.problem or problem
        self._changes.stop_committing()
        self._reader.in_flight_records.abandon_all()
        if self.membership.is_started:  # else it never joined
            self._perform(self.membership.leave(now=anyio.current_time()))
            # Ends with Left, Fail or `run`; the caller bounds the time.
            await self._left.wait()
            if self.membership.state not in (State.OUTSIDE, State.FENCED):
                await self._tell_left()

    async def leave_at_once(self) -> None:
        """As `leave`, where the tasks are cancelled: no callbacks, one attempt to commit. The
        caller bounds the time.
        """
        with suppress(RaftmqError):
            if self.options.commits_by_itself:
                await self.offsets.commit_last()
        # The group waits for an id that was given out; ends with the answer that names it.
        await self._named.wait()
        await self._tell_left()

    async def _tell_left(self) -> None:
        member = self.options.member
        # A static member may be back within its session.
        if self.membership.member_id and member.group_instance_id is None:
            leaving = LeaveGroup(member.group, (LeavingMember(self.membership.member_id),))
            with suppress(RaftmqError):
                # Again, where the coordinator has just moved: else others wait for the session.
                await self._coordinator.ask(
                    lambda: leaving,
                    checked,
                    deadline=inf,
                    repeats=RepeatEffect.HARMLESS,
                )

    def end(self) -> None:
        """It has left, or its time for that is over: no answer is waited for any more."""
        for scope in self._scopes.values():
            scope.cancel()

    async def resume(self, keys: Collection[Key]) -> None:
        """Read partitions that the program has chosen (`assign`) from their committed offsets.

        Raises:
            RaftmqError: the coordinator has not answered.
        """
        self._reader.begin(await self.offsets.find(keys))

    def _maybe_start(self) -> None:
        """Join, once there is a topic to read: a pattern may not match any yet."""
        if self.membership.topics and not self.membership.is_started:
            self._perform(self.membership.start(now=anyio.current_time()))

    async def _watch_time(self) -> None:
        while True:
            self._woken = anyio.Event()
            with anyio.CancelScope(deadline=self.membership.deadline()):
                # Until the rules' next deadline, or an effect that may have changed it.
                await self._woken.wait()
            self._perform(self.membership.on_tick(now=anyio.current_time()))

    async def _dispatch(self, tasks: TaskGroup) -> None:
        """Requests are sent in their order; answers come in any."""
        while True:
            self._asked = anyio.Event()
            while self._asks:
                tasks.start_soon(self._ask, self._asks.popleft())
                await checkpoint()  # it is sent before the next one: one connection keeps the order
            await self._asked.wait()

    async def _ask(self, asked: AskCoordinator) -> None:
        scope = self._scopes[asked.token] = anyio.CancelScope(deadline=asked.deadline)
        named = anyio.Event()
        try:
            with scope:
                if asks_for_id(asked.request):
                    # Ends with the coordinator's name: so far nothing was sent.
                    await self._coordinator.find(asked.deadline)
                    # Then the answer is needed even when cancelled, to leave by the id; `end` is
                    # called in any case.
                    scope.shield, self._named = True, named
                answer = await self._coordinator.ask_once(asked.request, deadline=asked.deadline)
                outcome = answer.body
        except RaftmqError as error:
            outcome = error
        finally:
            del self._scopes[asked.token]
            named.set()
        # Otherwise it was dropped, or its deadline has passed, which `on_tick` handles.
        if not scope.cancelled_caught:
            now = anyio.current_time()
            self._perform(self.membership.on_answer(asked.token, outcome, now=now))

    # -- what the rules ask for ------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)
        self._woken.set()

    def _perform_one(self, effect: Effect) -> None:
        self._log.on_effect(effect)
        match effect:
            case AskCoordinator():
                self._asks.append(effect)
                self._asked.set()
            case ForgetCoordinator():
                self._coordinator.forget()
                self._drop_questions()
            case WatchTopics():
                self._reader.read_topics(self.membership.topics, effect.topics)
            case Assign() | Revoke() | Lost():
                if effect.partitions:  # a rebalance may change nothing
                    self._changes.add(effect)
            case Left():
                self._left.set()
            case Fail():
                self._fail(effect.error)
                self._left.set()

    def _drop_questions(self) -> None:
        for token, scope in self._scopes.items():
            if not self.membership.expects(token):  # others may still be answered
                scope.cancel()

    def _fail(self, error: Exception) -> None:
        self.problem = self.problem or error
        self._reader.on_problem()

    # -- inputs of the rules ---------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to these topics instead."""
        self._perform(self.membership.subscribe(topics, now=anyio.current_time()))
        self._maybe_start()

    def on_look(self) -> None:
        """Records are about to be handed out: apply a session timeout that has passed unnoticed."""
        membership, now = self.membership, anyio.current_time()
        # The timer task may not have run yet after a pause of the process.
        if membership.held and now >= membership.held_until:
            self._perform(membership.on_tick(now=now))

    def on_handed_out(self) -> None:
        """The program works on records now: max_poll_interval_ms counts."""
        self._perform(self.membership.on_handed_out(now=anyio.current_time()))

    def on_asked(self) -> None:
        """The program asks for more records, or is in a `processing` block."""
        self._perform(self.membership.on_asked(now=anyio.current_time()))

    def on_metadata(self, topics: Iterable[str]) -> None:
        """Metadata of `topics` may have changed."""
        counts = {}
        for topic in topics:
            told = self._cluster.routes.topic(topic)
            if told is not None:  # else no broker was asked yet: keep the last count
                counts[topic] = 0 if told.topic_id is None else len(told.places)
        if counts != self._last_counts:  # most refreshes change nothing
            self._last_counts = counts
            self._perform(self.membership.on_metadata(counts, now=anyio.current_time()))
        self._renew(self._reader.outdated())

    def _renew(self, keys: Iterable[Key]) -> None:
        """The topic of these was deleted and created anew, which the group's plan does not depend
        on: they stay with this member. It looks up whether an offset of the new topic is committed;
        otherwise it is read from its beginning.
        """
        now, may_hand_out = anyio.current_time(), self.membership.may_hand_out
        kept = tuple(key for key in keys if may_hand_out(key, now=now))
        if kept:  # the rest is being revoked anyway
            self._changes.add(Renewed(kept))
            self._changes.add(Assign(kept, self.membership.generation))

    def _on_revoked(self, token: int) -> None:
        self._perform(self.membership.on_revoked(token, now=anyio.current_time()))

    def _on_refused(self, error: RaftmqError, generation: int) -> None:
        """A commit was refused. While the member waits for the plan all are: no reason to join
        anew.
        """
        if isinstance(error, RebalanceInProgress) and self.membership.state is not State.STABLE:
            return
        now = anyio.current_time()
        self._perform(self.membership.on_refused(error, generation=generation, now=now))
