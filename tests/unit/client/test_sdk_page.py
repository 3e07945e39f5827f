"""docs/SDK.md names every option with its default, and every call."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from raftmq.client.administration.admin import Admin
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.options import ConsumerArguments, ConsumerOptions
from raftmq.client.producer.options import PRESETS, ProducerArguments, ProducerOptions
from raftmq.client.producer.producer import Producer

PAGE = (Path(__file__).parents[3] / "docs/SDK.md").read_text()


def _rows(title: str) -> dict[str, str]:
    """Of a table: the defaults by option."""
    section = PAGE.partition(f"### {title}\n")[2].partition("\n##")[0]
    found: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`.*?`) \| (.*?) \|", section, re.MULTILINE):
        options = re.findall(r"`(\w+)`", names)
        values = defaults.split(", ")
        found |= dict(zip(options, values, strict=True))
    return found


@pytest.mark.parametrize(
    ("title", "options"),
    [("Options of a producer", ProducerOptions), ("Options of a consumer", ConsumerOptions)],
)
def test_every_option_with_its_default(title: str, options: type[ProducerOptions]) -> None:
    """No more, no fewer, and the defaults are those of the code."""
    told = _rows(title)
    told.pop("preset", None)
    assert told.keys() == {field.name for field in fields(options)}
    for field in fields(options):
        value = told[field.name].strip("`").replace(",", "").strip('"')
        assert value == str(field.default), field.name


@pytest.mark.parametrize(
    ("arguments", "options", "others"),
    [(ProducerArguments, ProducerOptions, {"preset"}), (ConsumerArguments, ConsumerOptions, set())],
)
def test_type_checkers_know_every_option(
    arguments: type, options: type[ProducerOptions], others: set[str]
) -> None:
    """And no other."""
    assert arguments.__annotations__.keys() == {each.name for each in fields(options)} | others


def test_every_call_is_named() -> None:
    """Of producer, consumer and administration."""
    for owner in (Producer, Consumer, Admin):
        for name in vars(owner):
            if not name.startswith("_") and name not in ("check_open", "check_size", "topic"):
                assert f"{name}" in PAGE, f"{owner.__name__}.{name}"


def test_every_preset_is_named() -> None:
    """With what it sets."""
    for name, values in PRESETS.items():
        assert f'"{name}"' in PAGE
        for option in values:
            assert option in PAGE
