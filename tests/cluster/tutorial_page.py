"""A page of docs/tutorial/, followed: files are written, commands typed, output compared.

    ```python NAME      a file of that name, in the folder in which everything happens
    ```console          lines that begin with `$ ` are typed; those below are what comes back.
                        `$ cd` holds for what follows on the page

`...` in the output stands for anything. The reader's cluster is at 127.0.0.1:9292: another address
takes its place.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USUAL_ADDRESS = "127.0.0.1:9292"
SECONDS_MAX = 300  # for Spark on a machine that does other things
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# What a reader has done before: the environment of the tests has both.
DONE_BEFORE = ("raftmq dev --detach", "pip install", "python3 -m venv", ". .venv/bin/activate")


@dataclass(frozen=True)
class Reader:
    """Who follows the page.

    Attributes:
        folder: where files are written and commands are typed.
        bootstrap: of the cluster that runs.
    """

    folder: Path
    bootstrap: str

    def follow(self, page: Path) -> None:
        """Every block of it, from the first to the last."""
        blocks = BLOCK.findall(page.read_text("utf-8"))
        assert blocks, f"{page.name} has nothing to do"
        here = self
        for language, name, text in blocks:
            if name:
                placed = text.replace(USUAL_ADDRESS, self.bootstrap)
                (here.folder / name).write_text(placed, "utf-8")
            else:
                assert language == "console", f"{page.name}: a block that nobody runs:\n{text}"
                here = here._type(text)

    def _type(self, text: str) -> Reader:
        """Where it leaves the reader."""
        here = self
        for typed in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, expected = typed.partition("\n")
            if command.startswith(DONE_BEFORE):
                continue
            if command.startswith("cd "):
                here = replace(here, folder=(here.folder / command[3:]).resolve())
                continue
            here.compare(command, expected)
        return here

    def compare(self, command: str, expected: str) -> None:
        """What the command prints; where nothing is expected, anything will do."""
        found = self.run(command)
        if expected.strip():
            alike = doctest.OutputChecker().check_output(expected, found, LOOSELY)
            assert alike, f"$ {command}\nexpected:\n{expected}\nfound:\n{found}"

    def run(self, command: str) -> str:
        """What it prints, on both streams."""
        places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", "-c", command.replace(USUAL_ADDRESS, self.bootstrap)],
            cwd=self.folder,
            env={**os.environ, "PATH": places, "RAFTMQ_BOOTSTRAP": self.bootstrap, "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert ended.returncode == 0, f"$ {command}\n{ended.stdout}"
        return ended.stdout
