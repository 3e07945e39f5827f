"""`raftmq consume`: options to print the records of topics as lines, alone or in a consumer group.

Owns options and help texts. The work is in `data/consume_run` and, with -g, `data/consume_group`,
imported when the command runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from raftmq.cli.clusters.bootstrap import bootstrap_option
from raftmq.cli.terminal.options import PARTITION, epilog_of

if TYPE_CHECKING:
    from raftmq.cli.data.consume_run import Isolation

# The SDK's words, in its order; its modules are imported when the command runs.
ISOLATIONS = ("read_committed", "read_uncommitted")
COUNT = click.IntRange(min=1)


@click.command(
    epilog=epilog_of(r"""
    Examples:

    raftmq consume orders

    raftmq consume orders -e -f '%p@%o %k: %s\n'

    raftmq consume orders returns -o @2026-11-21T10:00:00Z -n 100 -f json | jq .value

    raftmq consume orders -o @-1h30m -e

    raftmq consume orders -o -10 -e

    raftmq consume orders -g billing -o earliest

    raftmq consume orders -o earliest --tags 'paid & (eu | us) & !test'

    FORMAT, as kcat has it: %t topic, %p partition, %o offset, %k key, %s value, %h headers
    (name=value, with commas between), %T timestamp, %K and %S lengths of key and value in bytes
    (-1 where there is none), %R the length of the value as four bytes, big-endian, %% a percent
    sign; \n \r \t \0 \\ and \xNN. Nothing is added to it, so end it with \n.

    JSON: one object per line with topic, partition, offset, timestamp, key, value, headers (a list
    of name and value), tags. Bytes are text where they are UTF-8; where they are not, key_base64 or
    value_base64 stands in place of key or value. What there is not is null. Timestamps are
    milliseconds since 1970-01-01 UTC, -1 for none. A record that was scheduled also has
    scheduled_at, when it was made, and due; its timestamp is the moment of its delivery.

    Exit codes: 1 if the reader of stdout has gone (as `head` does; no message is printed), 3 if
    there is no such topic or partition, 5 if no broker was reached or, with -e, if some partition
    could not be read to its end, 130 interrupted, 143 ended by SIGTERM.
    """)
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "-o",
    "--offset",
    metavar="WHERE",
    help="Where to begin. earliest: with the oldest records. latest: with what comes from now on."
    " N: at an offset. -N: so many offsets before the end of each partition. @TIME: at a time, like"
    " @-1h30m (so long ago; w, d, h, m, s, ms), @2026-11-21T10:00:00Z, @2026-11-21T10:00 by this"
    " machine's time zone, or @ and milliseconds since 1970; before -1h30m and dates the @ may be"
    " left out. -N counts offsets, not records:"
    " control batches, which named producers and transactions write, and records of aborted"
    " transactions take some, too, so that fewer than N records may come. The default is latest,"
    " and earliest where -e is given.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=PARTITION,
    metavar="N",
    multiple=True,
    help="Only this partition. May be repeated.",
)
@click.option("-n", "--count", type=COUNT, metavar="N", help="End after N records.")
@click.option(
    "-e",
    "--exit-at-end",
    "until_end",
    is_flag=True,
    help="End where the partitions have ended when the command was called. Partitions whose leaders"
    " do not answer are left out after some seconds, and named on stderr in the end.",
)
@click.option(
    "-f",
    "--format",
    "form",
    metavar="FORMAT|json",
    help="Else the value and a newline; on a terminal with what it cannot print as \\xNN.",
)
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    help="As a member of this group, which shares the partitions and goes on where it has stopped:"
    " what is printed is committed, also when Ctrl-C or SIGTERM ends it; then it leaves the group."
    " -o says where it begins if it has committed nothing; -e ends at the ends of the partitions"
    " that this member gets.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(ISOLATIONS),
    default="read_committed",
    show_default=True,
    help="read_committed: of transactions only what is committed, up to the first one that is still"
    " open; -e ends there. read_uncommitted: records of open and of aborted transactions, too.",
)
@click.option(
    "--tags",
    metavar="EXPR",
    multiple=True,
    help="Only records whose tags satisfy it, as 'paid & (eu | us) & !test': & is and, | or, ! not,"
    ' which binds most closely; tags with spaces or such signs stand in "". The brokers leave the'
    " others out. -n counts what is printed, -N of -o all offsets. With -g what is left out counts"
    " as read, and all members say the same.",
)
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr.")
@bootstrap_option()
def consume(
    topics: tuple[str, ...],
    offset: str | None,
    partitions: tuple[int, ...],
    count: int | None,
    until_end: bool,
    form: str | None,
    group: str | None,
    isolation_level: Isolation,
    tags: tuple[str, ...],
    quiet: bool,
    bootstrap: str | None,
) -> int:
    """Print the records of topics, and go on with what comes, until Ctrl-C.

    Records of one partition come in order; those of different ones in the order of their arrival.
    """
    from raftmq.cli.data.consume_group import run_consume_group
    from raftmq.cli.data.consume_run import run_consume, wish_of

    # Taken several times, as `produce -t` may be: else the last one alone would count, in silence.
    if len(tags) > 1:
        both = " & ".join(f"({each})" for each in tags)
        raise click.UsageError(f"--tags: give it once: '{both}' for all of them, | for any")
    wish = wish_of(
        topics,
        offset,
        partitions,
        count,
        form,
        until_end=until_end,
        isolation_level=isolation_level,
        tags=next(iter(tags), None),
    )
    # With a group the coordinator assigns the partitions; without one this process reads all of
    # them.
    if group is not None:
        return run_consume_group(wish, group, bootstrap, quiet=quiet)
    return run_consume(wish, bootstrap, quiet=quiet)
