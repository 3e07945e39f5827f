"""Runs mypy strict over a small program, as an editor or a user's CI would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[4]
_ERROR = re.compile(r":(\d+): error: (.*)")


def complaints(program: str, folder: Path) -> Mapping[int, str]:
    """What mypy says, by the number of the line."""
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {int(line): text for line, text in _ERROR.findall(done.stdout)}


def check(program: str, folder: Path) -> None:
    """Lines that end with `# wrong` are complained of, and no others."""
    lines = program.splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    found = complaints(program, folder)
    shown = "\n".join(f"{lines[number - 1].strip()}: {text}" for number, text in found.items())
    assert found.keys() == wanted, shown
