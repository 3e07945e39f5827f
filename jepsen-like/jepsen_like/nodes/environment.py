"""The environment of the processes that a harness starts."""

from __future__ import annotations

import os
from pathlib import Path

import jepsen_like
import raftmq

_SETTINGS = "RAFTMQ_"


def packages_environment() -> dict[str, str]:
    """Packages are those of the harness; settings of a person's own nodes are left out."""
    packages = [
        str(Path(package.__path__[0]).resolve().parent) for package in (jepsen_like, raftmq)
    ]
    others = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    path = os.pathsep.join(filter(None, [*packages, os.environ.get("PYTHONPATH")]))
    return {**others, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
