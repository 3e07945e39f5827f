"""`raftmq bench` at work: options become a plan, the plan is run, its figures are printed."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from raftmq.cli.benching.consume import ConsumePlan as ConsumePlan
from raftmq.cli.benching.consume import bench_consume
from raftmq.cli.benching.figures import tell
from raftmq.cli.benching.latency import LatencyPlan as LatencyPlan
from raftmq.cli.benching.latency import bench_latency
from raftmq.cli.benching.load import Amount, BenchTopic
from raftmq.cli.benching.produce import ProducePlan as ProducePlan
from raftmq.cli.benching.produce import bench_produce
from raftmq.cli.clusters.connected import run_connected
from raftmq.cli.terminal.exits import ExitCode
from raftmq.client.administration.checks import check_topic
from raftmq.client.producer.options import producer_options
from raftmq.wire.batch.compression import compress

if TYPE_CHECKING:
    from collections.abc import Mapping


OWN_PREFIX = "raftmq-bench-"  # of topics made by --create, to be found if deleting them failed


def run_produce(given: Mapping[str, Any], bootstrap: str | None, *, as_json: bool) -> int:
    plan = ProducePlan(
        _wanted(given),
        Amount(given["count"], given["seconds"]),
        given["size"],
        given["keys"],
        _options(given),
        given["quiet"],
    )
    figures = run_connected(lambda client: bench_produce(client, plan), bootstrap)
    tell(figures, as_json=as_json)
    return ExitCode.OK


def run_consume(
    topic: str,
    count: int | None,
    seconds: float | None,
    bootstrap: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> int:
    plan = ConsumePlan(check_topic(topic), count, seconds, quiet)
    figures = run_connected(lambda client: bench_consume(client, plan), bootstrap)
    tell(figures, as_json=as_json)
    return ExitCode.OK


def run_latency(given: Mapping[str, Any], bootstrap: str | None, *, as_json: bool) -> int:
    plan = LatencyPlan(
        _wanted(given),
        given["rate"],
        given["seconds"],
        given["size"],
        _options(given),
        given["quiet"],
    )
    figures = run_connected(lambda client: bench_latency(client, plan), bootstrap)
    tell(figures, as_json=as_json)
    # Latencies of the records that came are no success if others are missing.
    is_whole = figures["not_acknowledged"] == figures["not_received"] == 0
    return ExitCode.OK if is_whole else ExitCode.FAILED


def _wanted(given: Mapping[str, Any]) -> BenchTopic:
    """Raises click.UsageError, InvalidTopic."""
    topic, is_own = given["topic"], given["is_own"]
    partitions, replication_factor = given["partitions"], given["replication_factor"]
    if (topic is None) != is_own:
        raise click.UsageError("name a TOPIC that is there, or have one made with --create")
    if not is_own and (partitions, replication_factor) != (None, None):
        raise click.UsageError(f"--partitions and -r are for --create: {topic} has its own")
    name = None if is_own else check_topic(topic)
    return BenchTopic(name, OWN_PREFIX + token_hex(4), partitions, replication_factor)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidConfig, UnsupportedCompression."""
    names = ("acks", "compression", "preset")
    options = {name: given[name] for name in names if given[name] is not None}
    compress(producer_options(options).codec, b"")  # raises if the codec's library is missing
    return options
