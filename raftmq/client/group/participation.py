"""A member of a group at work: what its rules ask for, done.

Owns the tasks: questions to the coordinator, and time. The rules are those of `membership.py`; what
becomes of partitions, `changes.py` sees to.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from raftmq.client.group.changes import Changes, Renewed
from raftmq.client.group.commits_along import CommitsAlong
from raftmq.client.group.committing import Identity
from raftmq.client.group.coordinator import Coordinator
from raftmq.client.group.effects import (
    Ask,
    Assign,
    Fail,
    ForgetCoordinator,
    Left,
    Lost,
    Revoke,
    WatchTopics,
)
from raftmq.client.group.membership import Membership
from raftmq.client.group.offsets import MemberOffsets
from raftmq.client.group.states import State
from raftmq.errors import RaftmqError, RebalanceInProgress
from raftmq.wire.messages.groups import LeaveGroup, LeavingMember

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from random import Random

    from anyio.abc import TaskGroup

    from raftmq.client.consumer.group_options import GroupReading
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect
    from raftmq.client.group.reader import Reader
    from raftmq.client.routing.cluster import Cluster


class Participation:
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
        reader: Reader,
        *,
        random: Random,
    ) -> None:
        self._cluster, self.options, self._reader = cluster, options, reader
        group = options.member.group
        self._coordinator = Coordinator(cluster, group)
        self.membership = Membership(options.member, topics, random=random)
        self.offsets = MemberOffsets(
            cluster,
            self._coordinator,
            group,
            reader,
            self._identity,
            self._on_refused,
            commits_first=options.commit == "before",
        )
        self._commits = CommitsAlong(options, self.offsets, reader, lambda: self._is_started)
        self._changes = Changes(
            options, self.membership, self.offsets, reader, self._on_revoked, self._fail
        )
        self.problem: Exception | None = None
        self._asks: deque[Ask] = deque()
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

    async def _ask(self, asked: Ask) -> None:
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
            case Ask():
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

    def _identity(self) -> Identity:
        membership = self.membership
        instance_id = self.options.member.group_instance_id
        return Identity(membership.member_id, membership.generation, instance_id, self._is_started)
