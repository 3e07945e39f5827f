"""`raftmq topic`: options to list, describe, create, alter, move, delete, trim, restart topics.

Owns options, help texts, and what is refused before a broker is asked. The work is in
`clusters/topic_*.py` and `moves/`, imported when a command runs: these bring the event loop and the
client with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.options import (
    PARTITION,
    InOrder,
    connection_options,
    epilog_of,
    output_option,
    yes_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITION_COUNT = click.IntRange(1, 10_000)
REPLICATION_FACTOR = click.IntRange(1, 16)
NAME = click.argument("name", metavar="NAME")
WAIT = click.option(
    "--wait", is_flag=True, help="Until the replicas have moved, or --timeout is over."
)


@click.group(cls=InOrder)
def topic() -> None:
    """Topics: make them, look at them, change them, empty them."""


def _config_option(what: str) -> Callable[[Any], Any]:
    return click.option("-c", "--config", "settings", metavar="KEY=VALUE", multiple=True, help=what)


@topic.command(
    "list",
    epilog=epilog_of("""
    Examples:

    raftmq topic list

    raftmq topic list -o json | jq -r 'select(.leaderless > 0) | .name'

    JSON: one object per line, by name. A topic has name, topic_id (hexadecimal), partitions,
    replication_factor, under_replicated, leaderless (numbers of partitions), records, bytes (of the
    leaders), replica_bytes (of all replicas). What is not known is null.
    """),
)
@output_option()
@connection_options
def list_(output: str, timeout: float, bootstrap: str | None) -> int:
    """List all topics.

    under-replicated: partitions of which a replica is not in sync, or not there. leaderless:
    partitions that can be neither written nor read now.

    records: offsets from the start to the end of the leaders' logs. Control batches take offsets,
    too, so there may be fewer records. bytes: of these logs on disk; each further replica needs as
    many again. A - stands where a broker did not answer, or is too old to report sizes.

    A terminal gets long names without their middle where the lines fit into it then.
    """
    from raftmq.cli.clusters.topic_reads import list_topics

    return list_topics(bootstrap, timeout, as_json=output == "json")


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic describe orders

    raftmq topic describe orders -o json | jq '.partitions[] | select(.leader == null)'

    JSON: one object per line. A topic has name, topic_id (hexadecimal), replication_factor,
    records, bytes, replica_bytes (see `topic list`), partitions (a list: partition, leader,
    leader_epoch, partition_epoch, replicas, isr, adding, removing, start_offset, end_offset,
    last_stable_offset, is_recovering, records, bytes, replica_bytes) and config (by key: value,
    is_default). What is not known is null.
    """)
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@output_option()
@connection_options
def describe(names: tuple[str, ...], output: str, timeout: float, bootstrap: str | None) -> int:
    """Show the partitions and the configuration of topics.

    The replicas of a partition begin with its preferred leader; isr are those in sync. start and
    end are the offset of the oldest record, and the one after the newest that is committed. bytes
    are those of the leader's log on disk. A partition that moves has its new replicas and those
    that are to go; `cluster moves` shows how far it is.

    Exit code 3 if there is no topic of some name; those that exist are shown first.
    """
    from raftmq.cli.clusters.topic_reads import describe_topics

    return describe_topics(names, bootstrap, timeout, as_json=output == "json")


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic create orders --partitions 6 --replication-factor 3

    raftmq topic create audit -c retention.ms=90d -c segment.bytes=64MiB --if-not-exists

    raftmq topic create orders -p 6 -o json | jq .replication_factor

    JSON: one object per line, and there is one. It has name, topic_id (hexadecimal), partitions,
    replication_factor, is_new (false: it was there, see --if-not-exists) and warning, which is null
    where there is none.
    """)
)
@NAME
@click.option("-p", "--partitions", type=PARTITION_COUNT, metavar="N", help="How many; else 1.")
@click.option(
    "-r",
    "--replication-factor",
    type=REPLICATION_FACTOR,
    metavar="N",
    help="Copies of each record, on as many brokers; else 3, or one on each node where the cluster"
    " has fewer. Required while one of the brokers for these is down.",
)
@_config_option(
    "A setting of the topic. Keys in .ms take 7d, 12h, 1h30m, too, those in .bytes 64MiB, 1GB. May"
    " be repeated; `topic describe` lists all."
)
@click.option(
    "--if-not-exists", is_flag=True, help="Succeed if there is one already, and leave it as it is."
)
@output_option()
@connection_options
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Make a topic, and wait until it can be used.

    Says what was made, and warns on stderr if one broker that is down would stop it.

    Without --replication-factor it is refused while nodes are missing that the default would need.
    Exit code 4 if a topic of this name exists; nothing is changed then.
    """
    from raftmq.cli.clusters.topic_changes import NewTopicOptions, create_topic

    wanted = NewTopicOptions(name, partitions, replication_factor, settings)
    return create_topic(
        wanted, bootstrap, timeout, if_not_exists=if_not_exists, as_json=output == "json"
    )


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic alter orders -c retention.ms=12h --reset max.message.bytes

    raftmq topic alter orders --partitions 12

    raftmq topic alter orders --replication-factor 3 --wait --timeout 3600

    JSON: one object per line, for each of the changes once it is done: the keys, the partitions,
    the replicas. It has name, and config (by key; null is the default), partitions, or
    replication_factor and moves (a list, as `topic move` has them). With --wait there is an object
    for each partition that moves, as `topic move` has it.
    """)
)
@NAME
@click.option(
    "-p", "--partitions", type=PARTITION_COUNT, metavar="N", help="How many there shall be."
)
@click.option(
    "-r",
    "--replication-factor",
    type=REPLICATION_FACTOR,
    metavar="N",
    help="Copies of each record, on as many brokers.",
)
@_config_option("Set a key, as in `topic create`. May be repeated.")
@click.option(
    "--reset", "resets", metavar="KEY", multiple=True, help="Back to the default. May be repeated."
)
@WAIT
@click.option(
    "--dry-run", is_flag=True, help="Show what a replication factor would move, and do nothing."
)
@output_option()
@connection_options
def alter(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    resets: tuple[str, ...],
    wait: bool,
    dry_run: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Change the configuration of a topic, its replicas, or let it grow.

    The keys change all together or not at all; other keys stay as they are. A topic never shrinks.
    After it has grown, new records of a key may come to another partition than its old ones. Warns
    on stderr if one broker that is down would stop it, where what was changed has to do with that.

    --replication-factor moves partitions, as `topic move` does. New replicas come to the active
    brokers that have the fewest, in other racks if there are some; what goes is what is not in
    sync, and never the leader.

    Exit code 3 if there is no such topic. Exit codes of --wait are those of `topic move`.
    """
    from raftmq.cli.clusters.topic_changes import alter_topic
    from raftmq.cli.moves.topic_move import FactorChange

    factor = None
    if replication_factor is not None:
        factor = FactorChange(replication_factor, is_waiting=wait, is_dry=dry_run)
    if (wait or dry_run) and (factor is None or (wait and dry_run)):
        raise CommandError(
            "--wait or --dry-run: choose one, with --replication-factor N", ExitCode.USAGE
        )
    as_json = output == "json"
    return alter_topic(
        name, partitions, settings, resets, factor, bootstrap, timeout, as_json=as_json
    )


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic move orders 3 --to 2,4,5

    raftmq topic move orders 3 --to 2,4,5 --wait --timeout 3600

    JSON: one object per line, for each partition. It has name, partition, replicas, target (lists
    of broker ids), outcome (planned, failed, unknown: it may be planned; with --wait: moved,
    failed) and error, which is null where there is none.
    """)
)
@NAME
@click.argument("partitions", metavar="PARTITION...", type=PARTITION, nargs=-1, required=True)
@click.option(
    "--to",
    "target",
    metavar="ID,ID,...",
    required=True,
    help="The brokers that are to have it, the preferred leader first; of several partitions each.",
)
@WAIT
@output_option()
@connection_options
def move(
    name: str,
    partitions: tuple[int, ...],
    target: str,
    wait: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Give partitions replicas on other brokers, while they are written and read.

    New replicas are copied beside those that are there, which go when all new ones are in sync: no
    record has fewer copies meanwhile. The cluster moves a few partitions at a time, and goes on
    when this command or a broker ends; `cluster moves` shows how far it is, and takes it back. A
    move takes the place of an earlier one of its partition.

    Exit code 1 if a partition was refused, as for a broker that there is not, or if its move was
    taken back while --wait waits; 3 if there is no such topic, or partition: then nothing is moved;
    5 if it is not done until --timeout, after which it goes on.
    """
    from raftmq.cli.moves.topic_move import MoveOptions, move_partitions

    look = MoveOptions(bootstrap, timeout, is_waiting=wait, as_json=output == "json")
    return move_partitions(name, partitions, target, look)


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic delete orders

    raftmq topic delete orders returns --yes

    JSON: one object per line, for each topic once it is deleted. It has name, deleted (true).
    """)
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@yes_option()
@output_option()
@connection_options
def delete(
    names: tuple[str, ...], is_sure: bool, output: str, timeout: float, bootstrap: str | None
) -> int:
    """Delete topics with all of their records, for good.

    Asks first; without a terminal it refuses unless --yes is given. Exit code 3 if there is no
    such topic: then none of them is deleted.
    """
    from raftmq.cli.clusters.topic_changes import delete_topics

    return delete_topics(names, bootstrap, timeout, is_sure=is_sure, as_json=output == "json")


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic trim orders --before-offset 0:1200 --before-offset 1:900

    raftmq topic trim orders --before-time 2026-11-01T00:00:00Z

    raftmq topic trim orders --before-time -7d --yes

    JSON: one object per line, for each partition that was trimmed, and none if there was nothing to
    delete. It has name, partition, start_offset.
    """)
)
@NAME
@click.option(
    "--before-offset",
    "offsets",
    metavar="P:OFFSET",
    multiple=True,
    help="Partition P is to begin with OFFSET. May be repeated.",
)
@click.option(
    "--before-time",
    "time",
    metavar="TIME",
    help="Every partition is to begin with its first record at or after TIME, which is like"
    " 2026-11-21T10:00:00Z, -7d for so long ago, or milliseconds since 1970; as for other"
    " commands, an @ may stand before it.",
)
@yes_option()
@output_option()
@connection_options
def trim(
    name: str,
    offsets: tuple[str, ...],
    time: str | None,
    is_sure: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Delete the oldest records of a topic, for good.

    Shows what would be deleted and asks; without a terminal it refuses unless --yes is given. Says
    with which offset each partition begins afterwards, under any leader. Needs the quorum.

    Exit code 3 if there is no such topic, or partition.
    """
    from raftmq.cli.clusters.topic_trim import trim_topic

    as_json = output == "json"
    return trim_topic(name, offsets, time, bootstrap, timeout, is_sure=is_sure, as_json=as_json)


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic scheduled orders

    raftmq topic scheduled orders -n 1000 -o json | jq '.records[] | select(.key == "c-17")'

    raftmq topic scheduled orders --cancel 5f0c…:0:1042

    JSON: one object per line. A topic has name, batches, bytes, next_due, is_complete, partitions
    (a list: partition, batches, bytes, next_due) and records (a list: handle, partition, due,
    timestamp, key, headers, tags, value_bytes, is_undecided); times are in milliseconds, and what
    there is not is null. With --cancel an object for each handle: handle, cancelled, reason
    (delivered, cancelled, aborted, unknown) and error.
    """)
)
@NAME
@click.option("-p", "--partition", type=PARTITION, metavar="N", help="Only this partition.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(0, 1_000_000),
    metavar="N",
    default=100,
    show_default=True,
    help="So many records are listed at the most; 0: only how much there is.",
)
@click.option(
    "--cancel",
    "handles",
    metavar="HANDLE",
    multiple=True,
    help="Do not deliver the record with this handle. May be repeated.",
)
@output_option()
@connection_options
def scheduled(
    name: str,
    partition: int | None,
    limit: int,
    handles: tuple[str, ...],
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Show the records of a topic that are to be delivered later, or cancel some.

    By due time; where there are more than --limit, those that were sent first. `in`: until then, by
    the clock of this machine; brokers deliver by theirs. The batches on the last line are those
    that hold the records; what open transactions have scheduled does not count there.

    A cancelled record never reaches a consumer. Exit code 1 if one could not be cancelled, as it
    was delivered before, 3 if there is no such topic, or partition.
    """
    from raftmq.cli.clusters.topic_scheduled import cancel_scheduled, list_scheduled

    as_json = output == "json"
    if handles:
        return cancel_scheduled(name, handles, bootstrap, timeout, as_json=as_json)
    return list_scheduled(name, partition, limit, bootstrap, timeout, as_json=as_json)


@topic.command(
    epilog=epilog_of("""
    Examples:

    raftmq topic restart-empty orders

    raftmq topic restart-empty orders -p 3 --yes

    JSON: one object per line, for each partition without a leader. It has name, partition, outcome
    (elected, led already, failed) and error, which is null where there is none.
    """)
)
@NAME
@click.option(
    "-p",
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition. May be repeated.",
)
@yes_option()
@output_option()
@connection_options
def restart_empty(
    name: str,
    partitions: tuple[int, ...],
    is_sure: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Start partitions empty on other brokers, as all brokers that have them are lost for good.

    All of their records are given up, also if a lost broker comes back later. Shows the partitions
    without a leader and asks; without a terminal it refuses unless --yes is given. A partition that
    an active broker has is left alone. Needs the quorum.

    Exit code 1 if some partition could not start, 3 if there is no such topic, or partition.
    """
    from raftmq.cli.clusters.topic_restart import restart_topic

    as_json = output == "json"
    return restart_topic(name, partitions, bootstrap, timeout, is_sure=is_sure, as_json=as_json)
