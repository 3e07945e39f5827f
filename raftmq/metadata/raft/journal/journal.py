"""The Raft journal of a voter: appends log entries, term and vote, and tracks what is durable.

Owns which records are pending and which are synced. It implements PySyncObj's journal interface
(the names in camel case), reads no clock, and starts no thread:

    batch = journal.prepare()    on the loop: all pending records, as one write
    batch.write()                in a worker thread; more may be added meanwhile
    journal.complete(batch)      on the loop: now messages that depend on it may be sent

Invariants: entries are removed from the end only where another term conflicts, and never at or
below the commit index (Raft demands both); a term never falls, and a vote is given once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, overload

from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.journal.format import (
    BatchBuilder,
    JournalSegment,
    JournalState,
    VoterIdentity,
)
from raftmq.metadata.raft.journal.replay import may_vote, replay_journal
from raftmq.metadata.raft.journal.segments import (
    SEGMENT_BYTES,
    JournalWrite,
    Removal,
    SegmentWriter,
    remove_leftovers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.metadata.raft.journal.format import Entry
    from raftmq.metadata.raft.net.messages import Standing


logger = logging.getLogger("raftmq.metadata")


_NOWHERE = 1 << 64  # above every index: nothing was rewritten


def start_journal(
    files: Files,
    directory: Path,
    *,
    cluster_id: str,
    node_id: int,
    new_disk_id: bytes,
    voters: Iterable[int] = (),
    sync: bool = True,
    segment_bytes: int = SEGMENT_BYTES,
) -> Journal:
    """Read the journal in `directory`, or begin one there. Blocks on the disk.

    The last segment is replaced by its live content. So all that was read is on the disk, even
    records that a failed sync had left in the page cache only, and a torn end is removed.

    Args:
        files: The file system; no other process may use the directory.
        directory: Created if it does not exist. Its parent must be durable already.
        cluster_id: The expected owner of the journal.
        node_id: The expected owner of the journal.
        new_disk_id: 16 random bytes, used if there is no journal yet.
        voters: Of the quorum; must be those that the journal was begun with.
        sync: False lets appended batches stay in the page cache. For benchmarks only.
        segment_bytes: A segment of this length or more takes no more batches.

    Raises:
        CorruptJournal: it is damaged, or another node's; nothing was changed.
        StorageError: the disk failed; the journal is unchanged.
    """
    blank = VoterIdentity(new_disk_id, cluster_id, node_id, voters=tuple(sorted(voters)))
    files.make_directory(directory)
    files.sync_directory(directory.parent)  # a process that created it may have been killed before
    state = replay_journal(files, directory) or JournalState(blank, [JournalSegment(1, 1)])
    _check_owner(directory, state.identity, blank)
    journal = Journal(state, SegmentWriter(files, directory, sync=sync), segment_bytes)
    journal.begin()
    remove_leftovers(files, directory)
    if journal.torn_bytes:
        logger.warning("journal=%s event=cut_torn_end bytes=%d", directory, journal.torn_bytes)
    return journal


def _check_owner(directory: Path, found: VoterIdentity, wanted: VoterIdentity) -> None:
    # Another node's directory, or wrong settings.
    if (found.cluster_id, found.node_id) != (wanted.cluster_id, wanted.node_id):
        raise CorruptJournal(
            f"{directory} is the journal of node {found.node_id} of cluster {found.cluster_id!r},"
            f" this is node {wanted.node_id} of cluster {wanted.cluster_id!r}: correct"
            " node.id or node.cluster_id, or give the node its own directory"
        )
    if found.voters != wanted.voters:  # majorities of two sets of voters need not meet
        raise CorruptJournal(
            f"{directory} was begun with the voters {list(found.voters)}, the configuration says"
            f" {list(wanted.voters)}: voters are for ever; give a new one an id of these"
        )


class Journal:
    """Attributes:
    synced_index: entries up to it survive a crash. Below `first_index` between the installation
        of a snapshot and the next sync.
    synced_bytes: bytes made durable since the start.
    torn_bytes: bytes behind the last whole batch, which the start cut off.
    """

    def __init__(self, state: JournalState, writer: SegmentWriter, segment_bytes: int) -> None:
        self._state, self._writer, self._segment_bytes = state, writer, segment_bytes
        self.torn_bytes = state.torn_bytes
        self.synced_index = self.synced_bytes = 0
        self._pending = BatchBuilder()
        self._in_flight: JournalWrite | None = None
        self._removal: Removal | None = None
        self._first_live_segment = 0  # older ones may be removed: the batch that says so is synced
        self._changed_from = _NOWHERE  # the lowest index rewritten since the last `prepare`
        self._hint = state.commit_index  # the last commit index that was written
        self._in_message = self._must_roll = False

    def begin(self) -> None:
        """Rewrite the last segment, with the start count raised by one (decision 0012)."""
        state, segment = self._state, self._state.segments[-1]
        starts = state.identity.start_count + 1
        state.identity = state.identity._replace(start_count=starts)
        data = state.start_of_segment(segment.first_sequence)
        self._writer.begin(segment.number, data)
        state.next_sequence = segment.first_sequence + 1
        segment.size_bytes, segment.highest_index = len(data), self.last_index
        self.synced_index, self.synced_bytes = self.last_index, len(data)
        self._first_live_segment = state.first_live_segment

    # Contents

    @property
    def identity(self) -> VoterIdentity:
        return self._state.identity

    @property
    def first_index(self) -> int:
        """Index of the base, of which only the term is known, not the command."""
        return self._state.log.first_index

    @property
    def last_index(self) -> int:
        return self._state.log.last_index

    @property
    def entry_bytes(self) -> int:
        """Bytes of the entries above the base, as encoded on disk."""
        return self._state.log.size_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, including entries that are not part of the log any more."""
        return sum(segment.size_bytes for segment in self._state.segments)

    def term_at(self, index: int) -> int | None:
        """None if there is no such entry (any more)."""
        return self._state.log.term_at(index)

    def entries(self, from_index: int, to_index: int, bytes_max: int) -> list[Entry]:
        """Entries of [from_index, to_index) with at most `bytes_max` of commands, at least one."""
        items, start = self._state.log.items, from_index - self.first_index
        assert start > 0, f"entry {from_index} is below the log, whose base is {self.first_index}"
        end, size = start, 0
        stop = min(to_index - self.first_index, len(items))
        # At least one entry, even if it is larger.
        while end < stop and (size := size + len(items[end][0])) <= bytes_max:
            end += 1
        return items[start : max(end, min(start + 1, stop))]

    # PySyncObj's interface

    def __len__(self) -> int:
        return len(self._state.log.items)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._state.log.items[item]

    def add(self, command: bytes, idx: int, term: int) -> None:
        log = self._state.log
        if self._in_message and idx <= log.last_index:
            if term == log.term_at(idx):  # held already: stock PySyncObj would rewrite it (H2)
                held = log.items[idx - log.first_index][0]
                assert held == command, f"two commands for entry {idx} of term {term}"
                return
            self._cut_conflict(idx)
        _, last_index, last_term = log.items[-1]
        assert idx == last_index + 1, f"entry {idx} cannot follow entry {last_index}"
        assert last_term <= term <= self._state.term, f"{last_term}, {term}, {self._state.term}"
        entry = (command, idx, term)
        log.append(entry)
        self._pending.add_entry(entry)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """PySyncObj calls this before it adds a leader's entries, even without a conflict. Deleted
        is only on conflict, by `add` (H2 of decision 0011).
        """
        assert entryFrom > 0, "the base cannot be deleted"
        self._in_message = True

    def end_message(self) -> None:
        """The entries of one message were added; if none conflicted, nothing was deleted."""
        self._in_message = False

    def deleteEntriesTo(self, entryTo: int) -> None:
        self.compact(self.first_index + entryTo, 0)

    def clear(self) -> None:
        raise AssertionError("a journal is never cleared: a snapshot calls install_base")

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:
        state = self._state
        assert may_vote(state, term, votedForNodeId), (
            f"term {term}, vote {votedForNodeId} after {state.term}, {state.voted_for}"
        )
        # Unchanged: no record, and no sync.
        if (term, votedForNodeId) != (state.term, state.voted_for):
            state.term, state.voted_for = term, votedForNodeId
            self._pending.add_vote(term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        return self._state.term

    def getVotedForNodeId(self) -> int | None:
        return self._state.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """A hint for the next start, written along with the next batch, never by itself."""
        assert raftCommitIndex <= self.last_index, f"{raftCommitIndex} is beyond the log's end"
        self._state.commit_index = max(self._state.commit_index, raftCommitIndex)

    def getRaftCommitIndex(self) -> int:
        return max(self._state.commit_index, self.first_index)

    def onOneSecondTimer(self) -> None:
        pass  # the journal has no timers

    def _destroy(self) -> None:
        self.close()

    # Other changes

    def set_standing(self, standing: Standing) -> None:
        self._set_identity(self.identity._replace(standing=standing))

    def set_enrolled_index(self, index: int) -> None:
        """An older enrolment that is applied again after a restart changes nothing."""
        index = max(index, self.identity.enrolled_index)
        self._set_identity(self.identity._replace(enrolled_index=index))

    def install_base(self, index: int, term: int) -> None:
        """A durable snapshot ends with this entry: keep the entries behind it, or none."""
        state = self._state
        if self.term_at(index) == term:  # the log continues the snapshot
            self._rebase(index)
        else:
            assert index > state.commit_index, f"the snapshot denies committed entry {index}"
            self._change_from(index)
            state.restart(index, term)
            self._pending.add_bounds(state.bounds)
        state.commit_index = max(state.commit_index, index)

    def compact(self, snapshot_index: int, trailing: int) -> None:
        """Drop entries that a durable snapshot covers, except for the last `trailing` of them."""
        assert snapshot_index <= self._state.commit_index, f"{snapshot_index} is not committed"
        self._rebase(max(snapshot_index - trailing, self.first_index))

    # To the disk

    @property
    def dirty(self) -> bool:
        return self._pending.record_count > 0

    def prepare(self) -> JournalWrite | None:
        """All pending records as one write; None if there are none.

        Raises:
            StorageError: a write failed before; only a restart helps.
        """
        self._writer.check()
        assert self._in_flight is None, "one batch at a time"
        if not self.dirty:  # an idle node writes nothing
            return None
        rolls = self._must_roll or self._state.segments[-1].size_bytes >= self._segment_bytes
        data = self._start_segment() if rolls else self._build_pending()
        self._pending, self._hint = BatchBuilder(), self._state.commit_index
        self._changed_from = _NOWHERE
        self._in_flight = self._batch(data, is_new_segment=rolls)
        return self._in_flight

    def complete(self, batch: JournalWrite) -> None:
        """Its `write` has returned."""
        assert batch is self._in_flight, "another batch is in flight"
        self._in_flight = None
        self.synced_bytes += len(batch.data)
        self.synced_index = min(batch.last_index, self._changed_from - 1)
        self._first_live_segment = batch.first_live_segment

    @property
    def has_removals(self) -> bool:
        is_old = self._state.segments[0].number < self._first_live_segment
        return is_old and self._removal is None

    def prepare_removal(self) -> Removal | None:
        """Segments that are not needed any more; None if there are none, or a removal runs."""
        numbers = [segment.number for segment in self._state.segments]
        numbers = [number for number in numbers if number < self._first_live_segment]
        if self._removal or not numbers:  # one removal at a time
            return None
        self._removal = Removal(self._writer.files, self._writer.directory, numbers)
        return self._removal

    def removed(self, removal: Removal) -> None:
        """Its `run` has returned. Not called after an error: then no more segments are removed."""
        assert removal is self._removal, "another removal is under way"
        self._removal = None
        del self._state.segments[: len(removal.numbers)]

    def close(self) -> None:
        """Close the file; later writes fail."""
        self._writer.close()

    def _build_pending(self) -> bytes:
        state = self._state
        if state.commit_index > self._hint:  # written only along with other records: it is a hint
            self._pending.add_commit(state.commit_index)
        return self._pending.build(state.next_sequence, state.identity.disk_id)

    def _start_segment(self) -> bytes:
        """A new segment begins with the whole present state, which replaces the pending records."""
        state = self._state
        number = state.segments[-1].number + 1
        state.segments.append(JournalSegment(number, state.next_sequence))
        self._must_roll = False
        return state.start_of_segment(state.next_sequence)

    def _batch(self, data: bytes, *, is_new_segment: bool) -> JournalWrite:
        state, segment = self._state, self._state.segments[-1]
        segment.size_bytes += len(data)
        segment.highest_index = self.last_index
        state.next_sequence += 1
        return JournalWrite(
            self._writer,
            data,
            new_segment=segment.number if is_new_segment else None,
            last_index=self.last_index,
            first_live_segment=state.first_live_segment,
        )

    def _set_identity(self, identity: VoterIdentity) -> None:
        assert self.identity.may_become(identity), f"{self.identity} cannot become {identity}"
        if identity != self.identity:  # unchanged: no record, and no sync
            self._state.identity = identity
            self._pending.add_identity(identity)

    def _cut_conflict(self, index: int) -> None:
        commit_index = self._state.commit_index
        assert index > commit_index, f"entry {index} conflicts, and {commit_index} is committed"
        self._change_from(index)
        self._state.cut(index - 1)
        self._pending.add_bounds(self._state.bounds)

    def _change_from(self, index: int) -> None:
        """Entries from `index` on were replaced: what was synced of them does not count."""
        self.synced_index = min(self.synced_index, index - 1)
        self._changed_from = min(self._changed_from, index)

    def _rebase(self, index: int) -> None:
        if index == self.first_index:  # nothing to drop
            return
        self._state.log.rebase(index)
        self._pending.add_bounds(self._state.bounds)
        self._must_roll = self._must_roll or self._is_mostly_dead(index)

    def _is_mostly_dead(self, base_index: int) -> bool:
        """Whether most entries of the last segment are below the base: a new one should begin, so
        that this one can be removed.
        """
        segments = self._state.segments
        older = segments[-2].highest_index if len(segments) > 1 else 1
        return base_index - older > segments[-1].highest_index - base_index


# -- Journal verify -------------------------------------------------------------------------------
# Verification of a journal on disk, for an operator; reads only.
#
# Owns only the summary: torn and damaged ends are told apart in `replay`. Checked are the bytes and
# the order of entries, not the commands in them.


class JournalSummary(NamedTuple):
    """An undamaged journal. `first_index` is that of the base, which entries follow."""

    identity: VoterIdentity
    term: int
    voted_for: int | None
    commit_index: int
    first_index: int
    last_index: int
    last_term: int
    segment_count: int
    batch_count: int
    size_bytes: int
    torn_bytes: int

    @property
    def entry_count(self) -> int:
        return self.last_index - self.first_index


class JournalReport(NamedTuple):
    """Exactly one field is not None; both are None if there is no journal."""

    summary: JournalSummary | None
    damage: str | None


def verify_journal(files: Files, directory: Path) -> JournalReport:
    """Read all of the journal in `directory`. Not while its node runs: a write looks torn.

    Raises:
        StorageError: it could not be read.
    """
    try:
        state = replay_journal(files, directory)
    except CorruptJournal as error:  # an answer for the operator, not a failure of the check
        return JournalReport(None, str(error))
    return JournalReport(None if state is None else _summary(state), None)


def _summary(state: JournalState) -> JournalSummary:
    return JournalSummary(
        identity=state.identity,
        term=state.term,
        voted_for=state.voted_for,
        commit_index=state.commit_index,
        first_index=state.log.first_index,
        last_index=state.log.last_index,
        last_term=state.log.last_term,
        segment_count=len(state.segments),
        batch_count=sum(segment.batch_count for segment in state.segments),
        size_bytes=sum(segment.size_bytes for segment in state.segments),
        torn_bytes=state.torn_bytes,
    )
