"""Run a module at the lowest CPU priority: `python -m tests.leisurely pytest tests/simulation`.

For tests on virtual clocks, beside others that wait for real processes in real time and must not
starve. Linux shares processors among sessions first (autogroups), and niceness counts only within
one; so the module gets a session of its own, with the lowest priority. Ctrl-C in the terminal does
not reach other sessions, so it is forwarded; the child dies with its parent.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.cluster.broker_process import die_with_parent

NICENESS = 19
SESSION = Path("/proc/self/autogroup")


def main(*words: str) -> int:
    pid = os.fork()
    if pid == 0:
        give_way()
        os.execv(sys.executable, [sys.executable, "-m", *words])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return 128 - status if status < 0 else status


def give_way() -> None:
    os.setsid()
    os.nice(NICENESS)
    with suppress(OSError):  # a kernel without autogroups: niceness alone counts
        SESSION.write_text(str(NICENESS))
    die_with_parent()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
