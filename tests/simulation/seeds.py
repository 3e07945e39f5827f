"""The command line of a simulation: replay a seed, or sweep many, with a verdict.

A world in which too little happened proves nothing: such worlds are counted apart, and where there
are too many of them the sweep has failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from jepsen_like.planted.patch import Calls
from tests.simulation.planting import tell_calls
from tests.simulation.raft.checks import TooLittle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.planting import PlantedBugs
    from tests.simulation.simulated_world import SimulatedWorld

REPOSITORY = Path(__file__).parents[2]
IDLE_SHARE_MAX = 0.05  # of worlds that do too little


class MakeWorld(Protocol):
    def __call__(self, seed: int, *, seconds: float, kinds: tuple[str, ...]) -> SimulatedWorld: ...


class Sweep:
    """Attributes:
    failed, idle: seeds of the worlds that broke a promise, and of those that did too little.
    """

    def __init__(
        self, make: MakeWorld, planted_bugs: PlantedBugs, options: argparse.Namespace
    ) -> None:
        self._make, self._planted_bugs, self._options = make, planted_bugs, options
        self.failed: list[int] = []
        self.idle: list[int] = []
        self._calls = Calls()

    def play(self, seed: int) -> None:
        options = self._options
        world = self._make(seed, seconds=options.seconds, kinds=kinds_of(options))
        error: Exception | None = None
        with self._planted_bugs.planted(options.bug, self._calls) if options.bug else nullcontext():
            try:
                world.play()
            except Exception as found:
                error = found
        if error is not None:
            (self.idle if isinstance(error, TooLittle) else self.failed).append(seed)
        self._tell(world, error)

    def _tell(self, world: SimulatedWorld, error: Exception | None) -> None:
        options = self._options
        if options.trace:
            sys.stdout.write("\n".join(world.lines) + "\n")
            if error:
                sys.stdout.write("".join(traceback.format_exception(error)))
        if error or not options.quiet:
            sys.stdout.write(f"{world}\n")
        if error:
            again = f" --bug {options.bug}" if options.bug else ""
            sys.stdout.write(
                f"  {type(error).__name__}: {str(error)[:600]}\n"
                f"  replay: {world.command}{again} --trace\n"
            )
        sys.stdout.flush()

    @property
    def is_passed(self) -> bool:
        is_idle = len(self.idle) > IDLE_SHARE_MAX * self._options.seeds
        return not (self.failed or is_idle or self._calls.missing)

    def tell_calls(self) -> None:
        """Of the bug that is planted, if one is."""
        tell_calls(self._options.bug, self._calls)

    def __str__(self) -> str:
        idle = f"; {len(self.idle)} did too little: {self.idle}" if self.idle else ""
        return f"{len(self.failed)} of {self._options.seeds} seeds failed: {self.failed}{idle}"


def kinds_of(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(options.kinds.split(",")) if options.kinds else ()


def main(
    make: MakeWorld,
    planted_bugs: PlantedBugs,
    *,
    description: str,
    seconds: float,
    kinds: Sequence[str],
    parents: Sequence[argparse.ArgumentParser] = (),
) -> None:
    """`parents`: options that only this command has; the caller has parsed them."""
    options = _parser(planted_bugs, description, parents, seconds=seconds, kinds=kinds).parse_args()
    sweep, began_at = Sweep(make, planted_bugs, options), time.monotonic()
    for seed in range(options.seed, options.seed + options.seeds):
        sweep.play(seed)
    sweep.tell_calls()
    sys.stdout.write(f"{sweep}; {time.monotonic() - began_at:.1f} s\n")
    sys.exit(0 if sweep.is_passed else 1)


def _parser(
    planted_bugs: PlantedBugs,
    description: str,
    parents: Sequence[argparse.ArgumentParser],
    *,
    seconds: float,
    kinds: Sequence[str],
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, parents=parents)
    parser.add_argument("--seed", type=int, default=0, help="the first world")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--seconds", type=float, default=seconds, help="of faults, in each world")
    parser.add_argument("--kinds", help=f"these faults only: {','.join(dict.fromkeys(kinds))}")
    parser.add_argument("--bug", choices=sorted(planted_bugs.bugs), help="plant this bug")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    return parser


def first_line(module: str, *, seed: int, seconds: int, hash_seed: str) -> str:
    """Of what a simulation says in a process of its own; it ends with the digest of the trace."""
    command = [sys.executable, "-m", module, "--seed", f"{seed}", "--seconds", f"{seconds}"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()[0]
