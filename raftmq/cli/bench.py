"""`raftmq bench`: options of the throughput and latency benchmarks, as measured from this machine.

Owns options and help texts only. The work is in `benching/`, which is imported when a command runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from raftmq.cli.clusters.bootstrap import bootstrap_option
from raftmq.cli.produce import CODECS, PRESET_HELP, PRESETS, Acks
from raftmq.cli.terminal.options import SECONDS, NumberRange, epilog_of, output_option

if TYPE_CHECKING:
    from collections.abc import Callable

# The default `max.message.bytes` is 1 MiB: a larger value would only measure refusals.
SIZE = click.IntRange(0, 1 << 20)
COUNT = click.IntRange(min=1)
# Records per second. Each of them is paced on its own, which one Python process does not do
# more than 100,000 times a second.
RATE = NumberRange(min=0.1, max=100_000)
TOPIC = click.argument("topic", metavar="[TOPIC]", required=False)


@click.group()
def bench() -> None:
    """How fast this cluster is, as seen from here.

    A megabyte is 1,000,000 bytes of keys and values, before compression. client_cpu_us_per_record
    is what one record costs this process.
    """


def _all(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:  # noqa: ANN401  # click's
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_own_topic = _all(
    TOPIC,
    click.option(
        "--create", "is_own", is_flag=True, help="Make a topic for it, and delete it afterwards."
    ),
    click.option(
        "-p",
        "--partitions",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Of that topic; else 1.",
    ),
    click.option(
        "-r",
        "--replication-factor",
        type=click.IntRange(1, 16),
        metavar="N",
        help="Of that topic; else the cluster's default.",
    ),
)
_sending = _all(
    click.option(
        "--acks",
        type=Acks(),
        metavar="all|0|1|K",
        default="all",
        show_default=True,
        help="How many replicas must hold a record before it counts.",
    ),
    click.option("-z", "--compression", type=click.Choice(CODECS), help="Compress batches."),
)
_telling = _all(
    output_option(),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    bootstrap_option(),
)


@bench.command(
    epilog=epilog_of("""
    Examples:

    raftmq bench produce --create --partitions 6 --size 1000 --seconds 30

    raftmq bench produce orders --count 1000000 --acks 1 -z zstd --preset high_throughput -o json

    JSON: one object with bench, topic, record_bytes, acks, compression, preset, records, bytes,
    seconds, records_per_second, mb_per_second, client_cpu_us_per_record, and latency_ms with p50,
    p99, p99_9 and max.
    """)
)
@_own_topic
@click.option("--size", type=SIZE, default=100, show_default=True, help="Bytes of each value.")
@click.option("--keys", type=click.IntRange(0, 1_000_000), default=0, help="How many; 0: no keys.")
@click.option("-n", "--count", type=COUNT, metavar="N", help="Send N, however long it takes.")
@click.option(
    "--seconds", type=SECONDS, default=10.0, show_default=True, help="How long; not with --count."
)
@_sending
@click.option("--preset", type=click.Choice(PRESETS), help=PRESET_HELP)
@_telling
def produce(output: str, bootstrap: str | None, **given: Any) -> int:  # noqa: ANN401  # click's
    """Send as many records to TOPIC as go in.

    The values are hexadecimal digits: compression halves them. Beside the load a record is sent
    every 5 ms; latency is the time from its turn until it is acknowledged. They count as records.
    """
    from raftmq.cli.benching.bench_run import run_produce

    return run_produce(given, bootstrap, as_json=output == "json")


@bench.command(
    epilog=epilog_of("""
    Examples:

    raftmq bench consume orders

    raftmq bench consume orders --count 1000000 -o json

    JSON: one object with bench, topic, records, bytes, seconds, records_per_second, mb_per_second,
    client_cpu_us_per_record, batches, and wait_ms with p50, p99, p99_9 and max.
    """)
)
@click.argument("topic", metavar="TOPIC")
@click.option("-n", "--count", type=COUNT, metavar="N", help="Read N records at most.")
@click.option("--seconds", type=SECONDS, help="Read for so long at most.")
@_telling
def consume(
    topic: str,
    count: int | None,
    seconds: float | None,
    output: str,
    quiet: bool,
    bootstrap: str | None,
) -> int:
    """Read TOPIC from its oldest records to where it ends now.

    Only values are decoded, and their bytes counted. wait_ms is how long the next batch was waited
    for.
    """
    from raftmq.cli.benching.bench_run import run_consume

    return run_consume(topic, count, seconds, bootstrap, quiet=quiet, as_json=output == "json")


@bench.command(
    epilog=epilog_of("""
    Examples:

    raftmq bench latency --create

    raftmq bench latency orders --rate 1000 --seconds 60 --acks 1 -o json

    JSON: one object with bench, topic, record_bytes, acks, compression, preset, rate, records,
    not_acknowledged, not_received, client_cpu_us_per_record, and acknowledged_ms and end_to_end_ms
    with p50, p99, p99_9 and max.
    """)
)
@_own_topic
@click.option(
    "--size",
    type=click.IntRange(16, 1 << 20),
    default=100,
    show_default=True,
    help="Bytes of each value.",
)
@click.option("--rate", type=RATE, default=100.0, show_default=True, help="Records per second.")
@click.option("--seconds", type=SECONDS, default=10.0, show_default=True, help="How long.")
@_sending
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="low_latency",
    show_default=True,
    help=PRESET_HELP,
)
@_telling
def latency(output: str, bootstrap: str | None, **given: Any) -> int:  # noqa: ANN401  # click's
    """Send single records at a steady rate, and receive them.

    acknowledged_ms is the time from the turn of a record until it is acknowledged; end_to_end_ms
    until a consumer has it, which is in this process, too. The first second does not count. Exit
    code 1 if some were not acknowledged, or have not arrived within 10 s.
    """
    from raftmq.cli.benching.bench_run import run_latency

    return run_latency(given, bootstrap, as_json=output == "json")
