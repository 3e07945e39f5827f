"""Exit codes: which error of the tree ends a command with which number, and its line on stderr.

Owns the numbers, which scripts depend on; docs and help texts must agree with them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from raftmq import errors

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    EXISTS = 4
    UNREACHABLE = 5  # or timed out
    NOT_AUTHORISED = 6
    UNHEALTHY = 7
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it
    TERMINATED = 143  # 128 + SIGTERM


class CommandError(Exception):
    """Ends the command; its text is one line that names the thing and the way out.

    It has several lines where there are several problems, one for each.
    """

    def __init__(self, line: str, exit_code: ExitCode) -> None:
        self.exit_code = exit_code
        super().__init__(line)


_BY_CLASS: dict[ExitCode, tuple[type[errors.RaftmqError], ...]] = {
    ExitCode.USAGE: (
        errors.InvalidConfig,
        errors.InvalidGroupId,
        errors.InvalidRequest,
        errors.InvalidTopic,
    ),
    ExitCode.NOT_FOUND: (
        errors.GroupIdNotFound,
        errors.UnknownTopicId,
        errors.UnknownTopicOrPartition,
        errors.UnknownTransaction,
    ),
    ExitCode.EXISTS: (errors.TopicAlreadyExists,),
    # Retriable errors: the client retried until its deadline before it raised one of them.
    ExitCode.UNREACHABLE: (
        errors.CoordinatorLoadInProgress,
        errors.CoordinatorNotAvailable,
        errors.DeliveryTimedOut,
        errors.Disconnected,
        errors.FencedLeaderEpoch,
        errors.LeaderNotAvailable,
        errors.NotController,
        errors.NotCoordinator,
        errors.NotEnoughReplicas,
        errors.NotEnoughReplicasAfterAppend,
        errors.NotLeaderOrFollower,
        errors.OffsetNotAvailable,
        errors.OutcomeUnknown,
        errors.ProposalUncertain,
        errors.QuorumBusy,
        errors.RequestTimedOut,
        errors.UnknownLeaderEpoch,
        errors.Unreachable,
    ),
    ExitCode.NOT_AUTHORISED: (
        errors.ClusterAuthorizationFailed,
        errors.TopicAuthorizationFailed,
    ),
}


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group of errors, or this one."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves_of(each)
    else:
        yield error


def exit_code_of(error: Exception) -> ExitCode:
    """The exit code of a command that this error has ended."""
    for exit_code, classes in _BY_CLASS.items():
        if isinstance(error, classes):
            return exit_code
    return ExitCode.FAILED
