"""How long a task that was fenced waits, and for what it does not."""

from __future__ import annotations

import pytest

from raftmq.errors import ProducerFenced, ReplayMismatch
from spark_io.holding import HOLD_SECONDS_MAX, held_if_fenced


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


def test_nothing_else_waits() -> None:
    waits: list[float] = []
    with held_if_fenced(sleep=waits.append):
        pass
    with pytest.raises(ReplayMismatch), held_if_fenced(sleep=waits.append):
        raise ReplayMismatch("other rows")
    assert waits == []
