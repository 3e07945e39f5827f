"""Commit batching: which offset commits share one command, and each commit's part of the result.

Pure. Of several commits for a partition the last one counts. A commit that expects an offset does
not share its partition: other commits of it go into another command, before or after. What a line
needs of a batch is here, too: ends of transactions have batches of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from raftmq.errors import RaftmqError
from raftmq.metadata.apply.limits import EXPECTED_COMMITS_MAX
from raftmq.metadata.commands import AnyResult, CommitOffsets, GroupCommits, OffsetsCommitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from raftmq.metadata.commands import AnyCommand, StoredOffset
    from raftmq.metadata.image import MetadataImage


# -- Entries --------------------------------------------------------------------------------------
# What waits in the pipeline of a slot: commits, changes, and decisions that need a read barrier.
#
# Pure. An entry says what it wants and which callback gets the outcome; `pipeline.py` says when.


COMMIT_BYTES = 64  # estimate of one in a command, without its metadata
CHANGE_BYTES = 1_000  # estimate of anything else; there are few, so it need not be exact

# A result that is no refusal, or an error that says whether the entry may have been applied.
Outcome: TypeAlias = AnyResult | RaftmqError


class PipelineEntry:
    """Attributes:
    tell: called once with the outcome, unless the entry was withdrawn.
    size: about how many bytes it takes.
    is_sent: it may have reached the quorum.
    """

    __slots__ = ("is_sent", "is_withdrawn", "size", "tell")

    def __init__(self, tell: Callable[[Outcome], None], size: int = CHANGE_BYTES) -> None:
        self.tell, self.size = tell, size
        self.is_sent = self.is_withdrawn = False


class Batch(Protocol):
    """What entries of one kind share: a command, and its result."""

    def maybe_add(self, entry: Any) -> bool:  # noqa: ANN401  # an entry of this batch's kind
        """False: it belongs into the next batch. The first entry always fits."""
        ...

    def command(self, *, slot: int, slot_epoch: int) -> AnyCommand: ...

    def part_of(self, result: AnyResult, entry: Any) -> Outcome:  # noqa: ANN401  # as above
        """What the result of the command is to one of its entries."""
        ...


class SharedEntry(PipelineEntry):
    """Goes together with others of its kind, in their order."""

    __slots__ = ()

    def new_batch(self) -> Batch:
        raise NotImplementedError


class Commits(SharedEntry):
    """Offsets of one group, each partition once. `OffsetsCommitted` names those refused."""

    __slots__ = ("commits", "group")

    def __init__(
        self, group: str, commits: Sequence[StoredOffset], tell: Callable[[Outcome], None]
    ) -> None:
        super().__init__(tell, sum(map(size_of, commits)))
        self.group, self.commits = group, tuple(commits)

    def new_batch(self) -> CommitBatch:
        return CommitBatch()


class LoneCommand(PipelineEntry):
    """One command, alone."""

    __slots__ = ("command",)

    def __init__(self, command: AnyCommand, tell: Callable[[Outcome], None]) -> None:
        super().__init__(tell)
        self.command = command


class Decision(PipelineEntry):
    """A command that depends on the state: `decide` gets an image with everything that was in line
    before it, and nothing comes in between. It returns None if there is nothing to do.
    """

    __slots__ = ("decide",)

    def __init__(
        self,
        decide: Callable[[MetadataImage], AnyCommand | None],
        tell: Callable[[Outcome], None],
    ) -> None:
        super().__init__(tell)
        self.decide = decide


def size_of(commit: StoredOffset) -> int:
    """In a command, at most."""
    return COMMIT_BYTES + len(commit.metadata.encode()) + len(commit.alone_by.encode())


# -- Batches --------------------------------------------------------------------------------------


BATCH_BYTES_MAX = 1 << 19  # half of `COMMAND_BYTES_MAX`, as sizes are estimates
BATCH_COMMITS_MAX = 4_000  # applying a command blocks every node for as long


class CommitBatch:
    def __init__(self) -> None:
        self._is_empty = True
        self._groups: dict[str, dict[tuple[bytes, int], StoredOffset]] = {}
        self._size = self._count = self._expected = 0

    def maybe_add(self, entry: Commits) -> bool:
        known = self._groups.get(entry.group, {})
        expected = sum(commit.expected is not None for commit in entry.commits)
        # The first one must fit, or it would stay in line for ever.
        if not self._is_empty and not (
            self._has_room(entry, expected) and _can_share(known, entry.commits)
        ):
            return False
        known = self._groups.setdefault(entry.group, known)
        for commit in entry.commits:
            key = (commit.topic_id, commit.partition)
            # Popped and set again: the last commit of a partition counts, and comes last.
            before = known.pop(key, None)
            self._size += size_of(commit) - (0 if before is None else size_of(before))
            self._count += before is None
            known[key] = commit
        self._expected += expected
        self._is_empty = False
        return True

    def _has_room(self, entry: Commits, expected: int) -> bool:
        return (
            self._size + entry.size <= BATCH_BYTES_MAX
            and self._count + len(entry.commits) <= BATCH_COMMITS_MAX
            and self._expected + expected <= EXPECTED_COMMITS_MAX
        )

    def command(self, *, slot: int, slot_epoch: int) -> CommitOffsets:
        groups = [
            GroupCommits(group, tuple(commits.values())) for group, commits in self._groups.items()
        ]
        return CommitOffsets(slot, slot_epoch, tuple(groups))

    def part_of(self, result: AnyResult, entry: Commits) -> OffsetsCommitted:
        assert isinstance(result, OffsetsCommitted), f"{result} to commits"
        # The usual case: nothing was refused, and nothing needs to be sorted out.
        if not result.refused:
            return result
        own = {(commit.topic_id, commit.partition) for commit in entry.commits}
        return OffsetsCommitted(
            tuple(
                one
                for one in result.refused
                if one.group == entry.group and (one.topic_id, one.partition) in own
            )
        )


def shared_by(line: Iterable[PipelineEntry]) -> tuple[Batch, int]:
    """As much of the front of the line as goes into one command, and how many entries that is,
    withdrawn ones among them included. The first one is shared.
    """
    batch: Batch | None = None
    kind: type[PipelineEntry] | None = None
    count = 0
    for place, entry in enumerate(line, 1):
        if entry.is_withdrawn:  # its sender gave up: skipped, and dropped with the others
            continue
        # Order: a change or decision in between has to be applied in between.
        if not isinstance(entry, SharedEntry) or kind not in (None, type(entry)):
            break
        if batch is None:
            batch, kind = entry.new_batch(), type(entry)
        if not batch.maybe_add(entry):
            break
        count = place
    assert batch is not None, "the first entry is a shared one, and not withdrawn"
    return batch, count


def _can_share(
    known: dict[tuple[bytes, int], StoredOffset], commits: Iterable[StoredOffset]
) -> bool:
    for commit in commits:
        before = known.get((commit.topic_id, commit.partition))
        # An expected offset has to be compared with what was applied, not with a commit beside it.
        if before is not None and (before.expected is not None or commit.expected is not None):
            return False
    return True
