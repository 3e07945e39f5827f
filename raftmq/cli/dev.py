"""`raftmq dev`: options to start a local cluster of separate processes, and to kill its brokers.

Owns options, help texts, and which directory is meant: the one after the verb, the one before it,
or the default. The work is in `nodes/dev_run` (start a cluster and stay) and `nodes/dev_visit`
(commands for one that runs), imported when a command runs.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from raftmq.cli.terminal.options import InOrder, output_option
from raftmq.extras import require_extra
from raftmq.local.plan import DIRECTORY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = click.Path(path_type=Path)
# The ports of each purpose lie 10 apart (`raftmq.local.plan`), so that there is room for 10
# brokers.
BROKERS_MAX = 9
PORT_MAX = 65_507  # the voters' port of broker 9 lies 28 above it, at 65,535


def directory_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--dir",
        "directory",
        metavar="D",
        type=FOLDER,
        help=f"Where the cluster keeps everything; else ./{DIRECTORY_DEFAULT}.",
    )(function)


@click.group(
    cls=InOrder,
    invoke_without_command=True,
    epilog=cleandoc("""
    Examples:

    raftmq dev

    raftmq dev --brokers 5 --dir /tmp/five --port 9400 --detach

    raftmq dev kill 2 --dir /tmp/five
    """),
)
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    help="How many; else as many as D has, or 3.",
)
@directory_option
@click.option(
    "--port",
    type=click.IntRange(0, PORT_MAX),
    help="Where the first broker listens for clients; 0: on free ports; else where it did last,"
    " or 9292.",
)
@click.option("--detach", is_flag=True, help="Leave it running, and end when it is ready.")
@click.pass_context
def dev(
    context: click.Context,
    brokers: int | None,
    directory: Path | None,
    port: int | None,
    detach: bool,
) -> int | None:
    """Run a real cluster of separate processes on this machine.

    Without a verb it starts one, prints where clients find it, and stays until Ctrl-C or SIGTERM
    stops it in order; a second Ctrl-C kills it. The same D brings it back with its data. Its
    brokers never outlive the command, unless it is given --detach.

    D must be absent, empty, or made by this command; nothing outside of it is touched. Broker N
    listens on PORT + N - 1 for clients, 10 above that for other brokers and 20 above that for other
    voters: three brokers on 9292 take 9292 to 9294, 9302 to 9304 and 9312 to 9314. Its log is
    D/node-N.log.

    Exit code 0 after a signal, 1 if a port or D is in use or a broker does not start, 2 if D is
    something else or has another number of brokers, 3 if there is no such cluster or broker, 5 if a
    broker is not ready in time.
    """
    require_extra("broker", "raftmq dev")  # it starts `raftmq broker`
    # Without a verb the group itself is the command, and starts the cluster.
    if context.invoked_subcommand is None:
        from raftmq.cli.nodes.dev_run import run_cluster

        return run_cluster(
            directory or DIRECTORY_DEFAULT, brokers=brokers, port=port, detach=detach
        )
    given = {"--brokers": brokers, "--port": port, "--detach": detach or None}
    # `raftmq dev --brokers 5 status` parses, but would do something else than it reads.
    misplaced = [name for name, value in given.items() if value is not None]
    if misplaced:
        verb = context.invoked_subcommand
        what = f"{misplaced[0]} is for starting a cluster, not for {verb}: leave it out"
        raise click.UsageError(what, context)
    return None


@dev.command(
    epilog=cleandoc("""
    Examples:

    raftmq dev status

    raftmq dev status -o json | jq 'select(.type == "broker") | .pid'

    JSON: one object per line, told apart by type. A broker has broker_id, state (ready, starting,
    stopping, ended, stopped), pid, address, directory, log; the summary comes last and has
    directory, bootstrap, brokers, ready, is_started, is_detached. What there is not is null.
    """)
)
@directory_option
@output_option()
def status(directory: Path | None, output: str) -> int:
    """Show which brokers run, and where.

    ended: the broker was killed, or has failed; stopping, stopped: in order, or never started.

    Exit code 3 if there is no such cluster, 7 if not all of its brokers are ready.
    """
    from raftmq.cli.nodes.dev_visit import show_status

    return show_status(_directory(directory), as_json=output == "json")


@dev.command(epilog="Example: raftmq dev stop --dir /tmp/five")
@directory_option
def stop(directory: Path | None) -> int:
    """Stop all brokers in order, from any terminal.

    A broker that takes longer than 30 seconds is killed. Exit code 0 if none ran, too.
    """
    from raftmq.cli.nodes.dev_visit import stop_cluster

    return stop_cluster(_directory(directory))


@dev.command(epilog="Example: raftmq dev kill 2")
@click.argument("broker_id", metavar="N", type=int)
@directory_option
def kill(broker_id: int, directory: Path | None) -> int:
    """Kill broker N on the spot, as kill -9 does.

    Exit code 1 if it does not run, 3 if there is no broker N.
    """
    from raftmq.cli.nodes.dev_visit import kill_broker

    return kill_broker(_directory(directory), broker_id)


@dev.command(epilog="Example: raftmq dev restart 2")
@click.argument("broker_id", metavar="N", type=int)
@directory_option
def restart(broker_id: int, directory: Path | None) -> int:
    """Start broker N again, and wait until it is ready.

    One that runs is stopped in order first. Exit code 1 if it does not start or the cluster was
    stopped, 3 if there is no broker N, 5 if it is not ready within a minute.
    """
    from raftmq.cli.nodes.dev_visit import restart_broker

    return restart_broker(_directory(directory), broker_id)


def _directory(given: Path | None) -> Path:
    """The directory after the verb, else the one before it, else the default."""
    context = click.get_current_context()
    assert context is not None, "called outside of a command"
    assert context.parent is not None, "called outside of a verb"
    before: Path | None = context.parent.params.get("directory")
    return given or before or DIRECTORY_DEFAULT
