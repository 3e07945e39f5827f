"""Disasters for a consumer group: `python -m tests.cluster.groups --rounds 24 --seed 7`.

Six members read a topic of three brokers while members are killed, stopped, replaced, and brokers
killed; then the same with `delivery="at_most_once"` for a quarter of the rounds. Exits with 1 at
the first thing that is wrong, with the command that tries again, and keeps what members wrote down.
The seed decides what happens to whom, and when; processes and kernel take their own time, so that a
failure may take more than one try to come back.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import randrange

from tests.cluster.group_cluster import GroupCluster
from tests.cluster.group_disasters import ALL_DISASTERS, GroupDisasters
from tests.cluster.group_report import report
from tests.cluster.node_process import NodeFailed
from tests.cluster.series import run_series


def main() -> int:
    arguments = parse_arguments()
    started = time.monotonic()
    logging.getLogger("raftmq").addHandler(logging.NullHandler())  # of the load
    failure = run(arguments.rounds, arguments.seed, is_at_most_once=False)
    if not failure:
        rounds = max(1, arguments.rounds // 4)
        failure = run(rounds, arguments.seed, is_at_most_once=True)
    sys.stdout.write(f"{time.monotonic() - started:.0f} seconds in all\n")
    if failure:
        again = f"python -m tests.cluster.groups --rounds {arguments.rounds}"
        sys.stdout.write(f"\n{failure}\n\nto try again: {again} --seed {arguments.seed}\n")
    return 1 if failure else 0


def run(rounds: int, seed: int, *, is_at_most_once: bool) -> str:
    """What went wrong; empty if nothing did."""
    folder = Path(tempfile.mkdtemp(prefix="raftmq-groups-"))
    cluster = GroupCluster(folder, seed=seed, is_at_most_once=is_at_most_once)
    disasters = GroupDisasters(cluster)
    with cluster:
        cluster.start()
        failure = run_series(cluster, disasters, ALL_DISASTERS, rounds)
        if not failure:
            failure = end(cluster)
    title = "at most once" if is_at_most_once else "at least once"
    sys.stdout.write(f"\n{title}\n{report(disasters.outcomes, cluster)}\n")
    if failure:
        return f"{failure}\nwhat members wrote down: {folder}"
    shutil.rmtree(folder)
    return ""


def end(cluster: GroupCluster) -> str:
    try:
        return "\n".join(cluster.end().findings)
    except NodeFailed as error:
        return f"at the end: {error}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.groups", description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seed", type=int, default=randrange(1_000_000))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
