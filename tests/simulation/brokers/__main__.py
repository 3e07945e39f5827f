"""The command of the simulation of whole brokers: replay a seed, or sweep many.

python -m tests.simulation.brokers --seed 7 --trace          one world, and all that happened
python -m tests.simulation.brokers --seeds 400               many, for soak
python -m tests.simulation.brokers --seeds 50 --bug NAME     how many of them catch a planted bug
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tests.simulation.brokers.plan import KINDS
from tests.simulation.brokers.planted_bugs import BUGS, planted
from tests.simulation.brokers.world import SECONDS, World
from tests.simulation.raft.checks import TooLittle

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def main() -> None:
    options = _parser().parse_args()
    began_at, seeds = time.monotonic(), range(options.seed, options.seed + options.seeds)
    failed = [seed for seed in seeds if not _play(seed, options)]
    took = time.monotonic() - began_at
    sys.stdout.write(f"{len(failed)} of {options.seeds} seeds failed, {took:.1f} s: {failed}\n")
    sys.exit(1 if failed else 0)


def _play(seed: int, options: argparse.Namespace) -> bool:
    kinds = tuple(options.kinds.split(",")) if options.kinds else ()
    world, error = World(seed, seconds=options.seconds, kinds=kinds), None
    bug: AbstractContextManager[None] = planted(options.bug) if options.bug else nullcontext()
    with bug:
        try:
            world.play()
        except TooLittle:
            pass  # its faults left no time for anything
        except Exception as found:
            error = found
    if options.trace:
        sys.stdout.write("\n".join(world.lines) + "\n")
        if error:
            sys.stdout.write("".join(traceback.format_exception(error)))
    if error or not options.quiet:
        sys.stdout.write(f"{world}\n")
    if error:
        again = f" --bug {options.bug}" if options.bug else ""
        sys.stdout.write(
            f"  {type(error).__name__}: {str(error)[:600]}\n"
            f"  replay: {world.command}{again} --trace\n"
        )
    sys.stdout.flush()
    return error is None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the first world")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of faults, in each world")
    parser.add_argument("--kinds", help=f"these faults only: {','.join(dict.fromkeys(KINDS))}")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    return parser


if __name__ == "__main__":
    main()
