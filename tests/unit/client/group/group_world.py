"""A group on virtual time: members' rules, programs that take their time, a seed that breaks it.

Each member has one connection to the coordinator, in order, which may fall silent or break; the
coordinator moves, processes stall, are killed or restarted, topics grow. After every event no
partition is held by two, by their own views and clocks.
"""

from __future__ import annotations

import heapq
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    Fail,
    Left,
    Lost,
    Revoke,
    State,
    WatchTopics,
)
from raftmq.client.group.member_options import MemberOptions
from raftmq.client.group.membership import GroupMembership
from raftmq.errors import Disconnected, FencedInstanceId, NotCoordinator
from tests.unit.client.group.coordinator_model import REPLIES, CoordinatorModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect

TOPICS = ("a", "b", "c")
SESSION, REBALANCE, HEARTBEAT, POLL = 6.0, 20.0, 2.0, 30.0


class Player:
    """A process with a member. `view`: what it was told that it has."""

    def __init__(
        self,
        world: GroupWorld,
        name: str,
        topics: Iterable[str],
        assignor: Any,
        instance: str | None,
    ) -> None:
        self.world, self.name, self.instance, self.assignor = world, name, instance, assignor
        options = MemberOptions(
            group="g",
            assignor=assignor,
            group_instance_id=instance,
            session_timeout_ms=int(SESSION * 1000),
            rebalance_timeout_ms=int(REBALANCE * 1000),
            heartbeat_interval_ms=int(HEARTBEAT * 1000),
            max_poll_interval_ms=int(POLL * 1000),
        )
        self.membership = GroupMembership(options, topics, random=world.random)
        self.view: set[Key] = set()
        self.revoking: dict[Key, float] = {}  # until when
        self.connection = 0  # its number grows when it breaks
        self.arrives_at = self.stalled_until = self.silent_until = 0.0
        self.is_alive = True
        self.tokens: list[int] = []  # of what was asked, and perhaps not answered
        self.has_left = self.has_failed = False
        self._inputs = 0

    def holds(self) -> set[Key]:
        """What its program may be working on now, by its own clock."""
        now = self.world.now
        if not self.is_alive or now >= self.membership.held_until:
            return set()
        kept = {key for key in self.view if self.membership.may_hand_out(key, now=now)}
        return kept | {key for key, until in self.revoking.items() if now < until}

    def tell(self, act: Callable[[], list[Effect]]) -> None:
        """An input; it waits while the process is stalled."""
        if not self.is_alive or self.has_failed:
            return
        if self.world.now < self.stalled_until:
            self.world.at(self.stalled_until, lambda: self.tell(act))
            return
        self._perform(act())
        self._inputs += 1
        number, due = self._inputs, self.membership.deadline()
        if due < float("inf"):
            self.world.at(max(due, self.world.now), lambda: self._tick(number))

    def _tick(self, number: int) -> None:
        if number == self._inputs:
            self.tell(lambda: self.membership.on_tick(now=self.world.now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case AskCoordinator():
                    self.world.send(self, effect)
                case WatchTopics():
                    self.world.at(self.world.now + self.world.random.random(), self.hear_of_topics)
                case Assign():
                    assert not self.view.intersection(effect.partitions), "assigned twice"
                    self.view.update(effect.partitions)
                case Revoke():
                    assert self.view.issuperset(effect.partitions), "revoked, and not assigned"
                    self.revoking = dict.fromkeys(effect.partitions, effect.deadline)
                    self._finish_later(effect.token)
                case Lost():
                    assert self.view.issuperset(effect.partitions), "lost, and not assigned"
                    self._drop(effect.partitions)
                case Left():
                    self.has_left = True
                case Fail():
                    assert isinstance(effect.error, FencedInstanceId), effect.error
                    self.has_failed = True
        assert self.view == self.membership.held, "told something else than it holds"

    def _finish_later(self, token: int) -> None:
        seconds = self.world.random.choice((0.0, 0.1, 1.0, 5.0, 1.5 * REBALANCE))
        self.world.at(self.world.now + seconds, lambda: self.tell(lambda: self._finish(token)))

    def _finish(self, token: int) -> list[Effect]:
        before = self.membership.held
        effects = self.membership.on_revoked(token, now=self.world.now)
        lost = {key for one in effects if isinstance(one, Lost) for key in one.partitions}
        assigned = {key for one in effects if isinstance(one, Assign) for key in one.partitions}
        self._drop(before - self.membership.held - lost)
        assert not assigned, "assigned without an answer"
        return effects

    def _drop(self, partitions: Iterable[Key]) -> None:
        for key in partitions:
            self.view.discard(key)
            self.revoking.pop(key, None)

    def hear_of_topics(self) -> None:
        counts = dict(self.world.counts)
        self.tell(lambda: self.membership.on_metadata(counts, now=self.world.now))

    def stall(self, seconds: float) -> None:
        self.stalled_until = self.world.now + seconds

    def work(self, seconds: float) -> None:
        """The program gets records and asks for more when it is through."""
        now = self.world.now
        self.tell(lambda: self.membership.on_handed_out(now=self.world.now))
        again = lambda: self.tell(lambda: self.membership.on_asked(now=self.world.now))  # noqa: E731
        self.world.at(now + seconds, again)


class GroupWorld:
    def __init__(self, seed: int, assignors: Any) -> None:
        self.random, self.now = Random(seed), 100.0
        self._assignors = assignors
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._names = count(), count()
        self.coordinator = CoordinatorModel(f"id{each}" for each in count())
        self.players: list[Player] = []
        self.counts = {"a": 4, "b": 3, "c": 0}
        self.rebalances = 0
        self._tick_coordinator()

    # -- time ------------------------------------------------------------------------------

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), act))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            act()
            self._check()
        self.now = end

    def _check(self) -> None:
        owners: dict[Key, str] = {}
        for player in self.players:
            for key in player.holds():
                assert key not in owners, f"{key}: {owners[key]} and {player.name} at {self.now}"
                owners[key] = player.name

    # -- requests --------------------------------------------------------------------------

    def send(self, player: Player, ask: AskCoordinator) -> None:
        """In order, as far as its connection goes."""
        player.tokens.append(ask.token)
        connection = player.connection
        delay = self.random.choice((0.001, 0.01, 0.3))
        player.arrives_at = max(player.arrives_at, self.now + delay)
        self.at(player.arrives_at, lambda: self._arrive(player, ask, connection))

    def _arrive(self, player: Player, ask: AskCoordinator, connection: int) -> None:
        if connection != player.connection:
            self._answer(player, ask.token, Disconnected("the connection broke"))
        elif self.now < player.silent_until:
            self.at(player.silent_until, lambda: self._arrive(player, ask, connection))
        elif player.is_alive:
            self.coordinator.on_request(ask.request, (player, ask, connection), self.now)
            self._take_answers()

    def _take_answers(self) -> None:
        answers, self.coordinator.answers = self.coordinator.answers, []
        for token, body in answers:
            player, ask, connection = token  # type: ignore[misc]
            assert isinstance(body, REPLIES[type(ask.request)]), "answered something else"
            delay = self.random.choice((0.001, 0.01, 0.3))
            self.at(self.now + delay, self._delivery(player, ask, body, connection))
        if self.coordinator.plan is not None:
            of, generation, plan = (
                self.coordinator,
                self.coordinator.generation,
                self.coordinator.plan,
            )
            delay = self.random.choice((0.01, 0.5))
            self.at(self.now + delay, lambda: self._save(of, generation, plan))

    def _delivery(
        self, player: Player, ask: AskCoordinator, body: Any, connection: int
    ) -> Callable[[], None]:
        def deliver() -> None:
            if self.now < player.silent_until:
                self.at(player.silent_until, deliver)
            elif connection == player.connection:
                self._answer(player, ask.token, body)

        return deliver

    def _answer(self, player: Player, token: int, body: Any) -> None:
        player.tell(lambda: player.membership.on_answer(token, body, now=self.now))

    def _save(self, of: CoordinatorModel, generation: int, plan: object) -> None:
        if of is self.coordinator and of.generation == generation and of.plan is plan:
            of.on_saved(self.now)
            self.rebalances += 1
            self._take_answers()

    def _tick_coordinator(self) -> None:
        self.coordinator.tick(self.now)
        self._take_answers()
        self.at(self.now + 0.1, self._tick_coordinator)

    # -- what happens ----------------------------------------------------------------------

    @property
    def living(self) -> list[Player]:
        return [one for one in self.players if one.is_alive and not one.has_failed]

    def add(self, instance: str | None = None) -> Player:
        topics = self.random.sample(TOPICS, self.random.choice((1, 2, 3, 3, 3)))
        player = Player(
            self, f"p{next(self._names)}", topics, self.random.choice(self._assignors), instance
        )
        self.players.append(player)
        player.tell(lambda: player.membership.start(now=self.now))
        return player

    def break_connection(self, player: Player) -> None:
        player.connection += 1
        player.silent_until = 0.0
        number = player.connection
        self.coordinator.forget(lambda one: one[0] is player and one[2] < number, self.now)
        for asked in self._asked_of(player):
            self._answer(player, asked, Disconnected("the connection broke"))

    def _asked_of(self, player: Player) -> list[int]:
        player.tokens = [each for each in player.tokens if player.membership.expects(each)]
        return player.tokens

    def silence(self, player: Player, seconds: float) -> None:
        """Nothing passes, nobody notices; then the connection breaks."""
        player.silent_until = self.now + seconds
        self.at(player.silent_until - 0.001, lambda: self.break_connection(player))

    def move_coordinator(self) -> None:
        """Whoever waits is told; whoever is not yet answered, never."""
        self.coordinator = self.coordinator.taken_over(self.now)
        for player in self.players:
            player.connection += 1
            for asked in self._asked_of(player):
                self._answer(player, asked, NotCoordinator("somebody else coordinates"))

    def kill(self, player: Player) -> None:
        player.is_alive = False
        number = player.connection = player.connection + 1
        self.coordinator.forget(lambda one: one[0] is player and one[2] < number, self.now)

    def restart(self, player: Player) -> None:
        """A static member is back as another process."""
        if player.instance is not None:
            self.kill(player)
            seconds = self.random.choice((0.1, 3.0))
            self.at(self.now + seconds, lambda: self.add_again(player.instance))

    def add_again(self, instance: str | None) -> None:
        if not any(one.instance == instance for one in self.living):
            self.add(instance)

    def leave(self, player: Player) -> None:
        player.tell(lambda: player.membership.leave(now=self.now))

    def subscribe(self, player: Player) -> None:
        topics = self.random.sample(TOPICS, self.random.randint(1, 3))
        player.tell(lambda: player.membership.subscribe(topics, now=self.now))

    def grow(self) -> None:
        self.counts[self.random.choice(TOPICS)] += 1
        for player in self.living:
            self.at(self.now + 2 * self.random.random(), player.hear_of_topics)

    def strike(self) -> None:
        """Something, to somebody."""
        player = self.random.choice(self.living) if self.living else self.add()
        seconds = self.random.choice((0.5, 3.0, SESSION + 1, 12.0))
        strokes: tuple[Callable[[], Any], ...] = (
            self.maybe_add,
            self.maybe_add,
            self.grow,
            self.move_coordinator,
            lambda: self.leave(player),
            lambda: self.kill(player),
            lambda: self.restart(player),
            lambda: self.subscribe(player),
            lambda: self.break_connection(player),
            lambda: self.break_connection(player),
            lambda: self.silence(player, seconds),
            lambda: self.silence(player, seconds),
            lambda: player.stall(seconds),
            lambda: player.work(self.random.choice((1.0, POLL + 3))),
        )
        self.random.choice(strokes)()

    def maybe_add(self) -> None:
        if len(self.living) < 6:
            self.add(self.random.choice((None, f"static{next(self._names)}")))

    def check_quiet(self) -> None:
        """Everything is read by exactly one, who knows it, and all are at rest."""
        there = [one for one in self.living if not one.has_left]
        states = {one.name: one.membership.state for one in there}
        assert set(states.values()) <= {State.STABLE}, states
        wanted = frozenset[str]().union(*[one.membership.topics for one in there])
        expected = {(topic, each) for topic in wanted for each in range(self.counts[topic])}
        assert {key for one in there for key in one.holds()} == expected
        for one in there:
            assert {topic for topic, _ in one.view} <= set(one.membership.topics)
