"""Nobody answers: it is tried again, and told in the end."""

from __future__ import annotations

import pytest

from raftmq.errors import Unreachable
from spark_io.lookup import connected


@pytest.mark.parametrize(("option", "told"), [("x.ms", "tried for 0 s (x.ms)"), (None, "for 0 s")])
def test_nobody_answers(option: str | None, told: str) -> None:
    with (
        pytest.raises(Unreachable) as caught,
        connected(["127.0.0.1:1"], "test", 0.0, option=option),
    ):
        raise AssertionError("there is nobody")
    [note] = caught.value.__notes__
    assert note.endswith(told)
