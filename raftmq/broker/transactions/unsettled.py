"""Unsettled commits: which leaders to ask about which of them, when, and what may be forgotten.

Pure. Owns what this coordinator knows beyond the metadata: partitions that leaders have called
settled, until the metadata forget them. A commit is forgotten only on the word of the leader in the
leader epoch that an image names which shows the commit: one deposed before could say in good faith
that it has nothing of it (decision 0038).

Invariant: a partition is settled here only by such a word, or because it exists no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.metadata.commands import (
    NO_BROKER,
    PartitionId,
    SettledCommits,
    SettledTransaction,
)
from raftmq.metadata.image import MEMBERS_MAX, slot_of
from raftmq.metadata.transactions import MEMBER_EPOCH
from raftmq.wire.bodies import PARTITIONS_MAX
from raftmq.wire.messages.transactions import (
    SETTLED_MAX,
    CommittedTransaction,
    PartitionToSettle,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from raftmq.metadata.image import MetadataImage, TransactionState
    from raftmq.wire.messages.transactions import PartitionSettled

ROUND_SECONDS = 0.5  # between questions: most commits are settled by the first one
# A commit whose leaders are silent, or cannot settle it, is asked for less and less often.
PAUSE_SECONDS_MAX = 30.0
QUICK_SECONDS = 0.01  # the first pause where a client waits; a marker takes a few milliseconds
REST_SECONDS = 2.0  # then no end of that id is about to come, which would forget it at no cost
# Settled partitions that go along with one end. The rest follows with the next ones.
ALONG_MAX = 200
FORGOTTEN_MAX = 2_000  # partitions in one ForgetSettled, as in a command of ends

Transaction: TypeAlias = tuple[int, int]  # producer id and epoch
Partition: TypeAlias = tuple[bytes, int]  # topic id and number
Questions: TypeAlias = tuple[PartitionToSettle, ...]


class _Commit:
    """Attributes:
    waiting: partitions that no leader has called settled yet.
    settled: the others that the metadata still list.
    producer_ids: how many it may have: of a shared one all of its block.
    since: when it was seen first.
    progress_at: when a partition was settled last.
    """

    __slots__ = (
        "ask_at", "pause", "producer_ids", "progress_at", "settled", "since", "waiting"
    )  # fmt: skip

    def __init__(self, partitions: Iterable[Partition], now: float, producer_ids: int = 1) -> None:
        self.producer_ids = producer_ids
        self.waiting, self.settled = dict.fromkeys(partitions), dict[Partition, None]()
        self.since = self.progress_at = self.ask_at = now
        self.pause = ROUND_SECONDS

    def keep(self, partitions: Iterable[Partition]) -> None:
        """The metadata list these now: never more than before."""
        listed = frozenset(partitions)
        self.waiting = {each: None for each in self.waiting if each in listed}
        self.settled = {each: None for each in self.settled if each in listed}

    def settle(self, partition: Partition, now: float) -> bool:
        """Whether that was not known before."""
        if partition not in self.waiting:
            return False
        del self.waiting[partition]
        self.settled[partition] = None
        self.progress_at = now
        return True


class _Wanted:
    """A transaction id of which clients wait until commits are settled."""

    __slots__ = ("ask_at", "count", "pause")

    def __init__(self, now: float) -> None:
        self.count, self.ask_at, self.pause = 0, now, QUICK_SECONDS


class Backlog(NamedTuple):
    """Commits that are not settled, and for how long the oldest of them."""

    commits: int
    oldest_seconds: float


class UnsettledCommits:
    """Of the transaction ids that this broker coordinates."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[Transaction, _Commit]] = {}
        self._names: dict[Transaction, str] = {}  # of their ids
        self._wanted: dict[str, _Wanted] = {}
        self._moved: set[str] = set()
        # Commits that were settled as a whole are counted, with the newest one of each id.
        self._count, self._newest = 0, dict[str, int]()

    # What the metadata say

    def note(self, transaction_id: str, state: TransactionState | None, now: float) -> None:
        """The row of an id, by a newer image than before; None: it is gone, or of another slot."""
        known = self._forget(transaction_id)
        commits = {}
        for listed in () if state is None else state.settling:
            key = (listed.producer_id, listed.producer_epoch)
            commit = known.get(key)
            if commit is None:
                # Not only of the members that count: what is open of others would be said to be
                # aborted all the same, and is by then.
                producer_ids = MEMBERS_MAX if listed.numbers else 1
                commit = _Commit(listed.partitions, now, producer_ids)
            else:
                commit.keep(listed.partitions)
            commits[key] = commit
            self._names[key] = transaction_id
        if commits:
            self._ids[transaction_id] = commits
        elif transaction_id not in self._wanted:  # its next commits are others
            self._newest.pop(transaction_id, None)

    def _forget(self, transaction_id: str) -> dict[Transaction, _Commit]:
        known = self._ids.pop(transaction_id, {})
        for transaction in known:
            del self._names[transaction]
        return known

    def id_of_block(self, block: int) -> str | None:
        """Whose commit of that block is known here."""
        return self._names.get((block, MEMBER_EPOCH))

    def gone(self, image: MetadataImage) -> list[str]:
        """Ids that are known here and not in the image."""
        return [name for name in self._ids if name not in image.transactions]

    def drop_slots(self, owned: Container[int]) -> None:
        """Forget ids of all other slots: somebody else coordinates them."""
        for name in [name for name in self._ids if slot_of(name) not in owned]:
            self._forget(name)
            self._newest.pop(name, None)

    # Who waits

    def want(self, transaction_id: str, now: float) -> None:
        """A client waits: ask at once, and often. Paired with `unwant`."""
        wanted = self._wanted.setdefault(transaction_id, _Wanted(now))
        wanted.count += 1
        wanted.ask_at, wanted.pause = now, QUICK_SECONDS

    def unwant(self, transaction_id: str) -> bool:
        """Whether others wait for this id."""
        wanted = self._wanted[transaction_id]
        wanted.count -= 1
        if not wanted.count:
            del self._wanted[transaction_id]
        return wanted.count > 0

    def wake_at(self, round_at: float) -> float:
        """When to ask next: at the next round, or earlier for those who wait."""
        return min((wanted.ask_at for wanted in self._wanted.values()), default=round_at)

    # Questions

    def questions(
        self, image: MetadataImage, now: float, *, busy: Container[int] = ()
    ) -> dict[int, Questions]:
        """What to ask which broker now, by an image at or after those that were noted. Brokers that
        are `busy` have a question already.

        Partitions that exist no more are settled on the way.
        """
        asked: dict[int, _Sheet] = {}
        for transaction, commit in self._due(now):
            for partition in list(commit.waiting):
                state = image.partitions.get(PartitionId(*partition))
                if state is None:  # its topic was deleted: nobody will read it
                    self._settle(transaction, partition, now)
                elif state.leader != NO_BROKER and state.leader not in busy:
                    sheet = asked.setdefault(state.leader, _Sheet())
                    told = CommittedTransaction(*transaction, commit.producer_ids)
                    sheet.add(partition, state.leader_epoch, told)
        return {broker_id: sheet.questions() for broker_id, sheet in asked.items()}

    def _due(self, now: float) -> Iterator[tuple[Transaction, _Commit]]:
        for name, commits in self._ids.items():
            wanted = self._wanted.get(name)
            is_wanted = wanted is not None and wanted.ask_at <= now
            for transaction, commit in commits.items():
                if commit.waiting and (is_wanted or commit.ask_at <= now):
                    commit.ask_at = now + commit.pause
                    if not is_wanted:
                        commit.pause = min(2 * commit.pause, PAUSE_SECONDS_MAX)
                    yield transaction, commit
        for wanted in self._wanted.values():  # also of ids whose commit no image shows yet
            if wanted.ask_at <= now:
                wanted.ask_at = now + wanted.pause
                wanted.pause = min(2 * wanted.pause, ROUND_SECONDS)

    def on_answers(self, asked: Questions, answers: Iterable[PartitionSettled], now: float) -> None:
        said = {(one.topic_id, one.partition): one for one in answers}
        for question in asked:
            partition = (question.topic_id, question.partition)
            answer = said.get(partition)
            # No answer, an error, or a broker that did not read the question.
            if answer is None or answer.error or len(answer.settled) != len(question.transactions):
                continue
            for one, is_settled in zip(question.transactions, answer.settled, strict=True):
                if is_settled:
                    self._settle((one.producer_id, one.producer_epoch), partition, now)

    def _settle(self, transaction: Transaction, partition: Partition, now: float) -> None:
        name = self._names.get(transaction)
        if name is None:  # forgotten since it was asked about
            return
        commit = self._ids[name][transaction]
        if commit.settle(partition, now):
            self._moved.add(name)
            if not commit.waiting:
                self._count += 1
                self._newest[name] = self._count

    def take_moved(self) -> set[str]:
        """The ids of which something was settled since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    # What is settled

    def is_settled(self, transaction_id: str, transaction: Transaction) -> bool:
        """Whether this commit is settled. One that no image shows (any more) counts as settled: the
        caller knows that an image has shown it.
        """
        commit = self._ids.get(transaction_id, {}).get(transaction)
        return commit is None or not commit.waiting

    @property
    def settled_count(self) -> int:
        """Commits of all ids that were settled as a whole so far."""
        return self._count

    def has_settled_since(self, transaction_id: str, seen: int) -> bool:
        """Whether a commit of the id was among those after the first `seen`."""
        return self._newest.get(transaction_id, 0) > seen

    def unsettled_count(self, transaction_id: str, state: TransactionState) -> int:
        """Commits that this row lists and that are not known to be settled as a whole."""
        commits = self._ids.get(transaction_id, {})
        settled = {key for key, commit in commits.items() if not commit.waiting}
        listed = [(one.producer_id, one.producer_epoch) for one in state.settling]
        return sum(key not in settled for key in listed)

    def settled_of(self, transaction_id: str) -> tuple[SettledTransaction, ...]:
        """What the next end of the id lets the metadata forget; the oldest first."""
        return tuple(_settled(self._ids.get(transaction_id, {}), ALONG_MAX))

    def to_forget(self, now: float) -> dict[int, tuple[SettledCommits, ...]]:
        """By slot, for one command each: what ids that rest have settled."""
        found: dict[int, list[SettledCommits]] = {}
        room: dict[int, int] = {}
        for name, commits in self._ids.items():
            resting = {
                transaction: commit
                for transaction, commit in commits.items()
                if commit.settled and now - commit.progress_at >= REST_SECONDS
            }
            slot = slot_of(name) if resting else -1
            left = room.setdefault(slot, FORGOTTEN_MAX)
            if resting and left > 0:
                settled = tuple(_settled(resting, left))
                room[slot] -= sum(len(one.partitions) for one in settled)
                found.setdefault(slot, []).append(SettledCommits(name, settled))
        return {slot: tuple(commits) for slot, commits in found.items()}

    def backlog(self, now: float) -> Backlog:
        """Of the commits that wait for leaders."""
        found = [_backlog(commits, now) for commits in self._ids.values()]
        oldest = max((one.oldest_seconds for one in found), default=0.0)
        return Backlog(sum(one.commits for one in found), oldest)

    def overdue(self, now: float, seconds: float) -> dict[str, Backlog]:
        """Of the ids with a commit that waits for longer."""
        found = {name: _backlog(commits, now) for name, commits in self._ids.items()}
        return {name: one for name, one in found.items() if one.oldest_seconds > seconds}


def _backlog(commits: dict[Transaction, _Commit], now: float) -> Backlog:
    since = [commit.since for commit in commits.values() if commit.waiting]
    return Backlog(len(since), now - min(since, default=now))


def _settled(commits: dict[Transaction, _Commit], count: int) -> Iterator[SettledTransaction]:
    """At most `count` partitions, but at least one commit whole."""
    for transaction, commit in commits.items():
        if count <= 0:
            return
        if commit.settled:
            count -= len(commit.settled)
            yield SettledTransaction(*transaction, tuple(commit.settled))


class _Sheet:
    """Questions to one broker: what does not fit is asked with a later round."""

    def __init__(self) -> None:
        self._count = 0
        self._partitions: dict[tuple[Partition, int], list[CommittedTransaction]] = {}

    def add(
        self, partition: Partition, leader_epoch: int, transaction: CommittedTransaction
    ) -> None:
        if self._count < SETTLED_MAX and len(self._partitions) < PARTITIONS_MAX:
            self._count += 1
            asked = self._partitions.setdefault((partition, leader_epoch), [])
            asked.append(transaction)

    def questions(self) -> Questions:
        return tuple(
            PartitionToSettle(*partition, leader_epoch, tuple(transactions))
            for (partition, leader_epoch), transactions in self._partitions.items()
        )
