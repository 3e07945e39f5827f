"""Options: what may be asked for, and what every bad value is answered with."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from raftmq.client.producer.options import PRESETS, producer_options
from raftmq.errors import InvalidConfig
from raftmq.model import Compression
from raftmq.wire.bodies import ACKS_ALL

NUMBERS = {
    "linger_ms": (-1, 60_001),
    "batch_size": (0, (32 << 20) + 1, 1.5),
    "buffer_memory": (100, (16 << 30) + 1, 1e6),
    "max_request_size": (0, (32 << 20) + 1),
    "max_in_flight": (0, 101, 1.0),
    "retries": (-1, 1.5),
    "retry_backoff_ms": (0, 60_001),
    "retry_backoff_max_ms": (0, 600_001),
    "request_timeout_ms": (0, 600_001),
    "delivery_timeout_ms": (0, -5),
}
BAD: list[tuple[str, Any]] = [(name, value) for name, values in NUMBERS.items() for value in values]
BAD += [(name, value) for name in NUMBERS for value in ("1", True, [1], math.nan)]
BAD += [("linger_ms", None), ("linger_ms", math.inf)]
BAD += [("acks", value) for value in (-1, 101, 1.0, "1", "ALL", None, True, [])]
BAD += [("compression", value) for value in ("snappy", "ZSTD", 1, [], b"zstd")]
BAD += [("partitioner", value) for value in ("crc", None, 5, ["crc32"])]
BAD += [("idempotence", value) for value in (0, 1, "yes", [])]
BAD += [("delivery", value) for value in ("once", 1, [], True)]
BAD += [("preset", value) for value in ("fast", 1, [])]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value(name: str, value: object) -> None:
    """It is named with what it is, and what is expected."""
    with pytest.raises(InvalidConfig) as caught:
        producer_options({name: value})
    [problem] = caught.value.problems
    assert problem.startswith(f"{name} = {value!r}: expected ")


def test_all_problems_at_once() -> None:
    """Nobody mends one after the other."""
    with pytest.raises(InvalidConfig) as caught:
        producer_options({"acks": -3, "linger_ms": "x", "compression": "best"})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"linger_ms": -1, "acks": 0, "retries": 3}, ["linger_ms", "retries"]),
        ({"delivery": "at_most_once", "acks": 1, "linger_ms": -1}, ["acks", "linger_ms"]),
        ({"delivery": "twice", "preset": "fast", "acks": "al"}, ["delivery", "preset", "acks"]),
        ({"preset": "fast", "max_in_flight": 2, "batch_size": 0},
         ["preset", "batch_size", "max_in_flight"]),
        ({"transactional_id": "a", "linger_ms": "x"}, ["transactional_id", "linger_ms"]),
        ({"name": "a", "generation": 1, "delivery": "at_most_once", "retries": -1},
         ["name", "retries"]),
        ({"retry_backoff_max_ms": "x", "retry_backoff_ms": 5000}, ["retry_backoff_max_ms"]),
        ({"acks": "al", "retries": 3, "idempotence": True}, ["acks"]),
    ],
)  # fmt: skip
def test_problems_of_all_kinds_at_once(given: dict[str, Any], names: list[str]) -> None:
    """Bad values, contradictions, presets and words for delivery; and none twice."""
    with pytest.raises(InvalidConfig) as caught:
        producer_options(given)
    assert [re.match(r"\w+", problem)[0] for problem in caught.value.problems] == names


@pytest.mark.parametrize(
    "given",
    [
        {"acks": 0, "retries": 3},
        {"idempotence": True, "acks": 0},
        {"max_in_flight": 2, "idempotence": True},
        {"max_in_flight": 2},
        {"retry_backoff_ms": 500, "retry_backoff_max_ms": 100},
        {"linger_ms": 500, "delivery_timeout_ms": 500},
        {"batch_size": 1 << 20, "buffer_memory": 1 << 19, "max_request_size": 1},
        {"max_request_size": 32 << 20, "buffer_memory": 16 << 20},
    ],
)
def test_contradictions(given: dict[str, Any]) -> None:
    """Both values are named."""
    with pytest.raises(InvalidConfig) as caught:
        producer_options(given)
    [problem] = caught.value.problems
    assert all(name in problem for name in list(given)[:2])


@pytest.mark.parametrize(
    ("given", "told"),
    [("linger", "did you mean 'linger_ms'"), ("Acks", "did you mean 'acks'"), ("xyz", "no option")],
)
def test_an_unknown_option(given: str, told: str) -> None:
    """A typing error is told as one."""
    with pytest.raises(TypeError, match=told):
        producer_options({given: 1})


def test_defaults_and_what_follows_from_them() -> None:
    """As safe as the cluster makes it, and sent again until the time is over."""
    options = producer_options({})
    assert (options.acks_number, options.codec) == (ACKS_ALL, Compression.NONE)
    assert options.repeats_max == math.inf
    assert producer_options({"acks": 0}).repeats_max == 0
    assert not producer_options({"acks": 0}).is_idempotent
    assert not producer_options({"acks": 0, "idempotence": False}).is_idempotent
    assert not producer_options({"max_in_flight": 5, "idempotence": False}).is_idempotent
    assert all(producer_options({"acks": acks}).is_idempotent for acks in (1, 2, "all"))
    assert producer_options({"idempotence": True, "retries": 0}).is_idempotent
    assert producer_options({"retries": 4}).repeats_max == 4
    assert producer_options({"linger_ms": 2.5}).linger_seconds == 0.0025
    assert producer_options({"compression": "zstd"}).codec is Compression.ZSTD
    endless = {"delivery_timeout_ms": math.inf, "idempotence": False}
    assert producer_options(endless).delivery_seconds == math.inf
    assert producer_options({"delivery_timeout_ms": 86_400_000}).is_idempotent
    assert callable(producer_options({"partitioner": lambda *_given: 0}).partitioner)


@pytest.mark.parametrize("timeout_ms", [86_400_001, math.inf])
def test_nothing_is_sent_again_after_brokers_forget(timeout_ms: float) -> None:
    """It would come to stand twice: a producer with numbers gives up within a day."""
    with pytest.raises(InvalidConfig, match=r"with idempotence, .* at most 86400000"):
        producer_options({"delivery_timeout_ms": timeout_ms})


def test_one_word_for_delivery() -> None:
    """It sets three options together; what agrees with them may be said, too."""
    options = producer_options({"delivery": "at_most_once"})
    assert (options.acks, options.repeats_max, options.is_idempotent) == (0, 0, False)
    options = producer_options({"delivery": "at_least_once", "acks": "all", "linger_ms": 1})
    assert (options.acks, options.repeats_max, options.is_idempotent) == ("all", math.inf, True)
    for acks in (1, 2):
        options = producer_options({"delivery": "at_least_once", "acks": acks})
        assert (options.acks, options.repeats_max, options.is_idempotent) == (acks, math.inf, True)
    few = {"delivery": "at_least_once", "retries": 3, "delivery_timeout_ms": 9}
    assert producer_options(few).repeats_max == 3
    preset = producer_options({"delivery": "at_least_once", "preset": "low_latency"})
    assert (preset.linger_ms, preset.idempotence) == (0, True)


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("at_most_once", "acks", 1),
        ("at_most_once", "acks", False),
        ("at_most_once", "retries", 2),
        ("at_most_once", "idempotence", True),
        ("at_least_once", "acks", 0),
        ("at_least_once", "acks", True),
        ("at_least_once", "retries", 0),
        ("at_least_once", "idempotence", False),
        ("at_least_once", "max_in_flight", 3),
    ],
)
def test_what_contradicts_the_word(word: str, name: str, value: object) -> None:
    """Nothing is overruled: it is refused, and both are named."""
    with pytest.raises(InvalidConfig) as caught:
        producer_options({"delivery": word, name: value})
    [problem] = caught.value.problems
    assert f"{name} = {value!r}" in problem
    assert name == "max_in_flight" or f'delivery = "{word}"' in problem


def test_names_that_others_use() -> None:
    """They are told how it is called here."""
    with pytest.raises(InvalidConfig, match="is called idempotence here"):
        producer_options({"enable_idempotence": True})
    with pytest.raises(InvalidConfig, match="is called transaction_id here"):
        producer_options({"transactional_id": "x"})


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset: str) -> None:
    """They give defaults, which others replace (A13.1)."""
    options = producer_options({"preset": preset})
    for name, value in PRESETS[preset].items():
        assert getattr(options, name) == value
    assert producer_options({"preset": preset, "linger_ms": 7}).linger_ms == 7
