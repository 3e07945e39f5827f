"""`python -m tests.simulation.poison --seed 0 --seeds 1000 [--bug NAME]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext

from tests.simulation.planting import planted, tell_calls
from tests.simulation.poison.planted_bugs import BUGS
from tests.simulation.poison.world import World, failure


def main() -> None:
    parser = argparse.ArgumentParser(description="Random worlds of workers that crash.")
    parser.add_argument("--seed", type=int, default=0, help="the first world")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument("--plain", action="store_true", help="consumers, and not `process`")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.seeds)
    with planted(BUGS[options.bug].plant) if options.bug else nullcontext() as calls:
        found = [said for seed in seeds if (said := failure(seed, is_plain=options.plain))]
    if calls is not None:
        tell_calls(options.bug, calls)
    beyond = (
        Counter[int]()
        if found
        else sum((played(seed, is_plain=options.plain) for seed in seeds), Counter[int]())
    )
    sys.stdout.write("".join(f"{each}\n" for each in found[:10]))
    sys.stdout.write(f"{len(found)} of {len(seeds)} worlds failed; ")
    sys.stdout.write(f"records by their deaths beyond the attempts: {sorted(beyond.items())}\n")
    sys.exit(bool(found))


def played(seed: int, *, is_plain: bool = False) -> Counter[int]:
    """Of each record that kills: how many more processes it has killed than the policy says."""
    world = World(seed, is_plain=is_plain)
    world.play()
    least = max(3, world.plan.attempts)
    return Counter(world.deaths[key] - least for key in world.plan.poison)


if __name__ == "__main__":
    main()
