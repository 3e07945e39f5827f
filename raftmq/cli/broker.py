"""`raftmq broker`: options to run one node of a cluster in the foreground, until SIGTERM or SIGINT.

Owns options and help texts. The work is in `nodes/`: `broker_run`, `broker_check`, `broker_probe`,
imported when the command runs.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path

import rich_click as click

from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.extras import require_extra

FILE = click.Path(path_type=Path)


@click.command(
    epilog=cleandoc("""
    Examples:

    raftmq broker --config /etc/raftmq/node.toml

    raftmq broker --config cluster.toml -o node.id=2 -o node.directory=/var/lib/raftmq-2
    -o listeners.clients.bind=127.0.0.1:9392

    RAFTMQ_NODE__RACK=room-1 raftmq broker --config /etc/raftmq/node.toml

    raftmq broker --config /etc/raftmq/node.toml --check

    raftmq broker --config /etc/raftmq/node.toml --probe ready
    """)
)
@click.option("--config", metavar="FILE", type=FILE, required=True, help="Settings, as TOML.")
@click.option(
    "-o",
    "--override",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting in place of the file's; a listener goes by its name. May be repeated.",
)
@click.option("--check", is_flag=True, help="Check and print the settings, and start nothing.")
@click.option(
    "--probe",
    type=click.Choice(["live", "ready"]),
    help="Ask the node of these settings, which runs here, how it is.",
)
def broker(config: Path, overrides: tuple[str, ...], *, check: bool, probe: str | None) -> int:
    """Be a node of a cluster until SIGTERM or SIGINT.

    Says `ready` on stdout once it listens and the cluster counts on it; the log goes to stderr. A
    node whose id is among quorum.voters votes; any other follows the metadata.

    At the first signal it hands over the partitions that it leads, which may take 10 seconds, and
    flushes its logs. The second one ends it on the spot, as a crash would.

    Settings come from the file, above it from variables like RAFTMQ_NODE__ID, and above these from
    -o. All problems with them are reported at once.

    --check reads and tries all that a start would, on this machine and as this user: keys,
    directory and its disk, addresses (unless the node runs), limits of the process. It prints every
    setting that counts, with where it is from; exit code 0, or 2 with a line for each problem.

    --probe live fails (5) only if the node listens and does not answer as this node; --probe ready
    also if it does not listen (5), or the cluster does not count on it (7). Both are for
    Kubernetes.

    Exit code 0 after a signal, 2 if a setting is wrong or the directory is another's, 1 if the
    directory is in use or cannot be written, an address cannot be listened on (taken, or none of
    this machine), memory, threads or file descriptors are lacking, or the disk is full or has
    failed.
    """
    if check and probe:
        raise click.UsageError("--check is for a node that does not run, --probe for one that does")
    require_extra("broker", "raftmq broker")
    try:
        # The broker and its event loop: by far the most of what this command loads.
        if check:
            from raftmq.cli.nodes.broker_check import check_broker

            return check_broker(config, overrides)
        if probe:
            from raftmq.cli.nodes.broker_probe import probe_broker

            return probe_broker(config, overrides, probe)
        from raftmq.cli.nodes.broker_run import run_broker
    except (MemoryError, ImportError) as error:
        # What an extension says that finds no room for its code.
        if isinstance(error, MemoryError) or "failed to map" in str(error):
            what = "not enough memory to start a node: it takes 100 MB and more (ulimit -v)"
            raise CommandError(what, ExitCode.FAILED) from error
        raise
    return run_broker(config, overrides)
