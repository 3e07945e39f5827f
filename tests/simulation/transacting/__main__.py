"""Command of the simulation of transactions in whole brokers: replay a seed, sweep many.

python -m tests.simulation.transacting --seed 7 --trace          one world, and all that happened
python -m tests.simulation.transacting --seeds 400               many, for soak
python -m tests.simulation.transacting --seeds 50 --bug NAME     how many catch a planted bug
python -m tests.simulation.transacting --seed 7 --history FILE   what clients did and saw
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from tests.simulation import seeds
from tests.simulation.brokers.plan import KINDS
from tests.simulation.brokers.world import SECONDS
from tests.simulation.transacting.plan import MEMBER_KINDS, TRANSACTION_KINDS
from tests.simulation.transacting.planted_bugs import BUGS
from tests.simulation.transacting.world import TransactionWorld


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--history", type=Path, help="write that of the last world, as JSON lines")
    given, _ = options.parse_known_args()
    seeds.main(
        partial(TransactionWorld, history_file=given.history),
        BUGS,
        description=__doc__.splitlines()[0],
        seconds=SECONDS,
        kinds=(*KINDS, *TRANSACTION_KINDS, *MEMBER_KINDS),
        parents=(options,),
    )


if __name__ == "__main__":
    main()
