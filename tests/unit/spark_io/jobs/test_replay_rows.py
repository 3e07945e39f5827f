"""What a replay refuses before anything is read."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from spark_io.jobs.causes import JobError
from spark_io.jobs.replay import check_one_topic


def test_several_topics() -> None:
    """Cannot go to one: their partitions would be mixed."""
    check_one_topic(["file:/x/a.parquet", "file:/x/b.parquet"])
    check_one_topic(
        ["file:/x/topic=a/partition=0/1.parquet", "file:/x/topic=a/partition=1/2.parquet"]
    )
    with pytest.raises(JobError, match=r"holds the topics a, b: .* from \.\.\./topic=a"):
        check_one_topic(["file:/x/topic=b/partition=0/1.parquet", "file:/x/topic=a/1.parquet"])
