"""What an answer says of one partition, and whether its batches are those that were asked for."""

from __future__ import annotations

import pytest

from raftmq.client.routing.routes import (
    LeaderPlace,
    answer_for,
    error_in,
    leader_told,
)
from raftmq.errors import CorruptRecord, ErrorCode, NotLeaderOrFollower, ServerError
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.messages.fetch import PartitionFetched
from raftmq.wire.messages.offsets import FoundOffset
from raftmq.wire.messages.produce import PartitionProduced
from tests.fetching import check_batches

ID = b"\1" * 16
PLACE = LeaderPlace(ID, 0, 1, 7)
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER


def batch(base_offset: int, count: int = 1) -> bytes:
    return bytes(encode_batch(values=[b"x"] * count, timestamp=0, base_offset=base_offset))


def test_answers_name_the_partition_that_was_asked_for() -> None:
    """None, another one, or one more: whoever says that has not answered."""
    right, other = FoundOffset(ID, 0), FoundOffset(ID, 1)
    assert answer_for(PLACE, [right]) is right
    for wrong in ([], [other], [right, other], [FoundOffset(b"\2" * 16, 0)]):
        with pytest.raises(ServerError, match="broker 1 was asked for partition 0"):
            answer_for(PLACE, wrong)


@pytest.mark.parametrize(
    ("answer", "is_definite"),
    [
        (PartitionProduced(ID, 0, MOVED), True),
        (PartitionProduced(ID, 0, MOVED, base_offset=0), False),
        (PartitionProduced(ID, 0, ErrorCode.KAFKA_STORAGE_ERROR), False),
        (PartitionProduced(ID, 0, ErrorCode.NOT_ENOUGH_REPLICAS), True),
        (PartitionFetched(ID, 0, MOVED), False),
    ],
)
def test_a_refusal_or_a_doubt(
    answer: PartitionProduced | PartitionFetched, is_definite: bool
) -> None:
    """A broker that does not lead and names no offset has appended nothing."""
    error = error_in(answer)
    assert error is not None
    assert error.definite == is_definite
    assert isinstance(error, NotLeaderOrFollower) == (answer.error == MOVED)


def test_only_errors_tell_who_leads() -> None:
    """And of an offset the epoch is that of the record, not that of the leader."""
    assert leader_told(PartitionProduced(ID, 0, MOVED, leader=2, leader_epoch=8)) == (2, 8)
    assert leader_told(PartitionProduced(ID, 0, leader=2, leader_epoch=8)) is None
    assert leader_told(FoundOffset(ID, 0, MOVED, leader_epoch=8)) is None
    assert error_in(FoundOffset(ID, 0)) is None


@pytest.mark.parametrize(
    ("batches", "offset"),
    [([], 5), ([batch(5)], 5), ([batch(4, 3)], 5), ([batch(3, 3), batch(6)], 5)],
)
def test_batches_in_a_row(batches: list[bytes], offset: int) -> None:
    """The first one holds the offset, the others follow without gaps."""
    check_batches(b"".join(batches), offset, high_watermark=7, where="here")


@pytest.mark.parametrize(
    ("batches", "problem"),
    [
        ([batch(4)], "offsets 4 to 5, wanted 5"),
        ([batch(6)], "offsets 6 to 7, wanted 5"),
        ([batch(5), batch(7)], "base offset 7, expected 6"),
        ([batch(5), batch(5)], "base offset 5, expected 6"),
        ([batch(5, 3)], "end offset 8, committed is up to 7"),
        ([batch(5)[:-1]], "1 are missing"),
        ([batch(5), b"x"], "shorter than a batch header"),
    ],
)
def test_batches_that_were_not_asked_for(batches: list[bytes], problem: str) -> None:
    """Each of them would be taken for something that it is not."""
    with pytest.raises(CorruptRecord, match=problem):
        check_batches(b"".join(batches), 5, high_watermark=7, where="here")
