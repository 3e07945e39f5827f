"""`raftmq bench`: figures that can be read, and topics that are gone afterwards."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from raftmq.sync import connect
from raftmq.testing import broker
from tests.cluster.data_here import Here, interrupt, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def here() -> Iterator[Here]:
    with broker() as server:
        yield Here(server)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["produce", "--create", "--count", "20000", "--keys", "10"], {"latency_ms"}),
        (["produce", "--create", "--seconds", "0.5", "--size", "1000"], {"latency_ms"}),
        (["latency", "--create", "--seconds", "0.5"], {"acknowledged_ms", "end_to_end_ms"}),
    ],
)
def test_a_bench_with_its_own_topic(here: Here, arguments: list[str], names: set[str]) -> None:
    """One JSON object with figures; the topic is gone afterwards."""
    result = here.run("bench", *arguments, "-o", "json")
    figures = json.loads(result.stdout)
    assert names <= set(figures)
    for name in names:
        assert 0 < figures[name]["p50"] <= figures[name]["p99"] <= figures[name]["max"]
    assert figures["records"] >= 50
    assert figures["client_cpu_us_per_record"] > 0
    assert b"raftmq-bench-" not in here.run("topic", "list").stdout


def test_a_bench_of_reading(here: Here) -> None:
    """All records of the topic, or as many as were asked for; an empty one has no figures."""
    topic = here.topic(partitions=2)
    assert json.loads(here.run("bench", "consume", topic, "-o", "json").stdout)["records"] == 0
    here.run("produce", topic, stdin=b"12345\n" * 5000)
    figures = json.loads(here.run("bench", "consume", topic, "-o", "json").stdout)
    assert (figures["records"], figures["bytes"]) == (5000, 25_000)
    rows = here.run("bench", "consume", topic, "--count", "100").stdout.splitlines()
    assert [b"records", b"100"] in [row.split() for row in rows]


def test_a_bench_that_is_interrupted(here: Here) -> None:
    """Its topic is deleted nevertheless."""

    def is_there() -> bool:
        with connect(here.server.bootstrap) as mq:
            return any(one.name.startswith("raftmq-bench-") for one in mq.admin.list_topics())

    with here.running("bench", "produce", "--create", "--seconds", "100") as bench:
        wait_until(is_there)
        time.sleep(0.5)
        interrupt(bench)
    assert not is_there()
