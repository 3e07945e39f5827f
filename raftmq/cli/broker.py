"""`raftmq broker`: options to run one node of a cluster in the foreground, until SIGTERM or SIGINT.

Owns options and help texts. The work is in `nodes/broker_run`, imported when the command runs: it
brings the event loop and the whole broker with it.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path

import rich_click as click

FILE = click.Path(path_type=Path)


@click.command(
    epilog=cleandoc("""
    Examples:

    raftmq broker --config /etc/raftmq/node.toml

    raftmq broker --config cluster.toml -o node.id=2 -o node.directory=/var/lib/raftmq-2
    -o listeners.clients.bind=127.0.0.1:9392

    RAFTMQ_NODE__RACK=room-1 raftmq broker --config /etc/raftmq/node.toml
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
def broker(config: Path, overrides: tuple[str, ...]) -> int:
    """Be a node of a cluster until SIGTERM or SIGINT.

    Says `ready` on stdout once it listens and the cluster counts on it; the log goes to stderr. A
    node whose id is among quorum.voters votes; any other follows the metadata.

    At the first signal it hands over the partitions that it leads, which may take 10 seconds, and
    flushes its logs. The second one ends it on the spot, as a crash would.

    Settings come from the file, above it from variables like RAFTMQ_NODE__ID, and above these from
    -o. All problems with them are reported at once.

    Exit code 0 after a signal, 2 if a setting is wrong or the directory is another's, 1 if the
    directory is in use, an address is taken, or the disk has failed.
    """
    from raftmq.cli.nodes.broker_run import run_broker

    return run_broker(config, overrides)
