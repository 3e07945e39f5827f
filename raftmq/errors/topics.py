"""Errors of topics: names, configuration, partitions and their replicas."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class InvalidTopic(RaftmqError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class TopicAlreadyExists(RaftmqError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidConfig(RaftmqError):
    """`problems` holds one line per bad key."""

    code = ErrorCode.INVALID_CONFIG

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class InvalidPartitions(RaftmqError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(RaftmqError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(RaftmqError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidUpdateVersion(RaftmqError):
    code = ErrorCode.INVALID_UPDATE_VERSION
