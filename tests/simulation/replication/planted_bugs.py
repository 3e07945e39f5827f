"""Bugs that replication is known to have, to be planted into ours one at a time.

Owns the bugs, each a function that patches the code through a `Patch`. A bug takes away
one rule, or one step of whoever performs what a rule says; never a check. How many worlds find one
says

    python -m tests.simulation.replication.planted_bugs --seeds 100
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from jepsen_like.planted.patch import Calls
from jepsen_like.planted.transactions import forgets_before_marker_is_committed
from raftmq.errors import ErrorCode
from raftmq.metadata.apply import brokers, partitions
from raftmq.metadata.image import Pending
from raftmq.partition.follower import Follower
from raftmq.partition.leader import Diverged, FollowerProgress, Leader
from tests.simulation import planting
from tests.simulation.planting import Patch, demand_called, tell_calls
from tests.simulation.replication import scripts
from tests.simulation.replication.following import Following
from tests.simulation.replication.leading import ACKS_ALL, Leading
from tests.simulation.replication.process import Process
from tests.simulation.replication.world import drawn_world
from tests.simulation.transactions.planted_bugs import stable_offset_by_log_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import AlterPartition, Refused
    from raftmq.metadata.image import BrokerState, PartitionState
    from raftmq.partition.epochs import LeaderEpochs
    from raftmq.partition.leader import LeaderEffect, ProposeIsr
    from tests.simulation.replication.disk import ReplicaLog
    from tests.simulation.replication.leading import Waiting


class Case(NamedTuple):
    """Worlds, and the only faults that strike in them; none: those that each seed draws.

    Where chance needs too long to find a bug, a script leads to it.
    """

    seeds: tuple[int, ...]
    kinds: tuple[str, ...] = ()
    script: Callable[[], None] | None = None
    has_transactions: bool = False


# -- acknowledgements --------------------------------------------------------------------------


def ack_before_fsync(patch: Patch) -> None:
    """A leader counts what it has written, and not what its disk holds."""
    patch.setattr(Leading, "on_held", lambda self: self.perform(self.rules.on_held(self.log.end)))


def ack_when_only_the_leader_has_it(patch: Patch) -> None:
    """acks=all waits for the leader's disk alone."""
    is_done = Leading.is_done

    def is_done_here(self: Leading, waiting: Waiting) -> bool:
        return is_done(self, waiting._replace(acks=1) if waiting.acks == ACKS_ALL else waiting)

    patch.setattr(Leading, "is_done", is_done_here)


def ignore_min_isr(patch: Patch) -> None:
    """The high watermark rises however few are in sync."""
    patch.setattr(Leader, "has_min_isr", property(lambda self: True))


# -- the in-sync set ---------------------------------------------------------------------------


def committed_isr_only(patch: Patch) -> None:
    """Whoever was proposed does not count until the leader knows that it joined."""
    patch.setattr(Leader, "maximal_isr", property(lambda self: self.assignment.isr))
    patch.setattr(Leader, "_is_about_to_join", lambda self, follower: False)


def shrink_before_commit(patch: Patch) -> None:
    """Whoever is proposed to leave the ISR counts no more."""
    propose = Leader._propose

    def propose_and_apply(self: Leader, isr: set[int]) -> list[LeaderEffect]:
        effects = propose(self, isr)
        smaller = tuple(member for member in self.assignment.isr if member in isr)
        self.assignment = self.assignment._replace(isr=smaller)
        return effects

    patch.setattr(Leader, "_propose", propose_and_apply)


def alter_without_comparison(patch: Patch) -> None:
    """A proposal is applied, whatever it was that its sender saw."""
    compare = partitions._epoch_problem

    def problem(state: PartitionState, command: AlterPartition) -> Refused | None:
        found = compare(state, command)
        is_late = found is not None and found.code == ErrorCode.INVALID_UPDATE_VERSION
        return None if is_late else found

    patch.setattr(partitions, "_epoch_problem", problem)


def expand_to_any_incarnation(patch: Patch) -> None:
    """It is the broker that joins, and not the process that caught up."""
    registered = partitions.registered

    def registered_anyhow(draft: Draft, broker_id: int, _epoch: int) -> BrokerState | Refused:
        known = draft.broker(broker_id)
        return registered(draft, broker_id, -1 if known is None else known.broker_epoch)

    patch.setattr(partitions, "registered", registered_anyhow)


def expand_below_the_epoch_start(patch: Patch) -> None:
    """To hold what a new leader knows to be committed is enough, and that may be little."""

    def maybe_expand(self: Leader, follower: int) -> list[LeaderEffect]:
        held = self._progress[follower].held_offset
        if self._pending or not self._may_join(follower) or held < self.high_watermark:
            return []
        return self._propose({*self.assignment.isr, follower})

    patch.setattr(Leader, "_maybe_expand", maybe_expand)


def new_command_id_for_each_try(patch: Patch) -> None:
    """A proposal that is sent again may be refused, and applied later all the same."""
    propose = Leading._propose

    def propose_anew(self: Leading, proposal: ProposeIsr) -> None:
        self.sent = None
        propose(self, proposal)

    patch.setattr(Leading, "_propose", propose_anew)


# -- what a leader believes of a follower ------------------------------------------------------


def count_before_the_first_fetch(patch: Patch) -> None:
    """What a follower says to hold counts before it is known whose records these are."""

    def on_progress(
        self: Leader, follower: int, broker_epoch: int, held_offset: int, *, now: float
    ) -> list[LeaderEffect]:
        progress = self._progress[follower]
        progress.broker_epoch = broker_epoch
        progress.held_offset = max(progress.held_offset, min(held_offset, self.log_end_offset))
        return self._after_word_of(follower, progress, now)

    patch.setattr(Leader, "on_progress", on_progress)
    tell_before_agreement(patch)


def held_beyond_the_fetch(patch: Patch) -> None:
    """What is held is not bounded by what a fetch has shown to agree."""

    def on_held(self: FollowerProgress, held_offset: int) -> None:
        self.held_offset = max(self.held_offset, held_offset)

    patch.setattr(FollowerProgress, "on_held", on_held)


def tell_before_agreement(patch: Patch) -> None:
    """A follower tells what it holds while it may have to cut it yet."""
    patch.setattr(
        Follower, "agrees", property(lambda self: True, lambda self, value: None), raising=False
    )


def old_incarnations_count(patch: Patch) -> None:
    """A late fetch of a process that is dead takes the place of its successor's."""

    def on_fetch(self: FollowerProgress, broker_epoch: int, fetch_offset: int) -> None:
        if broker_epoch != self.broker_epoch:
            self.broker_epoch, self.held_offset = broker_epoch, 0
        self.has_fetched, self.fetch_offset = True, fetch_offset
        self.held_offset = min(self.held_offset, fetch_offset)

    patch.setattr(FollowerProgress, "on_fetch", on_fetch)


# -- logs --------------------------------------------------------------------------------------


def no_divergence_check(patch: Patch) -> None:
    """A follower that is not longer than its leader is taken for equal."""

    def divergence(
        self: Leader, last_fetched_epoch: int, fetch_offset: int, epochs: LeaderEpochs
    ) -> Diverged | None:
        if fetch_offset > self.log_end_offset:
            return Diverged(epochs.latest, self.log_end_offset)
        return None

    patch.setattr(Leader, "divergence", divergence)


def truncate_to_the_high_watermark(patch: Patch) -> None:
    """A new follower cuts what it does not know to be committed."""
    follow = Process._follow

    def cut_and_follow(self: Process, key: object, assignment: object) -> None:
        log = self.log(key)  # type: ignore[arg-type]
        role = self.roles.get(key)  # type: ignore[call-overload]
        if not (isinstance(role, Following) and role.leader_epoch == assignment.leader_epoch):  # type: ignore[attr-defined]
            log.truncate(max(log.start, log.high_watermark))
        follow(self, key, assignment)  # type: ignore[arg-type]

    patch.setattr(Process, "_follow", cut_and_follow)


def accept_late_answers(patch: Patch) -> None:
    """Whatever arrives is taken for the answer."""
    patch.setattr(Follower, "accepts", lambda self, token: True)


def leader_epoch_is_not_checked(patch: Patch) -> None:
    """A leader serves followers of other epochs."""
    patch.setattr(Leading, "epoch_problem", lambda self, leader_epoch: None)


# -- where logs start --------------------------------------------------------------------------


def deletions_are_answered_alone(patch: Patch) -> None:
    """What the leader's own disk has deleted is answered; the quorum never hears of it."""

    def delete_before(self: Leading, offset: int) -> None:
        self.retain_from(offset)
        self.process.checks.on_start_promised(self, self.log.start)

    patch.setattr(Leading, "delete_before", delete_before)


def leaders_begin_where_their_logs_do(patch: Patch) -> None:
    """Whoever is elected does not look where the quorum lets the partition start."""
    patch.setattr(Process, "begin_at", lambda self, log, start_offset: None)


def offsets_below_the_start_are_given_again(patch: Patch) -> None:
    """A log that ends before the start of its partition goes on from there."""
    begin_at = Process.begin_at

    def begin_where_it_can(self: Process, log: ReplicaLog, start_offset: int) -> None:
        begin_at(self, log, min(start_offset, log.end))

    patch.setattr(Process, "begin_at", begin_where_it_can)


# -- brokers -----------------------------------------------------------------------------------


def trust_any_directory(patch: Patch) -> None:
    """A directory from the past, or one whose page cache is gone, is as good as it was."""
    patch.setattr(brokers, "_revocation", lambda known, command: Pending.NOTHING)


def lead_for_the_predecessor(patch: Patch) -> None:
    """A new process takes the leadership that its predecessor had."""
    obey = Process._obey

    def obey_all(self: Process) -> None:
        me = self.image.brokers.get(self.broker_id)
        if me is not None and me.fenced and self.broker_epoch >= 0:
            mine = self.image.brokers.set(self.broker_id, _unfenced(me, self.broker_epoch))
            self.image = self.image._replace(brokers=mine)
        obey(self)

    patch.setattr(Process, "_obey", obey_all)


def _unfenced(me: BrokerState, broker_epoch: int) -> BrokerState:
    return replace(me, fenced=False, broker_epoch=broker_epoch)


# -- transactions ------------------------------------------------------------------------------


def settled_by_deposed_leader(patch: Patch) -> None:
    """Whoever believes to lead may say that a commit is settled, in whichever epoch."""

    def settled(self: Leading, _: int, producer_id: int, producer_epoch: int) -> bool:
        return self.log.transactions.is_ended(
            producer_id, producer_epoch, self.rules.high_watermark
        )

    patch.setattr(Leading, "is_settled", settled)


# Every bug with seeds of worlds that catch it. Any change of the code shifts the worlds: where a
# bug slips through all of them, run this module as a command.
_CASES: dict[Callable[[Patch], None], Case] = {
    ack_before_fsync: Case((0, 1)),
    ack_when_only_the_leader_has_it: Case((0, 1)),
    ignore_min_isr: Case((0, 2)),
    committed_isr_only: Case((0, 1)),
    shrink_before_commit: Case((0, 1)),
    alter_without_comparison: Case((), script=scripts.late_proposal),
    expand_to_any_incarnation: Case((5247,)),
    expand_below_the_epoch_start: Case((41, 88, 126), ("kill", "restart", "slow_disk")),
    new_command_id_for_each_try: Case((), script=scripts.proposal_sent_again),
    count_before_the_first_fetch: Case((0, 1)),
    held_beyond_the_fetch: Case((2, 3)),
    tell_before_agreement: Case((), script=scripts.word_before_agreement),
    old_incarnations_count: Case((), script=scripts.word_of_the_dead),
    no_divergence_check: Case((4, 6, 10)),
    truncate_to_the_high_watermark: Case((6, 11, 16)),
    accept_late_answers: Case((0, 1)),
    leader_epoch_is_not_checked: Case((), script=scripts.fetch_of_another_epoch),
    deletions_are_answered_alone: Case((1, 6, 10)),
    leaders_begin_where_their_logs_do: Case((7, 16, 25)),
    offsets_below_the_start_are_given_again: Case((41, 48, 88)),
    trust_any_directory: Case((18, 23, 33)),
    lead_for_the_predecessor: Case((31, 33, 60)),
    forgets_before_marker_is_committed: Case((0, 1), has_transactions=True),
    stable_offset_by_log_end: Case((0, 1), has_transactions=True),
    settled_by_deposed_leader: Case((), script=scripts.settled_in_another_epoch),
}
BUGS = {bug.__name__: bug for bug in _CASES}
CASES = {bug.__name__: case for bug, case in _CASES.items()}


def planted(name: str, calls: Calls | None = None) -> AbstractContextManager[Calls]:
    return planting.planted(BUGS[name], calls)


def caught(name: str, seeds: tuple[int, ...], calls: Calls) -> dict[int, Exception]:
    """What the worlds make of the bug, by seed: of those that catch it."""
    case = CASES[name]._replace(script=None)
    return {seed: error for seed in seeds if (error := _caught(name, case, seed, calls))}


def is_caught(name: str) -> bool:
    """Raises InVain."""
    case, calls = CASES[name], Calls()
    is_caught = any(_caught(name, case, seed, calls) for seed in case.seeds or (0,))
    demand_called(name, calls)
    return is_caught


def _caught(name: str, case: Case, seed: int, calls: Calls) -> Exception | None:
    with planted(name, calls):
        try:
            if case.script is not None:
                case.script()
            else:
                has_transactions = case.has_transactions
                drawn_world(seed, kinds=case.kinds, has_transactions=has_transactions).play()
        except Exception as error:
            return error
    return None


def main() -> None:
    """How many worlds catch which bug, and what the first of them say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bug", choices=sorted(BUGS))
    options, is_in_vain = parser.parse_args(), False
    for name in [options.bug] if options.bug else BUGS:
        seeds = tuple(range(options.seed, options.seed + options.seeds))
        calls = Calls()
        found = caught(name, seeds, calls)
        sys.stdout.write(f"{name:32} {len(found):3} of {options.seeds}: {list(found)[:8]}\n")
        for error in list(found.values())[:3]:
            sys.stdout.write(f"      {type(error).__name__}: {str(error)[:150]}\n")
        tell_calls(name, calls)
        sys.stdout.flush()
        is_in_vain |= bool(calls.missing)
    sys.exit(1 if is_in_vain else 0)


if __name__ == "__main__":
    main()
