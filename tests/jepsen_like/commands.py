"""`python jepsen-like ...` in a process of its own, as a person starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 240.0


class Said(NamedTuple):
    status: int
    output: str
    errors: str


def jepsen_like(*words: str, before: tuple[str, ...] = ()) -> Said:
    """`before`: a command that starts it, with fewer rights perhaps."""
    done = subprocess.run(
        [*before, sys.executable, str(ROOT / "jepsen-like"), *words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
