"""What is broken: cuts, shapes and refusals, each on its link only."""

from __future__ import annotations

from random import Random

import pytest

from jepsen_like.network.rules import AS_IT_IS, Rules, Shape

THERE, BACK = ("n1", "n2"), ("n2", "n1")
NOW = 100.0


@pytest.fixture
def rules() -> Rules:
    return Rules(Random(7))


def test_nothing_is_broken_at_first(rules: Rules) -> None:
    """A new network: a frame arrives once, now."""
    assert rules.is_clear
    assert not rules.is_cut(THERE)
    assert not rules.is_reset(THERE, now=NOW)
    assert rules.due_times(THERE, now=NOW) == (NOW,)


def test_cut_is_one_way(rules: Rules) -> None:
    """n1 no longer reaches n2, and still hears it."""
    rules.cut(THERE)
    assert rules.is_cut(THERE)
    assert not rules.is_cut(BACK)
    assert not rules.is_clear


def test_delay(rules: Rules) -> None:
    """A constant delay: every frame comes so much later, so their order holds."""
    rules.shape(THERE, Shape(delay_seconds=0.025))
    assert [rules.due_times(THERE, now=NOW + n) for n in range(3)] == [
        (NOW + n + 0.025,) for n in range(3)
    ]
    assert rules.due_times(BACK, now=NOW) == (NOW,)


def test_jitter_overtakes(rules: Rules) -> None:
    """Delays between 10 and 30 ms: some frame arrives before the one that was sent before it."""
    rules.shape(THERE, Shape(delay_seconds=0.010, jitter_seconds=0.020))
    due = [rules.due_times(THERE, now=NOW + n / 1000)[0] - NOW for n in range(50)]
    assert due != sorted(due)
    assert all(0.010 <= at - n / 1000 < 0.030 + 1e-9 for n, at in enumerate(due))


@pytest.mark.parametrize(("loss", "least", "most"), [(0.2, 150, 250), (1.0, 1000, 1000)])
def test_loss(rules: Rules, loss: float, least: int, most: int) -> None:
    """A link that loses a fifth, and one that loses everything."""
    rules.shape(THERE, Shape(loss=loss))
    lost = sum(not rules.due_times(THERE, now=NOW) for _ in range(1000))
    assert least <= lost <= most


def test_duplicate(rules: Rules) -> None:
    """A tenth arrives twice, each copy with a jitter of its own."""
    rules.shape(THERE, Shape(jitter_seconds=0.010, duplicate=0.1))
    twice = [due for _ in range(1000) if len(due := rules.due_times(THERE, now=NOW)) == 2]
    assert 60 <= len(twice) <= 140
    assert any(first > second for first, second in twice)


def test_same_seed_same_fate() -> None:
    """Chance comes from the seed alone."""
    fates = []
    for _ in range(2):
        rules = Rules(Random("7/switch"))
        rules.shape(THERE, Shape(0.01, 0.02, loss=0.3, duplicate=0.3))
        fates.append([rules.due_times(THERE, now=NOW) for _ in range(100)])
    assert fates[0] == fates[1]


def test_shape_replaces_shape(rules: Rules) -> None:
    """A second shape of a link: nothing of the first is left; none at all clears it."""
    rules.shape(THERE, Shape(loss=1.0))
    rules.shape(THERE, Shape(delay_seconds=1.0))
    assert rules.due_times(THERE, now=NOW) == (NOW + 1.0,)
    rules.shape(THERE, AS_IT_IS)
    assert rules.is_clear


def test_reset_ends_by_itself(rules: Rules) -> None:
    """TCP is refused up to a time, which belongs to what is over; then nothing is broken."""
    rules.reset(THERE, until=NOW + 0.3)
    assert rules.is_reset(THERE, now=NOW + 0.299)
    assert not rules.is_reset(BACK, now=NOW)
    assert not rules.is_reset(THERE, now=NOW + 0.3)
    assert rules.is_clear


def test_heal(rules: Rules) -> None:
    """Everything is broken on several links, and then nothing."""
    rules.cut(THERE)
    rules.shape(BACK, Shape(loss=1.0))
    rules.reset(("n1", "n3"), until=NOW + 9)
    rules.heal()
    assert rules.is_clear
    assert not rules.is_cut(THERE)
    assert not rules.is_reset(("n1", "n3"), now=NOW)
    assert rules.due_times(BACK, now=NOW) == (NOW,)
