"""Power cuts for a quorum of three disks: `python -m tests.powercut.quorum --cycles 60 --seed 7`.

Of the leader, a follower, two, all at once, and one after the other, under load. Exits with 1 at
the first thing that is wrong, with the command that tries again; see `tests.powercut`.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import randrange

from tests.cluster.quorum_report import report
from tests.cluster.series import run_series
from tests.powercut.capabilities import power_cuts
from tests.powercut.quorum_rig import POWER_CUTS, quorum_rig


def main() -> int:
    arguments = parse_arguments()
    reason = power_cuts()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 2
    started = time.monotonic()
    with quorum_rig(seed=arguments.seed) as rig:
        rig.cluster.start_all()
        failure = run_series(rig.cluster, rig.disasters, POWER_CUTS, arguments.cycles)
    sys.stdout.write(report(rig.disasters.outcomes, rig.cluster.ledger))
    sys.stdout.write(f"{rig.power_cuts} disks cut, {time.monotonic() - started:.0f} seconds\n")
    if failure:
        again = f"--cycles {arguments.cycles} --seed {arguments.seed}"
        sys.stdout.write(f"\n{failure}\n\nto try again: python -m tests.powercut.quorum {again}\n")
    return 1 if failure else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.powercut.quorum", description=__doc__)
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=randrange(1_000_000))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
