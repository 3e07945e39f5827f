"""Errors of the cluster: its brokers, and the quorum that keeps the metadata."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class TopicAuthorizationFailed(RaftmqError):
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class ClusterAuthorizationFailed(RaftmqError):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class InconsistentClusterId(RaftmqError):
    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class StaleBrokerEpoch(RaftmqError):
    code = ErrorCode.STALE_BROKER_EPOCH


class BrokerIdNotRegistered(RaftmqError):
    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class BrokerNotAvailable(RaftmqError):
    code = ErrorCode.BROKER_NOT_AVAILABLE


class InvalidCommand(RaftmqError):
    code = ErrorCode.INVALID_REQUEST


class NewerCommand(InvalidCommand):
    """Whoever understands it applies it: a node that passed over it would know something else."""

    code = ErrorCode.UNSUPPORTED_VERSION


class NotController(RaftmqError):
    """Definite: nothing was appended. `leader_id` is who leads, as far as this node knows."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True
    refresh_metadata = True

    def __init__(self, what: str, leader_id: int | None = None) -> None:
        self.leader_id = leader_id
        super().__init__(what)


class QuorumBusy(RaftmqError):
    """Definite: the queue of proposals is full; try again after a pause."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    retriable = True


class ProposalDiscarded(RaftmqError):
    """Definite: a new leader put another command in its place in the log."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True
    refresh_metadata = True


class ProposalUncertain(RaftmqError):
    """It may have been applied, or may be later: retry with the same command id, or read."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    refresh_metadata = True
    definite = False
