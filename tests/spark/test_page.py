"""The program at the top of docs/SPARK.md, as a reader would paste it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import ROOT
from tests.spark.frames import values

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq import sync
    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("spark")
def test_the_first_program(
    server: Server, client: sync.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the address and the folder are others."""
    program, *_ = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/SPARK.md").read_text(), re.DOTALL
    )
    program = program.replace("127.0.0.1:9292", server.bootstrap)
    for topic in ("fruit", "copy"):
        client.admin.create_topic(topic)
    exec(program.replace("/data/copy", str(tmp_path)), {})
    assert "|        0|     1|apple|  red|" in capsys.readouterr().out  # a fence stands at 0
    assert values(client, "copy") == [b"red"]
