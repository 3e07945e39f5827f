"""Command of the simulation of consumer groups: replay a seed, sweep many, plant a bug.

python -m tests.simulation.groups --seed 7 --trace          one world, and all that happened
python -m tests.simulation.groups --seeds 5000              many, for soak
python -m tests.simulation.groups --seeds 50 --bug NAME     how many of them catch a bug
"""

from __future__ import annotations

from tests.simulation.groups.plan import KINDS, SECONDS
from tests.simulation.groups.planted_bugs import BUGS
from tests.simulation.groups.world import drawn_world
from tests.simulation.seeds import main

if __name__ == "__main__":
    description = __doc__.splitlines()[0]
    main(drawn_world, BUGS, description=description, seconds=SECONDS, kinds=KINDS)
