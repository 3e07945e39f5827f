"""Bugs planted into the code under test, one at a time, and which worlds catch them.

Owns the command that looks for such worlds, and the file that keeps their seeds where there is one.
What a bug patches must be called where it is planted: otherwise it does nothing, as when the caller
has imported by value what is patched elsewhere, and the test and the command are red.
Any change of the code shifts the worlds: `--reseed` keeps the seeds that still catch their bug, and
looks for others in place of the rest. A seed is worth something only if its world passes without
the bug.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from jepsen_like.planted.patch import Calls
from tests.simulation.raft.checks import TooLittle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.simulation.seeds import MakeWorld

SEEDS_WANTED = 3


class InVain(Exception):
    """Of what a bug has put in place something was never called."""


class Patch:
    """pytest's MonkeyPatch for one bug; calls of what it puts in place are counted."""

    def __init__(self, monkey: pytest.MonkeyPatch, calls: Calls) -> None:
        self._monkey, self.calls = monkey, calls

    def setattr(self, target: Any, name: str, value: Any, *, raising: bool = True) -> None:
        counted = self.calls.counted(target, name, value)
        self._monkey.setattr(target, name, counted, raising=raising)

    @contextmanager
    def context(self) -> Iterator[Patch]:
        """What is patched for a while only counts like the rest."""
        with pytest.MonkeyPatch.context() as monkey:
            yield Patch(monkey, self.calls)


@contextmanager
def planted(bug: Callable[[Patch], None], calls: Calls | None = None) -> Iterator[Calls]:
    """`calls`: those that were counted before, in other worlds."""
    calls = Calls() if calls is None else calls
    with pytest.MonkeyPatch.context() as monkey:
        bug(Patch(monkey, calls))
        yield calls


def tell_calls(name: str, calls: Calls) -> None:
    """For commands: what was patched without effect, and what is no function."""
    if calls.missing:
        sys.stdout.write(f"      {in_vain(name, calls)}\n")
    if calls.constants:
        sys.stdout.write(f"      not counted: {', '.join(sorted(calls.constants))}\n")


def demand_called(name: str, calls: Calls) -> None:
    """Raises InVain."""
    if calls.missing:
        raise InVain(in_vain(name, calls))


def in_vain(name: str, calls: Calls) -> str:
    """Names what the bug has patched without effect, if there is any."""
    places = ", ".join(calls.missing)
    return f"{name} is planted in vain: nothing called {places}" if places else ""


class Case(NamedTuple):
    """Worlds, and the only faults that strike in them, for so long."""

    seeds: tuple[int, ...]
    kinds: tuple[str, ...]
    seconds: float


class Found(NamedTuple):
    """What the search for one bug came to.

    Attributes:
        caught: what the worlds said, by seed, of those that were tried.
        tried: how many were.
        calls: of what the bug put in place, in all of them.
    """

    name: str
    caught: dict[int, str]
    tried: int
    calls: Calls


class PlantedBugs:
    """All bugs of one simulation.

    Attributes:
        bugs: each patches the code.
        cases: the worlds that shall catch each of them.
    """

    def __init__(
        self,
        make: MakeWorld,
        cases: Mapping[Callable[[Patch], None], Case],
        *,
        seeds_file: Path | None = None,
    ) -> None:
        """`seeds_file`: takes the place of the seeds in `cases`."""
        self._make, self._seeds_file = make, seeds_file
        self.bugs = {bug.__name__: bug for bug in cases}
        self.cases = {bug.__name__: case for bug, case in cases.items()}
        if seeds_file is not None and seeds_file.exists():
            for name, seeds in json.loads(seeds_file.read_text()).items():
                if name in self.cases and seeds:  # of what is harmless none are found
                    self.cases[name] = self.cases[name]._replace(seeds=tuple(seeds))

    def planted(self, name: str, calls: Calls | None = None) -> AbstractContextManager[Calls]:
        return planted(self.bugs[name], calls)

    def is_caught(self, name: str) -> bool:
        """Raises InVain."""
        case, calls = self.cases[name], Calls()
        is_caught = any(self.complaint(seed, case, bug=name, calls=calls) for seed in case.seeds)
        demand_called(name, calls)
        return is_caught

    def complaint(self, seed: int, case: Case, *, bug: str = "", calls: Calls | None = None) -> str:
        """What one world says, with the bug or without any; nothing if too little happened."""
        with self.planted(bug, calls) if bug else nullcontext():
            # Not below: a fault that no family has is an error of the case, and catches no bug.
            world = self._make(seed, seconds=case.seconds, kinds=case.kinds)
            try:
                world.play()
            except TooLittle:
                return ""
            except Exception as error:
                if bug and _is_misfit(error):
                    raise RuntimeError(f"{bug} does not fit the code any more") from error
                return f"{type(error).__name__}: {error}"
        return ""

    def search(self, name: str, case: Case, seeds: Iterable[int], *, enough: int) -> Found:
        """Which of these worlds catch the bug, and pass without it; until there are enough."""
        caught: dict[int, str] = {}
        tried, calls = 0, Calls()
        for seed in seeds:
            tried += 1
            said = self.complaint(seed, case, bug=name, calls=calls)
            if said and not self.complaint(seed, case):
                caught[seed] = said
                if len(caught) >= enough:
                    break
        return Found(name, caught, tried, calls)

    def reseed(self, name: str, seeds: range) -> Found:
        case = self.cases[name]
        others = (seed for seed in seeds if seed not in case.seeds)
        return self.search(name, case, chain(case.seeds, others), enough=SEEDS_WANTED)

    def write(self, founds: Iterable[Found]) -> None:
        assert self._seeds_file is not None, "these seeds stand in the code"
        seeds = {name: list(case.seeds) for name, case in self.cases.items()}
        seeds |= {found.name: sorted(found.caught) for found in founds}
        lines = [f'  "{name}": {json.dumps(chosen)}' for name, chosen in sorted(seeds.items())]
        self._seeds_file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _is_misfit(error: BaseException | None) -> bool:
    """Whether it tells of a patch for code that has changed since, and not of a broken promise."""
    while error is not None:
        if isinstance(error, TypeError | AttributeError | NameError):
            return True
        error = error.__cause__
    return False


def main(planted_bugs: PlantedBugs, description: str) -> None:
    """How many worlds catch which bug, and what the first of them say."""
    options = _parser(planted_bugs, description).parse_args()
    names = options.bug.split(",") if options.bug else list(planted_bugs.bugs)
    founds = []
    with ProcessPoolExecutor(options.jobs) as pool:
        tasks = [pool.submit(_look, planted_bugs, name, options) for name in names]
        for task in tasks:
            founds.append(task.result())
            _tell(founds[-1])
            if options.reseed:
                planted_bugs.write(founds)  # a long search may be broken off
    is_short = options.reseed and any(len(found.caught) < SEEDS_WANTED for found in founds)
    sys.exit(1 if is_short or any(found.calls.missing for found in founds) else 0)


def _look(planted_bugs: PlantedBugs, name: str, options: argparse.Namespace) -> Found:
    seeds = range(options.seed, options.seed + options.seeds)
    if options.reseed:
        return planted_bugs.reseed(name, seeds)
    case = planted_bugs.cases[name]
    if options.drawn:
        case = case._replace(kinds=())
    return planted_bugs.search(name, case, seeds, enough=options.seeds)


def _tell(found: Found) -> None:
    seeds = list(found.caught)
    sys.stdout.write(f"{found.name:32} {len(seeds):3} of {found.tried}: {seeds[:8]}\n")
    for said in dict.fromkeys(said[:150] for said in list(found.caught.values())[:3]):
        sys.stdout.write(f"      {said}\n")
    tell_calls(found.name, found.calls)
    sys.stdout.flush()


def _parser(planted_bugs: PlantedBugs, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0, help="the first world")
    parser.add_argument("--seeds", type=int, default=10, help="how many worlds, of each bug")
    parser.add_argument("--bug", help=f"these only: {','.join(planted_bugs.bugs)}")
    parser.add_argument("--drawn", action="store_true", help="with the faults that each seed draws")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--reseed", action="store_true", help="look for seeds, and write them down")
    return parser
