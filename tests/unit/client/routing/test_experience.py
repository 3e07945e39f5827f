"""Whom a client asks first, and whom it leaves alone."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.client.routing.experience import LATELY_SECONDS, THROTTLE_SECONDS_MAX, Experience


def first_asked(experience: Experience, *broker_ids: int, now: float) -> set[int]:
    """Who comes first in some of many orders."""
    orders = (experience.in_order(broker_ids, now=now, random=Random(seed)) for seed in range(50))
    return {order[0] for order in orders}


def test_without_experience_any_order_will_do() -> None:
    """The load is spread over all brokers."""
    assert first_asked(Experience(), 1, 2, 3, now=0.0) == {1, 2, 3}
    assert sorted(Experience().in_order([3, 1, 2], now=0.0, random=Random(1))) == [1, 2, 3]


def test_who_answered_lately_is_asked_first() -> None:
    """Two of three did, and after a while that says nothing any more."""
    experience = Experience()
    for broker_id in (1, 2):
        experience.on_answer(broker_id, throttle_ms=0, now=5.0)
    assert first_asked(experience, 1, 2, 3, now=6.0) == {1, 2}
    assert first_asked(experience, 1, 2, 3, now=5.0 + LATELY_SECONDS) == {1, 2, 3}


def test_who_has_not_answered_is_not_asked_first() -> None:
    """Until it answers again."""
    experience = Experience()
    for broker_id in (1, 2):
        experience.on_answer(broker_id, throttle_ms=0, now=5.0)
    experience.on_doubt(1)
    assert first_asked(experience, 1, 2, now=5.1) == {2}
    experience.on_answer(1, throttle_ms=0, now=5.2)
    assert first_asked(experience, 1, 2, now=5.3) == {1, 2}


def test_who_wants_to_be_left_alone_is_asked_last() -> None:
    """Although it answered lately; and no longer than it said."""
    experience = Experience()
    experience.on_answer(1, throttle_ms=2000, now=5.0)
    assert experience.quiet_until(1) == pytest.approx(7.0)
    assert first_asked(experience, 1, 2, now=6.9) == {2}
    assert first_asked(experience, 1, 2, now=7.1) == {1}


def test_a_later_answer_takes_nothing_back() -> None:
    """Answers come in any order: the longest wait that was asked for counts."""
    experience = Experience()
    experience.on_answer(1, throttle_ms=2000, now=5.0)
    experience.on_answer(1, throttle_ms=0, now=5.1)
    experience.on_answer(1, throttle_ms=10, now=5.2)
    assert experience.quiet_until(1) == pytest.approx(7.0)


def test_nobody_is_left_alone_for_ever() -> None:
    """A broker that asks for a month is asked again much sooner."""
    experience = Experience()
    experience.on_answer(1, throttle_ms=2**31 - 1, now=5.0)
    assert experience.quiet_until(1) == pytest.approx(5.0 + THROTTLE_SECONDS_MAX)


def test_who_left_the_cluster_is_forgotten() -> None:
    """Broker ids come and go: what is kept is of those that there are."""
    experience = Experience()
    for broker_id in (1, 2):
        experience.on_answer(broker_id, throttle_ms=1000, now=5.0)
    experience.forget_all_but({2, 3})
    assert experience.quiet_until(1) < 0
    assert experience.quiet_until(2) == pytest.approx(6.0)
    assert first_asked(experience, 1, 2, now=6.5) == {2}
