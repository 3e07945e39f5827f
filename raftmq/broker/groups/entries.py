"""What waits in the line of a slot: commits, changes, and decisions that need a fresh look.

Pure. An entry says what it wants and whom to tell; the line (`pipeline.py`) says when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from raftmq.errors import RaftmqError
from raftmq.metadata.commands import AnyResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.metadata.commands import AnyCommand, OffsetCommit
    from raftmq.metadata.image import MetadataImage

COMMIT_BYTES = 64  # of one in a command, beside its metadata
CHANGE_BYTES = 1_000  # of anything else that waits: it is no commit, and there are few

# What it came to: a result that is no refusal, or an error that says whether it may have happened.
Outcome: TypeAlias = AnyResult | RaftmqError


class Entry:
    """Attributes:
    tell: called once with the outcome, unless it was withdrawn.
    size: the bytes that it takes, about.
    is_sent: it may have reached the quorum.
    """

    __slots__ = ("is_sent", "is_withdrawn", "size", "tell")

    def __init__(self, tell: Callable[[Outcome], None], size: int = CHANGE_BYTES) -> None:
        self.tell, self.size = tell, size
        self.is_sent = self.is_withdrawn = False


class Commits(Entry):
    """Offsets of one group, each partition once. `OffsetsCommitted` names those of this entry."""

    __slots__ = ("commits", "group")

    def __init__(
        self, group: str, commits: Sequence[OffsetCommit], tell: Callable[[Outcome], None]
    ) -> None:
        super().__init__(tell, sum(map(size_of, commits)))
        self.group, self.commits = group, tuple(commits)


class Change(Entry):
    """One command, which stands for itself."""

    __slots__ = ("command",)

    def __init__(self, command: AnyCommand, tell: Callable[[Outcome], None]) -> None:
        super().__init__(tell)
        self.command = command


class Decision(Entry):
    """A command that depends on what is there: `decide` is given an image that shows all that was
    in line before it, and nothing comes in between. It returns None if there is nothing to do.
    """

    __slots__ = ("decide",)

    def __init__(
        self,
        decide: Callable[[MetadataImage], AnyCommand | None],
        tell: Callable[[Outcome], None],
    ) -> None:
        super().__init__(tell)
        self.decide = decide


def size_of(commit: OffsetCommit) -> int:
    """In a command, at most."""
    return COMMIT_BYTES + (len(commit.metadata.encode()) if commit.metadata else 0)
