"""Command of the simulation of the quorum: replay a seed, sweep many, plant a bug.

python -m tests.simulation.raft --seed 7 --trace          one world, and all that happened
python -m tests.simulation.raft --seeds 400               many, for soak
python -m tests.simulation.raft --seeds 50 --bug NAME     how many of them catch a planted bug
"""

from __future__ import annotations

from tests.simulation import seeds
from tests.simulation.raft.plan import KINDS
from tests.simulation.raft.planted_bugs import BUGS
from tests.simulation.raft.world import SECONDS, World

if __name__ == "__main__":
    seeds.main(World, BUGS, description=__doc__.splitlines()[0], seconds=SECONDS, kinds=KINDS)
