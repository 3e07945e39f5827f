"""Runs a scenario on a real network, in a child process, for whoever has a lab changes itself.

The tests call `run_in_lab`; the child is `python -m tests.jepsen_like.network.in_lab NAME`, where
NAME is a function of scenarios.py. What it observed comes back as JSON, and is judged by the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jepsen_like.network.lab import SOURCES, Lab
from jepsen_like.network.namespaces import unshare_here

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
NODE_IDS = (1, 2, 3)
SEED = 7
PATIENCE_SECONDS = 50.0


def run_in_lab(scenario: Callable[[Lab], Any]) -> Any:
    done = subprocess.run(
        lab_command(scenario),
        cwd=ROOT,
        env=lab_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def lab_command(scenario: Callable[[Lab], Any]) -> list[str]:
    return [sys.executable, "-W", "error", "-m", __name__, scenario.__name__]


def lab_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{SOURCES}"}


def main() -> None:
    from tests.jepsen_like.network import scenarios

    scenario = getattr(scenarios, sys.argv[1])
    unshare_here()
    with Lab.open(NODE_IDS, SEED) as lab:
        observed = scenario(lab)
    print(json.dumps(observed))  # noqa: T201


if __name__ == "__main__":
    main()
