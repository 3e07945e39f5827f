"""Runs type checkers over small programs, as editors and a user's CI would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[4]
_ERROR = re.compile(r":(\d+): error: (.*)")
# Right lines please the strict; wrong ones are refused by what is refused unless set otherwise.
_PYRIGHT = {"typeCheckingMode": "standard"}
_STRICT = "# pyright: strict, reportUnusedVariable=false\n"


def mypy_complaints(program: str, folder: Path) -> Mapping[int, str]:
    """What mypy says, strictly, by the number of the line."""
    path = folder / "program.py"
    path.write_text(program)
    options = ["--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    said = _said("mypy", *options, str(path), folder=ROOT)
    return {int(line): text for line, text in _ERROR.findall(said)}


def pyright_complaints(
    programs: Mapping[str, str], folder: Path
) -> Mapping[str, Mapping[int, str]]:
    """What pyright says, by the name of the program and the number of the line.

    One process for all of them: it reads raftmq once.
    """
    (folder / "pyrightconfig.json").write_text(json.dumps(_PYRIGHT))
    for name, program in programs.items():
        (folder / f"{name}.py").write_text(program + ("" if _wrong(program) else _STRICT))
    said = json.loads(
        _said("basedpyright", "--outputjson", "--pythonpath", sys.executable, folder=folder)
    )
    assert said["summary"]["filesAnalyzed"] == len(programs), said["summary"]
    found: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for each in said["generalDiagnostics"]:
        if each["severity"] == "error":
            line = each["range"]["start"]["line"] + 1
            found[Path(each["file"]).stem][line] = each["message"]
    return found


def check(program: str, found: Mapping[int, str]) -> None:
    """Lines that end with `# wrong` are complained of, and no others."""
    lines = program.splitlines()
    shown = "\n".join(f"{lines[number - 1].strip()}: {text}" for number, text in found.items())
    assert found.keys() == _wrong(program), shown


def _wrong(program: str) -> set[int]:
    lines = enumerate(program.splitlines(), 1)
    return {number for number, line in lines if line.endswith("# wrong")}


def _said(checker: str, *arguments: str, folder: Path) -> str:
    """What it prints: 1 is its exit code if it complains."""
    done = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout
