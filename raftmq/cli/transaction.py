"""`raftmq transaction`: options to look at transactions, and to end them by hand.

Owns options, help texts, and what is refused before a broker is asked. The work is in
`clusters/transaction_reads`, imported when a command runs: it brings the event loop and the client
with it.
"""

from __future__ import annotations

import rich_click as click

from raftmq.cli.terminal.options import (
    PARTITION,
    InOrder,
    connection_options,
    epilog_of,
    output_option,
    yes_option,
)


@click.group(cls=InOrder)
def transaction() -> None:
    """Transactions: what is open, what holds readers back, and ending it by hand."""


@transaction.command(
    "list",
    epilog=epilog_of("""
    Examples:

    raftmq transaction list

    raftmq transaction list --unsettled

    raftmq transaction list --idle 7d -o json | jq -r .transaction_id

    JSON: one object per line, by id. It has transaction_id, producer_id, producer_epoch,
    timeout_ms, ephemeral, last_outcome (committed, aborted, reopened), last_reason, last_version,
    last_count, unsettled (a number), unsettled_partitions (a list of topic and partition),
    changed_at_ms; of a shared id lineage, open_version, members (how many have joined that
    version, else 0). What is not there is null.
    """),
)
@click.option("--unsettled", is_flag=True, help="Only ids with commits that are not settled yet.")
@click.option(
    "--idle",
    metavar="DURATION",
    help="Only ids whose last transaction ended so long ago, like 7d, 12h, 1h30m.",
)
@output_option()
@connection_options
def list_(
    unsettled: bool, idle: str | None, output: str, timeout: float, bootstrap: str | None
) -> int:
    """List all transaction ids.

    last: what became of the newest transaction of the id, and why, if it was aborted. "reopened":
    a producer has opened the id since, and what was open then, if anything was, is aborted; of a
    shared id: a higher version was begun, which aborted the open one.
    version: the highest that was committed. unsettled: commits that some partitions have not
    marked yet; more than a few, for longer than seconds, mean that a partition has no leader.

    Whether something is open is known by the partitions: see `raftmq transaction open`.
    """
    from raftmq.cli.clusters.transaction_reads import idle_seconds_of, list_transactions

    idle_seconds = idle_seconds_of(idle)
    return list_transactions(
        bootstrap, timeout, unsettled=unsettled, idle_seconds=idle_seconds, as_json=output == "json"
    )


@transaction.command(
    epilog=epilog_of("""
    Examples:

    raftmq transaction describe billing-1

    JSON: one object per line, as `raftmq transaction list` has it.
    """)
)
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@output_option()
@connection_options
def describe(names: tuple[str, ...], output: str, timeout: float, bootstrap: str | None) -> int:
    """Show transaction ids: the newest outcome, versions, and what is not settled where.

    Exit code 3 if there is no such id; those that exist are shown first.
    """
    from raftmq.cli.clusters.transaction_reads import describe_transactions

    return describe_transactions(names, bootstrap, timeout, as_json=output == "json")


@transaction.command(
    "open",
    epilog=epilog_of("""
    Examples:

    raftmq transaction open orders

    raftmq transaction open orders -p 0 -o json | jq 'select(.open_seconds > 60)'

    JSON: one object per line. It has topic, partition, transaction_id, producer_id,
    producer_epoch, first_offset, open_seconds, last_stable_offset, high_watermark. An id that is
    not known any more is null.
    """),
)
@click.argument("topic", metavar="TOPIC")
@click.option(
    "-p", "--partition", "partitions", type=PARTITION, metavar="N", multiple=True,
    help="Only this one. May be repeated.",
)  # fmt: skip
@output_option()
@connection_options
def open_(
    topic: str, partitions: tuple[int, ...], output: str, timeout: float, bootstrap: str | None
) -> int:
    """Show what is open in a topic: by whom, since when, and which offset it holds back.

    Readers with isolation level read_committed wait at `stable`; without open transactions they
    would be at `end`. A transaction whose time is over is aborted by itself.

    Exit code 3 if there is no such topic or partition.
    """
    from raftmq.cli.clusters.transaction_reads import list_open

    return list_open(topic, partitions, bootstrap, timeout, as_json=output == "json")


@transaction.command(
    epilog=epilog_of("""
    Examples:

    raftmq transaction abort billing-1 --yes

    JSON: one object per line, for each id. It has transaction_id, aborted (true).
    """)
)
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@yes_option()
@output_option()
@connection_options
def abort(
    names: tuple[str, ...], is_sure: bool, output: str, timeout: float, bootstrap: str | None
) -> int:
    """Abort what is open under transaction ids. Their producers are told, and may go on.

    The members of a shared version may not: all of its tasks run again.

    Asks first; without a terminal it refuses unless --yes is given. Exit code 3 if there is no
    such id: then none is aborted.
    """
    from raftmq.cli.clusters.transaction_reads import abort_transactions

    return abort_transactions(names, bootstrap, timeout, is_sure=is_sure, as_json=output == "json")


@transaction.command(
    epilog=epilog_of("""
    Examples:

    raftmq transaction forget etl-7 --yes

    JSON: one object. It has transaction_id, forgotten (true).
    """)
)
@click.argument("name", metavar="ID")
@click.option(
    "--unsettled",
    is_flag=True,
    help="Also with commits that are not settled: these may be torn. For partitions that are lost.",
)
@yes_option()
@output_option()
@connection_options
def forget(
    name: str, unsettled: bool, is_sure: bool, output: str, timeout: float, bootstrap: str | None
) -> int:
    """Forget a transaction id with its versions; what is open under it is aborted.

    Stop its programs first: what became of a commit without an answer is not known afterwards, and
    a version that was committed before can be committed again. Idle ids are forgotten by
    themselves: after 7 days, with versions after 90.

    Asks first; without a terminal it refuses unless --yes is given. Exit code 3 if there is no
    such id.
    """
    from raftmq.cli.clusters.transaction_reads import forget_transaction

    return forget_transaction(
        name, bootstrap, timeout, unsettled=unsettled, is_sure=is_sure, as_json=output == "json"
    )
