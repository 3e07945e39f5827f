"""What a task of Spark does not wait for, though it is told that it is fenced."""

from __future__ import annotations

import pytest

from raftmq import sync, testing
from raftmq.errors import ProducerFenced

pytest.importorskip("pyspark")

from tests.cluster.spark_io_here import all_rows, batch_reader, source, write
from tests.unit.spark_io.tasks import frame, struct

pytestmark = pytest.mark.cluster


def test_a_generation_that_is_over_is_told_at_once() -> None:
    """No other attempt goes on with it, be the topic an option or a column."""
    with testing.broker() as server, sync.connect(server.bootstrap) as client:
        client.admin.create_topic("t", partitions=2)
        job, rows = {"transactionalId": "nightly"}, frame(value=[b"a"], topic=["t"])
        for options in ({"topic": "t"}, {}):
            writers = [
                source(server, **job, **options, generation=generation).writer(
                    struct("value", "topic"), overwrite=False
                )
                for generation in ("2", "1")
            ]
            write(writers[0], rows)
            with pytest.raises(ProducerFenced, match=r"generation 1 .* is over") as caught:
                write(writers[1], rows)
            assert not hasattr(caught.value, "__notes__")
        assert len(all_rows(batch_reader(server, "t"))) == 1
