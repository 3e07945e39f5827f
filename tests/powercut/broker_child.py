"""A broker on a machine that has lost its power so many times, as its parent says.

    python -m tests.powercut.broker_child --power-cuts 2 --config F

It is `raftmq broker` with other files below it: they tell a boot id that counts the cuts, for the
kernel's stays the same. With `--forgetful` the logs of partitions are never synced: a planted bug.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING

from raftmq.broker.broker import NodeEnvironment
from raftmq.cli.main import main as raftmq
from raftmq.cli.nodes import broker_run
from raftmq.partition.storage.inspect import TOPICS_FOLDER
from tests.cluster.broker_process import die_with_parent
from tests.powercut.faulty_files import ForgetfulFiles, RebootedFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from raftmq.disk.files import File, OsFile


class ForgetfulLogFiles(RebootedFiles):
    """The quorum's own files are synced: blank voters would elect nobody."""

    def __init__(self, power_cuts: int) -> None:
        super().__init__(power_cuts)
        self._forgetful = ForgetfulFiles(power_cuts)

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        files = self._forgetful if TOPICS_FOLDER in path.parts else super()
        return files.open(path, create=create)

    def begin_sync(self, files: Sequence[File]) -> None:
        self._forgetful.begin_sync(files)

    def sync_file_system(self, path: Path) -> None:
        self._forgetful.sync_file_system(path)


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--power-cuts", type=int, required=True)
    parser.add_argument("--forgetful", action="store_true")
    arguments, others = parser.parse_known_args()
    files_of = ForgetfulLogFiles if arguments.forgetful else RebootedFiles
    broker_run.NodeEnvironment = partial(NodeEnvironment, files=files_of(arguments.power_cuts))
    raftmq(["broker", *others])


if __name__ == "__main__":
    sys.exit(main())
