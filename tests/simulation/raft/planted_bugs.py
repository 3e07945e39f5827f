"""Bugs that a quorum is known to have, to be planted into ours one at a time.

Owns the bugs, each a function that patches the code through a `Patch`. A bug takes away
one rule, or one step; never something of the simulation, but for a sync that a disk leaves out.
That all are found is tested in `test_quorum_planted_bugs.py`; how many worlds find one says

    python -m tests.simulation.raft.planted_bugs --seeds 100
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from raftmq.metadata.apply import dispatch
from raftmq.metadata.raft.engine import guard as guard_module
from raftmq.metadata.raft.engine.guard import Guard
from raftmq.metadata.raft.engine.node import RaftNode
from raftmq.metadata.raft.engine.replication import Reads
from raftmq.metadata.raft.engine.voter_disks import VoterMembership
from raftmq.metadata.raft.journal import journal as journal_module
from raftmq.metadata.raft.journal.format import VoterIdentity
from raftmq.metadata.raft.journal.journal import Journal
from raftmq.metadata.raft.net.messages import Standing
from raftmq.metadata.raft.quorum import Driver
from raftmq.metadata.raft.snapshot.snapshotter import Snapshotter
from tests.simulation import planting
from tests.simulation.disk_file import SimulatedFile
from tests.simulation.planting import Patch, PlantedBugs
from tests.simulation.raft.world import SECONDS, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.raft.net.messages import AppendEntries


def _case(seeds: tuple[int, ...], kinds: tuple[str, ...]) -> planting.Case:
    return planting.Case(seeds, kinds, SECONDS)


def nothing(*_: object, **__: object) -> None:
    """What the forgotten step does."""


# -- the disk ----------------------------------------------------------------------------------


def _forget_syncs_of(patch: Patch, *suffixes: str) -> None:
    sync = SimulatedFile.sync

    def sync_others(self: SimulatedFile) -> None:
        if self.path.suffix not in suffixes:
            sync(self)

    patch.setattr(SimulatedFile, "sync", sync_others)


def write_is_enough(patch: Patch) -> None:
    """The journal is written, and not synced."""
    _forget_syncs_of(patch, ".journal")


def snapshot_is_not_synced(patch: Patch) -> None:
    """A snapshot gets its name before its bytes are safe."""
    _forget_syncs_of(patch, ".part", ".incoming")


def release_before_sync(patch: Patch) -> None:
    """Answers leave while what they say is on its way to the disk."""
    sync = Driver._sync

    async def flush_and_sync(self: Driver) -> None:
        self._transport.flush()
        await sync(self)

    patch.setattr(Driver, "_sync", flush_and_sync)


def forget_votes(patch: Patch) -> None:
    """Term and vote live in memory, until something else is written."""

    def set_term(self: Journal, term: int, voted_for: int | None) -> None:
        self._state.term, self._state.voted_for = term, voted_for

    patch.setattr(Journal, "setCurrentTerm", set_term)


def apply_what_is_not_synced(patch: Patch) -> None:
    """A leader takes its own entries for durable."""
    patch.setattr(RaftNode, "_applicable_index", lambda self: self.commit_index)


def compact_before_the_snapshot(patch: Patch) -> None:
    """The log is cut when a snapshot is due, not when it is durable."""
    maybe_take = Snapshotter.maybe_take

    def take_and_cut(self: Snapshotter) -> None:
        before = self._due
        maybe_take(self)
        if self._due and self._due is not before:
            self._node.journal.compact(self._due.last_index, self._limits.trailing_entries)

    patch.setattr(Snapshotter, "maybe_take", take_and_cut)


def forget_what_a_snapshot_says(patch: Patch) -> None:
    """After a start the journal does not know that what its snapshot holds is committed."""
    begin_after = RaftNode.begin_after

    def begin(self: RaftNode, index: int, term: int, picture: Any) -> None:
        with patch.context() as inner:
            inner.setattr(self.journal, "setRaftCommitIndex", nothing)
            begin_after(self, index, term, picture)

    patch.setattr(RaftNode, "begin_after", begin)


# -- the log -----------------------------------------------------------------------------------


def commit_what_is_told(patch: Patch) -> None:
    """A follower commits up to the leader's commit index, whatever the message has shown."""
    translate = guard_module._append_for_engine

    def translated(message: AppendEntries) -> dict[str, Any]:
        return {**translate(message), "commit_index": message.commit_index}

    patch.setattr(guard_module, "_append_for_engine", translated)


def snapshot_keeps_everything(patch: Patch) -> None:
    """An installed snapshot does not look whether the entries behind it are of its history."""
    install_base = Journal.install_base

    def install(self: Journal, index: int, term: int) -> None:
        held = self.term_at(index)
        if held is not None:
            self._state.commit_index = max(self._state.commit_index, index)
        install_base(self, index, term if held is None else held)

    patch.setattr(Journal, "install_base", install)


def snapshot_is_not_shown(patch: Patch) -> None:
    """A fetched snapshot moves the log, and not the image."""
    install_snapshot = RaftNode.install_snapshot

    def install(self: RaftNode, index: int, term: int, picture: Any) -> None:
        with patch.context() as inner:
            inner.setattr(self.machine, "install", nothing)
            install_snapshot(self, index, term, picture)

    patch.setattr(RaftNode, "install_snapshot", install)


def apply_twice(patch: Patch) -> None:
    """A command id is not remembered."""
    patch.setattr(dispatch, "_answer_without_rule", nothing)


# -- votes and reads ---------------------------------------------------------------------------


def trust_a_new_disk(patch: Patch) -> None:
    """A new directory is taken for one that never promised anything: it votes and counts."""
    trusted = partial(VoterIdentity, standing=Standing.ESTABLISHED)
    patch.setattr(journal_module, "VoterIdentity", trusted)
    patch.setattr(RaftNode, "counts", lambda self, peer: True)
    patch.setattr(VoterMembership, "check_hello", lambda self, hello, *, term: None)


def count_blank_voters(patch: Patch) -> None:
    """What a voter without its old disk confirms counts towards a majority."""
    patch.setattr(Guard, "_feed", Guard._count)
    patch.setattr(RaftNode, "counts", lambda self, peer: True)


def enrol_without_a_majority(patch: Patch) -> None:
    """A leader enrols new disks although nobody is there to commit it."""
    patch.setattr(RaftNode, "_has_majority", lambda self: True)


def old_copies_are_welcome(patch: Patch) -> None:
    """Nobody looks how old a peer's directory is."""
    patch.setattr(VoterMembership, "check_hello", lambda self, hello, *, term: None)
    patch.setattr(Guard, "_stop_older_copy", lambda self, peer, last_index: None)


def read_without_a_round(patch: Patch) -> None:
    """A leader asks nobody whether it still leads."""
    patch.setattr(Reads, "_confirmed_round", lambda self: self.round)


def read_before_the_no_op(patch: Patch) -> None:
    """A new leader takes its commit index for the newest one at once."""
    patch.setattr(RaftNode, "is_in_office", property(lambda self: self.is_leader))


# -- all of them -------------------------------------------------------------------------------

# Every bug with the faults that bring it to light, and seeds of worlds where they do. Any change of
# the code shifts the worlds: where a bug slips through all of them, run this module as a command.
_CASES: dict[Callable[[Patch], None], planting.Case] = {
    write_is_enough: _case((1, 2), ("power_midway",)),
    snapshot_is_not_synced: _case((4, 1), ("power_midway",)),
    release_before_sync: _case((1, 19, 25, 28), ("betrayal",)),
    forget_votes: _case((7, 9, 10), ("power", "kill")),
    apply_what_is_not_synced: _case((11, 8), ("power_midway", "slow_disk")),
    compact_before_the_snapshot: _case((5, 4, 7, 1), ("failing_disk", "kill")),
    forget_what_a_snapshot_says: _case((15, 35, 54), ("kill_midway", "power_midway", "kill")),
    commit_what_is_told: _case((1, 9, 13, 15), ("exile",)),
    snapshot_keeps_everything: _case((5, 15, 19, 20), ("exile",)),
    snapshot_is_not_shown: _case((1, 4, 5), ("power", "isolate")),
    apply_twice: _case((1, 0), ("isolate",)),
    trust_a_new_disk: _case((1, 2, 3), ("betrayal",)),
    count_blank_voters: _case((4, 1, 5, 8), ("reunion",)),
    enrol_without_a_majority: _case((0, 1, 2), ("rash_replacement",)),
    old_copies_are_welcome: _case((0, 1), ("old_copy",)),
    read_without_a_round: _case((0, 1, 2), ("usurpation",)),
    read_before_the_no_op: _case((0, 25, 34), ("betrayal",)),
}
BUGS = PlantedBugs(World, _CASES)

if __name__ == "__main__":
    planting.main(BUGS, __doc__.splitlines()[0])
