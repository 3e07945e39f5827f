"""Starting the process of one node: `raftmq broker`, as an operator would.

Owns what the process inherits: its log as stdout and stderr, nothing on stdin, and a session of its
own, so that a Ctrl-C at the terminal is for the owner alone. Nothing is waited for.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import raftmq
from raftmq.local.process import process_of
from raftmq.local.running import NodeProcess

if TYPE_CHECKING:
    from raftmq.local.layout import Layout
    from raftmq.local.process import Process

_DEFAULT_SIGNALS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ,
)  # fmt: skip  # what Python ignores, and what a shell may have told us to ignore


def start_node(layout: Layout, node_id: int, owner: Process | None) -> NodeProcess:
    """
    Args:
        owner: the process ends with it; None: it stays.
    """
    log = layout.log(node_id)
    position = log.stat().st_size if log.exists() else 0
    # Not a Popen, which wants to outlive the process: this one may be left alone.
    pid = os.posix_spawn(
        sys.executable,
        node_command(layout, node_id, owner),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )
    return NodeProcess(process_of(pid), position)


def node_command(layout: Layout, node_id: int, owner: Process | None) -> list[str]:
    program = ["raftmq"]
    if owner is not None:
        program = ["raftmq.local.bound", str(owner.pid), owner.started]
    settings = str(layout.settings(node_id))
    return [*_python(), "-m", *program, "broker", "--config", settings]


def _python() -> list[str]:
    """Where somebody works, anything may be called random.py: it is not for us.

    Unless it is there that raftmq itself was found.
    """
    is_here = Path(raftmq.__file__).parents[1] == Path.cwd()
    return [sys.executable] if is_here else [sys.executable, "-P"]
