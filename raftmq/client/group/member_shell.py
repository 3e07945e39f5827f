"""A member of a group at work: what its rules ask for, done.

Owns the tasks: questions to the coordinator, and time. The rules are those of `membership.py`; what
becomes of partitions, `RebalanceListeners` below sees to.
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

from raftmq.client.group.coordinator import CoordinatorLookup
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
from raftmq.client.group.membership import GroupMembership
from raftmq.client.group.offsets import VERDICTS, CommitIdentity, MemberOffsets
from raftmq.errors import RaftmqError, RebalanceInProgress, RequestTimedOut
from raftmq.wire.messages.groups import LeaveGroup, LeavingMember

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from random import Random

    from anyio.abc import TaskGroup

    from raftmq.client.consumer.options import GroupReading
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect
    from raftmq.client.group.offsets import AssignedReader, Position
    from raftmq.client.routing.cluster import Cluster


logger = logging.getLogger("raftmq.client")


# -- Changes --------------------------------------------------------------------------------------
# Changes of what a member reads, carried out one after the other.
#
# Owns the order of the steps: what is dealt out is looked up, told, handed out; what is revoked is
# held back, finished, committed, told, let go. What is lost is let go at once, whatever else is
# under way, and is told in its turn.
#
# Invariant: nothing is handed over before what was done of it is committed, as far as the commit
# mode says so; but somebody else begins when the time is over, and does it again.


PAUSE_SECONDS = 0.2  # before committed offsets are asked for again


@dataclass(frozen=True, slots=True)
class Renewed:
    """Their topic was deleted and made anew. What was read of the old one is as good as lost; they
    stay with this member, and are assigned next.
    """

    partitions: tuple[Key, ...]


Change: TypeAlias = Assign | Revoke | Lost | Renewed


class RebalanceListeners:
    """
    Args:
        on_revoked: told the token of what is finished and committed.
        on_failed: told why the program, or the cluster, cannot go on with this. What is revoked is
            handed over all the same.

    Attributes:
        commits: what was done is committed before it is handed over.
    """

    def __init__(
        self,
        options: GroupReading,
        membership: GroupMembership,
        offsets: MemberOffsets,
        reader: AssignedReader,
        on_revoked: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._options, self._membership = options, membership
        self._offsets, self._reader = offsets, reader
        self._on_revoked, self._on_failed = on_revoked, on_failed
        self.commits = options.commits_by_itself
        self._waiting: deque[Change] = deque()
        self._current: tuple[Change, anyio.CancelScope] | None = None
        self._lost: set[Key] = set()  # since the current one began
        self._added = anyio.Event()

    def add(self, change: Change) -> None:
        """A revocation says all that is revoked by now, and takes the place of those before."""
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

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._added = anyio.Event()
            while self._waiting:
                change = self._waiting.popleft()
                self._lost.clear()
                with anyio.CancelScope() as scope:
                    self._current = change, scope
                    await self._carry_out(change)
                self._current = None
            await self._added.wait()

    def _drop_revocations(self) -> None:
        self._waiting = deque(one for one in self._waiting if not isinstance(one, Revoke))
        if self._current is not None and isinstance(self._current[0], Revoke):
            self._current[1].cancel()

    def _withdraw(self, keys: tuple[Key, ...]) -> None:
        """What was dealt out before is not assigned; it may be dealt out anew meanwhile."""
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
                await self._tell(Rebalance(lost=change.partitions))
        except RaftmqError as error:  # one without a remedy
            self._on_failed(error)

    async def _assign(self, change: Assign) -> None:
        committed = await self._find_committed(change)
        mine = self._still_held(change.partitions)
        if committed is None or not mine:
            return
        self._reader.assign(committed, mine)
        if await self._tell(Rebalance(assigned=mine, generation=change.generation)):
            self._reader.hand_out(self._to_hand_out(mine))

    async def _find_committed(self, change: Assign) -> dict[Key, Position] | None:
        """None: the partitions are not this member's any more."""
        while keys := self._still_held(change.partitions):
            try:
                return await self._offsets.find(keys)
            except RaftmqError as error:
                if not (error.retriable or isinstance(error, VERDICTS)):
                    raise
            await anyio.sleep(PAUSE_SECONDS)
        return None

    async def _revoke(self, change: Revoke) -> None:
        keys = change.partitions
        await self._reader.wait_finished(keys)
        if self.commits:
            with suppress(RaftmqError):  # it will be done again
                await self._offsets.commit_done(keys, deadline=change.deadline)
        await self._tell(Rebalance(revoked=keys, generation=self._membership.generation))
        self._let_go(keys)
        self._on_revoked(change.token)

    def _still_held(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        held = self._membership.held
        return tuple(key for key in keys if key in held and key not in self._lost)

    def _to_hand_out(self, keys: Iterable[Key]) -> list[Key]:
        """What is to be revoked next stays held back."""
        now, may = anyio.current_time(), self._membership.may_hand_out
        return [key for key in self._still_held(keys) if may(key, now=now)]

    async def _tell(self, rebalance: Rebalance) -> bool:
        """False: the program has failed over it."""
        if self._options.on_rebalance is None:
            return True
        try:
            answer = self._options.on_rebalance(rebalance)
            if isawaitable(answer):
                await answer
        except Exception as error:
            self._on_failed(error)
            return False
        return True


# -- Commits along --------------------------------------------------------------------------------
# Commits that nobody waits for: as far as the program has come, where it has begun, and at last.
#
# Owns when these are made, and made again. Whatever was refused is committed later; what others
# have by then, they do again.


COMMITTING_SHARE = 0.8  # of the time for leaving


class PeriodicCommits:
    """`is_member`: else the program has chosen its partitions itself, and refusals are for good."""

    def __init__(
        self,
        options: GroupReading,
        offsets: MemberOffsets,
        reader: AssignedReader,
        is_member: Callable[[], bool],
    ) -> None:
        self._options, self._offsets, self._reader = options, offsets, reader
        self._is_member = is_member

    async def along(self) -> None:
        """In the background, as far as the program has come. What it finishes meanwhile, or what
        was refused, is committed next, also if nothing else ever comes.
        """
        while True:
            finished, is_committed = self._reader.finished, False
            try:
                await self._offsets.commit_done()
                is_committed = True
            except RaftmqError as error:
                logger.debug("not committed: group=%s %s", self._options.member.group, error)
                await anyio.sleep(PAUSE_SECONDS)
            if is_committed:
                await finished.wait()
            await anyio.sleep(self._options.commit_interval_ms / 1000)

    async def passed(self) -> None:
        """In the background, where the program's asking commits: control batches that come when it
        has all records already would count as what it has not read.
        """
        while True:
            await self._reader.passed.wait()
            is_committed = False
            while not is_committed:
                await anyio.sleep(self._options.commit_interval_ms / 1000)
                try:
                    await self._offsets.commit_passed()
                    is_committed = True
                except RaftmqError as error:
                    logger.debug("not committed: group=%s %s", self._options.member.group, error)
                    await anyio.sleep(PAUSE_SECONDS)

    async def beginnings(self) -> None:
        """In the background: so a member that ends before it has finished anything leaves behind
        where it has begun, and nothing that came since is passed over.
        """
        while True:
            begun = self._reader.begun
            try:
                await self._offsets.commit_beginnings()
            except RaftmqError as error:
                logger.debug("not committed: group=%s %s", self._options.member.group, error)
                if self._is_member() or error.retriable:
                    await anyio.sleep(PAUSE_SECONDS)
                    continue
            await begun.wait()

    async def at_last(self, *, is_all: bool) -> RaftmqError | None:
        """What is done, in most of the time that there is: while the group deals anew it takes no
        commits. Why it was in vain, if it was; what others have by now, they will do again.
        """
        now, group = anyio.current_time(), self._options.member.group
        deadline = now + COMMITTING_SHARE * (anyio.current_effective_deadline() - now)
        problem: RaftmqError = RequestTimedOut(
            f"group {group!r}: nobody has answered in time: what was handed out last may not be "
            "committed, and comes again then"
        )
        with anyio.CancelScope(deadline=deadline):
            while True:
                try:
                    await self._offsets.commit_done(is_all=is_all, deadline=deadline)
                    return None
                except RaftmqError as error:
                    problem = error
                    is_passing = self._is_member() and isinstance(error, VERDICTS)
                    if not (error.retriable or is_passing):
                        break
                await anyio.sleep(PAUSE_SECONDS)
        return problem


# -- Participation --------------------------------------------------------------------------------


class MemberShell:
    """
    Attributes:
        options: how it is a member.
        membership: its rules.
        offsets: what it commits.
        problem: why it is none any more.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: GroupReading,
        topics: Iterable[str],
        reader: AssignedReader,
        *,
        random: Random,
    ) -> None:
        self._cluster, self.options, self._reader = cluster, options, reader
        group = options.member.group
        self._coordinator = CoordinatorLookup(cluster, group)
        self.membership = GroupMembership(options.member, topics, random=random)
        self.offsets = MemberOffsets(
            cluster,
            self._coordinator,
            group,
            reader,
            self._identity,
            self._on_refused,
            commits_first=options.commit == "before",
        )
        self._commits = PeriodicCommits(options, self.offsets, reader, lambda: self._is_started)
        self._changes = RebalanceListeners(
            options, self.membership, self.offsets, reader, self._on_revoked, self._fail
        )
        self.problem: Exception | None = None
        self._asks: deque[AskCoordinator] = deque()
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._told: dict[str, int] = {}
        self._woken, self._asked, self._left = anyio.Event(), anyio.Event(), anyio.Event()
        self._is_started = False
        self._tasks: TaskGroup | None = None

    # -- tasks -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            for task in (self._dispatch, self._changes.run, self._watch_time):
                self._tasks.start_soon(task)
            if self.options.commit != "none":
                self._tasks.start_soon(self._commits.beginnings)
            if self.options.commit == "batch":
                self._tasks.start_soon(self._commits.along)
            elif self.options.commits_by_itself:
                self._tasks.start_soon(self._commits.passed)
            self._maybe_start()

    async def leave(self, *, is_clean: bool) -> None:
        """Commit what is done, and leave. `is_clean`: what the program has in hand is done, too; if
        that cannot be committed, it is a `problem`.
        """
        if self.options.commits_by_itself:
            problem = await self._commits.at_last(is_all=is_clean)
            if is_clean:
                self.problem = self.problem or problem
        self._changes.commits = False  # what is in hand is not done
        self._reader.drop_work()
        if self._is_started:
            self._perform(self.membership.leave(now=anyio.current_time()))
            await self._left.wait()

    async def leave_at_once(self) -> None:
        """The same where the tasks are cancelled: no callbacks, and nobody is waited for."""
        with suppress(RaftmqError):
            if self.options.commits_by_itself:
                await self.offsets.commit_done()
        member = self.options.member
        if self.membership.member_id and member.group_instance_id is None:
            leaving = LeaveGroup(member.group, (LeavingMember(self.membership.member_id),))
            with suppress(RaftmqError):
                await self._coordinator.ask_once(leaving, deadline=inf)

    async def resume(self, keys: Collection[Key]) -> None:
        """Read these, which the program has chosen, from where they are committed.

        Raises:
            RaftmqError: nobody can tell.
        """
        self._reader.begin(await self.offsets.find(keys))

    def _maybe_start(self) -> None:
        """Join, if there is something to read."""
        if self._tasks is not None and not self._is_started and self.membership.topics:
            self._is_started = True
            self._perform(self.membership.start(now=anyio.current_time()))

    async def _watch_time(self) -> None:
        while True:
            self._woken = anyio.Event()
            with anyio.CancelScope(deadline=self.membership.deadline()):
                await self._woken.wait()
            self._perform(self.membership.on_tick(now=anyio.current_time()))

    async def _dispatch(self) -> None:
        """Questions leave in their order; answers come in any."""
        assert self._tasks is not None, "not running"
        while True:
            self._asked = anyio.Event()
            while self._asks:
                self._tasks.start_soon(self._ask, self._asks.popleft())
                await checkpoint()  # it runs up to its first wait before the next one begins
            await self._asked.wait()

    async def _ask(self, asked: AskCoordinator) -> None:
        scope = self._scopes[asked.token] = anyio.CancelScope(deadline=asked.deadline)
        try:
            with scope:
                answer = await self._coordinator.ask_once(asked.request, deadline=asked.deadline)
                outcome = answer.body
        except RaftmqError as error:
            outcome = error
        finally:
            del self._scopes[asked.token]
        if not scope.cancelled_caught:
            now = anyio.current_time()
            self._perform(self.membership.on_answer(asked.token, outcome, now=now))

    # -- what the rules ask for ------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)
        self._woken.set()

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case AskCoordinator():
                self._asks.append(effect)
                self._asked.set()
            case ForgetCoordinator():
                self._coordinator.found = None
                self._drop_questions()
            case WatchTopics():
                self._reader.read_topics(self.membership.topics, effect.topics)
            case Assign() | Revoke() | Lost():
                if effect.partitions:
                    self._changes.add(effect)
            case Left():
                self._left.set()
            case Fail():
                self._fail(effect.error)
                self._left.set()

    def _drop_questions(self) -> None:
        for token, scope in self._scopes.items():
            if not self.membership.expects(token):
                scope.cancel()

    def _fail(self, error: Exception) -> None:
        self.problem = self.problem or error
        self._reader.on_problem()

    # -- what its rules are told -----------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """To these, from now on."""
        self._perform(self.membership.subscribe(topics, now=anyio.current_time()))
        self._maybe_start()

    def on_look(self) -> None:
        """Something is about to be handed out; what should have been lost by now, is."""
        membership, now = self.membership, anyio.current_time()
        if membership.held and now >= membership.held_until:
            self._perform(membership.on_tick(now=now))

    def on_handed_out(self) -> None:
        """The program works on something now."""
        self._perform(self.membership.on_handed_out(now=anyio.current_time()))

    def on_asked(self) -> None:
        """The program asks for more, or has said that it takes long."""
        self._perform(self.membership.on_asked(now=anyio.current_time()))

    def on_metadata(self, topics: Iterable[str]) -> None:
        """Something is known of `topics` that may not have been known before."""
        counts = {}
        for topic in topics:
            told = self._cluster.routes.topic(topic)
            if told is not None:
                counts[topic] = 0 if told.topic_id is None else len(told.places)
        if counts != self._told:
            self._told = counts
            self._perform(self.membership.on_metadata(counts, now=anyio.current_time()))
        self._renew(self._reader.outdated())

    def _renew(self, keys: Iterable[Key]) -> None:
        """Their topic was made anew, which is no business of the group: they stay with this member.
        It looks up whether anybody has committed of the new one, else that is read from its start.
        """
        now, may_hand_out = anyio.current_time(), self.membership.may_hand_out
        kept = tuple(key for key in keys if may_hand_out(key, now=now))
        if kept:
            self._changes.add(Renewed(kept))
            self._changes.add(Assign(kept, self.membership.generation))

    def _on_revoked(self, token: int) -> None:
        self._perform(self.membership.on_revoked(token, now=anyio.current_time()))

    def _on_refused(self, error: RaftmqError, generation: int) -> None:
        """While it waits for the plan, commits are refused: that is no reason to join anew."""
        if isinstance(error, RebalanceInProgress) and self.membership.state is not State.STABLE:
            return
        now = anyio.current_time()
        self._perform(self.membership.on_refused(error, generation=generation, now=now))

    def _identity(self) -> CommitIdentity:
        membership = self.membership
        instance_id = self.options.member.group_instance_id
        return CommitIdentity(
            membership.member_id, membership.generation, instance_id, self._is_started
        )
