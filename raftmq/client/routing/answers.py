"""What an answer of a partition's leader says about that one partition. Pure.

Questions name one partition, so answers must, too; one that does not is no answer, and then nothing
is known of what was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from raftmq.errors import (
    CorruptRecord,
    ErrorCode,
    InvalidTimestamp,
    LeaderElsewhere,
    MessageTooLarge,
    ServerError,
    error_for,
)
from raftmq.wire.bodies import ABSENT
from raftmq.wire.header import iter_batches
from raftmq.wire.messages.fetch import PartitionFetched
from raftmq.wire.messages.offsets import FoundOffset
from raftmq.wire.messages.produce import PartitionProduced
from raftmq.wire.messages.producers import PartitionFenced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.routing.routes import Place
    from raftmq.errors import RaftmqError
    from raftmq.wire.header import Buffer

PartitionAnswer: TypeAlias = PartitionProduced | PartitionFenced | PartitionFetched | FoundOffset


def answer_for(place: Place, partitions: Sequence[PartitionAnswer]) -> PartitionAnswer:
    """Raises ServerError, which is indefinite."""
    found = [(one.topic_id, one.partition) for one in partitions]
    if found != [(place.topic_id, place.partition)]:
        raise ServerError(
            f"broker {place.leader} was asked for partition {place.partition} of topic "
            f"{place.topic_id.hex()} and answered for {len(found)} partitions that are not it"
        )
    return partitions[0]


def error_in(answer: PartitionAnswer) -> RaftmqError | None:
    if not answer.error:
        return None
    message = "" if isinstance(answer, FoundOffset) else answer.message
    code = next((code.name for code in ErrorCode if code == answer.error), answer.error)
    message = message or f"refused for partition {answer.partition}: {code}"
    if isinstance(answer, PartitionProduced) and _was_refused(answer):
        return LeaderElsewhere(message)
    error = error_for(answer.error, message)
    if isinstance(answer, PartitionProduced) and isinstance(
        error, (MessageTooLarge, InvalidTimestamp)
    ):
        error.allowed = answer.allowed
    return error


def _was_refused(answer: PartitionProduced) -> bool:
    """Before anything was appended: otherwise the answer says where."""
    is_elsewhere = answer.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    return is_elsewhere and answer.base_offset == ABSENT


def leader_told(answer: PartitionAnswer) -> tuple[int, int] | None:
    """Who leads, in which epoch, if an error says so."""
    if isinstance(answer, FoundOffset) or not answer.error:
        return None
    return answer.leader, answer.leader_epoch


def check_batches(data: Buffer, offset: int, *, high_watermark: int, where: str) -> None:
    """Whether `data` is what a fetch from `offset` may bring: batches in a row, all committed.

    Raises:
        CorruptRecord: and says what is wrong, and at which byte.
    """
    expected = None
    for position, header in iter_batches(data, where=where):
        problem = ""
        if expected is None and not header.base_offset <= offset < header.end_offset:
            problem = f"offsets {header.base_offset} to {header.end_offset}, wanted {offset}"
        elif expected is not None and header.base_offset != expected:
            problem = f"base offset {header.base_offset}, expected {expected}"
        elif header.end_offset > high_watermark:
            problem = f"end offset {header.end_offset}, committed is up to {high_watermark}"
        if problem:
            raise CorruptRecord(problem, position=position, where=where)
        expected = header.end_offset
