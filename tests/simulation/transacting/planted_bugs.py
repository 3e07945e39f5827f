"""Planted bugs of transactions in whole brokers, each with the faults that expose it.

The seeds of worlds that find them are in `planted_seeds.json`. To count the worlds that find one:

    python -m tests.simulation.transacting.planted_bugs --seeds 20 --bug NAME

`--reseed` searches for other seeds, where a change of the code has shifted the worlds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jepsen_like.planted import transactions as shared
from raftmq.broker.transactions.open_transactions import OpenTransactions
from raftmq.client.transactions.machine import TransactionMachine
from raftmq.client.transactions.shared import Member, SharedTransaction
from raftmq.metadata.apply import shared_transactions as versions
from raftmq.metadata.apply import transactions as rules
from raftmq.partition.admission import Admission
from raftmq.partition.storage.aborted_index import AbortedPlan, IndexLost, KnownAborted
from raftmq.partition.storage.entries import DamagedEntries
from raftmq.partition.transactions import Transactions
from tests.simulation import planting
from tests.simulation.planting import Case, PlantedBugs
from tests.simulation.transacting.world import TransactionWorld
from tests.simulation.transactions import planted_bugs as walks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.image import TransactionState
    from raftmq.partition.sequences import ProducerState
    from raftmq.partition.storage.segment import Segment
    from raftmq.partition.transactions import OutcomeOf
    from raftmq.wire.messages.transactions import JoinTransactionReply
    from tests.simulation.planting import Patch

SECONDS = 5.0  # of virtual time for each world
SEEDS_FILE = Path(__file__).with_name("planted_seeds.json")


def index_lost_reads_as_empty(patch: Patch) -> None:
    """What is missing, cut short or damaged is taken for "nothing was aborted"."""
    look_in = AbortedPlan._look_in

    def look(self: AbortedPlan, segment: Segment, found: Any, read: Any) -> bool:
        try:
            return look_in(self, segment, found, read)
        except (IndexLost, DamagedEntries):
            return False

    patch.setattr(AbortedPlan, "_look_in", look)


def cut_keeps_abort_entry(patch: Patch) -> None:
    """A cut leaves the index as it was."""
    patch.setattr(KnownAborted, "forget", lambda *_: None)


def idle_shelf_forgets_open(patch: Patch) -> None:
    """What is open is forgotten like everything that is committed long since."""

    def release(
        self: Transactions, high_watermark: int, _: OutcomeOf
    ) -> list[tuple[int, ProducerState]]:
        old = [
            (pid, state)
            for pid, state in self.known.items()
            if pid in self.open and self.open[pid].first_offset + 3 < high_watermark
        ]
        for pid, _state in old:
            del self.known[pid], self.open[pid]
        return old

    patch.setattr(Transactions, "release", release)


def commit_despite_failed_send(patch: Patch) -> None:
    """A record that was given up does not end its transaction."""
    patch.setattr(TransactionMachine, "end", lambda *_: None)


def retry_hears_done(patch: Patch) -> None:
    """A commit that finds its transaction decided is told that it is committed."""
    repeated = rules._repeated

    def done(place: int, end: Any, state: TransactionState, **how: Any) -> Any:
        return repeated(place, end, state, **{**how, "is_committed": end.is_commit})

    patch.setattr(rules, "_repeated", done)


def snapshot_wakes_nobody(patch: Patch) -> None:
    """After a change that does not tell what it changed nobody looks at what is open."""
    patch.setattr(OpenTransactions, "all", lambda _: [])


def take_over_goes_on_with_what_is_open(patch: Patch) -> None:
    """A new owner does not end what its predecessor has open."""
    decided = rules._decided

    def goes_on(draft: Draft, state: TransactionState, **how: Any) -> TransactionState:
        if how.get("reason") is rules.AbortReason.OWNER:
            return replace(state)
        return decided(draft, state, **how)

    patch.setattr(rules, "_decided", goes_on)


def admits_decided(patch: Patch) -> None:
    """A batch of a transaction that is over, as the metadata say, is let in."""
    patch.setattr(Admission, "_check_outcome", lambda *_: None)


def snapshot_drops_open_offset(patch: Patch) -> None:
    """What was open is not open any more after a restart."""

    def restored(self: Transactions, states: Iterable[tuple[int, ProducerState]]) -> None:
        self.known.update((number, state._replace(open_offset=-1)) for number, state in states)

    patch.setattr(Transactions, "restore", restored)


# -- Members of versions -----------------------------------------------------------------------


def other_lineage_skips(patch: Patch) -> None:
    """Nobody compares whose versions these are."""
    refusal = versions._row_refusal

    def refused(name: str, state: TransactionState, lineage: str) -> Any:
        return refusal(name, state, lineage if state.shared is None else state.shared.lineage)

    patch.setattr(versions, "_row_refusal", refused)


def receipts_of_another_block_count(patch: Patch) -> None:
    """The members that a commit lists are taken for those of the block that is open."""
    original = versions.end_version

    def of_what_is_open(
        draft: Draft, command: Any, place: int, end: Any, state: TransactionState | None
    ) -> Any:
        open_one = None if state is None else state.shared
        if open_one is not None and end.version == open_one.open_version and end.producer_id >= 0:
            end = replace(end, producer_id=open_one.block)
        return original(draft, command, place, end, state)

    patch.setattr(rules, "end_version", of_what_is_open)


def done_version_is_written_again(patch: Patch) -> None:
    """A task that is told that its version is done writes all the same, under the number that it,
    or a task beside it, had before."""
    numbers: dict[Any, JoinTransactionReply] = {}
    join = SharedTransaction._join

    async def joined(self: SharedTransaction, version: Any, **how: Any) -> JoinTransactionReply:
        reply = await join(self, version, **how)
        if not reply.is_done:
            numbers[version] = reply
        return numbers.get(version, reply)

    patch.setattr(SharedTransaction, "_join", joined)


def commit_before_members_are_acknowledged(patch: Patch) -> None:
    """A receipt is given out when the block ends, and not when all has been acknowledged; what has
    not left by then does not leave any more.
    """
    leave = Member.__aexit__

    async def early(self: Member, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None or self.is_done:
            await leave(self, kind, error, traceback)
            return
        receipt = self._machine.receipt(self._producer.statistics.records)
        gone = RuntimeError("its program has left")
        await leave(self, type(gone), gone, None)
        self._receipt = receipt

    patch.setattr(Member, "__aexit__", early)


def _by(*kinds: str) -> Case:
    return Case((), kinds, SECONDS)


_CASES = {
    shared.late_batch_joins_next: _by("kill_open", "late_metadata"),
    shared.settled_by_deposed_leader: _by("kill_decided", "still_metadata"),
    shared.forgets_before_marker_is_committed: _by("kill_decided", "leader_off_follower"),
    shared.offsets_by_old_generation: _by("kill_decider", "kill_open"),
    walks.stable_offset_by_log_end: _by("leader_off_follower", "kill_open"),
    walks.retry_of_end_is_refused: _by("kill_decider", "decider_off_brokers"),
    walks.epoch_wraps_without_new_id: _by("late_metadata", "kill_open"),
    walks.delta_of_new_id_only: _by("late_metadata", "kill_open"),
    index_lost_reads_as_empty: _by("rot"),
    cut_keeps_abort_entry: _by("kill_decided", "comeback"),
    idle_shelf_forgets_open: _by("kill_open"),
    commit_despite_failed_send: _by("kill_open"),
    retry_hears_done: _by("kill_decider", "decider_off_brokers"),
    snapshot_wakes_nobody: _by("pause_decider", "isolate"),
    take_over_goes_on_with_what_is_open: _by("kill_open"),
    admits_decided: _by("late_metadata", "still_metadata"),
    snapshot_drops_open_offset: _by("restart_all"),
    shared.unlisted_member_commits: _by("abort_version"),
    other_lineage_skips: _by("abort_version"),
    receipts_of_another_block_count: _by("abort_version"),
    done_version_is_written_again: _by("abort_version", "kill_decider"),
    commit_before_members_are_acknowledged: _by("abort_version", "kill_open"),
}
BUGS = PlantedBugs(TransactionWorld, _CASES, seeds_file=SEEDS_FILE)

if __name__ == "__main__":
    planting.main(BUGS, __doc__.splitlines()[0])
