"""Power cuts, one after the other, on one data directory: `python -m tests.powercut --cycles 200`.

Exits with 1 at the first thing that is wrong, with the command that tries again. The seed decides
the load and when it is killed; threads, disk and kernel take their own time, so that a failure
may take more than one try to come back.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from random import randrange

from jepsen_like.nodes.disk import loop_disk
from tests.powercut.capabilities import power_cuts
from tests.powercut.child import WriterFailed
from tests.powercut.rig import Rig

CHECKED = 0.7  # of the cycles; in the others the next writer must recover and is cut, too


def main() -> int:
    arguments = parse_arguments()
    reason = power_cuts()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 2
    if not arguments.verbose:
        logging.getLogger().addHandler(logging.NullHandler())
    started = time.monotonic()
    with loop_disk() as disk:
        rig = Rig(disk.mount_point / "data", disk, seed=arguments.seed)
        failure = run(rig, arguments.cycles)
    report(rig, arguments.cycles, time.monotonic() - started)
    return complain(failure, arguments) if failure else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.powercut", description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=randrange(1_000_000))
    parser.add_argument("--verbose", action="store_true", help="show what recovery logs")
    return parser.parse_args()


def run(rig: Rig, cycles: int) -> str:
    """What went wrong; empty if nothing did."""
    for cycle in range(1, cycles + 1):
        try:
            rig.live_and_die()
            rig.cut_power()
            if cycle == cycles or rig.random.random() < CHECKED:
                rig.check()
        except WriterFailed as error:
            return f"cycle {cycle}: the writer failed: {error}"
        if rig.ledger.findings:
            return "\n".join([f"cycle {cycle}:", *rig.ledger.findings])
        sys.stderr.write(f"\r{cycle}/{cycles} power cuts, {rig.ledger.acknowledged} acknowledged ")
        sys.stderr.flush()
    if rig.promises < cycles:
        return f"{rig.promises} acknowledgements in {cycles} cycles: nothing was tested"
    return ""


def report(rig: Rig, cycles: int, seconds: float) -> None:
    ledger = rig.ledger
    rows = {
        "power cuts": f"{rig.order.power_cuts} of {cycles}",
        "acknowledged records": ledger.acknowledged,
        "acknowledged and lost": ledger.lost,
        "unacknowledged and gone": ledger.vanished,
        "bytes cut by recovery": ledger.cut_bytes,
        "damaged logs": ledger.damaged_logs,
        "seconds": f"{seconds:.1f}",
    }
    sys.stderr.write("\n")
    sys.stdout.writelines(f"{name:24} {value:>12}\n" for name, value in rows.items())


def complain(failure: str, arguments: argparse.Namespace) -> int:
    again = (
        f"python -m tests.powercut --cycles {arguments.cycles} --seed {arguments.seed} --verbose"
    )
    sys.stdout.write(f"\n{failure}\n\nto try again: {again}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
