"""Where a partition starts, as its leader was asked: only its leader says so, and it only rises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    BeginControlledShutdown,
    Done,
    FeatureLevel,
    FenceBroker,
    PartitionAltered,
    RaiseLogStart,
)
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.one_partition import (
    KEY,
    altered,
    gone,
    hosting,
    move,
    of,
    proposal,
)
from tests.unit.metadata.states import after, answer, apply_next, epoch_of, refusal

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage


def knowing(image: MetadataImage) -> MetadataImage:
    return image._replace(feature_level=FeatureLevel.LOG_STARTS)


def start_at(image: MetadataImage, offset: int, **more: Any) -> RaiseLogStart:
    """From the leader, who knows the newest state, unless `more` says otherwise."""
    state = of(image)
    asked = RaiseLogStart(state.leader, epoch_of(state.leader), *KEY, state.leader_epoch, offset)
    return replace(asked, **more)


def test_a_start_rises_with_the_partition_epoch() -> None:
    """Asked for 900, then for less, then for the same: a change, and twice what is so already."""
    image = knowing(hosting())
    raised, result = apply_next(image, start_at(image, 900))
    check(raised)
    check_step(image, raised)
    assert result == Done()
    assert of(raised) == replace(of(image), log_start_offset=900, partition_epoch=1)
    for offset in (0, 5, 900):
        same, result = apply_next(raised, start_at(raised, offset))
        assert (result, same.changes, of(same)) == (Done(), (), of(raised))


def test_a_start_outlives_whatever_becomes_of_the_partition() -> None:
    """Elections, clean and unclean, another in-sync set, a move."""
    image = knowing(hosting(unclean_leader_election_enable="true"))
    image = after(image, start_at(image, 900))
    assert of(altered(image, 0)).log_start_offset == 900
    assert of(gone(image, 0)).log_start_offset == 900
    assert of(move(image, 3, 4, 5)).log_start_offset == 900
    alone = gone(gone(altered(image, 0, 1), 0), 1)
    assert (of(alone).leader, of(alone).log_start_offset) == (2, 900)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"broker_id": 9}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"broker_epoch": 3}, ErrorCode.STALE_BROKER_EPOCH),
        ({"topic_id": b"deleted"}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 2}, ErrorCode.NOT_CONTROLLER),  # this node is the one that is behind
        ({"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        (
            {"leader_epoch": 0, "broker_id": 0, "broker_epoch": epoch_of(0)},
            ErrorCode.FENCED_LEADER_EPOCH,
        ),
        ({"broker_id": 2, "broker_epoch": epoch_of(2)}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"start_offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"start_offset": 1 << 63}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_only_the_leader_in_its_epoch_raises_a_start(more: dict[str, Any], code: ErrorCode) -> None:
    """Partition at leader epoch 1, led by 1: who asks, and what it believes."""
    image = knowing(hosting(out=(0,)))
    assert (of(image).leader, of(image).leader_epoch) == (1, 1)
    assert refusal(image, replace(start_at(image, 900), **more)).code == code


def test_a_fenced_leader_raises_nothing() -> None:
    """Its review is still to come, which gives the partition to another; one that shuts down and
    leads on may."""
    image = knowing(hosting())
    fenced = after(image, FenceBroker(0, epoch_of(0)))
    assert of(fenced).leader == 0
    assert refusal(fenced, start_at(fenced, 900)).code == ErrorCode.FENCED_LEADER_EPOCH
    stopping = after(image, BeginControlledShutdown(0, epoch_of(0)))
    assert answer(stopping, start_at(stopping, 900)) == Done()


def test_starts_wait_for_their_feature_level() -> None:
    """Some node may not know the command yet."""
    image = hosting()
    problem = refusal(image, start_at(image, 900))
    assert problem.code == ErrorCode.UNSUPPORTED_VERSION
    assert "upgrade all nodes" in problem.message


def test_a_proposal_of_before_a_raise_is_refused() -> None:
    """In-sync sets are compared by partition epoch: the leader asks again, under the new one."""
    image = knowing(hosting())
    proposed = proposal(image, 0, 1)
    image = after(image, start_at(image, 900))
    assert refusal(image, proposed).code == ErrorCode.INVALID_UPDATE_VERSION
    assert isinstance(answer(image, proposal(image, 0, 1)), PartitionAltered)
