"""The program at the top of docs/SPARK.md, as a reader would paste it into a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import ROOT, require_java
from tests.spark.frames import values

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq import sync
    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark

SECONDS_MAX = 240.0  # a session of its own, with cold processes


def test_the_first_program(server: Server, client: sync.Client, tmp_path: Path) -> None:
    """Only the address and the folder are others; python3 is one without raftmq."""
    require_java()
    program, *_ = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/SPARK.md").read_text(), re.DOTALL
    )
    program = program.replace("127.0.0.1:9292", server.bootstrap)
    for topic in ("basket", "copy"):
        client.admin.create_topic(topic, partitions=1)
    tmp_path.joinpath("python3").symlink_to("/bin/false")
    left_out = ("PYSPARK_", "SPARK_", "VIRTUAL_ENV", "PYTHON")
    done = subprocess.run(
        [sys.executable, "-c", program.replace("checkpoints", str(tmp_path))],
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith(left_out)},
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "|        0|     1|apple|  red|" in done.stdout  # a fence stands at 0
    assert values(client, "copy") == [b"red"]
