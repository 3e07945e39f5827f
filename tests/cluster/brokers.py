"""Disasters for a cluster of brokers: `python -m tests.cluster.brokers --rounds 24 --seed 7`.

Three brokers on this machine serve clients while they are killed, paused and stopped, one or all at
once. Exits with 1 at the first thing that is wrong, with the command that tries again. The seed
decides what happens to whom, and when; processes and kernel take their own time, so that a failure
may take more than one try to come back.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from random import randrange

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.broker_disasters import ALL_DISASTERS, Disasters
from tests.cluster.broker_report import report
from tests.cluster.series import run_series


def main() -> int:
    arguments = parse_arguments()
    started = time.monotonic()
    logging.getLogger("raftmq").addHandler(logging.NullHandler())  # of the clients
    with tempfile.TemporaryDirectory(prefix="raftmq-brokers-") as folder:
        cluster = BrokerCluster(Path(folder))
        disasters = Disasters(cluster, seed=arguments.seed)
        with cluster:
            cluster.start_all()
            cluster.start_load()
            failure = run_series(cluster, disasters, ALL_DISASTERS, arguments.rounds)
    sys.stdout.write(report(disasters.outcomes, cluster.ledger))
    sys.stdout.write(f"{time.monotonic() - started:.0f} seconds in all\n")
    if failure:
        again = f"python -m tests.cluster.brokers --rounds {arguments.rounds}"
        sys.stdout.write(f"\n{failure}\n\nto try again: {again} --seed {arguments.seed}\n")
    return 1 if failure else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.brokers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seed", type=int, default=randrange(1_000_000))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
