"""Probe for the virtual network: can this machine have one? Found out by making one.

`lab_missing` tries it in a child process, as trying it changes the process. As a program, `python
-m jepsen_like.network.probe`: ends with 0 and no output, or else with 1 and the reason.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from functools import cache

from jepsen_like.network.lab import SOURCES, Lab
from jepsen_like.network.links import NetworkError
from jepsen_like.network.namespaces import unshare_here

PATIENCE_SECONDS = 20.0  # a second on an idle machine


@cache
def lab_missing() -> str:
    """Why this machine has no lab: "" if it has one."""
    if shutil.which("nsenter") is None:
        return "no network lab: nsenter is missing (package util-linux)"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "jepsen_like.network.probe"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
        )
    except subprocess.TimeoutExpired:
        return f"no network lab: trying one took more than {PATIENCE_SECONDS} s"
    if done.returncode == 0:
        return ""
    said = (done.stderr or done.stdout).strip() or f"the attempt ended with {done.returncode}"
    return f"no network lab{_as_whom()}: {said.splitlines()[-1]}"


def try_lab() -> None:
    """Have two hosts, start a program on one, and hear one from the other."""
    unshare_here()
    with Lab.open((1, 2), seed=0) as lab:
        subprocess.run([*lab.enter_command(1), "true"], check=True)
        listener = lab.run_at(1, lambda: socket.create_server((lab.address(1), 0)))
        with listener:
            address = listener.getsockname()
            lab.run_at(2, lambda: socket.create_connection(address, timeout=3.0)).close()


def _as_whom() -> str:
    return "" if os.geteuid() == 0 else " (not root)"


def main() -> int:
    try:
        try_lab()
    except (OSError, NetworkError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
