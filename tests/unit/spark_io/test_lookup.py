"""The driver's questions: nothing is opened before the first one, and no connection travels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

pytest.importorskip("pyspark")

from raftmq.client.administration.results import TopicSummary
from raftmq.errors import UnknownTopicOrPartition, Unreachable
from spark_io.lookup import BEHIND_SECONDS, LOOK_SECONDS, Lookup, _check_there
from spark_io.options.source import source_options
from tests.unit.spark_io.tasks import sent_away

if TYPE_CHECKING:
    from raftmq import sync

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


def test_an_address_at_which_no_broker_is() -> None:
    """Before any broker has answered, the driver gives up sooner; the error names the address."""
    options = source_options(NOBODY, is_stream=False)
    assert (options.contact_seconds, options.retry_seconds) == (10.0, 60.0)
    given = source_options({**NOBODY, "retryTimeoutMs": "2000"}, is_stream=False)
    assert (given.contact_seconds, given.retry_seconds) == (2.0, 2.0)
    lookup = Lookup(replace(options, contact_seconds=0.0))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1: ") as caught:
        lookup.keys()
    assert caught.value.__notes__ == ["tried for 0 s (retryTimeoutMs)"]


class Behind:
    """A cluster whose first answers are old ones: how many partitions each topic has."""

    def __init__(self, *answers: dict[str, int]) -> None:
        self._answers = list(answers)
        self.admin = self
        self.asked: list[set[str] | None] = []

    def with_timeout(self, _seconds: float) -> Behind:
        return self

    def list_topics(self, names: set[str] | None) -> list[TopicSummary]:
        self.asked.append(names)
        counts = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        found = {name: counts[name] for name in counts if names is None or name in names}
        return [TopicSummary(name, bytes(16), count, 3, 0, 0) for name, count in found.items()]


def lookup_of(
    monkeypatch: pytest.MonkeyPatch, *answers: dict[str, int], **options: str
) -> tuple[Lookup, list[float]]:
    """And what it has slept: time passes nowhere else."""
    slept: list[float] = []
    monkeypatch.setattr("spark_io.lookup.time.sleep", slept.append)
    monkeypatch.setattr("spark_io.lookup.time.monotonic", lambda: sum(slept))
    found = Lookup(source_options({**NOBODY, **options}, is_stream=True))
    found._client = cast("sync.Client", Behind(*answers))
    return found, slept


def test_a_broker_that_is_behind_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = {"t": 1}, {"t": 2, "u": 1}
    lookup, slept = lookup_of(monkeypatch, {}, old, new)
    assert lookup.keys(known=[("t", 1)]) == [("t", 0), ("t", 1)]
    assert slept == [LOOK_SECONDS] * 2
    lookup, _ = lookup_of(monkeypatch, old, new)
    assert lookup.existing([("u", 0), ("t", 1)]) == [("t", 1), ("u", 0)]


def test_and_believed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, slept = lookup_of(monkeypatch, {"u": 1})
    assert lookup.existing([("u", 0), ("t", 1)]) == [("u", 0)]
    assert BEHIND_SECONDS <= sum(slept) <= BEHIND_SECONDS + LOOK_SECONDS
    with pytest.raises(UnknownTopicOrPartition, match="no topic 't'"):
        lookup.keys()


def test_only_the_topics_that_are_read_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster may have thousands. A pattern needs them all."""
    there = {"t": 1, "u": 2, "v": 1}
    for chosen, asked in (
        ({"subscribe": "t"}, {"t"}),
        ({"subscribe": "t,u"}, {"t", "u"}),
        ({"assign": '{"u": [1]}'}, {"u"}),
        ({"subscribePattern": "[tu]"}, None),
    ):
        lookup, _ = lookup_of(monkeypatch, there)
        given = {"bootstrap": "127.0.0.1:1", **chosen}
        lookup._options = source_options(given, is_stream=True)
        lookup.keys()
        assert cast("Behind", lookup._client).asked == [asked]


def test_topics_that_are_not_there() -> None:
    _check_there({"t": 2}, [("t", 0), ("t", 1)])
    with pytest.raises(
        UnknownTopicOrPartition, match="no topic 'x': make it first, raftmq topic create x"
    ):
        _check_there({"t": 2}, [("t", 0), ("x", 0)])
    with pytest.raises(UnknownTopicOrPartition, match="'t' has partitions 0 to 1, and not 2"):
        _check_there({"t": 2}, [("t", 2)])
