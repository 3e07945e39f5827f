"""The surroundings of a run: settings, commit, versions, machine; enough to repeat it elsewhere.

Owns settings.json. Asks the machine and git; both may have nothing to say.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jepsen_like.settings import BadSettings, RunSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("raftmq", "trio", "pysyncobj", "msgspec")
GIT_SECONDS_MAX = 10.0  # a report without a commit is better than one that hangs


class Surroundings(msgspec.Struct, frozen=True):
    """Attributes:
    settings: what was asked for.
    began_at: in UTC, ISO 8601.
    commit: of the checkout, with a "+" where files differ from it; "" where there is no git.
    versions: of packages, by name.
    missing: what this machine cannot do, by name, and why.
    """

    settings: RunSettings
    began_at: str
    commit: str
    versions: dict[str, str]
    cpu_count: int
    kernel: str
    missing: dict[str, str] = {}

    @property
    def command(self) -> str:
        return self.settings.command

    @property
    def machine(self) -> str:
        return f"{self.cpu_count} CPUs, {self.kernel}"


def look_around(settings: RunSettings, *, capabilities: Mapping[str, str]) -> Surroundings:
    """`capabilities`: by name, why it is missing; "" where it is there."""
    return Surroundings(
        settings=settings,
        began_at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit_of(Path(__file__).parent),
        versions={"python": platform.python_version(), **_versions()},
        cpu_count=os.cpu_count() or 1,
        kernel=f"{platform.system()} {platform.release()}",
        missing={name: reason for name, reason in capabilities.items() if reason},
    )


def commit_of(folder: Path) -> str:
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    is_changed = commit and _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit + "+" if is_changed else commit


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def encode_surroundings(surroundings: Surroundings) -> bytes:
    return msgspec.json.format(msgspec.json.encode(surroundings), indent=2) + b"\n"


def read_surroundings(path: Path) -> Surroundings:
    """
    Raises:
        BadSettings: the file says something else.
        OSError: there is none.
    """
    try:
        return msgspec.convert(_renamed(msgspec.json.decode(path.read_bytes())), Surroundings)
    except msgspec.DecodeError as error:
        raise BadSettings(f"{path}: {error}; is this the folder of a run?") from error


def _renamed(content: object) -> object:
    """Folders of older versions say "strokes": without them such a run would be reported, and
    repeated, as another one."""
    match content:
        case {"settings": {"strokes": count, **settings}, **others}:
            return {**others, "settings": {**settings, "fault_events": count}}
    return content
