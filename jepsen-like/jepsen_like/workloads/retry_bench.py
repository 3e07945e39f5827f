"""What the members of a retries run share: topics, the policy, and how handling is recorded.

Owns the numbers of attempts to handle a record, several of which one member has under way, and the
form of results: they name the record of which they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jepsen_like.history.event import Type
from jepsen_like.history.record_fate import RecordFate
from jepsen_like.workloads.keys import decode_value, key_of
from jepsen_like.workloads.retry_plan import (
    ATTEMPTS,
    FIRST_PAUSE_SECONDS,
    PAUSE_FACTOR,
    PAUSE_SECONDS_MAX,
    record_fate,
)
from jepsen_like.workloads.sending import error_text
from raftmq.client.dead_letters.letters import attempts_before, dead_letter_topic
from raftmq.client.processing.retry_policy import Exponential, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jepsen_like.workloads.bench import Bench
    from jepsen_like.workloads.mortal_network import MortalNetwork
    from jepsen_like.workloads.retry_plan import RetryGroup
    from raftmq.client.consumer.record import ConsumerRecord

RESULTS = "results"  # the topic of the group that is exactly once
POLICY = RetryPolicy(
    attempts=ATTEMPTS,
    backoff=Exponential(FIRST_PAUSE_SECONDS, PAUSE_FACTOR, PAUSE_SECONDS_MAX),
)
DONE, MOVED, LETTER = "done", "moved", "letter"  # how an attempt ends


class FailedError(Exception):
    """Of a record that is to fail now."""


@dataclass(frozen=True, kw_only=True)
class RetryBench:
    """Attributes:
    topics: that the groups read.
    numbers: of attempts to handle a record; none is given twice.
    """

    bench: Bench
    topics: Sequence[str]
    numbers: Iterator[int] = field(default_factory=count)


class Handling(NamedTuple):
    """One attempt to handle a record.

    Attributes:
        planned: how it ends, if nothing comes between.
    """

    number: int
    fate: RecordFate
    planned: str

    @property
    def is_good(self) -> bool:
        return self.planned == DONE


class HandlingNotes:
    """What one member does, until it crashes: its tasks may run on until they are cancelled."""

    def __init__(
        self, shared: RetryBench, group: RetryGroup, name: str, network: MortalNetwork
    ) -> None:
        self._shared, self._group, self._name = shared, group, name
        self._network = network

    def tell(self, f: str, value: object = None, *, error: str | None = None) -> None:
        if not self._network.is_dead:
            self._shared.bench.recorder.record(self._name, Type.INFO, f, value, error=error)

    def begin(self, record: ConsumerRecord) -> Handling:
        origin, value = record.origin, decode_value(record.value)
        key, attempt = key_of(origin.topic, origin.partition), self._attempt(record)
        fate = record_fate(key, value)
        handling = Handling(next(self._shared.numbers), fate, self._planned(fate, attempt))
        told: dict[str, Any] = {"number": handling.number, "key": key, "offset": origin.offset}
        told |= {"value": value, "fate": fate, "attempt": attempt}
        told["is_back"] = record.topic not in self._shared.topics
        clock = self._shared.bench.wall_clock
        if clock is not None and record.due is not None:
            told |= {"due": clock.seconds(record.due), "at": clock.seconds(record.timestamp)}
        if not self._network.is_dead:
            self._shared.bench.recorder.invoke(self._name, "handle", told)
        return handling

    def end(
        self,
        handling: Handling,
        kind: Type,
        end: str = "",
        *,
        error: BaseException | None = None,
    ) -> None:
        """`end`: how, where it is not as planned."""
        told = {"number": handling.number, "end": end or handling.planned}
        text = None if error is None else error_text(error)
        if not self._network.is_dead:
            self._shared.bench.recorder.record(self._name, kind, "handle", told, error=text)

    def end_at(self, handling: Handling, topic: str) -> None:
        """It was moved, to there."""
        is_letter = topic == dead_letter_topic(self._group.name)
        self.end(handling, Type.OK, LETTER if is_letter else MOVED)

    def _attempt(self, record: ConsumerRecord) -> int:
        return attempts_before(record, self._group.name) + 1

    def _planned(self, fate: RecordFate, attempt: int) -> str:
        if fate.is_good_at(attempt):
            return DONE
        is_last = attempt >= ATTEMPTS or (fate is RecordFate.REJECTED and self._group.can_reject)
        return LETTER if is_last else MOVED


# -- Results --------------------------------------------------------------------------------------


class RetryResult(msgspec.Struct, array_like=True, frozen=True):
    """Of which record it is the result."""

    key: str
    offset: int
    value: int


def result_of(record: ConsumerRecord) -> bytes:
    origin = record.origin
    key = key_of(origin.topic, origin.partition)
    return msgspec.json.encode(RetryResult(key, origin.offset, decode_value(record.value)))


def read_result(data: bytes | None) -> RetryResult:
    """Raises msgspec.MsgspecError: it is none."""
    return msgspec.json.decode(data or b"", type=RetryResult)
