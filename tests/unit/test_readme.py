"""What README shows must run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_log_in_ten_lines(tmp_path: Path) -> None:
    """The example, as a reader would paste it, in an empty folder."""
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "0 b'a' b'hello'\n1 b'b' b'world'\n"
