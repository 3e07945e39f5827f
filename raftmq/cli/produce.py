"""`raftmq produce`: options to send lines of standard input, or of files, as records.

Owns options and help texts. The work is in `data/produce_run`, imported when the command runs.
"""

from __future__ import annotations

from typing import Any

import rich_click as click

from raftmq.cli.clusters.bootstrap import bootstrap_option
from raftmq.cli.terminal.options import PARTITION, NumberRange, epilog_of
from raftmq.cli.terminal.times import SIZE_FORM, parse_size
from raftmq.words import DURATION_FORM

CODECS = ("gzip", "lz4", "zstd")
PRESETS = ("high_throughput", "low_latency")
PRESET_HELP = "Wait for large and full batches, or send each record at once."
FILE = click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)
TRANSACTION_SECONDS = 60.0  # the SDK's default transaction_timeout_ms
DELIVERY_SECONDS = 120.0  # the SDK's default delivery_timeout_ms, long enough for a failover


class Acks(click.ParamType[Any]):
    """`all`, or a number of replicas."""

    name = "acks"

    def convert(
        self,
        value: Any,  # noqa: ANN401  # click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int | str:
        text = str(value)
        if text == "all":
            return text
        if text.isdecimal() and text.isascii():
            return int(text)
        self.fail(f"{value!r} is neither 0, 1, a number of replicas, nor all", param, ctx)


class Size(click.ParamType[Any]):
    """Bytes: a number, or one with a unit."""

    name = "size"

    def convert(
        self,
        value: Any,  # noqa: ANN401  # click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        text = str(value)
        found = int(text) if text.isdecimal() and text.isascii() else parse_size(text)
        if found is None:
            self.fail(f"{value!r} is no number of bytes: write it {SIZE_FORM}", param, ctx)
        return found


@click.command(
    epilog=epilog_of(r"""
    Examples:

    echo paid | raftmq produce orders -k c-17

    raftmq produce orders < orders.txt

    tail -F app.log | raftmq produce logs -z zstd --acks 1

    printf 'c-17:paid\n' | raftmq produce orders -K : -H source=shop -t eu

    find . -print0 | raftmq produce files -D '\0'

    raftmq produce orders --transaction < orders.txt

    echo remind | raftmq produce jobs -k c-17 --delay 30m

    Exit codes: 0 when every record was acknowledged, 1 when one was refused, 3 if there is no such
    topic, 5 if no broker was reached or the time was over, 130 interrupted, 143 ended by SIGTERM.
    stderr says how many were delivered, how many were not, and of how many the outcome is unknown.
    """)
)
@click.argument("topic", metavar="TOPIC")
@click.option("-k", "--key", metavar="KEY", help="One key for all records.")
@click.option(
    "-K",
    "--key-delimiter",
    metavar="DELIM",
    help=r"What stands before the first DELIM of a line is its key; without any, -k is. Takes"
    r" \t, \xNN and so on.",
)
@click.option(
    "-H",
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of all records. May be repeated.",
)
@click.option(
    "-t",
    "--tag",
    "tags",
    metavar="TAG",
    multiple=True,
    help="A tag of all records. May be repeated.",
)
@click.option(
    "-p",
    "--partition",
    type=PARTITION,
    metavar="N",
    help="Send all records to it. Else the key of each decides; batches without keys are spread.",
)
@click.option(
    "--delay",
    metavar="DURATION",
    help=f"Consumers get each record so long after it was read: {DURATION_FORM}.",
)
@click.option(
    "--at",
    "deliver_at",
    metavar="TIME",
    help="Consumers get all records at TIME, like 2026-12-24T18:00Z, or milliseconds since 1970."
    " `topic scheduled` shows what waits, and cancels it.",
)
@click.option(
    "-F",
    "--file",
    "files",
    type=FILE,
    metavar="FILE",
    multiple=True,
    help="Read it in place of standard input, which is -. May be repeated.",
)
@click.option(
    "-D",
    "--delimiter",
    metavar="DELIM",
    default=r"\n",
    show_default=True,
    help=r"What ends a record. Takes \0, \xNN and so on.",
)
@click.option("-Z", "--null", "is_null", is_flag=True, help="Send an empty value, or key, as null.")
@click.option(
    "--acks",
    type=Acks(),
    metavar="all|0|1|K",
    default="all",
    show_default=True,
    help="How many replicas must hold a record before it counts; all: every one that is in sync.",
)
@click.option("-z", "--compression", type=click.Choice(CODECS), help="Compress batches.")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    help=PRESET_HELP,
)
@click.option(
    "--max-request-size",
    type=Size(),
    metavar="SIZE",
    help="The largest record, and the most that one request carries, in bytes or like 4MiB; else"
    " 1MiB, with --preset high_throughput 4MiB. Topics refuse what is over their"
    " max.message.bytes.",
)
@click.option(
    "--timeout",
    type=NumberRange(min=0.001, max=1e6),
    metavar="SECONDS",
    default=DELIVERY_SECONDS,
    show_default=True,
    help="Give a record up that was not delivered after that long.",
)
@click.option(
    "--transaction",
    is_flag=False,
    flag_value="",
    metavar="[ID]",
    help="Send all of the input in one transaction: readers of committed records get all of it, at"
    " its end, or nothing. An ID ends what an earlier run with the same one has left open.",
)
@click.option(
    "--transaction-records",
    type=click.IntRange(min=1, max=1_000_000),
    metavar="N",
    help="A transaction for each N records in place of one for all.",
)
@click.option(
    "--transaction-timeout",
    type=NumberRange(min=1, max=86_400),
    metavar="SECONDS",
    default=TRANSACTION_SECONDS,
    show_default=True,
    help="Abort a transaction that takes longer. Until it ends, readers of its partitions wait.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress, and no summary.")
@bootstrap_option()
def produce(topic: str, bootstrap: str | None, timeout: float, quiet: bool, **given: Any) -> int:  # noqa: ANN401  # click's
    """Send records to TOPIC: one for each line of standard input.

    Lines are bytes: nothing is decoded or stripped but the newline that ends them, and an empty
    line is an empty record. What is typed or comes slowly leaves at once, what comes fast leaves in
    batches. While brokers are away the records wait for them, and nothing more is read.
    """
    from raftmq.cli.data.produce_run import order_of, run_produce

    return run_produce(order_of(topic, timeout, **given), bootstrap, quiet=quiet)
