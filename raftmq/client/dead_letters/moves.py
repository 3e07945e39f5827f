"""Where a record goes that is moved: to the dead letters of its group, or to its topic of retries.

Owns which of the two, with which headers and after which delay. Sends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.consumer.batch import known_ownership
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.client.dead_letters.letters import (
    RETENTION_MS,
    RETRY_RETENTION_MS,
    attempts_before,
    dead_letter_topic,
    error_text,
    letter_headers,
    own_letters_problem,
    retry_topic,
)
from raftmq.client.processing.retry_policy import PAUSE_SECONDS_MAX, RecordFate, fate_of
from raftmq.errors import (
    InvalidReplicationFactor,
    InvalidRequest,
    OutOfOrderSequence,
    UnknownProducerId,
)
from raftmq.words import counted, kind_of

if TYPE_CHECKING:
    from random import Random
    from typing import TypeAlias

    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.processing.retry_policy import RetryPolicy
    from raftmq.errors import RaftmqError
    from raftmq.wire.batch.record_headers import Headers

    GivenError: TypeAlias = BaseException | str | None


# A day less than the largest delay of a topic, as clocks differ: a refusal would end the program.
DELAY_SECONDS_MAX = PAUSE_SECONDS_MAX - 86_400.0


NO_POLICY = (
    "the consumer has no policy that says when, and how often: give it retry=raftmq.RetryPolicy()"
)


class Move(NamedTuple):
    """Where a record goes.

    Attributes:
        topic: a topic of the group, which is made if it is not there.
        retention_ms: with which it is made.
        headers: of the record there.
        delay: seconds until readers get it; None: at once.
    """

    topic: str
    retention_ms: int
    headers: Headers
    delay: float | None = None


def check_record(record: object, call: str) -> None:
    """Raises TypeError: no record; InvalidRequest: a copy, or not read in a group."""
    if not isinstance(record, ConsumerRecord):
        raise TypeError(
            f"{call}: {kind_of(record)}: give a record as it was handed out, or the `record` of an "
            "UndecodableRecord; of a batch, each of its records"
        )
    known_ownership(record)


def is_lasting(error: RaftmqError) -> bool:
    """Whether the next attempt to move a record would not succeed, either."""
    # Of a topic that is to be made with as many replicas as its origin: a broker is down.
    # A producer, or a transaction, that begins anew has a new number.
    if isinstance(error, (InvalidReplicationFactor, OutOfOrderSequence, UnknownProducerId)):
        return False
    return error.definite and not error.retriable


class Moves:
    """The moves of one group.

    Args:
        policy: of its member; None: records are not retried.
        random: for the pauses.
    """

    def __init__(self, group: str, policy: RetryPolicy | None, random: Random) -> None:
        self._group, self._policy, self._random = group, policy, random

    @property
    def can_retry(self) -> bool:
        return self._policy is not None

    def check_retry(self) -> None:
        """Raises InvalidRequest: the consumer has no policy."""
        if self._policy is None:
            raise InvalidRequest(f"retry: {NO_POLICY}")

    def fate(self, record: AnyRecord, attempts: int = 1) -> RecordFate:
        """What becomes of a record that has failed so often since it was read."""
        return fate_of(self._policy, attempts_before(record, self._group) + attempts)

    def rejected(self, record: AnyRecord, error: GivenError, *, attempts: int) -> Move:
        """To the dead letters. Raises TypeError, InvalidRequest."""
        headers, _ = self._headers(record, error, attempts)
        return self._to_dead_letters(record, headers)

    def retried(self, record: AnyRecord, error: GivenError, *, attempts: int) -> Move:
        """To the topic of retries or, after its last attempt, to the dead letters.

        Raises:
            TypeError, InvalidRequest: it is not called as it should be.
            BaseException: `error` itself, after the last attempt, with a policy without dead
                letters; InvalidRequest, where it is a text or None.
        """
        self.check_retry()
        assert self._policy is not None, "checked, and none"
        headers, tried = self._headers(record, error, attempts)
        match fate_of(self._policy, tried):
            case RecordFate.RETRY_TOPIC:
                pause = self._policy.backoff.pause_seconds(tried, self._random)
                delay = min(pause, DELAY_SECONDS_MAX)
                return Move(retry_topic(self._group), RETRY_RETENTION_MS, headers, delay)
            case RecordFate.DEAD_LETTER:
                return self._to_dead_letters(record, headers)
        if isinstance(error, BaseException):
            raise error
        raise InvalidRequest(
            f"{record.topic}-{record.partition}, offset {record.offset}: failed after "
            f"{counted(tried, 'attempt')}, and the policy has no dead letters: {error_text(error)}"
        )

    def _to_dead_letters(self, record: AnyRecord, headers: Headers) -> Move:
        if problem := own_letters_problem(self._group, (record.topic,)):
            raise InvalidRequest(problem)
        return Move(dead_letter_topic(self._group), RETENTION_MS, headers)

    def _headers(self, record: AnyRecord, error: GivenError, attempts: int) -> tuple[Headers, int]:
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise InvalidRequest(f"attempts = {attempts!r}: expected a whole number from 1")
        if not (error is None or isinstance(error, BaseException | str)):
            raise TypeError(f"error is {kind_of(error)}, expected an exception, a text or None")
        tried = attempts_before(record, self._group) + attempts
        text = error_text(error)
        return letter_headers(record, self._group, attempts=tried, error=text), tried
