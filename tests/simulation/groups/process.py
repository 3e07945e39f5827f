"""A process with one group member: the real client rules, a program, a clock, connections.

Owns what the rules leave to their shell: finding the coordinator, timers, pauses, death. Everything
that reaches a paused process waits until it goes on.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from raftmq.client.group.effects import AskCoordinator as Question
from raftmq.client.group.effects import Fail, ForgetCoordinator, Left, State, WatchTopics
from raftmq.client.group.membership import GroupMembership
from raftmq.errors import RaftmqError
from raftmq.wire.messages.groups import JoinGroup, SyncGroup
from tests.simulation.groups.asks import addressed
from tests.simulation.groups.connection import Connection
from tests.simulation.groups.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect
    from raftmq.client.group.member_options import MemberOptions
    from tests.simulation.groups.asks import Ask
    from tests.simulation.groups.broker import Broker
    from tests.simulation.groups.connection import Hear, Heard
    from tests.simulation.groups.world import World

TICK_SECONDS_MAX = 0.05  # how late a timer may fire


class Process:
    """Attributes:
    is_up: it runs, or is paused. A member that is over ends its process.
    is_leaving: its program wants to end.
    told_by: slot epoch of who told it of a generation whose plan it has not heard yet.
    is_misled: the broker that agreed with it last did not know of another coordinator. The time
        that the group gives it to finish began without its knowledge, so a refusal does not end it.
    entered_at: when it last asked to become a member without being one.
    """

    def __init__(
        self, world: World, name: str, options: MemberOptions, topics: Iterable[str], chance: Random
    ) -> None:
        self.world, self.name, self.instance_id = world, name, options.group_instance_id
        self.membership = GroupMembership(options, topics, random=chance)
        self.program = Program(self, chance)
        self.is_up, self.is_paused, self.is_leaving = True, False, False
        self.is_misled = False
        self.told_by: int | None = None
        self.entered_at, self._wake_at, self._chance = -math.inf, math.inf, chance
        self._coordinator: tuple[Broker, int] | None = None
        self._connections: dict[int, Connection] = {}
        self._inbox: list[Callable[[], None]] = []
        self._lateness: tuple[float, Callable[[], None]] | None = None

    def __str__(self) -> str:
        member = self.membership
        held = " ".join(f"{topic}{number}" for topic, number in sorted(member.held))
        return f"{self.name} ({member.member_id}, {member.generation}, {member.state.name}: {held})"

    @property
    def is_hung(self) -> bool:
        return self.program.is_hung

    @property
    def is_settled(self) -> bool:
        """It knows its part and has no doubts."""
        return self.membership.state is State.STABLE

    def works_on(self) -> frozenset[Key]:
        """By its own clock, also while it is paused."""
        return self.program.works_on(self.world.timeline.now)

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        self.tell(self.membership.start)
        self.program.begin()

    def kill(self) -> None:
        self.world.crash_judge.on_killed(self)
        self.is_up, self.is_paused = False, False
        self._inbox.clear()
        self.cut()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        waiting, self._inbox = self._inbox, []
        for act in waiting:
            self.when_awake(act)

    def cut(self) -> None:
        """Those that there are: who hears of the end of one may open another."""
        for connection in list(self._connections.values()):
            connection.cut()

    def mute(self) -> None:
        for connection in self._connections.values():
            connection.mute()

    def end_silence(self) -> None:
        for connection in list(self._connections.values()):
            if connection.is_mute:
                connection.cut()

    def keep_back(self, seconds: float, on_late: Callable[[], None], *, from_join: bool) -> None:
        """A proxy keeps back what it sends, or sends from its next JoinGroup on, and drops it; so
        much later it delivers that, right after `on_late`.
        """
        self._lateness = seconds, on_late
        for connection in self._connections.values():
            if not from_join and connection.is_open and not connection.is_mute:
                self._maybe_keep_back(connection)

    def hang(self) -> None:
        self.when_awake(self.program.hang)

    def leave(self) -> None:
        self.is_leaving = True
        self.when_awake(partial(self.tell, self.membership.leave))

    def subscribe(self, topics: Iterable[str]) -> None:
        self.when_awake(partial(self.tell, partial(self.membership.subscribe, topics)))

    def when_awake(self, act: Callable[[], None]) -> None:
        if self.is_paused:
            self._inbox.append(act)
        elif self.is_up:
            act()

    def _end(self) -> None:
        """What it has sent arrives; then the connections end."""
        self.world.timeline.say(f"{self} ends")
        self.is_up = False
        self.cut()

    # -- what its rules ask for ------------------------------------------------------------

    def tell(self, act: Callable[..., list[Effect]]) -> None:
        """An input; what is to be done is done."""
        if not self.is_up:
            return
        self.world.touched = True
        for effect in act(now=self.world.timeline.now):
            self._perform(effect)
        if self.is_up:
            self.program.check()
            self._sleep()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Question):
            self.send(effect.request, partial(self._on_answer, effect))
        elif isinstance(effect, ForgetCoordinator):
            self.forget_coordinator()
        elif isinstance(effect, WatchTopics):
            self.hear_of_topics()
        elif isinstance(effect, Left):
            self._end()
        elif isinstance(effect, Fail):
            self.world.on_failed(self, effect.error)
            self._end()
        else:
            self.program.carry_out(effect)

    def _sleep(self) -> None:
        """Until the member has something to do, and a little longer."""
        timeline, deadline = self.world.timeline, self.membership.deadline()
        wake_at = max(deadline, timeline.now) + TICK_SECONDS_MAX * self._chance.random()
        if deadline < self._wake_at and wake_at < math.inf:
            self._wake_at = wake_at
            timeline.at(wake_at, self._wake, wake_at)

    def _wake(self, planned: float) -> None:
        if planned == self._wake_at:
            self._wake_at = math.inf
            self.when_awake(self._tick)

    def _tick(self) -> None:
        if self.membership.deadline() <= self.world.timeline.now:
            self.tell(self.membership.on_tick)
        else:
            self._sleep()

    # -- asking ----------------------------------------------------------------------------

    def send(self, ask: Ask, hear: Hear) -> None:
        if self._coordinator is None:
            self._coordinator = self.world.find_coordinator()
        broker, slot_epoch = self._coordinator
        connection = self._connections.get(broker.broker_id)
        if connection is None or not connection.is_open:
            connection = self._connections[broker.broker_id] = Connection(self, broker)
        self.world.timeline.say(f"{self} asks {broker}: {ask}")
        if isinstance(ask, JoinGroup):
            if not ask.member_id:
                self.entered_at = self.world.timeline.now
            self._maybe_keep_back(connection)
        connection.send(addressed(ask, slot_epoch), hear)

    def _maybe_keep_back(self, connection: Connection) -> None:
        lateness, self._lateness = self._lateness, None
        if lateness is not None:
            seconds, on_late = lateness
            connection.keep_back()
            self.world.timeline.after(self.world.notice_seconds(), connection.cut)
            self.world.timeline.after(seconds, on_late)
            self.world.timeline.after(seconds, connection.deliver)

    def _on_answer(self, question: Question, heard: Heard) -> None:
        answer = heard.outcome
        if self.membership.expects(question.token) and not isinstance(answer, RaftmqError):
            is_told = not getattr(answer, "error", 0)
            if heard.slot_epoch >= 0:  # who does not coordinate says nothing of it
                self.is_misled = heard.is_outdated or (self.is_misled and not is_told)
            if is_told and isinstance(question.request, JoinGroup | SyncGroup):
                is_joined = isinstance(question.request, JoinGroup)
                self.told_by = heard.slot_epoch if is_joined else None
        self.tell(partial(self.membership.on_answer, question.token, answer))

    def hear_of_topics(self) -> None:
        """A little later."""
        seconds = self.world.news_seconds(self._chance)
        self.world.timeline.after(seconds, self.when_awake, self._hear_counts)

    def _hear_counts(self) -> None:
        counts = dict(self.world.counts)
        self.tell(partial(self.membership.on_metadata, counts))

    def forget_coordinator(self) -> None:
        self._coordinator = None
