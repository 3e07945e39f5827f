"""Keys: their names and values, who is active, who retires."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from jepsen_like.history.event import ACKS_ALL
from jepsen_like.workloads.keys import (
    UNREADABLE,
    Keys,
    acks_of,
    decode_value,
    encode_value,
    key_of,
    split_key,
)


def made(*, topics: int = 10, **options: Any) -> Keys:
    """With so many topics, if they are wanted."""
    given = {"matrix": ("all", "1", "2"), "active_max": 4, **options}
    keys = Keys(Random(1), **given)
    for _ in range(topics):
        if (topic := keys.next_topic()) is not None:
            keys.on_made(topic)
    return keys


def test_a_key_is_a_topic_and_a_number() -> None:
    """A name with hyphens in the topic comes apart at the last one."""
    assert key_of("all-7", 1) == "all-7-1"
    assert split_key("all-7-1") == ("all-7", 1)


@pytest.mark.parametrize(("key", "acks"), [("all-7-0", ACKS_ALL), ("1-3-1", 1), ("2-9", 2)])
def test_the_name_tells_the_acks(key: str, acks: int) -> None:
    """Whoever knows a key or a topic knows how it is written to."""
    assert acks_of(key) == acks


@pytest.mark.parametrize("padding_bytes", [0, 1, 100])
def test_a_value_comes_back(padding_bytes: int) -> None:
    """Padding lengthens the record and changes nothing."""
    data = encode_value(1234, padding_bytes=padding_bytes)
    assert len(data) == 4 + padding_bytes
    assert decode_value(data) == decode_value(memoryview(data)) == 1234


@pytest.mark.parametrize("data", [b"", b"x", b"-1", b"1 2", None, "12", b"1\n"])
def test_what_is_no_value_is_told(data: object) -> None:
    """Bytes that nobody of us has written do not stop a poll."""
    assert decode_value(data) == UNREADABLE


def test_topics_are_wanted_up_to_a_spare_one() -> None:
    """Four active keys and one topic in reserve, in the order of the matrix."""
    keys = made()
    assert keys.everything == ["all-1-0", "all-1-1", "1-2-0", "1-2-1", "2-3-0", "2-3-1"]
    assert keys.active == keys.everything[:4]
    assert keys.next_topic() is None


def test_a_refused_topic_is_replaced() -> None:
    """Of two topics that there may be one was refused: two more attempts, under other names."""
    keys = made(topics=0, topics_max=2)
    assert keys.next_topic() == "all-1"
    keys.on_refused()
    assert [keys.next_topic() for _ in range(3)] == ["1-2", "2-3", None]


def test_one_more_topic_is_allowed_later() -> None:
    """A long run goes on making fresh ones, one at a time."""
    keys = made(topics=0, topics_max=0)
    assert keys.next_topic() is None
    keys.allow_another()
    assert [keys.next_topic(), keys.next_topic()] == ["all-1", None]


def test_values_rise_by_one() -> None:
    """Whoever takes values of a key gets the next ones."""
    keys = made()
    assert keys.take("all-1-0", 3) == (1, 2, 3)
    assert keys.take_steadily("all-1-0", 2) == (4, 5)
    assert keys.take("all-1-1", 1) == (1,)


def test_a_key_that_had_enough_gives_its_place_to_another() -> None:
    """Ten values are the most: after them the key is active no more, and a topic is wanted."""
    keys = made(values_max=10)
    keys.take("1-2-0", 10)
    assert keys.active == ["all-1-0", "all-1-1", "2-3-0", "1-2-1"]
    assert "1-2-0" in keys.everything
    assert keys.next_topic() == "all-4"


def test_without_a_spare_key_nobody_retires() -> None:
    """No more topics may be made: those that are there go on."""
    keys = made(values_max=1, topics_max=2)
    for _ in range(20):
        keys.take(keys.choose(), 5)
    assert len(keys.active) == 4


def test_a_pulse_wears_no_key_out() -> None:
    """However much it sends, its key stays."""
    keys = made(values_max=10)
    keys.take_steadily("all-1-0", 1000)
    assert "all-1-0" in keys.active


def test_a_pulse_stays_with_its_key_while_it_is_active() -> None:
    """Two keys wait for all replicas, for three pulses; one retires, and its pulse finds none."""
    keys = made(values_max=10)
    first, second = keys.pulse_key(None), keys.pulse_key(None)
    assert {first, second} == {"all-1-0", "all-1-1"}
    assert keys.pulse_key(None) is None
    assert first is not None
    keys.take(first, 10)
    assert keys.pulse_key(second) == second
    assert keys.pulse_key(first) is None


def test_later_keys_are_chosen_more_often() -> None:
    """Each is about twice as likely as the one before it."""
    keys = made()
    chosen = [keys.choose() for _ in range(1500)]
    counts = [chosen.count(key) for key in keys.active]
    assert counts == sorted(counts)
    assert 1.5 < counts[3] / counts[2] < 2.5
