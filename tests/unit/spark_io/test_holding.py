"""How long a task that was fenced waits, and for what it does not."""

from __future__ import annotations

import pytest

from raftmq.client.producer.named_producer import GROWN_WAY_OUT, WAY_OUT
from raftmq.errors import OutcomeUnknown, ProducerFenced, RaftmqError, ReplayMismatch
from raftmq.partition.sequences import ProducerState, fenced
from spark_io.writing import HOLD_SECONDS_MAX, STREAM_WAYS_OUT, held_if_fenced, stream_way_out


def test_a_task_that_was_fenced_waits_and_then_fails() -> None:
    waits: list[float] = []
    with (
        pytest.raises(ProducerFenced, match="another process") as caught,
        held_if_fenced(sleep=waits.append),
    ):
        raise ProducerFenced("another process writes")
    assert waits == [HOLD_SECONDS_MAX]
    assert caught.value.__notes__ == [
        "Spark has not ended this attempt within 300 s. If the job or query was started twice, let "
        "one of them run; if another attempt takes longer than that, set spark.speculation to false"
    ]


def test_one_that_had_something_on_its_way() -> None:
    """The leader dies, the copy fences, and what is sent again is refused."""
    waits: list[float] = []
    with (
        pytest.raises(OutcomeUnknown, match="may have been appended"),
        held_if_fenced(sleep=waits.append),
    ):
        raise OutcomeUnknown("5 records may have been appended") from ProducerFenced("another")
    assert waits == [HOLD_SECONDS_MAX]


@pytest.mark.parametrize("error", [ReplayMismatch("other rows"), OutcomeUnknown("who knows")])
def test_nothing_else_waits(error: RaftmqError) -> None:
    waits: list[float] = []
    with held_if_fenced(sleep=waits.append):
        pass
    with pytest.raises(type(error)), held_if_fenced(sleep=waits.append):
        raise error
    assert waits == []


def over_error() -> RaftmqError:
    with pytest.raises(ProducerFenced) as caught:
        fenced(ProducerState(0, 0, (), 5), 4)
    return caught.value


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (
            ReplayMismatch(f"3 records stand there; {WAY_OUT}"),
            "3 records stand there; send the same records in the same order to a topic with as "
            "many partitions as before",
        ),
        (
            ReplayMismatch(f"it has grown; {GROWN_WAY_OUT}"),
            "it has grown; it cannot be finished as it was begun: look what stands there of it",
        ),
        (
            over_error(),
            "generation 4 of this producer name is over, 5 has begun: leave it to the process "
            "that writes that one",
        ),
    ],
)
def test_what_a_stream_can_do(error: RaftmqError, left: str) -> None:
    """It has no generation to raise, which the error itself advises."""
    with pytest.raises(type(error)) as caught, stream_way_out():
        raise error
    assert str(caught.value) == left
    [note] = caught.value.__notes__
    assert note == STREAM_WAYS_OUT[type(error)]
    assert "transactionalId" in note
