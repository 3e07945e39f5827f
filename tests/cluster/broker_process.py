"""One `raftmq broker` process; and, run as a module, what keeps it from outliving its parent.

    python -m tests.cluster.broker_process --config F

Everything behind that is what an operator starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

from tests.cluster.node_process import NodeProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READY = b"ready: "
_PR_SET_PDEATHSIG = 1


class BrokerProcess(NodeProcess):
    """Attributes:
    is_ready: it has said so.
    """

    def __init__(
        self, node_id: int, config: Path, *overrides: str, on_news: Callable[[], None]
    ) -> None:
        self.is_ready = False
        self._on_news = on_news
        options = [part for override in overrides for part in ("-o", override)]
        module = "tests.cluster.broker_process"
        command = [sys.executable, "-m", module, "--config", str(config), *options]
        super().__init__(node_id, command, hear=self._hear_line, on_end=on_news)

    def _hear_line(self, line: bytes) -> None:
        assert line.startswith(READY), line
        self.is_ready = True
        self._on_news()


def main() -> None:
    """Die with the parent, and be the command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(sys.executable, [sys.executable, "-m", "raftmq", "broker", *sys.argv[1:]])


if __name__ == "__main__":
    main()
