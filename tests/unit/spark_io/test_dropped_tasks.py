"""What the driver asks after all tasks, where nobody answers.

What brokers tell of tasks of before is in tests/cluster/test_spark_io_writing.py.
"""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("pyspark")

from spark_io.names import Name
from spark_io.options.sink import sink_options
from spark_io.writing import Written, check_dropped_tasks

NOBODY = sink_options({"bootstrap": "127.0.0.1:1", "topic": "t"}, is_stream=True)


def test_a_cluster_that_does_not_answer_fails_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All rows stand by then."""
    monkeypatch.setattr("spark_io.writing.CONNECT_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING, "spark_io"):
        check_dropped_tasks(NOBODY, [Written(Name("q/0", 3), 5, 0, ("t",))])
    [said] = caplog.messages
    assert said.startswith("it is not known whether there were more tasks before: ")


@pytest.mark.parametrize("written", [Written(None, 5, 0, ("t",)), Written(Name("q/0", 3), 0, 0)])
def test_nobody_is_asked_for_nothing(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    """Where tasks have no names, or have written to no topic."""
    check_dropped_tasks(NOBODY, [written, None])
    assert caplog.messages == []
