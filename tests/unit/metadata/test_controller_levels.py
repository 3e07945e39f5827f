"""The feature level rises as soon as all nodes know the next one, and not before."""

from __future__ import annotations

import pytest

from raftmq.metadata.commands import (
    SUPPORTED_LEVEL,
    FeatureLevel,
    RegisterBroker,
    SetFeatureLevel,
)
from raftmq.metadata.controller import Controller
from raftmq.metadata.controller.controller import next_level
from tests.unit.metadata.office import REFUSED, Office, broker, image_of
from tests.unit.metadata.states import after

FIRST, SECOND = FeatureLevel.FIRST, FeatureLevel.LOG_STARTS


def test_the_level_rises_once_all_know_the_next() -> None:
    """Brokers 1 to 3, all of them new; 1 and 2 are the voters."""
    image = image_of(*(broker(n, feature_level_max=SUPPORTED_LEVEL) for n in (1, 2, 3)))
    assert next_level(image, (1, 2)) == SetFeatureLevel(FIRST, SECOND)
    assert next_level(image._replace(feature_level=SUPPORTED_LEVEL), (1, 2)) is None


@pytest.mark.parametrize(("old", "voters"), [(1, (1, 2)), (3, (1, 2)), (0, (1, 2, 4))])
def test_one_that_does_not_know_it_holds_it_up(old: int, voters: tuple[int, ...]) -> None:
    """A voter or another broker of an older version, though it is away; a voter of which nobody
    has heard yet."""
    levels = {n: FIRST if n == old else SUPPORTED_LEVEL for n in (1, 2, 3)}
    brokers = [broker(n, feature_level_max=level, fenced=n == old) for n, level in levels.items()]
    assert next_level(image_of(*brokers), voters) is None


def test_one_that_is_gone_for_good_is_replaced_under_its_id() -> None:
    """Nothing unregisters it, so it holds the level up for ever; a node of today's version with
    another disk takes its place, as it is dead."""
    new = broker(1, feature_level_max=SUPPORTED_LEVEL)
    image = image_of(new, broker(2, feature_level_max=FIRST, fenced=True))
    successor = RegisterBroker(
        2, incarnation=b"i" * 16, directory_id=b"d" * 16, feature_level_max=SUPPORTED_LEVEL
    )
    assert next_level(image, (1,)) is None
    assert next_level(after(image, successor), (1,)) == SetFeatureLevel(FIRST, SECOND)


def test_without_brokers_there_is_nothing_to_raise() -> None:
    """A cluster before its first broker has registered."""
    assert next_level(image_of(), ()) is None


def test_the_controller_proposes_it_once_and_again_after_a_refusal() -> None:
    """While it is under way it is not asked for again."""
    image = image_of(broker(1, feature_level_max=SUPPORTED_LEVEL))
    office = Office(image, controller=Controller((1,)))
    wanted = SetFeatureLevel(FIRST, SECOND)
    assert wanted in [getattr(effect, "command", None) for effect in office.first]
    office.heartbeat(1)
    assert office.tick() == []
    assert office.result(wanted, REFUSED) == []
    assert office.tick(1.0) == [wanted]
