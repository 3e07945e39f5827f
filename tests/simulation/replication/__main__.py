"""Command of the simulation of replication: replay a seed, sweep many, plant a bug.

python -m tests.simulation.replication --seed 7 --trace          one world, and all that happened
python -m tests.simulation.replication --seeds 5000              many, for soak
python -m tests.simulation.replication --seeds 50 --bug NAME     how many of them catch a bug
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from contextlib import nullcontext
from typing import Any

from jepsen_like.planted.patch import Calls
from tests.simulation.planting import tell_calls
from tests.simulation.replication.plan import KINDS, SECONDS
from tests.simulation.replication.planted_bugs import BUGS, planted
from tests.simulation.replication.world import command_of, drawn_world

PROGRESS_SECONDS = 2.0  # between two lines of progress


def main() -> None:
    options = _parser().parse_args()
    began_at = told_at = time.monotonic()
    failed: list[int] = []
    calls = Calls()
    for number, seed in enumerate(range(options.seed, options.seed + options.seeds), 1):
        if not _play(seed, options, calls):
            failed.append(seed)
        if time.monotonic() - told_at > PROGRESS_SECONDS and sys.stderr.isatty():
            told_at = time.monotonic()
            sys.stderr.write(f"\r{number} of {options.seeds} seeds, {len(failed)} failed ")
    took = time.monotonic() - began_at
    sys.stdout.write(f"{len(failed)} of {options.seeds} seeds failed, {took:.1f} s: {failed}\n")
    tell_calls(options.bug, calls)
    sys.exit(1 if failed or calls.missing else 0)


def _play(seed: int, options: argparse.Namespace, calls: Calls) -> bool:
    kinds = tuple(options.kinds.split(",")) if options.kinds else ()
    drawn: dict[str, Any] = {
        "seconds": options.seconds,
        "kinds": kinds,
        "has_transactions": options.transactions,
    }
    world, error = drawn_world(seed, **drawn), None
    with planted(options.bug, calls) if options.bug else nullcontext():
        try:
            world.play()
        except Exception as found:
            error = found
    if options.trace:
        sys.stdout.write("\n".join(world.timeline.lines) + "\n")
        if error:
            sys.stdout.write("".join(traceback.format_exception(error)))
    if error or not options.quiet:
        sys.stdout.write(f"{world}\n")
    if error:
        again = command_of(seed, **drawn)
        again += f" --bug {options.bug}" if options.bug else ""
        sys.stdout.write(f"  {type(error).__name__}: {str(error)[:600]}\n")
        sys.stdout.write(f"  replay: {again} --trace\n")
    sys.stdout.flush()
    return error is None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the first world")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of faults, in each world")
    parser.add_argument("--kinds", help=f"these faults only: {','.join(KINDS)}")
    parser.add_argument("--transactions", action="store_true", help="with clients that use them")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    return parser


if __name__ == "__main__":
    main()
