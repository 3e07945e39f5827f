"""The random script of a voter's journal, and a model (a plain list) that says what is owed.

The script does what a Raft node may do, and no more; the model knows nothing of files. Owed at any
moment is the state after the last completed batch, or after the one that is being written, and
nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.raft.journal.journal import start_journal
from raftmq.metadata.raft.net.messages import Standing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from raftmq.disk.files import Files
    from raftmq.metadata.raft.journal.format import Entry
    from raftmq.metadata.raft.journal.journal import Journal

DIRECTORY = Path("/data/journal")
DISK_ID = bytes(range(16))
SEGMENT_BYTES = 2500  # so that segments come and go
BASE = (b"\x01", 1, 0)


class Picture(NamedTuple):
    """All that a journal says."""

    entries: tuple[Entry, ...] = (BASE,)
    term: int = 0
    voted_for: int | None = None
    commit_index: int = 1
    standing: Standing = Standing.BLANK
    enrolled_index: int = 0
    start_count: int = 0

    @property
    def started(self) -> Picture:
        return self._replace(start_count=self.start_count + 1)

    @property
    def first_index(self) -> int:
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        return self.entries[-1][1]

    @property
    def last_term(self) -> int:
        return self.entries[-1][2]

    def with_base(self, index: int, term: int) -> Picture:
        """Entries up to `index` are gone; all are, if another term stood there."""
        kept = tuple(entry for entry in self.entries if entry[1] > index)
        if (index, term) not in [entry[1:] for entry in self.entries]:
            kept = ()
        commit_index = max(self.commit_index, index)
        return self._replace(entries=((b"\x01", index, term), *kept), commit_index=commit_index)

    def with_message(self, entries: list[Entry]) -> Picture:
        """What Raft demands: the first conflict ends the old log, a repetition changes nothing."""
        log = list(self.entries)
        for entry in entries:
            position = entry[1] - self.first_index
            if position < len(log) and log[position][2] != entry[2]:
                del log[position:]
            log[position : position + 1] = [entry]
        return self._replace(entries=tuple(log))


def picture_of(journal: Journal) -> Picture:
    identity = journal.identity
    return Picture(
        tuple(journal[:]),
        journal.getCurrentTerm(),
        journal.getVotedForNodeId(),
        journal.getRaftCommitIndex(),
        identity.standing,
        identity.enrolled_index,
        identity.start_count,
    )


def start(files: Files, directory: Path = DIRECTORY) -> Journal:
    return start_journal(
        files,
        directory,
        cluster_id="c",
        node_id=1,
        new_disk_id=DISK_ID,
        segment_bytes=SEGMENT_BYTES,
    )


class JournalScript:
    """Attributes:
    owed: pictures of which a restart must find one.
    """

    def __init__(self, files: Files, random: Random, directory: Path = DIRECTORY) -> None:
        self._files, self._random, self._directory = files, random, directory
        self.model = Picture()
        self.owed: tuple[Picture, ...] = (self.model,)
        self._journal: Journal
        self._steps = {
            self._append: 20,
            self._flush: 24,
            self._hear_leader: 12,
            self._commit: 6,
            self._vote: 4,
            self._remove: 4,
            self._compact: 2,
            self._restart: 2,
            self._install: 1,
            self._enrol: 1,
        }

    def run(self, steps: int) -> None:
        self._restart()
        for _ in range(steps):
            self._step()
        self._flush()

    def _step(self) -> None:
        [step] = self._random.choices(list(self._steps), list(self._steps.values()))
        step()
        assert picture_of(self._journal) == self.model, step.__name__

    # The disk

    def _restart(self) -> None:
        """The process ends in order, but what is pending was never promised."""
        [found] = self.owed
        self.owed = (found, found.started)
        self._journal = start(self._files, self._directory)
        self.model = found.started
        self.owed = (self.model,)
        assert picture_of(self._journal) == self.model

    def _flush(self) -> None:
        """One batch; while it is being written the node does something else, or nothing."""
        batch = self._journal.prepare()
        if batch is None:
            return
        prepared = self.model
        self.owed = (*self.owed, prepared)
        if self._random.random() < 0.5:
            meanwhile = (self._append, self._hear_leader, self._vote, self._remove, self._compact)
            self._random.choice(meanwhile)()
        batch.write()
        self._journal.complete(batch)
        self.owed = (prepared,)
        self._check_synced(prepared)

    def _check_synced(self, prepared: Picture) -> None:
        """`synced_index` never covers an entry that the disk does not hold."""
        synced = self._journal.synced_index
        now = {entry for entry in self.model.entries[1:] if entry[1] <= synced}
        assert now <= set(prepared.entries), f"synced_index is {synced}"

    def _remove(self) -> None:
        removal = self._journal.prepare_removal()
        if removal:
            removal.run()
            self._journal.removed(removal)

    # The node

    def _append(self) -> None:
        """As a leader does; it has a term."""
        if self.model.term == 0:
            self._vote()
        entries = list(self._new_entries(self.model.last_index))
        for entry in entries:
            self._journal.add(*entry)
        self._change(entries=self.model.entries + tuple(entries))

    def _new_entries(self, after: int) -> Iterator[Entry]:
        for index in range(after + 1, after + 1 + self._random.randrange(1, 5)):
            length = self._random.choice((0, 1, 30, 200, 700))
            yield self._random.randbytes(length), index, self.model.term

    def _hear_leader(self) -> None:
        """A message overlaps with the log, and sometimes conflicts with what is not committed."""
        if self._random.random() < 0.5:
            self._vote()
        model = self.model
        previous = self._random.randint(model.commit_index, model.last_index)
        known = list(model.entries[previous + 1 - model.first_index :])
        repeated = known[: self._random.randrange(len(known) + 1)]
        news: list[Entry] = []
        if self._random.random() < 0.8 and model.term > 0:
            last = repeated[-1][1] if repeated else previous
            news = list(self._new_entries(last))
        if news and last < model.last_index and known[len(repeated)][2] == model.term:
            news = []  # one leader does not say two things in one term
        self._journal.deleteEntriesFrom(previous + 1 - model.first_index)
        for entry in repeated + news:
            self._journal.add(*entry)
        self._journal.end_message()
        self.model = model.with_message(repeated + news)

    def _commit(self) -> None:
        index = self._random.randint(self.model.commit_index, self.model.last_index)
        self._journal.setRaftCommitIndex(index)
        self._change(commit_index=index)

    def _vote(self) -> None:
        term, voted_for = self.model.term, self.model.voted_for
        if voted_for is None and term and self._random.random() < 0.5:
            voted_for = self._random.randrange(3)
        else:
            term, voted_for = term + 1, self._random.choice((None, 0, 1, 2))
        self._journal.setCurrentTerm(term, voted_for)
        self._change(term=term, voted_for=voted_for)

    def _compact(self) -> None:
        index = self._random.randint(self.model.first_index, self.model.commit_index)
        trailing = self._random.choice((0, 3, 10))
        self._journal.compact(index, trailing)
        index = max(index - trailing, self.model.first_index)
        _, index, term = self.model.entries[index - self.model.first_index]
        self.model = self.model.with_base(index, term)

    def _install(self) -> None:
        """Of an entry that we have, or one beyond, or one where we have another term."""
        model, term = self.model, self.model.term
        choice = self._random.randrange(3)
        if choice == 0:
            _, index, term = self._random.choice(model.entries)
        elif choice == 1 or model.commit_index == model.last_index or model.last_term == term:
            index = model.last_index + self._random.randint(1, 50)
        else:
            index = model.last_index
        self._journal.install_base(index, term)
        self.model = model.with_base(index, term)

    def _enrol(self) -> None:
        index = max(self.model.enrolled_index, self.model.commit_index)
        self._journal.set_standing(Standing.ESTABLISHED)
        self._journal.set_enrolled_index(index)
        self._change(standing=Standing.ESTABLISHED, enrolled_index=index)

    def _change(self, **fields: object) -> None:
        self.model = self.model._replace(**fields)
