"""The tables of `benchmarks.spark_peers`: what is compared with what, when an aim is reached."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.peers.page import SPARK_TITLE, spark_section, with_spark_section
from benchmarks.peers.servers import tree_cpu_seconds
from benchmarks.spark_peers.install import artifact_of
from benchmarks.spark_peers.table import Cell, base_of, lines, markdown

OWN, TUNED, DEFAULT = "raftmq, idempotent", "Kafka, tuned", "Kafka"
HEAD = {
    "command": "python -m benchmarks.spark_peers",
    "date": "2026-11-28",
    "commit": "0123abcd",
    "cpu": "a CPU",
    "cores": 2,
    "system": "Linux 6.18",
    "python": "3.11.7",
    "versions": "Spark 4.2.0",
    "rounds": 2,
    "rows": 1_000_000,
    "at_rest": "0.10 and 0.05",
    "tuned": "`linger.ms=100`",
}


@pytest.mark.parametrize(
    ("section", "title", "base"),
    [
        ("sink 100", OWN, TUNED),
        ("copy 1024", OWN, TUNED),
        ("source 100", "raftmq: all columns", "Kafka: all columns"),
        ("few", OWN, DEFAULT),
        ("empty", "raftmq", DEFAULT),
        ("sink 100", DEFAULT, None),
    ],
)
def test_each_work_is_compared_with_the_better_connector_of_its_kind(
    section: str, title: str, base: str | None
) -> None:
    """Waiting for larger batches helps many rows, and would only delay ten."""
    assert base_of(section, title) == base


def test_ratios_are_medians_of_those_of_the_same_round() -> None:
    """A round in which the machine was slow counts as much as the others."""
    rounds = [
        {OWN: [1.0, 2.0, 1.0], TUNED: [2.0, 4.0, 1.0]},
        {OWN: [10.0, 2.0, 1.0], TUNED: [10.0, 4.0, 1.0]},
        {OWN: [4.0, 2.0, 1.0], TUNED: [6.0, 4.0, 1.0]},
    ]
    own, tuned = lines("sink 100", rounds, rows=2_000_000)
    assert own.speed == Cell(500_000.0, 1.5)  # of 2, 1 and 1.5
    assert own.cpu == (Cell(1.0, 0.5), Cell(0.5, 1.0), Cell(1.5, 0.6))
    assert tuned.speed.ratio is None
    assert tuned.aim == ""


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([1.0, 1.0, 1.0], "reached"),
        ([1.0, 4.0, 2.0], "missed"),  # faster, but with more CPU
        ([4.0, 1.0, 1.0], "missed"),
    ],
)
def test_an_aim_is_reached_at_the_rate_and_with_less_cpu(own: list[float], said: str) -> None:
    """Both cores are had by whoever takes them: a rate alone says little."""
    [found, _] = lines("sink 100", [{OWN: own, TUNED: [2.0, 3.0, 1.0]}], rows=1000)
    assert found.aim == f"1.2 times the rate, less CPU: {said}"


def test_latencies_are_in_milliseconds_and_less_is_better() -> None:
    """The ratio is of what is shown, there as everywhere on the page."""
    [found, _] = lines("few", [{OWN: [0.2, 0.1, 0.0], DEFAULT: [0.4, 0.1, 0.0]}], rows=1000)
    assert found.speed == Cell(200.0, 0.5)
    assert (found.cpu[1], found.aim) == (Cell(0.0, None), "")


def test_the_section_says_what_was_run_and_what_is_missing() -> None:
    """All of it comes out of the document of the run."""
    sections = {
        "sink 1024": [{OWN: [1.0, 2.0, 1.0], TUNED: [2.0, 4.0, 1.0]}],
        "empty": [{"raftmq": [0.01, 0.01, 0.01], DEFAULT: [0.02, 0.01, 0.01]}],
    }
    warnings = ["SKIPPED delivery=exactly_once: the sink does not know it"]
    text = markdown({"head": HEAD, "warnings": warnings, "sections": sections})
    assert text.startswith(f"{SPARK_TITLE}\n")
    assert "    python -m benchmarks.spark_peers\n" in text
    assert f"**{warnings[0]}**" in text
    aim = "1.2 times the rate, less CPU: reached"
    assert f"| {OWN} | 1,000,000 (2.00) | 2.00 (0.50) | 1.00 (1.00) | 3.00 (0.60) | {aim} |" in text
    assert "| raftmq | 10.0 (0.50) | 10.0 (1.00) |" in text


def test_a_new_page_of_the_peers_keeps_the_section_of_spark_and_the_other_way_round() -> None:
    """They are two runs, each of which writes its part of the page."""
    section = f"{SPARK_TITLE}\n\nrows\n"
    first = with_spark_section("# Page\n\ntable\n", section)
    assert first == f"# Page\n\ntable\n\n{section}"
    assert spark_section(first) == section
    newer = f"{SPARK_TITLE}\n\nother rows\n"
    assert with_spark_section(first, newer) == f"# Page\n\ntable\n\n{newer}"
    assert with_spark_section("# Page\n", spark_section("# Page\n")) == "# Page\n"


def test_jars_that_spark_has_in_another_version_are_known_by_name() -> None:
    """Two versions of one library in a JVM are one too many."""
    names = ["lz4-java-1.10.1.jar", "spark-sql-kafka-0-10_2.13-4.2.0.jar", "connect-repl"]
    assert [artifact_of(name) for name in names] == [
        *("lz4-java", "spark-sql-kafka-0-10_2.13", "connect-repl")
    ]


def test_cpu_of_a_tree_counts_children_that_have_ended() -> None:
    """Python workers of Spark come and go."""
    before = tree_cpu_seconds(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.1: pass"
    subprocess.run([sys.executable, "-S", "-c", burn], check=True)
    assert tree_cpu_seconds(os.getpid()) - before >= 0.08  # it counts in hundredths
