"""Command of the simulation of scheduled records in whole brokers: replay a seed, sweep many.

python -m tests.simulation.scheduling --seed 7 --trace          one world, and all that happened
python -m tests.simulation.scheduling --seeds 400               many, for soak
python -m tests.simulation.scheduling --seeds 50 --bug NAME     how many catch a planted bug
"""

from __future__ import annotations

from tests.simulation import seeds
from tests.simulation.brokers.plan import KINDS
from tests.simulation.brokers.world import SECONDS
from tests.simulation.scheduling.plan import SCHEDULE_KINDS
from tests.simulation.scheduling.planted_bugs import BUGS
from tests.simulation.scheduling.world import SchedulingWorld


def main() -> None:
    seeds.main(
        SchedulingWorld,
        BUGS,
        description=__doc__.splitlines()[0],
        seconds=SECONDS,
        kinds=(*KINDS, *SCHEDULE_KINDS),
    )


if __name__ == "__main__":
    main()
