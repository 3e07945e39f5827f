"""Planted bugs of transactions in whole brokers."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.planting import PlantedBugs
from tests.simulation.transacting.world import TransactionWorld

SEEDS_FILE = Path(__file__).with_name("planted_seeds.json")
BUGS = PlantedBugs(TransactionWorld, {}, seeds_file=SEEDS_FILE)
