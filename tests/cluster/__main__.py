"""Disasters for a quorum of processes: `python -m tests.cluster --rounds 40 --seed 7`.

Three voters on this machine serve clients while they are killed, paused and restarted, one, two or
all at once. Exits with 1 at the first thing that is wrong, with the command that tries again. The
seed decides what happens to whom, and when; processes and kernel take their own time, so that a
failure may take more than one try to come back.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import randrange

from tests.cluster.quorum_cluster import QuorumCluster
from tests.cluster.quorum_disasters import ALL_DISASTERS, Disasters
from tests.cluster.quorum_report import report
from tests.cluster.series import run_series


def main() -> int:
    arguments = parse_arguments()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="raftmq-cluster-") as folder:
        directories = {node_id: Path(folder, str(node_id)) for node_id in (1, 2, 3)}
        with QuorumCluster(directories, snapshot_entries=2000, trailing_entries=500) as cluster:
            cluster.start_all()
            disasters = Disasters(cluster, seed=arguments.seed)
            failure = run_series(cluster, disasters, ALL_DISASTERS, arguments.rounds)
    sys.stdout.write(report(disasters.outcomes, cluster.ledger))
    sys.stdout.write(f"{time.monotonic() - started:.0f} seconds in all\n")
    if failure:
        again = f"python -m tests.cluster --rounds {arguments.rounds} --seed {arguments.seed}"
        sys.stdout.write(f"\n{failure}\n\nto try again: {again}\n")
    return 1 if failure else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=randrange(1_000_000))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
