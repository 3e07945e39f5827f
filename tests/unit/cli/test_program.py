"""Commands in hints can be typed as they stand, however the program was called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.cli.terminal.program import as_called, program

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

INSTALLED = Path(sys.executable).parent / "raftmq"


def call(command: Sequence[str], path: str) -> str:
    """What stands on stderr, with PATH as given."""
    environment = {**os.environ, "PATH": path}
    command = [*command, "lgo"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    ).stderr


def test_as_it_was_called() -> None:
    """From a virtual environment that is not active, as a module, and from the PATH."""
    assert f"'{INSTALLED} --help'" in call([str(INSTALLED)], "/bin")
    assert f"'{sys.executable} -m raftmq --help'" in call([sys.executable, "-m", "raftmq"], "/bin")
    assert "'raftmq --help'" in call(["raftmq"], str(INSTALLED.parent))


def test_within_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests call commands within their own process: the plain name."""
    assert program() == "raftmq"
    monkeypatch.setattr("sys.argv", ["/opt/my tools/raftmq"])
    assert as_called("see `raftmq dev`, or `ls`") == "see `'/opt/my tools/raftmq' dev`, or `ls`"
