"""`python -m tests.simulation.transactions [--members] --seed 0 --seeds 1000 [--bug NAME]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext

from tests.simulation.planting import planted
from tests.simulation.transactions import members_planted_bugs, members_walk, planted_bugs, walk


def main() -> None:
    parser = argparse.ArgumentParser(description="Random walks over transactions.")
    parser.add_argument("--seed", type=int, default=0, help="the first walk")
    parser.add_argument("--seeds", type=int, default=1, help="how many walks")
    parser.add_argument("--members", action="store_true", help="with shared transactions")
    parser.add_argument("--bug", help="plant this bug")
    options = parser.parse_args()
    bugs = members_planted_bugs.BUGS if options.members else planted_bugs.BUGS
    if options.bug not in (None, *bugs):
        parser.error(f"--bug is one of {', '.join(sorted(bugs))}")
    failure = members_walk.failure if options.members else walk.failure
    seeds = range(options.seed, options.seed + options.seeds)
    with planted(bugs[options.bug].plant) if options.bug else nullcontext():
        found = [each for seed in seeds if (each := failure(seed))]
        made = members_walk.MembersWalk if options.members else walk.Walk
        counts = sum((played(made(seed)) for seed in seeds), Counter()) if not found else Counter()
    sys.stdout.write("".join(f"{each}\n" for each in found[:10]))
    sys.stdout.write(f"{len(found)} of {len(seeds)} walks failed; {dict(counts)}\n")
    sys.exit(bool(found))


def played(walk: walk.Walk) -> Counter[str]:
    walk.play()
    return walk.counts


if __name__ == "__main__":
    main()
