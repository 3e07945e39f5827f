"""Errors of consumer groups and of the offsets that they commit."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class NotCoordinator(RaftmqError):
    """Somebody else coordinates the group, or will in a moment: look it up again."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True
    refresh_metadata = True


class InvalidGroupId(RaftmqError):
    code = ErrorCode.INVALID_GROUP_ID


class GroupIdNotFound(RaftmqError):
    code = ErrorCode.GROUP_ID_NOT_FOUND


class NonEmptyGroup(RaftmqError):
    code = ErrorCode.NON_EMPTY_GROUP


class UnknownMemberId(RaftmqError):
    """The member has been put out, or another took its place: join anew."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class IllegalGeneration(RaftmqError):
    """Partitions have been given to others since: join anew."""

    code = ErrorCode.ILLEGAL_GENERATION


class OffsetMetadataTooLarge(RaftmqError):
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class CoordinatorLoadInProgress(RaftmqError):
    """The coordinator is new and has not read yet what the one before it kept: ask again."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True


class CoordinatorNotAvailable(RaftmqError):
    """Nobody coordinates the group for the moment: ask again."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True


class InconsistentGroupProtocol(RaftmqError):
    """No assignor that all members of the group know: give them one in common."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidSessionTimeout(RaftmqError):
    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgress(RaftmqError):
    """The group is dealing out its partitions anew: join again. Nothing was changed."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class MemberIdRequired(RaftmqError):
    """The coordinator has given out a member id: join once more, with it."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReached(RaftmqError):
    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceId(RaftmqError):
    """Another process has joined with the same `group_instance_id`: only one of them may run."""

    code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopic(RaftmqError):
    """Members of the group read the topic: its offsets stay until they have left."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
