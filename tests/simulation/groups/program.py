"""The program around a group member: it processes, commits, and finishes revoked partitions.

Owns which partitions the program believes to own, and how long each step takes.
It may take too long, or hang: then its member has to do without it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from raftmq.client.group.effects import Assign, Lost, Revoke, State
from raftmq.errors import ErrorCode, RebalanceInProgress, error_for
from raftmq.wire.bodies import ABSENT
from tests.simulation.groups.asks import Commit, Committed
from tests.simulation.groups.checks import demand
from tests.simulation.groups.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect
    from tests.simulation.groups.connection import Heard
    from tests.simulation.groups.process import Process


class Program:
    """Attributes:
    is_hung: it has got records and does not come back for more.
    """

    def __init__(self, process: Process, chance: Random) -> None:
        self._process, self._chance = process, chance
        self._plan = process.world.plan.member
        self.is_hung = False
        self._view: set[Key] = set()
        self._revoking: Revoke | None = None
        self._commits = 0
        self._transactions = Transactions(
            process, process.world.chance(f"transactions of {process.name}")
        )

    def works_on(self, now: float) -> frozenset[Key]:
        """By its own clock."""
        membership = self._process.membership
        if now >= membership.held_until:
            return frozenset()
        kept = {key for key in self._view if membership.may_hand_out(key, now=now)}
        if self._revoking is not None and now < self._revoking.deadline:
            kept.update(self._revoking.partitions)
        return frozenset(kept)

    # -- what it is told -------------------------------------------------------------------

    def carry_out(self, effect: Assign | Revoke | Lost) -> None:
        keys = effect.partitions
        if isinstance(effect, Assign):
            demand(self._view.isdisjoint(keys), f"{self._process}: {effect} is assigned already")
            self._view.update(keys)
            self._transactions.on_assigned(keys)
            self._process.world.poison.on_assigned(self._process, keys)
            return
        demand(self._view.issuperset(keys), f"{self._process}: {effect}, and was not assigned")
        if isinstance(effect, Revoke):
            self._revoking = effect
            finish = partial(self._finish, effect)
            self._after(self._seconds(2 * self._plan.rebalance_seconds), finish)
        else:
            self._let_go(keys)

    def check(self) -> None:
        held = self._process.membership.held
        demand(self._view == held, f"{self._process}: told {sorted(self._view)}")

    def _let_go(self, keys: Iterable[Key]) -> None:
        self._view.difference_update(keys)
        self._transactions.on_let_go(keys)
        if self._revoking is not None and self._view.isdisjoint(self._revoking.partitions):
            self._revoking = None

    def _finish(self, revoke: Revoke) -> None:
        """What was in hand is done, unless something else is revoked by now."""
        if self._revoking is revoke and not self.is_hung:
            self._commit(partial(self._hand_over, revoke))

    def _hand_over(self, revoke: Revoke) -> None:
        if self._revoking is revoke:
            self._process.tell(partial(self._on_revoked, revoke))

    def _on_revoked(self, revoke: Revoke, *, now: float) -> list[Effect]:
        membership = self._process.membership
        before = membership.held
        effects = membership.on_revoked(revoke.token, now=now)
        lost = {key for one in effects if isinstance(one, Lost) for key in one.partitions}
        self._let_go(before - membership.held - lost)
        return effects

    # -- work ------------------------------------------------------------------------------

    def start(self) -> None:
        seconds = self._plan.commit_seconds * (0.5 + self._chance.random())
        self._after(seconds, self._work)

    def begin(self) -> None:
        self.start()
        self._transactions.start()

    def hang(self) -> None:
        self.is_hung = True
        self._process.tell(self._process.membership.on_handed_out)

    def _work(self) -> None:
        if self.is_hung:
            return
        self._process.tell(self._process.membership.on_handed_out)
        self._after(self._seconds(1.5 * self._plan.poll_seconds), self._ask_for_more)

    def _ask_for_more(self) -> None:
        if not self.is_hung:
            self._process.tell(self._process.membership.on_asked)
            self._commit(lambda: None)
            self.start()

    def _commit(self, then: Callable[[], None]) -> None:
        process, membership = self._process, self._process.membership
        if membership.generation == ABSENT or not self._view or not process.is_up:
            return then()
        self._commits += 1
        commit = Commit(
            membership.member_id, membership.generation, process.instance_id, self._commits
        )
        return process.send(commit, partial(self._on_committed, commit, then))

    def _on_committed(self, commit: Commit, then: Callable[[], None], heard: Heard) -> None:
        answer, membership = heard.outcome, self._process.membership
        if not isinstance(answer, Committed) or answer.error == ErrorCode.NOT_COORDINATOR:
            self._process.forget_coordinator()
        elif answer.error:
            error = error_for(answer.error, "")
            is_new = membership.state is State.STABLE
            if is_new or not isinstance(error, RebalanceInProgress):
                on_refused = partial(membership.on_refused, error, generation=commit.generation)
                self._process.tell(on_refused)
        then()

    def _seconds(self, slow_seconds: float) -> float:
        if not self._process.world.is_calm and self._chance.random() < self._plan.slow_share:
            return slow_seconds * self._chance.random()
        return self._plan.work_seconds * self._chance.random()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._process.world.timeline.after(seconds, self._process.when_awake, act)
