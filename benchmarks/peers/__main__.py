"""raftmq beside NATS, Redis, RabbitMQ and Kafka, in turns on this machine.

    python -m benchmarks.peers [--peers nats,redis] [--rounds 3] [--scale 1] [--root DIR] [--page]

Installs each peer into an environment of its own below `build/peers` (minutes, the first time); one
that cannot be had is skipped, and the table says so. Servers have their data on the disk of
`--root`. `--page` writes the outcome to docs/PEERS.md. It wants the machine for itself.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks.log import folder
from benchmarks.peers.environment import CHECKOUT, Environment, Unavailable, inherited
from benchmarks.peers.figures import OWN, SYNCED
from benchmarks.peers.head import head
from benchmarks.peers.known import PEERS
from benchmarks.peers.load import Job
from benchmarks.peers.page import PAGE, Outcome, page, show, spark_section, with_spark_section
from benchmarks.peers.servers import die_with_parent, load_average
from benchmarks.report import RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.peers.figures import Figures
    from benchmarks.peers.peer import Cluster, Peer

WARM_SECONDS = 2.0  # of warming up where only the client is new
LOAD_SECONDS_MAX = 300.0
REASON_SHOWN = 600  # characters
WIDTH = 120  # of tables in a file


class LoadFailed(Exception):
    """The load of a peer ended without figures."""


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("broken off"))  # and clean up
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    skipped: dict[str, str] = {}
    failed: list[str] = []
    peers: dict[str, Peer] = {}
    versions: dict[str, dict[str, str]] = {}
    for name in [OWN, *arguments.peers]:
        peer = PEERS[name](Environment(name))
        console.print(f"{peer.title}: being installed, unless it is there")
        try:
            versions[name], peers[name] = peer.install(), peer
        except Unavailable as error:
            if name == OWN:
                raise  # nothing to compare with
            skipped[name] = str(error)
            console.print(f"SKIPPED {peer.title}: {error}", style="bold red")
    rounds: list[dict[str, Figures]] = []
    for number in range(arguments.rounds):
        figures: dict[str, Figures] = {}
        for name in rotated([*peers], number):
            console.print(f"round {number + 1}: {name}")
            try:
                figures[name] = take_turn(peers[name], arguments.root.resolve(), arguments.scale)
            except Exception as error:  # the other peers go on, and the table says so
                failed.append(f"{name}, round {number + 1}: {error!s:.{REASON_SHOWN}}")
                console.print(f"FAILED {failed[-1]}", style="bold red")
        rounds.append(figures)
    finish(console, Outcome(about(arguments), versions, skipped, failed, rounds), arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    others = [name for name in PEERS if name != OWN]
    parser.add_argument("--peers", type=lambda text: text.split(","), default=others)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the seconds of each case")
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(CHECKOUT)}")
    arguments = parser.parse_args()
    if unknown := {*arguments.peers} - {*others}:
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(others)}")
    return arguments


def rotated(names: Sequence[str], number: int) -> list[str]:
    """Each round begins with the next one, so that none is always behind the same other one."""
    at = number % len(names)
    return [*names[at:], *names[:at]]


# -- one turn ----------------------------------------------------------------------------------


def take_turn(peer: Peer, root: Path, scale: float) -> Figures:
    """Everything of one peer, by new servers."""
    figures = {"load_average": load_average()}
    is_synced_too = peer.synced is not None
    with open_new(peer, root, is_synced=False) as cluster:
        figures.update(run_load(peer, cluster, scale, is_synced=False))
        if is_synced_too and not peer.sync_is_of_servers:
            figures.update(run_load(peer, cluster, scale, is_synced=True, is_warm=True))
    if is_synced_too and peer.sync_is_of_servers:
        with open_new(peer, root, is_synced=True) as cluster:
            figures.update(run_load(peer, cluster, scale, is_synced=True))
    return figures


@contextmanager
def open_new(peer: Peer, root: Path, *, is_synced: bool) -> Iterator[Cluster]:
    with folder(root) as path, peer.open_cluster(path, is_synced=is_synced) as cluster:
        yield cluster


def run_load(
    peer: Peer, cluster: Cluster, scale: float, *, is_synced: bool, is_warm: bool = False
) -> Figures:
    """`is_warm`: these servers had a load before."""
    warm_up_seconds = WARM_SECONDS if is_warm else peer.warm_up_seconds
    job = Job(peer.name, *cluster, is_synced, scale, warm_up_seconds)
    done = subprocess.run(
        [
            *(str(peer.environment.python), "-P", "-m", "benchmarks.peers.load"),
            json.dumps(job._asdict()),
        ],
        env=inherited(),
        capture_output=True,
        text=True,
        timeout=LOAD_SECONDS_MAX,
        preexec_fn=die_with_parent,
        check=False,
    )
    if done.returncode:
        said = [line.strip(" |+-") for line in done.stderr.splitlines()]
        raise LoadFailed(next((line for line in reversed(said) if line), "no reason given"))
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return {SYNCED + key: value for key, value in figures.items()} if is_synced else figures


# -- the outcome -------------------------------------------------------------------------------


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    given = ["--peers", ",".join(arguments.peers), "--rounds", str(arguments.rounds)]
    given += ["--scale", f"{arguments.scale:g}", *(["--page"] if arguments.page else [])]
    return head("benchmarks.peers", given, rounds=arguments.rounds, scale=arguments.scale)


def finish(console: Console, outcome: Outcome, arguments: argparse.Namespace) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "peers.json"
    path.write_text(json.dumps(outcome._asdict(), indent=2) + "\n")
    show(console, outcome)
    console.print(f"written to {path}", soft_wrap=True)
    if arguments.page:
        PAGE.write_text(with_spark_section(page(outcome), spark_section(PAGE.read_text())))
        console.print(f"written to {PAGE}", soft_wrap=True)


if __name__ == "__main__":
    main()
