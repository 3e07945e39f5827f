"""The command of the simulation of whole brokers: replay a seed, or sweep many.

python -m tests.simulation.brokers --seed 7 --trace          one world, and all that happened
python -m tests.simulation.brokers --seeds 400               many, for soak
python -m tests.simulation.brokers --seeds 50 --bug NAME     how many of them catch a planted bug
"""

from __future__ import annotations

from tests.simulation import seeds
from tests.simulation.brokers.plan import KINDS
from tests.simulation.brokers.planted_bugs import GARDEN
from tests.simulation.brokers.world import SECONDS, World

if __name__ == "__main__":
    seeds.main(World, GARDEN, description=__doc__.splitlines()[0], seconds=SECONDS, kinds=KINDS)
