"""One node: its processes one after the other, its disk, its control page and its log.

Owns what outlives a node's processes. A process that is killed is released first from a stalled
disk and from the freezer, as it could not die there.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.nodes.environment import packages_environment
from jepsen_like.nodes.process import NodeProcess
from raftmq.broker.meta import QUORUM_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from jepsen_like.nodes.control_page import ControlPage
    from jepsen_like.nodes.disk import LoopDisk
    from jepsen_like.nodes.freezer import Freezer


class Belongings(NamedTuple):
    """Attributes:
    directory: of its data; where its disk is mounted, if it has one.
    config, page_path: files that its processes read.
    log_path: what they say.
    enter_command: what runs a command in its network.
    """

    directory: Path
    config: Path
    page_path: Path
    log_path: Path
    enter_command: Sequence[str]
    disk: LoopDisk | None
    freezer: Freezer | None


class Node:
    def __init__(self, node_id: int, own: Belongings, page: ControlPage, *, bug: str) -> None:
        self.node_id, self.own, self.page, self._bug = node_id, own, page, bug
        self._name = f"n{node_id}"
        self._lives = itertools.count(1)
        self.process: NodeProcess | None = None
        self._is_replacing = False  # a disk that was lost; until it was ready once

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive

    def start(self, starter: Executor) -> None:
        """`starter`: its threads live as long as the node may."""
        assert not self.is_running, f"node {self.node_id} runs"
        self.end()
        with self.own.log_path.open("ab") as log:
            log.write(self._headline())
            log.flush()
            begin = starter.submit(
                NodeProcess,
                self._name,
                self._command(),
                log=log,
                environment=packages_environment(),
            )
            self.process = begin.result()
        if self.own.freezer is not None:
            self.own.freezer.thaw(self._name)
            self.own.freezer.admit(self._name, self.process.pid)

    def _headline(self) -> bytes:
        at = time.strftime("%Y-%m-%d %H:%M:%S")
        bug = f" bug={self._bug}" if self._bug else ""
        cuts = self.page.power_cuts
        line = f"-- {at} node={self.node_id} life={next(self._lives)} power_cuts={cuts}{bug}\n"
        return line.encode()

    def _command(self) -> list[str]:
        bug = ["--bug", self._bug] if self._bug else []
        options = ["--page", str(self.own.page_path), "--parent", str(os.getpid()), *bug]
        program = [sys.executable, "-m", "jepsen_like.nodes.program", *options]
        settings = ["--config", str(self.own.config), *self._overrides()]
        return [*self.own.enter_command, *program, "broker", *settings]

    def _overrides(self) -> list[str]:
        """Only a fault empties a directory, and it stands for a disk that was lost and replaced.

        A start that ends early leaves files in it, and the next one has to say so again.
        """
        self._is_replacing |= not (self.own.directory / QUORUM_FOLDER).exists()
        return ["-o", "quorum.replace=true"] if self._is_replacing else []

    def signal(self, number: signal.Signals) -> None:
        """Of one that has ended, nothing comes."""
        if self.process is not None:
            self.process.signal(number)

    def begin_kill(self) -> None:
        """SIGKILL; it is also released from a stalled disk and the freezer, so that it dies."""
        self.signal(signal.SIGKILL)
        if self.own.disk is not None:
            self.own.disk.resume()
        if self.own.freezer is not None:
            self.own.freezer.thaw(self._name)

    def end(self) -> int | None:
        """How its process ended, when nothing of it is left; None if there was none."""
        process, self.process = self.process, None
        if process is None:
            return None
        status = process.wait_end()
        self._is_replacing &= not process.has_been_ready
        return status

    def freeze(self) -> None:
        if self.own.freezer is not None and self.process is not None:
            self.own.freezer.freeze(self._name)

    def thaw(self) -> None:
        if self.own.freezer is not None and self.process is not None:
            self.own.freezer.thaw(self._name)

    def cut_power(self) -> None:
        """When it has ended."""
        assert self.process is None, f"node {self.node_id} was not ended"
        assert self.own.disk is not None, f"node {self.node_id} has no disk of its own"
        self.own.disk.cut_power()
        self.page.power_cuts = self.own.disk.power_cuts
