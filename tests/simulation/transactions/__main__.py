"""`python -m tests.simulation.transactions --seed 0 --seeds 1000 [--bug NAME]`: random walks."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from contextlib import nullcontext

from tests.simulation.planting import planted
from tests.simulation.transactions.planted_bugs import BUGS
from tests.simulation.transactions.walk import Walk, failure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first walk")
    parser.add_argument("--seeds", type=int, default=1, help="how many walks")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.seeds)
    with planted(BUGS[options.bug].plant) if options.bug else nullcontext():
        found = [each for seed in seeds if (each := failure(seed))]
        counts = sum((played(seed) for seed in seeds), Counter()) if not found else Counter()
    sys.stdout.write("".join(f"{each}\n" for each in found[:10]))
    sys.stdout.write(f"{len(found)} of {len(seeds)} walks failed; {dict(counts)}\n")
    sys.exit(bool(found))


def played(seed: int) -> Counter[str]:
    walk = Walk(seed)
    walk.play()
    return walk.counts


if __name__ == "__main__":
    main()
