"""`raftmq cluster`: options of health, status, leaders, moves, info and configure.

Owns options and help texts. The work is in `clusters/`, `moves/` and `nodes/host_plan`, imported
when a command runs: they bring the event loop and the client with them.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import rich_click as click

from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.options import (
    PARTITION,
    connection_options,
    epilog_of,
    output_option,
    yes_option,
)
from raftmq.extras import require_extra


@click.group()
def cluster() -> None:
    """The cluster: is it healthy, and which brokers are in it."""


@cluster.command(
    epilog=epilog_of("""
    Examples:

    raftmq cluster health || echo 'the cluster needs attention'

    raftmq cluster health --wait --timeout 120

    raftmq cluster health --watch

    JSON: one object per line, for each look. It has is_healthy, cluster_id, controller_id, brokers,
    topics, partitions (numbers), brokers_down (broker ids), silent (ids of
    brokers that do not answer), addresses (by broker id), leaderless and under_replicated (lists:
    topic, partition, missing, which are broker ids), fragile (a list: topic, replication_factor,
    min_insync_replicas, warning), wrong_clocks (a list: broker_id, ahead_ms), damaged (a list:
    topic, partition, broker_id, offset, what; 500 of each broker at most), damaged_count (of all),
    held (a list: topic, partition, transaction_id, open_seconds), unsettled (a list:
    transaction_id, commits, oldest_seconds; of both 100 of each broker at most) and
    voters_together (ids of voters that share a host, by host). What is not known is null.
    """)
)
@click.option("--wait", is_flag=True, help="Until it is healthy, or --timeout is over.")
@click.option("--watch", is_flag=True, help="Look every second, until Ctrl-C.")
@output_option()
@connection_options
def health(wait: bool, watch: bool, output: str, timeout: float, bootstrap: str | None) -> int:
    """Check whether all is well.

    All is well if the quorum has a leader, no broker is down, each one answers, every partition
    is led, every replica is in sync and undamaged, as far as its broker knows, the clocks of the
    brokers agree, no transaction is open for longer than any timeout, and none that was committed
    lacks its mark in some partition for a minute. A broker that is stopping counts as down.

    A warning is no reason to be unhealthy: it names topics that one broker which is down would
    stop, as they have one replica, or as acks=all needs all of theirs; and voters that share a
    host.

    Exit code 7 if something is not. With --wait, 5 if no broker has answered until --timeout.
    """
    from raftmq.cli.clusters.cluster_health import HealthOptions, look_once, watch_health
    from raftmq.cli.clusters.cluster_health import wait_healthy as wait_until

    if wait and watch:
        raise CommandError("--wait and --watch: choose one", ExitCode.USAGE)
    look = HealthOptions(bootstrap, timeout, as_json=output == "json")
    run = wait_until if wait else watch_health if watch else look_once
    return run(look)


@cluster.command(
    epilog=epilog_of("""
    Examples:

    raftmq cluster status

    raftmq cluster status -o json | jq 'select(.type == "broker") | .leads'

    JSON: one object per line, told apart by type. A broker has broker_id, address, rack, state
    (active, down, stopping), is_controller, leads, replicas, not_in_sync (numbers of partitions);
    the summary comes last and has cluster_id, controller_id, brokers, topics, partitions,
    leaderless, under_replicated (numbers). What is not known is null.
    """)
)
@output_option()
@connection_options
def status(output: str, timeout: float, bootstrap: str | None) -> int:
    """Show the brokers, and what each of them carries.

    leads: partitions whose leader it is. replicas: partitions that it holds. not in sync: those of
    them in which it lags, or which it cannot serve.

    Without a controller (null in JSON) all of it is the last known, as a line on stderr says.
    """
    from raftmq.cli.clusters.cluster_reads import show_status

    return show_status(bootstrap, timeout, as_json=output == "json")


@cluster.command(
    epilog=epilog_of("""
    Examples:

    raftmq cluster leaders

    raftmq cluster leaders --balance

    raftmq cluster leaders --unclean orders 3

    raftmq cluster leaders -o json | jq 'select(.leader != .preferred)'

    JSON: one object per line, for each partition; with --balance, for each one that was led by
    another than its preferred leader. It has topic, partition, leader, preferred (broker ids), isr,
    and with --balance error; with --unclean it has topic, partition, outcome (elected, led already,
    failed) and error. What there is not is null.
    """)
)
@click.option("--balance", is_flag=True, help="Elect the preferred leaders where others lead.")
@click.option(
    "--unclean",
    type=(str, click.IntRange(min=0)),
    metavar="TOPIC PARTITION",
    help="Elect an active replica of it that may lack records, as those that have them are lost for"
    " good. Asks first.",
)
@yes_option()
@output_option()
@connection_options
def leaders(
    balance: bool,
    unclean: tuple[str, int] | None,
    is_sure: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Show which partitions others lead than their preferred leaders, and elect these.

    The preferred leader of a partition is its first replica. After a restart another one leads.
    The cluster gives leadership back by itself, within five minutes, to a broker that lacks more
    than a tenth of the partitions that it should lead; --balance does so at once, and for all.

    --unclean is for a partition without a leader whose in-sync replicas do not come back, as after
    a lost disk. Records that only they had are lost for good, also acknowledged ones. Where no
    broker with a replica is active, see `raftmq topic restart-empty`.

    Exit code 1 if a leader was not elected, as a preferred one is not that is down or not in sync.
    """
    from raftmq.cli.clusters.leaders import balance_leaders, elect_unclean, show_leaders

    if unclean is not None:
        if balance:
            raise CommandError("--balance and --unclean: choose one", ExitCode.USAGE)
        as_json = output == "json"
        return elect_unclean(*unclean, bootstrap, timeout, is_sure=is_sure, as_json=as_json)
    run = balance_leaders if balance else show_leaders
    return run(bootstrap, timeout, as_json=output == "json")


@cluster.command(
    epilog=epilog_of("""
    Examples:

    raftmq cluster moves

    raftmq cluster moves --watch

    raftmq cluster moves --cancel orders 3

    JSON: one object per line, for each move; none where nothing moves. It has topic, partition,
    replicas, target, adding (lists of broker ids), leader, is_under_way, waits_for, bytes_done,
    bytes_total, bytes_per_second, seconds_left (these two with --watch alone). What is not known is
    null. With a cancel it has topic, partition, outcome (cancelled, not moving, failed, unknown)
    and error.
    """)
)
@click.option("--watch", is_flag=True, help="Look every second, until Ctrl-C.")
@click.option(
    "--cancel",
    "cancelled",
    type=(str, PARTITION),
    metavar="TOPIC PARTITION",
    multiple=True,
    help="Take this move back: the partition keeps the replicas that it had. May be repeated.",
)
@click.option("--cancel-all", is_flag=True, help="Take all of them back.")
@output_option()
@connection_options
def moves(
    watch: bool,
    cancelled: tuple[tuple[str, int], ...],
    cancel_all: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Show which partitions move to other brokers, how far they are, and why one waits.

    Those under way come first, then those that wait, in the order in which they will begin. target:
    the replicas that a partition is to have; copied and of: bytes that its new replicas have, and
    will have. A - stands where a broker does not answer, or nothing has begun.

    rate and left, the time that is left at this rate, come with --watch. See `topic move`, and
    `topic alter --replication-factor`.

    Exit code 1 if a move that was to be cancelled is none, as it has ended before; 3 if there is no
    such topic, or partition: then none is cancelled.
    """
    from raftmq.cli.moves.move_list import (
        MovesOptions,
        cancel_moves,
        list_moves,
        watch_moves,
    )

    if watch + bool(cancelled) + cancel_all > 1:
        raise CommandError("--watch, --cancel and --cancel-all: choose one", ExitCode.USAGE)
    look = MovesOptions(bootstrap, timeout, as_json=output == "json")
    if cancelled or cancel_all:
        return cancel_moves(cancelled or None, look)
    return watch_moves(look) if watch else list_moves(look)


@cluster.command(
    epilog=epilog_of("""
    Examples:

    raftmq cluster info

    raftmq cluster info -o json | jq -r '.voters[].address'

    JSON: one object per line, and there is one. It has cluster_id, controller_id, metadata_version,
    feature_level, brokers (a list: broker_id, address, rack, state, version, listeners by name) and
    voters (a list: node_id, address). What is not known is null.
    """)
)
@output_option()
@connection_options
def info(output: str, timeout: float, bootstrap: str | None) -> int:
    """Show what the cluster is made of: its name, every address, the version of each broker.

    version: of raftmq, as the broker runs it, or ran it when it was last up.
    """
    from raftmq.cli.clusters.cluster_reads import show_info

    return show_info(bootstrap, timeout, as_json=output == "json")


@cluster.command(
    epilog=epilog_of("""
    Examples:

    raftmq cluster configure --id orders --host 10.0.0.1 --host 10.0.0.2 --host 10.0.0.3

    raftmq cluster configure --id orders --host a --host b --host c --brokers-per-host 4 --into out
    """)
)
@click.option("--id", "cluster_id", required=True, metavar="NAME", help="Of the cluster, for ever.")
@click.option(
    "--host",
    "hosts",
    required=True,
    multiple=True,
    metavar="HOST",
    help="Address or name of a host, that all hosts and clients reach; once for each.",
)
@click.option(
    "--brokers-per-host",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="A broker uses one core: about as many as half of a host's cores, the rest is for disks,"
    " sockets and page cache.",
)
@click.option(
    "--voters",
    type=click.IntRange(1, 9),
    default=3,
    show_default=True,
    metavar="N",
    help="Brokers in the quorum, for ever; each on a host of its own.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=PurePosixPath),
    default="/var/lib/raftmq",
    show_default=True,
    metavar="PATH",
    help="On each host; of several brokers each has a node-ID of its own in it.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=9292,
    show_default=True,
    help="Of the first broker of a host for clients; the quorum's and the brokers' are the next"
    " two, and each further broker has the three behind.",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    metavar="PATH",
    help="Where to write, a folder for each host.",
)
def configure(
    cluster_id: str,
    hosts: tuple[str, ...],
    brokers_per_host: int,
    voters: int,
    directory: PurePosixPath,
    port: int,
    into: Path,
) -> int:
    """Write the settings files of a new cluster, for one or more brokers on each host.

    The host is the rack of its brokers, so no two replicas of a partition are on one host while
    there are as many hosts as replicas. Nothing is contacted, and no file is replaced.
    """
    require_extra("broker", "raftmq cluster configure")  # it checks them as a node would
    from raftmq.cli.nodes.host_plan import HostPlan, write_plan

    plan = HostPlan(cluster_id, hosts, brokers_per_host, voters, directory, port)
    return write_plan(plan, into)
