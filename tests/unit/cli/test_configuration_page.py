"""docs/CONFIGURATION.md says what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from raftmq.broker.node_config_keys import NODE_KEYS
from raftmq.broker.settings import parse_settings
from raftmq.cli.nodes.configuration_page import COMMAND, page
from raftmq.topic_config import TOPIC_KEYS

PAGE = Path(__file__).parents[3] / "docs/CONFIGURATION.md"


def test_the_page_is_up_to_date() -> None:
    """It is written from the definitions, and has been since they changed last."""
    assert PAGE.read_text("utf-8") == page(), f"out of date, write it anew: {COMMAND}"


def test_the_page_names_every_key() -> None:
    """Of nodes and of topics, each once, with what it takes and what it means."""
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| (.+?) \|$", page(), re.MULTILINE)
    assert [name for name, *_ in rows] == [key.name for key in (*NODE_KEYS, *TOPIC_KEYS)]


def test_the_example_is_one() -> None:
    """The real parser takes it."""
    [text] = re.findall(r"```toml\n(.*?)```", page(), re.DOTALL)
    settings = parse_settings(tomllib.loads(text))
    assert (settings.node_id, settings.is_voter, settings.warnings) == (1, True, [])
