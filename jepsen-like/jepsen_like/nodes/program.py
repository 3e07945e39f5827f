"""The program of a node: raftmq's command line on files and a clock that a control page controls.

    python -m jepsen_like.nodes.program --page F --parent 123 [--bug no_fsync] -- broker --config F

Owns what such a process is besides `raftmq`: it dies with the thread that started it, and it may
have a bug planted in it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jepsen_like.nodes.control_page import ControlPage
from jepsen_like.nodes.controlled_files import ControlledFiles
from raftmq.broker import broker
from raftmq.broker.broker import NodeEnvironment
from raftmq.broker.groups import offset_requests
from raftmq.cli.main import main as raftmq
from raftmq.cli.nodes import broker_run
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.settings import QuorumSettings
from raftmq.partition.storage import directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# A snapshot of the quorum each ten seconds or so, and entries for a few seconds below it: so that
# nodes which were away get a snapshot, and miss the changes in between.
QUORUM_LIMITS = QuorumLimits(snapshot_entries=200, trailing_entries=50)
LOOK_SECONDS = 2.0  # between retention checks, in place of minutes: see `govern`
_PR_SET_PDEATHSIG = 1


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--bug", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(words)
    die_with_parent(arguments.parent)
    govern(ControlPage.open(arguments.page))
    if arguments.bug:
        plant(arguments.bug)
    raftmq(arguments.command)


def die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the prctl took effect
        sys.exit(f"the harness, process {parent}, is gone")


def govern(page: ControlPage) -> None:
    """Nodes in this process use the page's clock and syncs.

    Retention is checked so often that a wrong clock, if it were believed, would delete records
    within a run; the quorum takes snapshots so often that some are installed.
    """
    host = partial(NodeEnvironment, files=ControlledFiles(page), now_ms=partial(now_ms, page))
    _replace(broker_run, "NodeEnvironment", host)
    _replace(broker, "QuorumSettings", partial(QuorumSettings, limits=QUORUM_LIMITS))
    _replace(directory, "RETENTION_CHECK_INTERVAL", LOOK_SECONDS)
    _replace(offset_requests, "LOOK_SECONDS", LOOK_SECONDS)


def _replace(module: ModuleType, name: str, value: object) -> None:
    """A name that the module has lost would be replaced without any effect."""
    assert name in vars(module), f"{module.__name__} has no {name}"
    vars(module)[name] = value


def now_ms(page: ControlPage) -> int:
    return time.time_ns() // 1_000_000 + page.clock_offset_ms


def plant(bug: str) -> None:
    from jepsen_like.planted.real import plant_in_node  # only where one is wanted

    plant_in_node(bug)


if __name__ == "__main__":
    main(sys.argv[1:])
