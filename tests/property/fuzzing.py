"""The command of a fuzzer: how many inputs, from which seed, and how to see a failure again.

Owns its options and its words.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Failure(Exception):
    """What an input did that it must not; `index` tells which one it was."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(what)
        self.index = index


class Run(Protocol):
    def __call__(self, *, seed: int, count: int, first: int, progress: bool) -> Mapping[str, int]:
        """How often each outcome came. Raises Failure."""


def fuzz(run: Run, module: str, description: str | None) -> None:
    """What `python -m module` does."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    try:
        outcomes = run(seed=options.seed, count=options.count, first=options.first, progress=True)
    except Failure as failure:
        replay = f"python -m {module} --seed {options.seed} --first {failure.index} --count 1"
        sys.stderr.write(f"{failure}\nreplay: {replay}\n")
        raise SystemExit(1) from failure
    sys.stdout.write(f"{options.count} inputs, seed {options.seed}: {dict(outcomes)}\n")
