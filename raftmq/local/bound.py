"""`raftmq`, but ended with its owner: `python -m raftmq.local.bound PID STARTED broker ...`.

The owner need not be the parent: a broker that somebody else restarts belongs to the same owner. A
thread waits for the owner's end, whatever it died of, and kills this process at once. Unlike the
kernel's signal at the death of a parent, it does not depend on which thread of the owner started
the process. A process that is paused ends when it is continued.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from threading import Thread

from raftmq.local.process import Process, wait_end


def main() -> None:
    pid, started, *arguments = sys.argv[1:]
    owner = Process(int(pid), started)
    Thread(target=_end_with, args=(owner,), name="owner", daemon=True).start()
    sys.argv[1:] = arguments
    runpy.run_module("raftmq", run_name="__main__", alter_sys=True)


def _end_with(owner: Process) -> None:
    wait_end(owner)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
