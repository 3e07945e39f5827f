"""`raftmq dev` without a verb: start a local cluster, print its addresses, stay until Ctrl-C.

Owns the signals, progress on stderr and the welcome on stdout. While it stays it polls the state of
the brokers, reports those that were killed or restarted from other terminals, and ends when the
cluster was stopped from one.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raftmq.cli.nodes.dev_visit import dev_command, tell, telling
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.program import program
from raftmq.local.cluster import LocalCluster
from raftmq.local.plan import PORT_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOOK_SECONDS = 0.2  # between polls of the processes: soon enough for a person, idle for a CPU


def run_cluster(directory: Path, *, brokers: int | None, port: int | None, detach: bool) -> int:
    """Run until a signal, or with `detach` until the cluster is ready; returns the exit code."""
    with telling(), _interrupted():
        cluster = LocalCluster.open(directory, brokers=brokers, port=port, detach=detach)
        _tell_start(cluster)
        began, is_ready = time.monotonic(), False
        try:
            with cluster:
                is_ready = True
                tell(f"ready after {time.monotonic() - began:.1f} s")
                sys.stdout.write(welcome(cluster, directory, detach=detach))
                sys.stdout.flush()
                if not detach:
                    _stay(cluster, directory)
        except KeyboardInterrupt:  # a second Ctrl-C while it was stopping, which killed the brokers
            # Interrupted during the start: that is a failed command, exit code 130.
            if not is_ready:
                raise
    return ExitCode.OK


@contextmanager
def _interrupted() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    # Under `nohup` it is ignored, and stays so.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_start(cluster: LocalCluster) -> None:
    count = cluster.plan.brokers
    # A quorum of 4 tolerates one failure, as one of 3 does.
    if count % 2 == 0:
        tell(
            f"warning: with {count} brokers no more may be down than with {count - 1}, as a"
            " majority must be up: take an odd number"
        )
    tell(f"starting {count} {'broker' if count == 1 else 'brokers'} in {cluster.directory}")


def _stay(cluster: LocalCluster, directory: Path) -> None:
    """Poll and report until a signal, or until another process has stopped the cluster."""
    told = {one.node_id: one.state for one in cluster.status()}
    try:
        while cluster.is_started:
            for one in cluster.status():
                if one.state != told[one.node_id]:
                    told[one.node_id] = one.state
                    tell(_news(one.node_id, one.state, directory))
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        tell("stopping; Ctrl-C once more kills")
    else:
        tell("stopped by another command")


def _news(broker_id: int, state: str, directory: Path) -> str:
    if state == "ended":
        again = dev_command(f"restart {broker_id}", directory)
        return f"broker {broker_id} has ended; `{again}` brings it back"
    return f"broker {broker_id} is {state}"


def welcome(cluster: LocalCluster, directory: Path, *, detach: bool) -> str:
    """The bootstrap addresses, and commands to try."""
    # All of them, so that commands find the cluster whichever broker is killed.
    where = "" if cluster.plan.port == PORT_DEFAULT else f" -b {cluster.bootstrap}"
    last = cluster.plan.brokers
    lines = [
        f"bootstrap: {cluster.bootstrap}",
        "",
        f"  {program()} topic create orders{where}",
        f"  echo hello | {program()} produce orders{where}",
        f"  {program()} consume orders -o earliest -e{where}",
        *(f"  {dev_command(verb, directory)}" for verb in (f"kill {last}", "status")),
        f"  {dev_command(f'restart {last}', directory)}",
    ]
    if detach:
        lines.append(f"  {dev_command('stop', directory)}")
    else:
        again = dev_command("", directory)
        lines += ["", f"Ctrl-C stops it; `{again}` brings it back with its data."]
    return "\n".join([*lines, ""])
