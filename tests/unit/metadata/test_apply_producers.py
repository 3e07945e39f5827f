"""Producer ids and the feature level: handed out once, raised once, within their bounds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.commands import AllocateProducerIds, Done, ProducerIdBlock, SetFeatureLevel
from raftmq.metadata.image import PRODUCER_ID_MAX, ChangeKind, MetadataImage, TouchedKey
from raftmq.wire.batch.header import is_named
from tests.unit.metadata.states import answer, apply_next, broker, cluster, epoch_of, refusal


def allocate(count: int, *, broker_id: int = 0, epoch: int | None = None) -> AllocateProducerIds:
    return AllocateProducerIds(broker_id, epoch_of(0) if epoch is None else epoch, count)


def with_levels(*levels: tuple[int, int]) -> MetadataImage:
    """A cluster of one broker for each pair of the lowest and highest level it supports."""
    draft = Draft(cluster(0), 101)
    for number, (low, high) in enumerate(levels):
        draft.put_broker(replace(broker(number), feature_level_min=low, feature_level_max=high))
    return draft.finish()


def test_blocks_follow_each_other_without_overlap() -> None:
    """Two brokers ask in turn: no id is given twice, none is left out."""
    image, first = apply_next(cluster(), allocate(1000))
    assert image.changes == (TouchedKey(ChangeKind.PRODUCER_IDS, 0),)
    image, second = apply_next(image, allocate(5, broker_id=1, epoch=epoch_of(1)))
    assert (first, second) == (ProducerIdBlock(0, 1000), ProducerIdBlock(1000, 5))
    assert image.next_producer_id == 1005


@pytest.mark.parametrize("count", [0, -1, 100_001, 1 << 63, -(1 << 63)])
def test_a_block_has_a_sensible_size(count: int) -> None:
    """A slip in the count must not use up the ids."""
    assert refusal(cluster(), allocate(count)).code is ErrorCode.INVALID_REQUEST


def test_the_last_id_is_given_and_none_after_it() -> None:
    """The last block may end at the highest id below those of names."""
    assert is_named(PRODUCER_ID_MAX + 1)
    assert not is_named(PRODUCER_ID_MAX)
    image = cluster()._replace(next_producer_id=PRODUCER_ID_MAX - 1)
    assert refusal(image, allocate(3)).code is ErrorCode.INVALID_REQUEST
    image, result = apply_next(image, allocate(2))
    assert result == ProducerIdBlock(PRODUCER_ID_MAX - 1, 2)
    assert refusal(image, allocate(1)).code is ErrorCode.INVALID_REQUEST


def test_a_replaced_process_gets_no_ids() -> None:
    """An epoch of before, and a broker that is not registered."""
    assert refusal(cluster(), allocate(1, epoch=9)).code is ErrorCode.STALE_BROKER_EPOCH
    found = refusal(cluster(), allocate(1, broker_id=7))
    assert found.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_level_rises_once_every_broker_supports_it() -> None:
    """Brokers know 1 to 3 and 2 to 4: the level goes from 1 to 3, skipping 2; a retry is done."""
    image, result = apply_next(with_levels((1, 3), (2, 4)), SetFeatureLevel(1, 3))
    assert (result, image.feature_level) == (Done(), 3)
    assert image.changes == (TouchedKey(ChangeKind.FEATURE_LEVEL, 0),)
    assert answer(image, SetFeatureLevel(1, 3)) == Done()


@pytest.mark.parametrize(
    ("command", "code", "part"),
    [
        (SetFeatureLevel(2, 3), ErrorCode.INVALID_UPDATE_VERSION, "is 1, expected was 2"),
        (SetFeatureLevel(1, 0), ErrorCode.FEATURE_UPDATE_FAILED, "never lowered"),
        (SetFeatureLevel(1, 4), ErrorCode.FEATURE_UPDATE_FAILED, "brokers [0] do not support it"),
        (SetFeatureLevel(1, 5), ErrorCode.FEATURE_UPDATE_FAILED, "brokers [0, 1]"),
    ],
    ids=["expected", "lower", "one", "all"],
)
def test_a_level_that_is_not_supported_is_refused(
    command: SetFeatureLevel, code: ErrorCode, part: str
) -> None:
    """The answer says who stands in the way."""
    found = refusal(with_levels((1, 3), (2, 4)), command)
    assert found.code is code
    assert part in found.message


def test_without_brokers_the_level_stays() -> None:
    """Nobody could register at a level that was set by a slip."""
    assert refusal(cluster(0), SetFeatureLevel(1, 9)).code is ErrorCode.FEATURE_UPDATE_FAILED
