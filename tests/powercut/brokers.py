"""Power cuts for three brokers on three disks: `python -m tests.powercut.brokers --cycles 50`.

Of a leader, a follower, the controller, two, all at once, and one after the other, under load; some
are cut again while they start. Exits with 1 at the first thing that is wrong, with the command that
tries again; see `tests.powercut`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from random import randrange
from typing import TYPE_CHECKING, NamedTuple

from tests.cluster.broker_disasters import Disaster, Whom
from tests.cluster.broker_report import report
from tests.cluster.node_process import NodeFailed
from tests.cluster.series import run_series
from tests.powercut.broker_rig import broker_rig
from tests.powercut.capabilities import power_cuts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.powercut.broker_rig import BrokerRig


def main() -> int:
    arguments = parse_arguments()
    reason = power_cuts()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 2
    logging.getLogger("raftmq").addHandler(logging.NullHandler())  # of the clients
    started = time.monotonic()
    ordeal = Ordeal(arguments.cycles, arguments.seed, [Whom(name) for name in arguments.whom])
    with broker_rig(seed=ordeal.seed) as rig:
        failure = ordeal.run(rig)
    sys.stdout.write(table(rig))
    sys.stdout.write(f"{time.monotonic() - started:.0f} seconds in all\n")
    if failure:
        sys.stdout.write(f"\n{failure}\n")
    return 1 if failure else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.powercut.brokers", description=__doc__)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=randrange(1_000_000))
    parser.add_argument("--whom", nargs="+", choices=[*Whom], default=[*Whom])
    return parser.parse_args()


class Ordeal(NamedTuple):
    """So many power cuts, of these in an order that the seed decides."""

    cycles: int
    seed: int
    whom: Sequence[Whom] = tuple(Whom)

    @property
    def command(self) -> str:
        whom = "" if set(self.whom) == set(Whom) else f" --whom {' '.join(self.whom)}"
        return f"python -m tests.powercut.brokers --cycles {self.cycles} --seed {self.seed}{whom}"

    def run(self, rig: BrokerRig) -> str:
        """What went wrong, and how to try again; empty if nothing did."""
        cuts = [Disaster("cut", whom) for whom in self.whom]
        try:
            rig.cluster.start_all()
            rig.cluster.start_load()
            failure = run_series(rig.cluster, rig.disasters, cuts, self.cycles)
        except (NodeFailed, AssertionError) as error:
            failure = "".join(traceback.format_exception(error))
        return failure and f"{failure}\n\nto try again: {self.command}"


def table(rig: BrokerRig) -> str:
    """What came of it, the first topic in detail."""
    unsynced = rig.unsynced.ledger
    rows = {
        "disks cut": rig.power_cuts,
        "page cache gone everywhere": rig.released,
        "... else acknowledged there": len(unsynced.acknowledged),
        "... and lost": unsynced.lost,
    }
    lines = [f"{name:28}{value:>10}\n" for name, value in rows.items()]
    return report(rig.disasters.outcomes, rig.cluster.ledger) + "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
