"""Pictures of a run for README.md, of what commands really print: `python docs/pictures/take.py`.

Starts three brokers on this machine, types the commands of each picture in a terminal of 80
columns, and writes what came back as SVG beside this file. Needs what `raftmq[all]` installs.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS = 80
TAKEN_BACK = re.compile(r"[^\n]*\r?\n\r?(?:\x1b\[\?25h)?\r?\x1b\[1A\x1b\[2K")  # progress that ended
CONTROL = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[ABCDGJ]|\x07")  # cursors; colours stay
PICTURES = {
    "first-steps": (
        "three brokers, a topic, records in and out",
        (
            "raftmq dev status",
            "raftmq topic create orders --partitions 6",
            "seq 1000 | raftmq produce orders",
            "raftmq consume orders -o earliest -e -n 3 -f '%t %p %o %s\\n'",
            "raftmq consume orders -g billing -o earliest -e | wc -l",
            "raftmq group lag billing",
        ),
    ),
    "a-broker-dies": (
        "a broker is killed, and comes back",
        (
            "raftmq dev kill 3",
            "raftmq cluster health",
            "seq 1000 | raftmq produce orders",
            "raftmq dev restart 3",
            "raftmq cluster health --wait",
        ),
    ),
}


def typed(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What the command prints on a terminal, with its colours."""
    terminal, other_side = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", f"stty cols {COLUMNS} rows 50; {command}"],
        cwd=folder,
        env=environment,
        stdin=other_side,
        stdout=other_side,
        stderr=other_side,
        close_fds=True,
    ):
        os.close(other_side)
        text = b"".join(iter(lambda: _some(terminal), b"")).decode()
    os.close(terminal)
    plain = CONTROL.sub("", TAKEN_BACK.sub("", text))
    return "\n".join(_last_state(line) for line in plain.split("\r\n")).strip("\n")


def _some(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side was closed
        return b""


def _last_state(line: str) -> str:
    """Of a line that was written over, as progress is: what was there in the end."""
    states = [state for state in re.split(r"\r|\x1b\[\d*K", line) if state.strip()]
    return states[-1] if states else ""


def take(name: str, folder: Path, environment: dict[str, str]) -> None:
    title, commands = PICTURES[name]
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for command in commands:
        console.print(Text(f"$ {command}", style="bold"))
        found = typed(command, folder, environment).replace(f"{folder}/", "")
        if found:
            console.print(Text.from_ansi(found))
    svg = console.export_svg(title=title, unique_id=name)
    (HERE / f"{name}.svg").write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), "utf-8")


def main() -> None:
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": places, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory(prefix="raftmq-") as name:
        folder = Path(name)
        try:
            started = typed("raftmq dev --detach --port 0", folder, environment)
            environment["RAFTMQ_BOOTSTRAP"] = started.partition("bootstrap: ")[2].split()[0]
            for each in PICTURES:
                take(each, folder, environment)
        finally:
            typed("raftmq dev stop", folder, environment)


if __name__ == "__main__":
    main()
