"""One case of the crash sweep (seed, operation, mode), its verdict, and the command to replay it.

Owns the numbering of cases, from which all their chance is drawn, and the command that replays
one. Everything about a case follows from its three fields.
"""

from __future__ import annotations

from random import Random
from typing import Literal, NamedTuple, get_args

# kill -9; a power cut; one that scatters sectors; one operation that fails, and a restart.
Mode = Literal["kill", "power", "reorder", "failure"]
MODES: tuple[Mode, ...] = get_args(Mode)
OPERATIONS = 260  # of a script: some seconds for a sweep that crashes at each of them


class Sweep(NamedTuple):
    """All crashes of one kind in one script."""

    seed: int
    mode: Mode

    def __str__(self) -> str:
        return f"{self.mode}-{self.seed}"


class Case(NamedTuple):
    """At which operation of which script, and of which kind."""

    seed: int
    at: int
    mode: Mode

    @property
    def command(self) -> str:
        return (
            "python -m tests.simulation.crash_sweep "
            f"--seed {self.seed} --at {self.at} --mode {self.mode}"
        )

    def random(self, use: str) -> Random:
        return Random(f"{self.seed}/{self.at}/{self.mode}/{use}")


class Failure(NamedTuple):
    """A broken promise, or any other error."""

    case: Case
    error: Exception

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}\n    {self.case.command}"
