"""`raftmq group`: options for consumer groups: list, members, lag, reset offsets, delete.

Owns options, help texts, and what is refused before a broker is asked. The work is in
`clusters/group_reads` and `clusters/group_reset`, imported when a command runs: they bring the
event loop and the client with them.
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
def group() -> None:
    """Consumer groups: who is in them, how far they are, where they go on."""


@group.command(
    "list",
    epilog=epilog_of("""
    Examples:

    raftmq group list

    raftmq group list -o json | jq -r 'select(.members == 0) | .name'

    JSON: one object per line, by name. A group has name, state, protocol_type, members (their
    number), coordinator (a broker id).
    """),
)
@output_option()
@connection_options
def list_(output: str, timeout: float, bootstrap: str | None) -> int:
    """List all groups.

    state: Stable, or Empty without members; PreparingRebalance and CompletingRebalance while the
    partitions are dealt out anew. coordinator: the broker that looks after the group.

    Every broker has to answer, as each one knows only the groups that it coordinates.
    """
    from raftmq.cli.clusters.group_reads import list_groups

    return list_groups(bootstrap, timeout, as_json=output == "json")


@group.command(
    epilog=epilog_of("""
    Examples:

    raftmq group describe billing

    raftmq group describe billing -o json | jq '.members[] | {host, partitions}'

    JSON: one object per line. A group has name, state, generation, protocol_type, protocol (the
    assignor), leader (a member id), coordinator (a broker id), tags (the filter by which all
    members read) and members (a list: member_id, instance_id, client_id, host, topics, partitions,
    which are a list of topic and partition). What is not known, or not there, is null.
    """)
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@output_option()
@connection_options
def describe(names: tuple[str, ...], output: str, timeout: float, bootstrap: str | None) -> int:
    """Show the members of groups, and which partitions each of them reads.

    Exit code 3 if there is no group of some name; those that exist are shown first.
    """
    from raftmq.cli.clusters.group_reads import describe_groups

    return describe_groups(names, bootstrap, timeout, as_json=output == "json")


@group.command(
    epilog=epilog_of("""
    Examples:

    raftmq group lag billing

    raftmq group lag billing --watch

    raftmq group lag billing -o json | jq -s 'map(.lag) | add'

    raftmq group lag billing -o json | jq -s 'map(.age_seconds) | max'

    JSON: one object per line, for each partition. It has group, topic, partition, committed,
    end_offset, lag, age_seconds, member_id, client_id, host. What is not known, or not there, is
    null.
    """)
)
@click.argument("name", metavar="NAME")
@click.option("--watch", is_flag=True, help="Look every second, until Ctrl-C.")
@output_option()
@connection_options
def lag(name: str, watch: bool, output: str, timeout: float, bootstrap: str | None) -> int:
    """Show how far a group is behind, partition by partition, and who reads them.

    All partitions of the topics in which the group has committed something, or to which its members
    have subscribed. committed: where the group goes on; - where it has committed nothing, and its
    lag counts from the start of the log. end: after the newest committed record. Topics that were
    deleted are named by their ids. member: the client's name and the first characters of the rest
    of its id; JSON has whole ids. host is left out where the table would be wider than 80 columns.

    age: how long ago, by this machine's clock, the oldest record was written that the group has not
    read: s, m, h, d for seconds to days; 0s where none is left, or its time is in the future; -
    where that is not known, as with a record that has no timestamp. JSON has age_seconds.

    lag counts offsets, not records: control batches, which named producers write, take some, too.
    So it may stay above 0 though all records were read: for a moment behind a member that runs,
    and where no member has read on since they were written.

    Exit code 3 if there is no such group.
    """
    from raftmq.cli.clusters.group_reads import GroupLagOptions, show_lag, watch_lag

    look = GroupLagOptions(name, bootstrap, timeout, as_json=output == "json")
    return watch_lag(look) if watch else show_lag(look)


@group.command(
    "reset-offsets",
    epilog=epilog_of("""
    Examples:

    raftmq group reset-offsets billing --to earliest --dry-run

    raftmq group reset-offsets billing --to latest --yes

    raftmq group reset-offsets billing --to @-2h --topic orders

    raftmq group reset-offsets billing --shift -100 --topic orders --partition 0 --yes

    JSON: one object per line, for each partition. It has group, topic, partition, old, new,
    start_offset, end_offset, asked (what was asked for, where that lies outside of the log). What
    is not there is null.
    """),
)
@click.argument("name", metavar="NAME")
@click.option(
    "--to",
    metavar="WHERE",
    help="earliest: the oldest record. latest: after the newest one. N: an offset. @TIME: the first"
    " record at or after a time, like @-1h30m (so long ago), @2026-11-21T10:00:00Z or @ and"
    " milliseconds since 1970; before -1h30m and dates the @ may be left out.",
)
@click.option("--shift", type=int, metavar="N", help="So many offsets forward or, with -N, back.")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help="Only this one, with all of its partitions. May be repeated.",
)
@click.option(
    "--partition",
    "partitions",
    type=PARTITION,
    metavar="N",
    multiple=True,
    help="Only this one, of the one --topic. May be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@output_option()
@yes_option()
@connection_options
def reset_offsets(
    name: str,
    to: str | None,
    shift: int | None,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    dry_run: bool,
    output: str,
    is_sure: bool,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Set the offsets at which a group goes on. It must have no members: stop them first.

    Without --topic, of the partitions for which the group has committed something. A new offset
    lies within the log: for one that is beyond its end the end is taken, for one before its start
    the start. stderr says so, and the offset that was asked for stands in the table.

    Shows what would be done and asks; without a terminal it refuses unless --yes or --dry-run is
    given. If an offset changes meanwhile, nothing is done.

    Exit code 3 if there is no such group, topic or partition, 1 if the group has members.
    """
    from raftmq.cli.clusters.group_reset import ResetOrder, reset_offsets, wish_of

    wish = wish_of(name, to, shift, topics, partitions)
    order = ResetOrder(wish, bootstrap, timeout, as_json=output == "json")
    return reset_offsets(order, is_dry=dry_run, is_sure=is_sure)


@group.command(
    epilog=epilog_of("""
    Examples:

    raftmq group delete billing

    raftmq group delete billing audit --yes

    JSON: one object per line, for each group once it is deleted. It has name, deleted (true).
    """)
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@yes_option()
@output_option()
@connection_options
def delete(
    names: tuple[str, ...], is_sure: bool, output: str, timeout: float, bootstrap: str | None
) -> int:
    """Delete groups without members, with the offsets that they have committed.

    Asks first; without a terminal it refuses unless --yes is given. Exit code 3 if there is no
    such group, 1 if one has members: then none of them is deleted.
    """
    from raftmq.cli.clusters.group_reads import delete_groups

    return delete_groups(names, bootstrap, timeout, is_sure=is_sure, as_json=output == "json")
