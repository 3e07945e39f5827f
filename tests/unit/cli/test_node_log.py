"""The log of a node, as people and as collectors read it."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING

import pytest

from raftmq.broker.settings import LogSettings
from raftmq.cli.nodes.node_log import JsonLines, begin_log

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("raftmq.broker")


@pytest.fixture
def root() -> Iterator[None]:
    """What is configured is forgotten after the test."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before, level


@pytest.mark.usefixtures("root")
def test_lines_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Time, level, logger and message; what is below the level is left out."""
    begin_log(LogSettings(level="warning"))
    logger.info("registered: broker=1")
    logger.warning("registration lost: broker=%d", 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" WARNING raftmq.broker registration lost: broker=1")


@pytest.mark.usefixtures("root")
def test_lines_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """An object for each line, whatever the message holds."""
    begin_log(LogSettings(level="debug", format="json"))
    logger.debug('rack="ünï"\nand more')
    found = json.loads(capsys.readouterr().err)
    assert list(found) == ["time", "level", "logger", "message"]
    assert found["time"].endswith("+00:00")
    assert (found["level"], found["message"]) == ("debug", 'rack="ünï"\nand more')


def test_a_traceback_in_json() -> None:
    """It is a field, and stays on the line."""
    try:
        raise ValueError("x")
    except ValueError:
        record = logger.makeRecord(logger.name, 40, "f", 1, "failed", (), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: x")
