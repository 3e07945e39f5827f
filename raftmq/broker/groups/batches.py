"""Many commits into one command: which ones may share it, and what of it concerns each of them.

Pure. Of several commits of a partition the last one counts. One that expects an offset stands for
itself: whatever else is about its partition goes into another command, before it or after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.groups.entries import Commits, size_of
from raftmq.metadata.apply.limits import EXPECTED_COMMITS_MAX
from raftmq.metadata.commands import CommitOffsets, GroupCommits, OffsetsCommitted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.broker.groups.entries import Entry
    from raftmq.metadata.commands import OffsetCommit

BATCH_BYTES_MAX = 1 << 19  # half of what a command may have
BATCH_COMMITS_MAX = 4_000  # it blocks every node while it is applied


class Batch:
    """Attributes:
    entries: whose commits are in it, in order.
    """

    def __init__(self) -> None:
        self.entries: list[Commits] = []
        self._groups: dict[str, dict[tuple[bytes, int], OffsetCommit]] = {}
        self._size = self._count = self._expected = 0

    def maybe_add(self, entry: Commits) -> bool:
        """False: it belongs into the next one. The first one always fits."""
        known = self._groups.get(entry.group, {})
        expected = sum(commit.expected is not None for commit in entry.commits)
        if self.entries and not (
            self._has_room(entry, expected) and _can_share(known, entry.commits)
        ):
            return False
        known = self._groups.setdefault(entry.group, known)
        for commit in entry.commits:
            key = (commit.topic_id, commit.partition)
            before = known.pop(key, None)
            self._size += size_of(commit) - (0 if before is None else size_of(before))
            self._count += before is None
            known[key] = commit
        self._expected += expected
        self.entries.append(entry)
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


def batch_of(line: Iterable[Entry]) -> Batch:
    """What of the front of the line goes into one command."""
    batch = Batch()
    for entry in line:
        if entry.is_withdrawn:
            continue
        if not isinstance(entry, Commits) or not batch.maybe_add(entry):
            break
    return batch


def part_of(result: OffsetsCommitted, entry: Commits) -> OffsetsCommitted:
    """What the command's result says of this entry."""
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


def _can_share(
    known: dict[tuple[bytes, int], OffsetCommit], commits: Iterable[OffsetCommit]
) -> bool:
    for commit in commits:
        before = known.get((commit.topic_id, commit.partition))
        if before is not None and (before.expected is not None or commit.expected is not None):
            return False
    return True
