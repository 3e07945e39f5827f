"""Journal recovery: replays the Raft journal, and tells a torn write from damage.

Owns the verdict on every byte; writes nothing. A batch is written only after its predecessor was
synced, and a segment begins with a whole batch. So a bad batch is a torn write, and harmless, in
one case only: in the last segment, behind its first batch, with no whole batch of a higher sequence
anywhere behind it. All other bad bytes were durable once: CorruptJournal.
"""

from __future__ import annotations

from struct import error as StructError
from typing import TYPE_CHECKING

from raftmq.errors import CorruptJournal, CorruptRecord
from raftmq.metadata.raft.journal import format as form
from raftmq.metadata.raft.journal.format import Entries, JournalSegment, JournalState
from raftmq.metadata.raft.journal.segments import segment_numbers, segment_path

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.metadata.raft.journal.format import JournalBatchHeader, JournalBounds, Record


def replay_journal(files: Files, directory: Path) -> JournalState | None:
    """The state of the journal in `directory`; None if there is no journal.

    Raises:
        CorruptJournal: with file, byte, and what the operator can do.
    """
    numbers = segment_numbers(files.names(directory))
    if not numbers:  # a new voter
        return None
    for number in range(numbers[0], numbers[-1]):
        # Segments are removed from the oldest on, so a gap is a lost file.
        if number not in numbers:
            raise corrupt(segment_path(directory, number), "the file is missing")
    replay = Replay(directory, last_number=numbers[-1])
    for number in numbers:
        file = files.open(segment_path(directory, number))
        replay.read_segment(number, file.read(0, file.size()))
    return replay.finish()


def corrupt(path: Path, what: str) -> CorruptJournal:
    """`path` is that of a segment, present or missing: <voter's directory>/journal/<segment>."""
    voters_own = path.parent.parent
    return CorruptJournal(
        f"{path}: {what}. What this voter promised cannot be trusted any more. While the other"
        f" voters have a majority, move all of {voters_own} away (keep it) and start with an empty"
        " directory and `-o quorum.replace=true`: the voter will fetch everything from them. Where"
        " they have none, or there are no others, an empty directory would begin anew with"
        " nothing: find out what befell this file first"
    )


class Replay:
    """Reads segment after segment.

    Entries between `_base_index` and the log's first were in segments that were removed. That is
    valid if a later record raises the base above them, or cuts them off.
    """

    def __init__(self, directory: Path, *, last_number: int) -> None:
        self._directory, self._last_number = directory, last_number
        self._path = directory
        self._position = 0
        self._state: JournalState | None = None
        self._is_bounded = False
        self._base_index = 0

    @property
    def state(self) -> JournalState:
        if self._state is None:
            raise self._corrupt("the journal does not begin with an identity")
        return self._state

    def read_segment(self, number: int, data: bytes) -> None:
        self._path, self._position = segment_path(self._directory, number), 0
        is_first = True
        while is_first or self._position < len(data):  # an empty file has no first batch: damaged
            header = form.find_batch(data, self._position)
            if header is None:  # torn or damaged
                self._end_torn(number, data)
                break
            self._read_batch(number, data, header, is_first=is_first)
            is_first = False
        self.state.segments[-1].size_bytes = self._position

    def finish(self) -> JournalState:
        first, state = self.state.log.first_index, self.state
        if self._base_index != first:  # its base rises above entries that no segment has
            missing = f"the entries from {self._base_index + 1} to {first}"
            number = state.segments[0].number
            self._path = segment_path(self._directory, number - 1)
            raise self._corrupt(f"the file is missing, and {missing} with it", is_at_byte=False)
        return state

    def _corrupt(self, what: str, *, is_at_byte: bool = True) -> CorruptJournal:
        return corrupt(self._path, f"at byte {self._position}: {what}" if is_at_byte else what)

    # Batches

    def _read_batch(
        self, number: int, data: bytes, header: JournalBatchHeader, *, is_first: bool
    ) -> None:
        self._check_header(header)
        try:
            for record in form.records(data, header):
                self._apply(record)
        except (CorruptRecord, StructError, ValueError) as error:
            raise self._corrupt(f"batch {header.sequence} makes no sense: {error}") from error
        if is_first:  # after its records: the first segment's identity makes the state
            self.state.segments.append(JournalSegment(number, header.sequence))
        self._end_batch(header)

    def _check_header(self, header: JournalBatchHeader) -> None:
        if header.version != form.VERSION:
            raise CorruptJournal(  # nothing is lost, and nothing is to be moved away
                f"{self._path}: at byte {self._position}: written in version {header.version} of"
                f" the format, this program reads {form.VERSION}: run the newer one"
            )
        if self._state is None:  # the first batch, whose identity sets what is expected
            return
        # A file that was copied from another voter.
        if header.disk != self.state.identity.disk_id[:8]:
            raise self._corrupt(f"batch {header.sequence} is from another voter's journal")
        expected = self.state.next_sequence
        if header.sequence != expected:  # a batch is missing, or one is there twice
            raise self._corrupt(f"batch {expected} should follow, and batch {header.sequence} does")

    def _end_batch(self, header: JournalBatchHeader) -> None:
        state = self.state
        if not self._is_bounded:  # the first batch of a segment always has them
            raise self._corrupt("the journal does not begin with the bounds of its log")
        if state.commit_index > state.log.last_index:  # it was committed, so it was here once
            raise self._corrupt(
                f"the commit index is {state.commit_index}, the log ends at {state.log.last_index}"
            )
        state.next_sequence = header.sequence + 1
        state.segments[-1].highest_index = state.log.last_index
        state.segments[-1].batch_count += 1
        self._position = header.end

    def _end_torn(self, number: int, data: bytes) -> None:
        """The rest of `data` begins with no whole batch: raise, unless it is a torn write."""
        if self._position == 0:  # segments begin by an atomic replacement: never torn
            raise self._corrupt("the first batch of a segment is damaged")
        state = self.state
        if number != self._last_number:  # synced before the next segment was begun
            raise self._corrupt(f"batch {state.next_sequence} is damaged, and a segment follows")
        disk = state.identity.disk_id[:8]
        for later in form.later_batches(data, self._position + 1, disk):
            # A later batch is written only after this one was synced: so it was durable once.
            if later.sequence >= state.next_sequence:
                raise self._corrupt(
                    f"batch {state.next_sequence} is damaged, and batch {later.sequence}"
                    f" at byte {later.position} is not"
                )
        state.torn_bytes = len(data) - self._position

    # Records

    def _apply(self, record: Record) -> None:
        kind, first, second, body = record
        if kind == form.ENTRY:
            self._append(body, first, second)
        elif kind == form.BOUNDS:
            self._bound(form.read_bounds(record))
        elif kind == form.VOTE:
            self._vote(*form.read_vote(record))
        elif kind == form.COMMIT:
            self.state.commit_index = max(self.state.commit_index, first)
        elif kind == form.IDENTITY:
            self._identify(record)
        else:
            raise self._corrupt(f"a record of the unknown kind {kind}")

    def _append(self, command: bytes, index: int, term: int) -> None:
        _, last_index, last_term = self.state.log.items[-1]
        # Raft's log has no holes, and terms never fall.
        if index != last_index + 1 or term < last_term:
            raise self._corrupt(
                f"entry {index} of term {term} cannot follow entry {last_index} of term {last_term}"
            )
        self.state.log.append((command, index, term))

    def _vote(self, term: int, voted_for: int | None) -> None:
        state = self.state
        if not may_vote(state, term, voted_for):
            raise self._corrupt(
                f"a vote for {voted_for} in term {term} cannot follow one for {state.voted_for}"
                f" in term {state.term}"
            )
        state.term, state.voted_for = term, voted_for

    def _identify(self, record: Record) -> None:
        identity = form.read_identity(record)
        if self._state is None:  # the first record of a journal
            self._state = JournalState(identity, [])
        elif not self._state.identity.may_become(identity):
            raise self._corrupt(f"{self._state.identity} cannot become {identity}")
        self._state.identity = identity

    def _bound(self, bounds: JournalBounds) -> None:
        state, (base, _, last, last_term) = self.state, bounds
        if not self._is_bounded:
            self._is_bounded = True
            state.log = Entries(last, last_term)
        elif not self._fits(bounds):  # a faulty program, or a lost segment
            raise self._corrupt(f"{bounds} cannot follow {state.bounds}")
        elif last == base or last <= state.log.first_index:  # no entry that was read stays
            state.restart(last, last_term)
        else:
            state.cut(last)
            if base > state.log.first_index:
                state.log.rebase(base)
        self._base_index = base

    def _fits(self, bounds: JournalBounds) -> bool:
        """Whether the log so far was at least this long, with these terms, and nothing committed
        would be cut.
        """
        base, base_term, last, last_term = bounds
        log = self.state.log
        if last < self.state.commit_index or base < self._base_index or last < base:
            return False
        if last == base:  # an empty log continues any other: a snapshot was installed
            return True
        known = log.term_at(last) if last >= log.first_index else last_term
        known_base = log.term_at(base) if base >= log.first_index else base_term
        return (known, known_base) == (last_term, base_term)


def may_vote(state: JournalState, term: int, voted_for: int | None) -> bool:
    """A term never falls, and within a term a vote is given once."""
    if term == state.term:
        return state.voted_for in (None, voted_for)
    return term > state.term
