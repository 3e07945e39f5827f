"""An environment of a peer's own: a folder below `build/peers`, which holds whatever it installs.

Servers and clients come by the clients of package registries as this machine has them set up (pip,
go, mvn, apt-get); nothing is installed into the machine. What is there already is not asked for
again: a stamp for each step says for what it was made. Delete the folder to install anew.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CHECKOUT = Path(__file__).parents[2]
COMMON_PACKAGES = ("anyio>=4.16,<5",)  # of the load itself
INSTALL_SECONDS_MAX = 900.0
OUTPUT_SHOWN = 600  # characters of what a command said that failed


class Unavailable(Exception):
    """A peer cannot be had here. The message says why."""


class Environment:
    """Attributes:
    folder: all of it.
    python: of the virtual environment, once `install_client` has made it.
    """

    def __init__(self, name: str, root: Path = CHECKOUT / "build/peers") -> None:
        self.folder = root / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.python = self.folder / "venv/bin/python"

    def run(
        self,
        *command: str | Path,
        variables: Mapping[str, str] | None = None,
        at: Path | None = None,
    ) -> str:
        """What it prints.

        Raises:
            Unavailable: there is no such command, or it failed.
        """
        line = " ".join(map(str, command[:4]))
        if shutil.which(str(command[0])) is None:
            raise Unavailable(f"needs the command {command[0]}, which this machine does not have")
        try:
            done = subprocess.run(
                [*map(str, command)],
                cwd=at or self.folder,
                env={**inherited(), **(variables or {})},
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{line} ... took more than {INSTALL_SECONDS_MAX:g} s") from None
        if done.returncode:
            raise Unavailable(f"{line} ... failed: {(done.stderr or done.stdout)[-OUTPUT_SHOWN:]}")
        return done.stdout

    def once(self, step: str, made_for: str, install: Callable[[], object]) -> None:
        """Do a step of the installation, unless it was done for the very same."""
        stamp = self.folder / f".{step}"
        if not stamp.exists() or stamp.read_text() != made_for:
            install()
            stamp.write_text(made_for)

    def find(self, pattern: str, at: Path | None = None) -> Path:
        """The one of which only the pattern is known, as there is a version in its path.

        Raises:
            Unavailable: there is none.
        """
        for found in (at or self.folder).glob(pattern):
            return found
        raise Unavailable(f"what was installed has no {pattern}")

    # -- kinds of packages -------------------------------------------------------------------

    def install_client(self, packages: Sequence[str]) -> dict[str, str]:
        """A virtual environment with these packages, which finds `benchmarks` in the checkout.

        Returns:
            The version of each.
        """
        wanted = (*COMMON_PACKAGES, *packages)
        self.once("client", "\n".join(wanted), lambda: self._make_client(wanted))
        names = [package.partition("=")[0].partition("[")[0] for package in packages]
        script = f"from importlib.metadata import version\nprint(*map(version, {names!r}))"
        versions = self.run(self.python, "-c", script).split()
        return {f"client {name}": one for name, one in zip(names, versions, strict=True)}

    def _make_client(self, packages: Sequence[str]) -> None:
        self.run(sys.executable, "-m", "venv", "--clear", self.folder / "venv")
        self.install_packages(*packages)
        # A path in such a file comes after the packages: the checkout shadows none of them.
        found = self.find("venv/lib/python*/site-packages")
        (found / "benchmarks.pth").write_text(f"{CHECKOUT}\n")

    def install_packages(self, *packages: str) -> None:
        self.run(self.python, "-m", "pip", "install", "--quiet", *packages)

    def unpack_debian(self, packages: Sequence[str]) -> Path:
        """Where Debian's packages stand, unpacked and not installed; without what they require."""
        system = self.folder / "system"

        def unpack() -> None:
            files = self.folder / "debian"
            for folder in (files, system):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            self.run("apt-get", "download", *packages, at=files)
            for package in sorted(files.glob("*.deb")):
                self.run("dpkg", "-x", package, system)

        self.once("debian", " ".join(packages), unpack)
        return system


def inherited() -> dict[str, str]:
    """The variables of this process, but for those that change what Python imports."""
    import os

    left_out = {"PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in left_out}
