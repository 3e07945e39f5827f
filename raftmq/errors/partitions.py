"""Errors of partitions: who leads them, and how many hold what was written."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class UnknownTopicOrPartition(RaftmqError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True
    refresh_metadata = True


class UnknownTopicId(RaftmqError):
    code = ErrorCode.UNKNOWN_TOPIC_ID
    retriable = True
    refresh_metadata = True


class LeaderNotAvailable(RaftmqError):
    code = ErrorCode.LEADER_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True


class NotLeaderOrFollower(RaftmqError):
    """Indefinite: what was appended here may stand in the new leader's log."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True
    refresh_metadata = True
    definite = False


class LeaderElsewhere(NotLeaderOrFollower):
    """Nothing was appended: somebody else leads, or this broker has not taken up its part yet."""

    definite = True


class FencedLeaderEpoch(RaftmqError):
    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True
    refresh_metadata = True


class UnknownLeaderEpoch(RaftmqError):
    """Whoever asked knows more than the broker: ask again after a pause."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class NotEnoughReplicas(RaftmqError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True


class NotEnoughReplicasAfterAppend(RaftmqError):
    """Indefinite: the leader has it, and it is committed once the others come back."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    retriable = True
    definite = False


class InvalidRequiredAcks(RaftmqError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class FetchSessionIdNotFound(RaftmqError):
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    retriable = True


class InvalidFetchSessionEpoch(RaftmqError):
    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    retriable = True


class PreferredLeaderNotAvailable(RaftmqError):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True


class EligibleLeadersNotAvailable(RaftmqError):
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    retriable = True
    refresh_metadata = True


class ElectionNotNeeded(RaftmqError):
    code = ErrorCode.ELECTION_NOT_NEEDED
    retriable = True
    refresh_metadata = True
