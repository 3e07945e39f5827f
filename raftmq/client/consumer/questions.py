"""One question to a broker, and for which partitions, as they were when it was asked. Pure.

Owns how states become requests, and how the parts of an answer are matched with what was asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.consumer.partition_state import FROM_LATEST
from raftmq.errors import RemoteProtocolError
from raftmq.wire.messages.fetch import Fetch, FetchPartition
from raftmq.wire.messages.offsets import ListOffsets, WantedOffset
from raftmq.wire.messages.produce import split_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.consumer.partition_state import Key, PartitionState
    from raftmq.client.routing.routes import Place
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.fetch import PartitionFetched
    from raftmq.wire.messages.offsets import FoundOffset


class Asked(NamedTuple):
    """One partition of a question."""

    state: PartitionState
    place: Place
    version: int
    offset: int

    @property
    def is_current(self) -> bool:
        """Whether an answer is still of use."""
        return self.state.version == self.version

    @property
    def is_caught_up(self) -> bool:
        """There was nothing more when the leader was asked last."""
        high_watermark = self.state.high_watermark
        return high_watermark is not None and self.offset >= high_watermark


class Question(NamedTuple):
    """Attributes:
    wait_seconds: how long the broker may think.
    is_idle: it is about news only: whatever was there has been fetched.
    """

    broker_id: int
    body: Fetch | ListOffsets
    asked: dict[Key, Asked]
    wait_seconds: float = 0.0
    is_idle: bool = False

    def covers(self, state: PartitionState) -> bool:
        asked = self.asked.get(state.key)
        return asked is not None and asked.is_current


class FetchLimits(NamedTuple):
    max_wait_ms: int
    bytes_min: int
    bytes_max: int
    partition_bytes_max: int


def asked_of(state: PartitionState, place: Place) -> Asked:
    return Asked(state, place, state.version, state.fetch_offset)


def fetch_question(broker_id: int, asked: Sequence[Asked], limits: FetchLimits) -> Question:
    partition_bytes_max = min(limits.partition_bytes_max, limits.bytes_max)
    partitions = tuple(
        FetchPartition(
            one.place.topic_id,
            one.place.partition,
            one.offset,
            one.place.leader_epoch,
            one.state.fetch_epoch,
            partition_bytes_max,
        )
        for one in asked
    )
    bytes_min = min(limits.bytes_min, limits.bytes_max)
    return Question(
        broker_id,
        Fetch(limits.max_wait_ms, bytes_min, limits.bytes_max, partitions=partitions),
        {one.state.key: one for one in asked},
        wait_seconds=limits.max_wait_ms / 1000,
        is_idle=all(one.is_caught_up for one in asked),
    )


def offsets_question(broker_id: int, asked: Sequence[Asked]) -> Question:
    """Where to start. Of a point in time also where the log ends, and that before."""
    wanted = [each for one in asked for each in _wanted_offsets(one)]
    return Question(broker_id, ListOffsets(tuple(wanted)), {one.state.key: one for one in asked})


def _wanted_offsets(asked: Asked) -> list[WantedOffset]:
    place, number = asked.place, asked.state.start.number
    timestamps = (number,) if number < 0 else (FROM_LATEST.number, number)
    return [
        WantedOffset(place.topic_id, place.partition, place.leader_epoch, timestamp)
        for timestamp in timestamps
    ]


def match_fetched(
    question: Question, answer: Answer
) -> list[tuple[Asked, PartitionFetched, memoryview]]:
    """Raises RemoteProtocolError: it answers something else."""
    told = answer.body.partitions
    by_id = {(one.place.topic_id, one.place.partition): one for one in question.asked.values()}
    data = split_payload([one.length for one in told], answer.payload)
    matched = []
    for one, piece in zip(told, data, strict=True):
        asked = by_id.pop((one.topic_id, one.partition), None)
        if asked is None:
            raise RemoteProtocolError(
                f"broker {question.broker_id} told of partition {one.partition} of topic "
                f"{one.topic_id.hex()}, of which it was not asked, or twice"
            )
        matched.append((asked, one, piece))
    return matched


def match_offsets(question: Question, answer: Answer) -> list[tuple[Asked, list[FoundOffset]]]:
    """Raises RemoteProtocolError: it answers something else."""
    assert isinstance(question.body, ListOffsets)
    wanted = [(one.topic_id, one.partition) for one in question.body.partitions]
    told = [(one.topic_id, one.partition) for one in answer.body.partitions]
    if wanted != told:
        raise RemoteProtocolError(
            f"broker {question.broker_id} was asked for {len(wanted)} offsets and told "
            f"{len(told)}, or other ones"
        )
    found: dict[tuple[bytes, int], list[FoundOffset]] = {}
    for one in answer.body.partitions:
        found.setdefault((one.topic_id, one.partition), []).append(one)
    return [
        (asked, found[asked.place.topic_id, asked.place.partition])
        for asked in question.asked.values()
    ]
