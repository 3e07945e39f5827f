"""What a journal on disk holds, for a person who asks; reads only.

Owns nothing but the summary: what is torn and what is damaged is decided in `journal_replay`.
Entries are checked as far as the journal can: their bytes and order, not what they mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.journal_replay import replay_journal

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.metadata.raft.journal_format import Identity
    from raftmq.metadata.raft.journal_state import JournalState


class JournalSummary(NamedTuple):
    """A sound journal. `first_index` is of the base; entries follow it."""

    identity: Identity
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
    """Exactly one is not None, or there is no journal at all."""

    summary: JournalSummary | None
    damage: str | None


def verify_journal(files: Files, directory: Path) -> JournalReport:
    """Read all of the journal in `directory`. Not while its node runs: a write looks torn.

    Raises:
        StorageError: it could not be read.
    """
    try:
        state = replay_journal(files, directory)
    except CorruptJournal as error:
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
