"""docs/SDK.md names every option with its default, and every call."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from raftmq.client.administration.admin import Admin
from raftmq.client.administration.groups.calls import GroupCalls
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.options import ConsumerArguments, ConsumerOptions, GroupReading
from raftmq.client.group.member_options import MemberOptions
from raftmq.client.producer.options import PRESETS, ProducerArguments, ProducerOptions
from raftmq.client.producer.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from dataclasses import Field

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


GROUP_OPTIONS = (*fields(GroupReading), *fields(MemberOptions))
NOT_OPTIONS = {"preset", "delivery", "group", "member", "rack", "tag_filter"}


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("Options of a producer", fields(ProducerOptions)),
        ("Options of a consumer", fields(ConsumerOptions)),
        ("Options of a member of a group", GROUP_OPTIONS),
    ],
)
def test_every_option_with_its_default(title: str, options: Sequence[Field[Any]]) -> None:
    """No more, no fewer, and the defaults are those of the code."""
    told = _rows(title)
    wanted = {field.name: field.default for field in options if field.name not in NOT_OPTIONS}
    assert told.keys() - NOT_OPTIONS == wanted.keys()
    for name, default in wanted.items():
        value = told[name].strip("`").replace(",", "").strip('"').replace("empty", "b''")
        assert value == str(default), name


@pytest.mark.parametrize(
    ("arguments", "options", "others"),
    [
        (ProducerArguments, ProducerOptions, {"preset", "delivery"}),
        (ConsumerArguments, ConsumerOptions, {"delivery", *(each.name for each in GROUP_OPTIONS)}),
    ],
)
def test_type_checkers_know_every_option(
    arguments: type, options: type[ProducerOptions], others: set[str]
) -> None:
    """And no other, but for `retry`, which is an argument of its own of each call."""
    known = {*(each.name for each in fields(options)), *others} - {
        "member", "rack", "tag_filter", "retry",
    }  # fmt: skip
    assert arguments.__annotations__.keys() == known


def test_errors_are_definite_or_not_as_the_page_says() -> None:
    """Each row of its table; and each error is a name of the package."""
    section = PAGE.partition("### What an error means\n")[2].partition("\n##")[0]
    rows = re.findall(r"^\| (`.*?`) \| (yes|no) \|", section, re.MULTILINE)
    told = {name: word == "yes" for names, word in rows for name in re.findall(r"`(\w+)`", names)}
    assert len(told) > 30
    assert told == {name: getattr(raftmq, name).definite for name in told}


def test_every_call_is_named() -> None:
    """Of producer, consumer and administration."""
    for owner in (Producer, Consumer, Admin, GroupCalls):
        for name in vars(owner):
            if not name.startswith("_") and name not in ("check_open", "check_size", "topic"):
                assert f"{name}" in PAGE, f"{owner.__name__}.{name}"


def test_every_preset_is_named() -> None:
    """With what it sets."""
    for name, values in PRESETS.items():
        assert f'"{name}"' in PAGE
        for option in values:
            assert option in PAGE
