"""`raftmq dev status`, `stop`, `kill` and `restart`: commands for a local cluster that runs.

Owns the rows of `status`, the messages where there is no such cluster or broker, and where errors
have another exit code than in other commands.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

import click

from raftmq.cli.terminal.exits import CommandError, ExitCode, exit_code_of
from raftmq.cli.terminal.output import Row, write_json, write_table
from raftmq.cli.terminal.program import program
from raftmq.errors import BrokerIdNotRegistered, RaftmqError, Unreachable
from raftmq.local.cluster import LocalCluster
from raftmq.local.directory import find_layout, is_ours
from raftmq.local.plan import DIRECTORY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from raftmq.local.cluster import NodeStatus


# -- Messages -------------------------------------------------------------------------------------
# What the verbs of `raftmq dev` share: progress on stderr, the command to type next, exit codes.


def tell(line: str) -> None:
    """Print a line of progress to stderr."""
    click.echo(line, err=True)


def dev_command(verb: str, directory: Path) -> str:
    """The command line that does `verb` to the cluster in `directory`, for people to copy."""
    where = [] if directory == DIRECTORY_DEFAULT else ["--dir", quote(str(directory))]
    return " ".join([f"{program()} dev", *([verb] if verb else []), *where])


@contextmanager
def telling() -> Iterator[None]:
    """Turn errors into exit codes; the last lines of a broker's log come before the error."""
    try:
        yield
    except RaftmqError as error:
        for note in getattr(error, "__notes__", []):
            click.echo("".join(f"  | {line}\n" for line in note.splitlines()), err=True, nl=False)
        raise CommandError(str(error), _exit_code_of(error)) from error


def _exit_code_of(error: RaftmqError) -> ExitCode:
    # Here it is a number that was typed, in other commands a state of the cluster.
    if isinstance(error, BrokerIdNotRegistered):
        return ExitCode.NOT_FOUND
    if isinstance(error, Unreachable):
        return ExitCode.FAILED  # here it is a port in use, not a cluster that does not answer
    return exit_code_of(error)


# -- The verbs ------------------------------------------------------------------------------------


TITLES = ("broker", "state", "pid", "address", "log")


def show_status(directory: Path, *, as_json: bool) -> int:
    """Print the state of each broker; returns the exit code."""
    with telling():
        cluster = _attach(directory)
        rows = cluster.status()
        ready = sum(row.state == "ready" for row in rows)
        if as_json:
            write_json(_objects(cluster, rows))
        else:
            write_table(TITLES, ((*row[:4], row.log) for row in rows))
            sys.stdout.write(f"\nbootstrap: {cluster.bootstrap}\n")
    return ExitCode.OK if ready == len(rows) else ExitCode.UNHEALTHY


def _objects(cluster: LocalCluster, rows: Sequence[NodeStatus]) -> Iterator[Row]:
    for row in rows:
        yield {
            "type": "broker",
            "broker_id": row.node_id,
            "state": row.state,
            "pid": row.pid,
            "address": str(row.address),
            "directory": str(row.directory),
            "log": str(row.log),
        }
    yield {
        "type": "summary",
        "directory": str(cluster.directory),
        "bootstrap": cluster.bootstrap,
        "brokers": len(rows),
        "ready": sum(row.state == "ready" for row in rows),
        "is_started": cluster.is_started,
        "is_detached": cluster.is_detached if cluster.is_started else None,
    }


def stop_cluster(directory: Path) -> int:
    with telling():
        cluster = _attach(directory)
        # Scripts stop a cluster without asking first: none running is success. Brokers may have
        # survived a `raftmq dev` that was killed, so that their processes count, too.
        if not cluster.is_started and not any(row.pid for row in cluster.status()):
            tell(f"no broker runs in {cluster.directory}")
            return ExitCode.OK
        tell(f"stopping all brokers in {cluster.directory}")
        late = cluster.stop()
        if late:
            tell(f"killed, as they did not end in time: brokers {', '.join(map(str, late))}")
        tell("stopped")
    return ExitCode.OK


def kill_broker(directory: Path, broker_id: int) -> int:
    with telling():
        cluster = _attach(directory, broker_id)
        again = dev_command(f"restart {broker_id}", directory)
        if not cluster.kill(broker_id):
            what = f"broker {broker_id} does not run: `{again}` starts it"
            raise CommandError(what, ExitCode.FAILED)
        tell(f"broker {broker_id} is killed; `{again}` brings it back")
    return ExitCode.OK


def restart_broker(directory: Path, broker_id: int) -> int:
    with telling():
        cluster = _attach(directory, broker_id)
        began = time.monotonic()
        # In order if it runs; a broker that was killed is only started.
        cluster.stop(broker_id)
        cluster.start(broker_id)
        tell(f"starting broker {broker_id}")
        # Until it has printed that it is ready, or a minute is over.
        cluster.wait_ready(broker_id)
        tell(f"broker {broker_id} is ready after {time.monotonic() - began:.1f} s")
    return ExitCode.OK


def _attach(directory: Path, broker_id: int | None = None) -> LocalCluster:
    """Attach to a cluster that `raftmq dev` made; verbs for one broker need it to be running."""
    if not is_ours(find_layout(directory)):
        what = f"there is no cluster in {directory}: `{dev_command('', directory)}` starts one"
        raise CommandError(what, ExitCode.NOT_FOUND)
    cluster = LocalCluster.attach(directory)
    if broker_id is not None:
        cluster.plan.check_node(broker_id)
        if not cluster.is_started:
            what = f"the cluster in {directory} does not run"
            again = dev_command("", directory)
            raise CommandError(f"{what}: `{again}` starts it", ExitCode.FAILED)
    return cluster
