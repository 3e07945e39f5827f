"""What a journal says: the log, term and vote, the identity, and which segment holds what.

Pure. Both the reader of a journal and its writer keep one of these, so that the two cannot
differ in what a record means. The log is a list of tuples, as PySyncObj wants it; its first is
the base, a stand-in for everything up to a snapshot's last entry.

Invariants: indexes are contiguous and terms never fall; a segment's `highest_index` never
exceeds that of a later segment or the log's last index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftmq.metadata.raft.journal_format import RECORD_BYTES, BatchBuilder, Bounds

if TYPE_CHECKING:
    from raftmq.metadata.raft.journal_format import Entry, Identity

BASE_COMMAND = b"\x01"  # PySyncObj's NO_OP: an entry that changes nothing


class Entries:
    """A contiguous run of entries above a base."""

    def __init__(self, base_index: int, base_term: int) -> None:
        self.items: list[Entry] = []
        self.size_bytes = 0
        self.restart(base_index, base_term)

    @property
    def first_index(self) -> int:
        return self.items[0][1]

    @property
    def last_index(self) -> int:
        return self.items[-1][1]

    @property
    def last_term(self) -> int:
        return self.items[-1][2]

    def term_at(self, index: int) -> int | None:
        """None where the log has no such entry (any more)."""
        position = index - self.first_index
        return self.items[position][2] if 0 <= position < len(self.items) else None

    def append(self, entry: Entry) -> None:
        self.items.append(entry)
        self.size_bytes += RECORD_BYTES + len(entry[0])

    def above(self, index: int) -> list[Entry]:
        assert index >= self.first_index, f"entry {index} is below the base {self.first_index}"
        return self.items[index + 1 - self.first_index :]

    def cut(self, last_index: int) -> None:
        """Forget what stands above `last_index`."""
        removed = self.above(last_index)
        del self.items[len(self.items) - len(removed) :]
        self.size_bytes -= _size_of(removed)

    def rebase(self, index: int) -> None:
        """Forget what stands up to `index`, which becomes the base."""
        term, kept = self.term_at(index), self.above(index)
        assert term is not None, f"entry {index} is not between base and end"
        # Usually nearly all of a long log goes, on the event loop: count what stays.
        self.size_bytes = _size_of(kept)
        self.items = [(BASE_COMMAND, index, term), *kept]

    def restart(self, index: int, term: int) -> None:
        self.items = [(BASE_COMMAND, index, term)]
        self.size_bytes = 0


def _size_of(entries: list[Entry]) -> int:
    return len(entries) * RECORD_BYTES + sum(len(command) for command, _, _ in entries)


@dataclass
class Segment:
    """One file. No entry of the log above `highest_index` stands in it or in an older one."""

    number: int
    first_sequence: int
    size_bytes: int = 0
    highest_index: int = 0
    batch_count: int = 0


@dataclass
class JournalState:
    """All of it, after some batch."""

    identity: Identity
    segments: list[Segment]
    log: Entries = field(default_factory=lambda: Entries(1, 0))
    term: int = 0
    voted_for: int | None = None
    commit_index: int = 1
    next_sequence: int = 1
    torn_bytes: int = 0

    @property
    def bounds(self) -> Bounds:
        log = self.log
        return Bounds(*log.items[0][1:], log.last_index, log.last_term)

    def cut(self, last_index: int) -> None:
        """The log ends here now, whatever older segments hold."""
        self.log.cut(last_index)
        self.limit_segments(last_index)

    def limit_segments(self, last_index: int) -> None:
        for segment in self.segments:
            segment.highest_index = min(segment.highest_index, last_index)

    def restart(self, index: int, term: int) -> None:
        """Nothing of the log counts any more; it starts after this entry."""
        self.log.restart(index, term)
        self.limit_segments(index)

    @property
    def first_live_segment(self) -> int:
        """Nothing above the base stands in an older one; the last one always lives."""
        base = self.log.first_index
        live = (old.number for old in self.segments[:-1] if old.highest_index > base)
        return next(live, self.segments[-1].number)

    def start_of_segment(self, sequence: int) -> bytes:
        """The first batch of the last segment: all that must outlive the removal of older ones.

        Entries above what the older ones hold come with it.
        """
        log = self.log
        held = max([log.first_index, *(older.highest_index for older in self.segments[:-1])])
        held_term = log.term_at(held)
        assert held_term is not None, f"a segment claims entry {held}, the log ends before"
        batch = BatchBuilder()
        batch.add_identity(self.identity)
        batch.add_vote(self.term, self.voted_for)
        batch.add_bounds(self.bounds._replace(last_index=held, last_term=held_term))
        for entry in log.above(held):
            batch.add_entry(entry)
        batch.add_commit(self.commit_index)
        return batch.build(sequence, self.identity.disk_id)
