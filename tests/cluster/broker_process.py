"""One `raftmq broker` process; and, run as a module, what keeps it from outliving its parent.

    python -m tests.cluster.broker_process --config F

Everything behind that is what an operator starts. `program` may name another module, which must
take the same options, and die with its parent, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

from tests.cluster.node_process import NodeProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

READY = b"ready: "
AS_OPERATED = ("tests.cluster.broker_process",)
_PR_SET_PDEATHSIG = 1


class BrokerProcess(NodeProcess):
    """Attributes:
    is_ready: it has said so.
    """

    def __init__(
        self,
        node_id: int,
        config: Path,
        *overrides: str,
        on_news: Callable[[], None],
        program: Sequence[str] = AS_OPERATED,
    ) -> None:
        self.is_ready = False
        self._on_news = on_news
        options = [part for override in overrides for part in ("-o", override)]
        command = [sys.executable, "-m", *program, "--config", str(config), *options]
        super().__init__(node_id, command, hear=self._hear_line, on_end=on_news)

    def _hear_line(self, line: bytes) -> None:
        assert line.startswith(READY), line
        self.is_ready = True
        self._on_news()


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Die with the parent, and be the command."""
    die_with_parent()
    os.execv(sys.executable, [sys.executable, "-m", "raftmq", "broker", *sys.argv[1:]])


if __name__ == "__main__":
    main()
