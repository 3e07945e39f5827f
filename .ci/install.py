"""Install the checkout with some extras into an environment: `python install.py VENV EXTRAS`.

Asks pip only when something is needed that it has not installed yet: VENV/.requirements.json says
what it has, so that a comment in pyproject.toml, or fewer extras, cost nothing. Where pip fails, as
without a network, what is there already is enough if it satisfies every requirement.
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


def main(folder: Path, extras: str) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    python, record = folder / "bin/python", folder / ".requirements.json"
    needed = set(_requirements(project, extras))
    # What an editable installation writes down, besides what it requires.
    shape = [project["version"], project["scripts"], project["entry-points"]]
    found = json.loads(record.read_text("utf-8")) if record.exists() else {}
    if found.get("shape") == shape and needed <= set(found["requirements"]):
        return 0
    if not python.exists():
        venv.create(folder, symlinks=True, with_pip=True)
    if _pip(python, "--editable", f"{ROOT}[{extras}]"):
        record.write_text(json.dumps({"shape": shape, "requirements": sorted(needed)}), "utf-8")
        return 0
    if found and _pip(python, "--no-index", *sorted(needed)):
        sys.stderr.write("pip failed, but everything that is needed is installed: going on\n")
        return 0
    return 1


def _requirements(project: dict[str, Any], extras: str) -> list[str]:
    """The requirements of these extras, and of those that they include."""
    found = [*project["dependencies"]]
    for extra in extras.split(","):
        for requirement in project["optional-dependencies"][extra]:
            included = requirement.removeprefix("raftmq[").removesuffix("]")
            is_own = requirement == f"raftmq[{included}]"
            found += _requirements(project, included) if is_own else [requirement]
    return found


def _pip(python: Path, *arguments: str) -> bool:
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*command, *arguments], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
