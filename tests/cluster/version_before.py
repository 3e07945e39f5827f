"""The version before this one: its wheel of `versions/`, and processes that run it.

    python -m tests.cluster.version_before FOLDER raftmq broker --config F

Everything behind FOLDER, where the wheel was unpacked, is what `python -m` takes: a module of the
wheel, or one of tests/ that uses no more of raftmq than its public calls. A process that found
another raftmq than the one in FOLDER ends at once.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

from tests.cluster.broker_process import AS_OPERATED, die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = Path(__file__).with_name("versions")


def unpack(folder: Path) -> None:
    """With bytecode, or every process would compile it for itself."""
    [wheel] = VERSIONS.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    compiling = [sys.executable, "-m", "compileall", "-q", "-j", "2", str(folder / "raftmq")]
    subprocess.run(compiling, check=True)


class Versions:
    """Which of two versions a process runs: words behind `python -m`.

    Attributes:
    upgraded: nodes whose next process is of this version.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.upgraded: set[int] = set()

    def before(self, *words: str) -> tuple[str, ...]:
        return ("tests.cluster.version_before", str(self._folder), *words)

    def both(self, *words: str) -> Iterator[tuple[str, ...]]:
        yield self.before(*words)
        yield words

    def broker(self, node_id: int) -> tuple[str, ...]:
        return AS_OPERATED if node_id in self.upgraded else self.before("raftmq", "broker")


def main() -> None:
    die_with_parent()
    folder, module = sys.argv[1:3]
    sys.path.insert(0, folder)
    import raftmq

    assert Path(raftmq.__file__).is_relative_to(folder), raftmq.__file__
    sys.argv = ["raftmq", *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
