"""How long the command line takes to start: `python -m benchmarks.command_line [RUNS]`.

Medians of whole processes, with bytecode. Nothing listens at the address of the second command: it
loads what every command that asks a cluster loads, and what a failure needs. Run it on a machine
that does nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from raftmq.local.cluster import node_environment

COMMANDS = ("--help", "topic list -b 127.0.0.1:1")


def measure(line: str, runs: int) -> float:
    """Seconds, the median; one run before it writes the bytecode."""
    environment = node_environment()
    command = [sys.executable, "-m", "raftmq", *line.split()]
    seconds = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, env=environment, capture_output=True, check=False)
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])


def main(runs: int) -> None:
    for line in COMMANDS:
        sys.stdout.write(f"raftmq {line}: {measure(line, runs):.2f} s\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
