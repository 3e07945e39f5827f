"""What a leader may do to its ISR, and elections on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    NO_BROKER,
    BeginControlledShutdown,
    ElectionKind,
    ElectLeader,
    FenceBroker,
    PartitionAltered,
    ProposedIsrMember,
    RecoveryState,
    Refused,
    UnfenceBroker,
)
from tests.metadata_invariants import check
from tests.unit.metadata.one_partition import (
    altered,
    elect,
    gone,
    hosting,
    of,
    proposal,
)
from tests.unit.metadata.states import (
    ORDERS,
    after,
    answer,
    apply_next,
    epoch_of,
    refusal,
)

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage

# AlterPartition


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    """A follower falls behind and catches up: only the partition epoch grows."""
    image = hosting()
    image, result = apply_next(image, proposal(image, 0, 1))
    assert result == PartitionAltered(0, 0, 1, (0, 1), RecoveryState.RECOVERED)
    image, result = apply_next(image, proposal(image, 2, 1, 0))
    assert result == PartitionAltered(0, 0, 2, (0, 1, 2), RecoveryState.RECOVERED)


def test_whoever_leaves_below_min_isr_is_eligible() -> None:
    """The leader commits nothing alone, so both hold all that is committed; later they do not."""
    image = altered(hosting(), 0)
    assert of(image).eligible == (1, 2)
    assert of(altered(image, 0, 2)).eligible == ()


def test_the_same_isr_again_changes_nothing() -> None:
    """A leader proposes what is there: it is answered with the state."""
    image = hosting()
    image, result = apply_next(image, proposal(image, 0, 1, 2))
    assert result == PartitionAltered(0, 0, 0, (0, 1, 2), RecoveryState.RECOVERED)
    assert image.changes == ()


NOT_CONTROLLER, FENCED = ErrorCode.NOT_CONTROLLER, ErrorCode.FENCED_LEADER_EPOCH
INVALID, OLD = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"broker_id": 9}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"broker_epoch": 3}, ErrorCode.STALE_BROKER_EPOCH),
        ({"topic_id": b"deleted"}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 2}, NOT_CONTROLLER),  # this node is the one that is behind
        ({"partition_epoch": 3}, NOT_CONTROLLER),
        ({"partition_epoch": 3, "leader_epoch": 0}, NOT_CONTROLLER),
        ({"leader_epoch": 0}, FENCED),
        ({"leader_epoch": 0, "broker_id": 2, "broker_epoch": epoch_of(2)}, FENCED),
        ({"broker_id": 2, "broker_epoch": epoch_of(2)}, INVALID),
        ({"partition_epoch": 1, "broker_id": 2, "broker_epoch": epoch_of(2)}, INVALID),
        ({"partition_epoch": 1}, OLD),
    ],
)
def test_whose_knowledge_is_old(more: dict[str, Any], code: ErrorCode) -> None:
    """Partition at leader epoch 1, partition epoch 2, led by 1: who asks, and what it believes."""
    image = hosting(out=(0,))
    image = altered(image, 0, 1, 2)
    assert (of(image).leader, of(image).leader_epoch, of(image).partition_epoch) == (1, 1, 2)
    assert refusal(image, replace(proposal(image, 1, 2), **more)).code == code


@pytest.mark.parametrize(
    ("isr", "message"),
    [
        ((), "lacks the leader"),
        ((1, 2), "lacks the leader"),
        ((0, 1, 3), "distinct members of replicas"),
        ((0, 1, 1), "distinct members of replicas"),
        ((0, 9), "distinct members of replicas"),
    ],
)
def test_an_isr_is_of_replicas_and_has_the_leader(isr: tuple[int, ...], message: str) -> None:
    """Whatever a leader proposes, these never become an ISR."""
    image = hosting()
    problem = refusal(image, proposal(image, *isr))
    assert problem.code == ErrorCode.INVALID_REQUEST
    assert message in problem.message


def test_a_member_must_be_active() -> None:
    """A fenced, a stopping, and a member of another incarnation are not taken in."""
    image = hosting(out=(1,))
    command = proposal(image, 0, 1, 2)
    stale = replace(command, isr=(*command.isr[:1], ProposedIsrMember(1, 3), *command.isr[2:]))
    problems = [
        refusal(gone(image, 1), command),
        refusal(after(image, BeginControlledShutdown(1, epoch_of(1))), command),
        refusal(image, stale),
        refusal(image._replace(brokers=image.brokers.delete(1)), command),
    ]
    assert [problem.code for problem in problems] == [ErrorCode.INELIGIBLE_REPLICA] * 4
    hints = ["is fenced", "shutting down", "has epoch 11, not 3", "not registered"]
    for problem, hint in zip(problems, hints, strict=True):
        assert hint in problem.message


def test_a_stopping_leader_takes_in_who_takes_over() -> None:
    """It is the only one in sync, and goes on; broker 1 catches up, and leads from then on."""
    image = after(altered(hosting((0, 1)), 0), BeginControlledShutdown(1, epoch_of(1)))
    image = after(image, BeginControlledShutdown(0, epoch_of(0)))
    assert of(image).leader == 0
    assert refusal(image, proposal(image, 0, 1)).code == ErrorCode.INELIGIBLE_REPLICA
    image = after(altered(hosting((0, 1), out=(1,)), 0), BeginControlledShutdown(0, epoch_of(0)))
    image = after(image, proposal(image, 0, 1))
    assert (of(image).leader, of(image).isr) == (1, (0, 1))


def test_a_leader_that_is_about_to_lose_its_lead_changes_nothing() -> None:
    """It is fenced, its partitions are not reviewed yet: it still stands as leader."""
    image = after(hosting(), FenceBroker(0, epoch_of(0)))
    assert of(image).leader == 0
    assert refusal(image, proposal(image, 0, 1)).code == ErrorCode.INELIGIBLE_REPLICA


def uncleanly_led() -> MetadataImage:
    """Broker 2 fell out of sync, the others are gone: an operator lets it lead, RECOVERING."""
    image = gone(gone(hosting(out=(2,)), 0), 1)
    image = after(image, elect(ElectionKind.UNCLEAN))
    state = of(image)
    assert (state.leader, state.isr, state.eligible) == (2, (2,), ())
    assert state.recovery_state == RecoveryState.RECOVERING
    return after(image, UnfenceBroker(0, epoch_of(0)))


def test_a_recovering_leader_takes_nobody_in() -> None:
    """Until it reports RECOVERED it is alone; with that it may take in others at once."""
    image = uncleanly_led()
    recovering = RecoveryState.RECOVERING
    assert isinstance(
        answer(image, proposal(image, 2, recovery_state=recovering)), PartitionAltered
    )
    problem = refusal(image, proposal(image, 0, 2, recovery_state=recovering))
    assert problem.code == ErrorCode.INVALID_REQUEST
    image = altered(image, 0, 2)
    assert of(image).recovery_state == RecoveryState.RECOVERED


def test_recovery_does_not_begin_by_itself() -> None:
    """A recovered partition is RECOVERING only after an unclean election."""
    image = hosting((0,))
    problem = refusal(image, proposal(image, 0, recovery_state=RecoveryState.RECOVERING))
    assert "RECOVERED" in problem.message


# ElectLeader


def test_the_preferred_leader_is_the_first_replica() -> None:
    """It is back in sync: it leads again, in another epoch; asked again, there is no need."""
    image = hosting(out=(0,))
    command = elect(ElectionKind.PREFERRED)
    problem = refusal(image, command)
    assert problem.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert problem.message == "broker 0 is not in sync: wait until it is"
    image = altered(image, 0, 1, 2)
    before = of(image)
    image = after(image, command)
    assert (of(image).leader, of(image).leader_epoch) == (0, before.leader_epoch + 1)
    assert of(image).partition_epoch == before.partition_epoch + 1
    assert refusal(image, command).code == ErrorCode.ELECTION_NOT_NEEDED
    check(image)


def test_a_stopping_broker_is_not_preferred() -> None:
    """It is in sync, but on its way out."""
    image = altered(hosting(out=(0,)), 0, 1, 2)
    image = after(image, BeginControlledShutdown(0, epoch_of(0)))
    problem = refusal(image, elect(ElectionKind.PREFERRED))
    assert problem.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert problem.message == "broker 0 is stopping: start it again"


def test_a_preferred_leader_that_waiting_does_not_help() -> None:
    """It is down; or it is up, but those that are in sync are not: each has its own way out."""
    image = gone(hosting((0, 1)), 0)
    problem = refusal(image, elect(ElectionKind.PREFERRED))
    assert problem.message == "broker 0 is down: start it"
    image = after(gone(image, 1), UnfenceBroker(0, epoch_of(0)))
    assert of(image).leader == NO_BROKER
    problem = refusal(image, elect(ElectionKind.PREFERRED))
    assert "nobody leads: start the brokers" in problem.message
    assert "`raftmq cluster leaders --unclean TOPIC PARTITION`" in problem.message


def test_an_unclean_election_needs_a_leaderless_partition() -> None:
    """Somebody leads: there is nothing to give up records for."""
    problem = refusal(hosting(), elect(ElectionKind.UNCLEAN))
    assert problem.code == ErrorCode.ELECTION_NOT_NEEDED


def test_an_unclean_election_prefers_a_clean_one() -> None:
    """The eligible replica is back but was not reviewed yet: it leads, and nothing is lost."""
    image = gone(gone(hosting((0, 1)), 1), 0)
    image = after(image, UnfenceBroker(1, epoch_of(1)), elect(ElectionKind.UNCLEAN))
    assert (of(image).leader, of(image).recovery_state) == (1, RecoveryState.RECOVERED)


def test_nobody_can_be_elected() -> None:
    """All replicas are fenced."""
    image = gone(hosting((0,)), 0)
    problem = refusal(image, elect(ElectionKind.UNCLEAN))
    assert problem.code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert of(image).leader == NO_BROKER


@pytest.mark.parametrize("kind", list(ElectionKind))
def test_elections_of_what_is_not_there(kind: ElectionKind) -> None:
    """A topic or a partition that does not exist."""
    image = hosting()
    unknown = answer(image, ElectLeader(b"deleted", 0, kind))
    missing = answer(image, ElectLeader(ORDERS, 5, kind))
    assert isinstance(unknown, Refused)
    assert isinstance(missing, Refused)
    assert unknown.code == ErrorCode.UNKNOWN_TOPIC_ID
    assert missing.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_election_is_of_the_leadership_that_was_seen() -> None:
    """Whoever asked for an election did not see that there was another one since."""
    image = hosting(out=(0,))
    image = altered(image, 0, 1, 2)
    command = elect(ElectionKind.PREFERRED)
    problem = refusal(image, replace(command, leader_epoch=0))
    assert problem.code == ErrorCode.INVALID_UPDATE_VERSION
    assert of(after(image, replace(command, leader_epoch=1))).leader == 0
