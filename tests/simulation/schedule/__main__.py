"""`python -m tests.simulation.schedule --seed 0 --seeds 1000 [--bug NAME]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext

from tests.simulation.planting import planted, tell_calls
from tests.simulation.schedule.planted_bugs import BUGS
from tests.simulation.schedule.world import World, failure


def main() -> None:
    parser = argparse.ArgumentParser(description="Random worlds of scheduled records.")
    parser.add_argument("--seed", type=int, default=0, help="the first world")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.seeds)
    with planted(BUGS[options.bug].plant) if options.bug else nullcontext() as calls:
        # Whoever plants a bug asks whether a promise is broken.
        complaints = (failure(seed, compares=not options.bug) for seed in seeds)
        found = [each for each in complaints if each]
    if calls is not None:
        tell_calls(options.bug, calls)
    counts = Counter[str]() if found else sum((played(seed) for seed in seeds), Counter())
    sys.stdout.write("".join(f"{each}\n" for each in found[:10]))
    sys.stdout.write(f"{len(found)} of {len(seeds)} worlds failed; {dict(counts)}\n")
    sys.exit(bool(found))


def played(seed: int) -> Counter[str]:
    world = World(seed)
    world.play()
    return world.counts


if __name__ == "__main__":
    main()
