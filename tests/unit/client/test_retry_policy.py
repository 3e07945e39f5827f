"""How often a record is tried, the pauses between, and what becomes of it then (A12.4, A12.5)."""

from __future__ import annotations

from random import Random

import pytest

import raftmq
from raftmq.client.processing.retry_policy import RecordFate, fate_of, retry_policy
from raftmq.errors import InvalidConfig

IN_PLACE = raftmq.RetryPolicy(in_place=True)


def test_the_default() -> None:
    """Sixteen attempts, from five seconds to two hours apart, and then the dead letters."""
    assert (IN_PLACE.attempts, IN_PLACE.dead_letters) == (16, True)
    pauses = [IN_PLACE.backoff.pause_seconds(number, Random(number)) for number in range(1, 16)]
    for number, pause in enumerate(pauses):
        expected = min(5 * 2**number, 7_200)
        assert 0.8 * expected <= pause <= min(1.2 * expected, 7_200)


def test_jitter() -> None:
    """What has failed together is tried again at different times, the same in each replay."""
    backoff, random = raftmq.Exponential(10), Random(1)
    pauses = [backoff.pause_seconds(1, random) for _ in range(50)]
    assert len(set(pauses)) == 50
    again = Random(1)
    assert pauses == [backoff.pause_seconds(1, again) for _ in range(50)]


def test_very_many_attempts() -> None:
    """Powers beyond what a float holds are the longest pause."""
    backoff = raftmq.Exponential(1, factor=1_000, maximum=60)
    assert 48 <= backoff.pause_seconds(1_000, Random(1)) <= 60
    assert raftmq.Exponential(0, factor=1_000).pause_seconds(1_000, Random(1)) == 0


def test_in_place() -> None:
    """A word for the policy with nothing but defaults."""
    assert retry_policy("in_place") == IN_PLACE
    assert retry_policy(IN_PLACE) is IN_PLACE
    assert retry_policy(None) is None
    moving = raftmq.RetryPolicy()
    assert retry_policy(moving) is moving


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("inplace", r"did you mean 'in_place'\?"),
        (3, "retry = 3: expected"),
    ],
)
def test_what_is_refused(given: object, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        retry_policy(given)


def test_bad_numbers() -> None:
    """All of them at once, each with its bounds."""
    with pytest.raises(InvalidConfig) as caught:
        raftmq.Exponential(-1, factor=0.5, maximum=float("nan"))
    assert [one.split(" = ")[0] for one in caught.value.problems] == [
        "Exponential: first_seconds",
        "Exponential: factor",
        "Exponential: maximum",
    ]
    with pytest.raises(InvalidConfig) as caught:
        raftmq.RetryPolicy(attempts=True, backoff=5, dead_letters=1, in_place=None)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 4
    assert "backoff = 5: expected an Exponential, such as Exponential(5)" in str(caught.value)


def policy(*, in_place: bool, dead_letters: bool = True) -> raftmq.RetryPolicy:
    return raftmq.RetryPolicy(attempts=3, in_place=in_place, dead_letters=dead_letters)


@pytest.mark.parametrize(
    ("given", "fates"),
    [
        (None, [RecordFate.RAISED] * 4),
        (policy(in_place=True), [RecordFate.IN_PLACE] * 2 + [RecordFate.DEAD_LETTER] * 2),
        (policy(in_place=False), [RecordFate.RETRY_TOPIC] * 2 + [RecordFate.DEAD_LETTER] * 2),
        (
            policy(in_place=True, dead_letters=False),
            [RecordFate.IN_PLACE] * 2 + [RecordFate.RAISED] * 2,
        ),
        (
            policy(in_place=False, dead_letters=False),
            [RecordFate.RETRY_TOPIC] * 2 + [RecordFate.RAISED] * 2,
        ),
    ],
)
def test_fates(given: raftmq.RetryPolicy | None, fates: list[RecordFate]) -> None:
    """By the attempts that it has had; more than the policy has, too, as it may have changed."""
    assert [fate_of(given, attempts) for attempts in range(1, 5)] == fates


def test_what_a_deserializer_refuses() -> None:
    """In place it would be refused again; moved, it takes the way of an exception."""
    assert fate_of(policy(in_place=True), 1, is_undecodable=True) is RecordFate.DEAD_LETTER
    stern = policy(in_place=True, dead_letters=False)
    assert fate_of(stern, 1, is_undecodable=True) is RecordFate.RAISED
    assert fate_of(policy(in_place=False), 2, is_undecodable=True) is RecordFate.RETRY_TOPIC
    assert fate_of(policy(in_place=False), 3, is_undecodable=True) is RecordFate.DEAD_LETTER
