"""The driver's questions: nothing is opened before the first one, and no connection travels."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from raftmq.errors import UnknownTopicOrPartition
from spark_io.lookup import Lookup, _check_there
from spark_io.source_options import source_options
from tests.unit.spark_io.tasks import sent_away

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


def test_nothing_is_opened_before_the_first_question() -> None:
    with Lookup(source_options(NOBODY, is_stream=True)) as lookup:
        assert lookup._client is None


def test_it_travels_and_is_closed_as_often_as_anybody_likes() -> None:
    lookup = Lookup(source_options(NOBODY, is_stream=True))
    arrived = sent_away(lookup)
    assert arrived._options == lookup._options
    for each in (lookup, arrived, arrived):
        each.close()


def test_topics_that_are_not_there() -> None:
    _check_there({"t": 2}, [("t", 0), ("t", 1)])
    with pytest.raises(UnknownTopicOrPartition, match="no topic 'x': create it, or name another"):
        _check_there({"t": 2}, [("t", 0), ("x", 0)])
    with pytest.raises(UnknownTopicOrPartition, match="'t' has partitions 0 to 1, and not 2"):
        _check_there({"t": 2}, [("t", 2)])
