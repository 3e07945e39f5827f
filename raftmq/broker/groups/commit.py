"""OffsetCommit requests: split into pipeline entries, and their outcomes joined into one reply.

Pure. A request that is too large for one command becomes several entries, which follow each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.groups.batches import size_of
from raftmq.broker.groups.checks import told
from raftmq.errors import ErrorCode, InvalidRequest, RaftmqError
from raftmq.metadata.apply.groups import OFFSET_METADATA_BYTES_MAX
from raftmq.metadata.commands import OffsetsCommitted, StoredOffset
from raftmq.wire.messages.group_offsets import CommitOutcome, OffsetCommitReply

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.broker.groups.batches import Outcome
    from raftmq.wire.messages.group_offsets import OffsetCommit as CommitRequest
    from raftmq.wire.messages.group_offsets import OffsetToCommit

PART_BYTES_MAX = 1 << 18  # two parts share a batch, see BATCH_BYTES_MAX
PART_COMMITS_MAX = 1_000  # all of them may expect an offset, see EXPECTED_COMMITS_MAX

Key = tuple[bytes, int]


def plan(
    request: CommitRequest, *, now_ms: int, counts_crashes: bool = False
) -> list[list[StoredOffset]]:
    """The commits, in parts for one command each, without those that are `_too_large`.

    Args:
        counts_crashes: whether nodes know who handles a record alone.

    Raises:
        InvalidRequest: a partition is named twice: it is unclear which offset counts.
    """
    keys = {(wanted.topic_id, wanted.partition) for wanted in request.partitions}
    if len(keys) < len(request.partitions):  # the last one would win silently
        raise InvalidRequest(f"group {request.group}: a partition is named twice, name it once")
    who = request.member_id if counts_crashes else ""
    commits = [
        _command_of(wanted, now_ms, who)
        for wanted in request.partitions
        if not _is_too_large(wanted)
    ]
    return list(_parts(commits))


def _parts(commits: Sequence[StoredOffset]) -> Iterator[list[StoredOffset]]:
    part: list[StoredOffset] = []
    size = 0
    for commit in commits:
        size += size_of(commit)
        # Full: the rest goes into another command.
        if part and (len(part) == PART_COMMITS_MAX or size > PART_BYTES_MAX):
            yield part
            part, size = [], size_of(commit)
        part.append(commit)
    if part:
        yield part


def answer(
    request: CommitRequest, parts: Sequence[tuple[Sequence[StoredOffset], Outcome]]
) -> OffsetCommitReply:
    """`parts`: the commits with their outcomes."""
    errors = [outcome for _, outcome in parts if isinstance(outcome, RaftmqError)]
    if errors and len(errors) == len(parts):  # the least certain one speaks for all
        return OffsetCommitReply(**told(min(errors, key=lambda error: error.definite)))
    found: dict[Key, CommitOutcome] = {}
    for commits, outcome in parts:
        found.update(_outcomes(commits, outcome))
    return OffsetCommitReply(
        partitions=tuple(
            found.get((wanted.topic_id, wanted.partition)) or _too_large(wanted)
            for wanted in request.partitions
        )
    )


def _outcomes(
    commits: Sequence[StoredOffset], outcome: Outcome
) -> Iterator[tuple[Key, CommitOutcome]]:
    code, refused = ErrorCode.NONE, dict[Key, int]()
    if isinstance(outcome, RaftmqError):  # the whole part has failed
        code = outcome.code
    else:
        assert isinstance(outcome, OffsetsCommitted), f"{outcome} to commits"
        refused = {(one.topic_id, one.partition): one.offset for one in outcome.refused}
    for commit in commits:
        key = (commit.topic_id, commit.partition)
        # Another offset was committed than expected: answer with that one.
        if key in refused:
            yield key, CommitOutcome(*key, ErrorCode.INVALID_UPDATE_VERSION, refused[key])
        else:
            yield key, CommitOutcome(*key, code)


def _command_of(wanted: OffsetToCommit, now_ms: int, who: str) -> StoredOffset:
    return StoredOffset(
        wanted.topic_id,
        wanted.partition,
        wanted.offset,
        wanted.leader_epoch,
        wanted.metadata,
        now_ms,
        wanted.expected,
        who if wanted.is_alone else "",
    )


def _is_too_large(wanted: OffsetToCommit) -> bool:
    """The wire format limits characters, the quorum bytes."""
    return len(wanted.metadata.encode()) > OFFSET_METADATA_BYTES_MAX


def _too_large(wanted: OffsetToCommit) -> CommitOutcome:
    assert _is_too_large(wanted), "all others have an outcome"
    return CommitOutcome(wanted.topic_id, wanted.partition, ErrorCode.OFFSET_METADATA_TOO_LARGE)
