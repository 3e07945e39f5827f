"""Name and generation of a producer: what they may be, and what cannot be had with them."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.client.producer.options import producer_options
from raftmq.errors import InvalidConfig
from raftmq.wire.batch.header import GENERATION_MAX

BAD: list[tuple[str, Any]] = [
    ("name", value) for value in ("", "x" * 256, 7, b"etl", "a\n", "\ud800")
]
BAD += [("generation", value) for value in (-1, "1", True, 1.0, GENERATION_MAX + 1)]


@pytest.mark.parametrize(("option", "value"), BAD)
def test_a_bad_value(option: str, value: object) -> None:
    """It is named with what it is, and what is expected."""
    with pytest.raises(InvalidConfig) as caught:
        producer_options({"name": "etl", option: value})
    [problem] = caught.value.problems
    assert problem.startswith(f"{option} = {value!r}: expected ")


@pytest.mark.parametrize(
    "given",
    [
        {"generation": 3},
        {"name": "etl"},
        {"name": "etl", "generation": 3, "acks": 1},
        {"name": "etl", "generation": 3, "acks": 0},
        {"name": "etl", "generation": 3, "idempotence": False},
        {"name": "etl", "generation": 3, "delivery": "at_most_once", "retries": 0},
    ],
)
def test_contradictions(given: dict[str, Any]) -> None:
    """Each problem names the option and the way out."""
    with pytest.raises(InvalidConfig) as caught:
        producer_options(given)
    assert all("leave" in problem for problem in caught.value.problems)
    assert all("name" in problem for problem in caught.value.problems)


def test_what_goes_together() -> None:
    """All that leaves acknowledgements and numbers as they are."""
    options = producer_options({"name": "a" * 255, "generation": GENERATION_MAX})
    assert options.generation_number == GENERATION_MAX
    assert options.is_idempotent
    options = producer_options(
        {
            "name": "é/7",
            "generation": 0,
            "acks": "all",
            "idempotence": True,
            "delivery": "at_least_once",
        }
    )
    assert (options.name, options.generation_number) == ("é/7", 0)
    assert producer_options({}).name is None


def test_at_most_once_by_name() -> None:
    """What was said is named, and not the acks that nobody has spoken of."""
    given = {"name": "etl", "generation": 3, "delivery": "at_most_once"}
    with pytest.raises(InvalidConfig) as caught:
        producer_options(given)
    [problem] = caught.value.problems
    assert problem.startswith("name = 'etl' with delivery = \"at_most_once\": ")
    assert 'always acks = "all" and delivery = "at_least_once"' in problem
