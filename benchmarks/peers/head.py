"""What stands above the tables of a run: command, date, commit, machine."""

from __future__ import annotations

import shlex
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from benchmarks.peers.environment import CHECKOUT
from benchmarks.report import machine

if TYPE_CHECKING:
    from collections.abc import Sequence


def head(module: str, given: Sequence[str], **own: Any) -> dict[str, Any]:
    """Of `python -m module given...`, with what else this run says of itself."""
    about = machine()
    return {
        "command": shlex.join(["python", "-m", module, *given]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        **{key: about[key] for key in ("cpu", "cores", "python")},
        "system": about["system"].partition("-")[0],
        **own,
    }


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
