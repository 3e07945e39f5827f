"""Rules for consumer groups, committed offsets and coordinator slots (decision 0021).

Owns the compare-and-set on the slot epoch: of two coordinators that both believe to own a slot,
only the one assigned last changes anything. Which member may commit is checked by the coordinator,
not here. A commit needs neither a saved group (a consumer may assign its partitions itself) nor an
existing topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from immutables import Map

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.crashes import crashes_counted, crashes_kept
from raftmq.metadata.apply.limits import (
    EXPECTED_COMMITS_MAX,
    group_limits,
    group_room,
    partition_refusal,
)
from raftmq.metadata.commands import (
    NO_BROKER,
    NO_OFFSET,
    Done,
    OffsetRefused,
    OffsetsCommitted,
    PartitionId,
    Refused,
)
from raftmq.metadata.image import SLOT_COUNT, CommittedOffset, GroupState, SlotState, slot_of
from raftmq.model import GROUP_CHARS_MAX
from raftmq.wire.bodies import NUMBER_MAX

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AnyResult,
        AssignSlot,
        CommitOffsets,
        DeleteGroup,
        DeleteOffsets,
        GroupCommits,
        SaveGroup,
        SeenOffset,
        StoredOffset,
    )

OFFSET_METADATA_BYTES_MAX = 4096  # as Kafka's offset.metadata.max.bytes


def assign_slot(draft: Draft, command: AssignSlot) -> AnyResult:
    """The epoch rises even if the slot stays with its broker, which may be a new process now."""
    number, broker_id = command.slot, command.broker_id
    if not 0 <= number < SLOT_COUNT:
        message = f"slot {number}: there are 0 to {SLOT_COUNT - 1}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    epoch = draft.slot(number).epoch
    if epoch != command.expected_epoch:  # another controller was first
        message = f"slot {number} has epoch {epoch}, expected was {command.expected_epoch}"
        return Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
    if draft.broker(broker_id) is None:
        message = f"slot {number}: broker {broker_id} is not registered"
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    if not draft.is_active(broker_id):
        message = f"slot {number}: broker {broker_id} is fenced or stopping, choose another"
        return Refused(ErrorCode.BROKER_NOT_AVAILABLE, message)
    draft.put_slot(number, SlotState(broker_id, epoch + 1))
    return Done()


def save_group(draft: Draft, command: SaveGroup) -> AnyResult:
    refusal = (
        _group_refusal(draft, command.group, command.slot_epoch)
        or group_limits(command)
        or _members_refusal(command)
    )
    if refusal is not None:
        return refusal
    group = GroupState(
        generation=command.generation,
        protocol_type=command.protocol_type,
        protocol=command.protocol,
        leader=command.leader,
        members=command.members,
        changed_at_ms=command.changed_at_ms,
        tags=command.tags,
    )
    before = draft.group(command.group)
    if before == group:  # a retry
        return Done()
    # Only new groups count against the limit.
    if before is None and (refusal := group_room(command, draft.group_count)) is not None:
        return refusal
    lowest = 0 if before is None else before.generation + 1
    # A late save of an older generation, of a rebalance that another one has overtaken.
    if command.generation < lowest and not _is_return(before, group):
        message = (
            f"group {command.group}: generation {command.generation} is taken, the next is {lowest}"
        )
        return Refused(ErrorCode.ILLEGAL_GENERATION, message)
    draft.put_group(command.group, group)
    if command.crashed:
        offsets = draft.offsets(command.group)
        draft.put_offsets(
            command.group, crashes_counted(offsets, command.crashed, command.changed_at_ms)
        )
    return Done()


def commit_offsets(draft: Draft, command: CommitOffsets) -> AnyResult:
    """An invalid commit refuses the whole command; a failed `expected` only the single offset."""
    for commits in command.groups:
        if (refusal := _commits_refusal(draft, command, commits)) is not None:
            return refusal
    if (refusal := _expected_refusal(command)) is not None:
        return refusal
    refused: list[OffsetRefused] = []
    for commits in command.groups:
        refused += save_offsets(draft, commits.group, commits.commits)
    return OffsetsCommitted(tuple(refused))


def delete_group(draft: Draft, command: DeleteGroup) -> AnyResult:
    name = command.group
    refusal = _group_refusal(draft, name, command.slot_epoch)
    if refusal is not None:
        return refusal
    group, offsets = draft.group(name), draft.offsets(name)
    if group is None and not offsets:  # neither members nor commits
        return Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name} does not exist")
    if group is not None and group.members:  # an active group must not lose its offsets
        message = f"group {name} has {len(group.members)} members: stop them first"
        return Refused(ErrorCode.NON_EMPTY_GROUP, message)
    seen = command.seen
    # By expiry; a transaction may have committed since, past the line of the group.
    if seen is not None and (
        len(seen) != len(offsets) or not all(_is_as_seen(offsets, one) for one in seen)
    ):
        message = f"group {name} has committed offsets since: they stay"
        return Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
    draft.remove_group(name)
    if offsets:  # else nothing but the group itself is changed
        draft.put_offsets(name, Map())
    return Done()


def delete_offsets(draft: Draft, command: DeleteOffsets) -> AnyResult:
    """Remove offsets; those that do not exist are skipped, so a retry succeeds."""
    refusal = _group_refusal(draft, command.group, command.slot_epoch)
    if refusal is not None:
        return refusal
    before = draft.offsets(command.group)
    rest = before.mutate()
    for topic_id, partition in command.partitions:
        rest.pop(PartitionId(topic_id, partition), None)
    for one in command.seen:
        if _is_as_seen(before, one):
            rest.pop(PartitionId(one.topic_id, one.partition), None)
    if len(rest) < len(before):  # otherwise readers of the delta would see a change that is none
        draft.put_offsets(command.group, rest.finish())
    return Done()


def _is_as_seen(offsets: Map[PartitionId, CommittedOffset], seen: SeenOffset) -> bool:
    there = offsets.get(PartitionId(seen.topic_id, seen.partition))
    return there is not None and (there.offset, there.committed_at_ms) == (
        seen.offset,
        seen.committed_at_ms,
    )


def save_offsets(
    draft: Draft, group: str, commits: tuple[StoredOffset, ...]
) -> list[OffsetRefused]:
    """Returns those that were not expected."""
    refused = []
    offsets = draft.offsets(group).mutate()
    for commit in commits:
        key = PartitionId(commit.topic_id, commit.partition)
        there = offsets.get(key)
        if commit.expected is not None:  # compare-and-set: another commit may have come first
            offset = NO_OFFSET if there is None else there.offset
            if offset != commit.expected:  # another commit came first
                refused.append(OffsetRefused(group, *key, offset))
                continue
        may_have = commit.alone_by or (there is not None and there.crashes is not None)
        offsets[key] = CommittedOffset(
            commit.offset,
            commit.leader_epoch,
            commit.metadata,
            commit.committed_at_ms,
            crashes_kept(there, commit) if may_have else None,
        )
    if len(refused) < len(commits):  # at least one was written
        draft.put_offsets(group, offsets.finish())
    return refused


def _expected_refusal(command: CommitOffsets) -> Refused | None:
    expected = sum(
        commit.expected is not None for commits in command.groups for commit in commits.commits
    )
    if expected <= EXPECTED_COMMITS_MAX:
        return None
    message = f"slot {command.slot}: {expected} commits that expect an offset"
    return Refused(ErrorCode.INVALID_REQUEST, f"{message}, at most {EXPECTED_COMMITS_MAX} at once")


def _commits_refusal(draft: Draft, command: CommitOffsets, commits: GroupCommits) -> Refused | None:
    refusal = _group_refusal(draft, commits.group, command.slot_epoch)
    if refusal is not None:
        return refusal
    # The epoch that was checked is that of the group's own slot: the command must name the same.
    if (slot := slot_of(commits.group)) != command.slot:
        message = f"group {commits.group} belongs to slot {slot}, not to {command.slot}"
        return Refused(ErrorCode.NOT_COORDINATOR, message)
    for commit in commits.commits:
        if (refusal := offset_refusal(commits.group, commit)) is not None:
            return refusal
    return None


def offset_refusal(group: str, commit: StoredOffset) -> Refused | None:
    """Why an offset cannot be committed, by its form."""
    refusal = partition_refusal(f"group {group}", commit.topic_id, commit.partition)
    if refusal is not None:
        return refusal
    if not 0 <= commit.offset <= NUMBER_MAX:
        message = f"group {group}: offset {commit.offset}, allowed are 0 to {NUMBER_MAX}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    size = len(commit.metadata.encode())
    if size > OFFSET_METADATA_BYTES_MAX:
        message = f"group {group}: metadata of {size} bytes, at most {OFFSET_METADATA_BYTES_MAX}"
        return Refused(ErrorCode.OFFSET_METADATA_TOO_LARGE, message)
    return None


def group_name_refusal(group: str) -> Refused | None:
    if 1 <= len(group) <= GROUP_CHARS_MAX:
        return None
    message = f"group name of {len(group)} characters: allowed are 1 to {GROUP_CHARS_MAX}"
    return Refused(ErrorCode.INVALID_GROUP_ID, message)


def _group_refusal(draft: Draft, group: str, slot_epoch: int) -> Refused | None:
    """Why a coordinator with `slot_epoch` may not change `group`; None if it may."""
    if (refusal := group_name_refusal(group)) is not None:
        return refusal
    number = slot_of(group)
    slot = draft.slot(number)
    # The slot is assigned, and in the epoch that the coordinator knows.
    if slot.broker_id != NO_BROKER and slot.epoch == slot_epoch:
        return None
    message = (
        f"group {group}: slot {number} has epoch {slot.epoch}, not {slot_epoch}: another broker"
        " coordinates it"
    )
    return Refused(ErrorCode.NOT_COORDINATOR, message)


def _is_return(before: GroupState | None, group: GroupState) -> bool:
    """Whether only the member id of a static member changed: its process was restarted, and the
    assignments stay as they were, so that no rebalance, and no new generation, is needed.
    """
    # A static member's return changes a member.
    if before is None or before.members == group.members:
        return False
    return _plan(before) == _plan(group)


def _plan(group: GroupState) -> tuple[object, ...]:
    """The assignment of each member; static ones by instance id, which outlives a process."""
    parts = {
        (m.instance_id is not None, m.instance_id or m.member_id, m.subscription, m.assignment)
        for m in group.members
    }
    return group.generation, group.protocol_type, group.protocol, group.tags, parts


def _members_refusal(command: SaveGroup) -> Refused | None:
    ids = {member.member_id for member in command.members}
    if len(ids) < len(command.members):
        message = f"group {command.group}: two members have the same id"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if command.leader and command.leader not in ids:
        message = f"group {command.group}: its leader {command.leader!r} is no member"
        return Refused(ErrorCode.UNKNOWN_MEMBER_ID, message)
    return None
