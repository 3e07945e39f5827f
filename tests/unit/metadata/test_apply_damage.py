"""A broker in service finds that some of its replicas have lost records."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.limits import REVIEWED_MAX
from raftmq.metadata.commands import (
    NO_BROKER,
    BeginControlledShutdown,
    FenceBroker,
    Loss,
    RecoveryState,
    ReportDamage,
    ReviewPartitions,
)
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.one_partition import KEY, altered, gone, hosting, of, proposal
from tests.unit.metadata.states import ORDERS, after, epoch_of, refusal

REPORT = ReportDamage(0, epoch_of(0), ((ORDERS, 0), (ORDERS, 9), (b"deleted", 0), (ORDERS, 0)))


def test_a_damaged_leader_hands_over() -> None:
    """The next in sync leads; the damaged replica must catch up like any other."""
    image = hosting()
    changed = after(image, REPORT)
    check(changed)
    check_step(image, changed)
    state = of(changed)
    assert (state.leader, state.isr, state.eligible, state.leader_epoch) == (1, (1, 2), (), 1)
    assert changed.is_active(0)
    assert of(altered(changed, 0, 1, 2)).isr == (0, 1, 2)


@pytest.mark.parametrize("unclean", ["true", "false"])
def test_the_only_replica_leads_nothing_any_more(unclean: str) -> None:
    """Nobody else holds the records: it waits for a decision, as if it had come back so."""
    image = after(hosting((0,), unclean_leader_election_enable=unclean), REPORT)
    state = of(image)
    assert (state.leader, state.isr, state.eligible) == (NO_BROKER, (), ())
    assert state.last_known_eligible == ()
    image = after(image, ReviewPartitions(0, epoch_of(0), (KEY,)))
    assert of(image).leader == (0 if unclean == "true" else NO_BROKER)


def test_where_it_is_allowed_another_one_leads_uncleanly() -> None:
    """Broker 1 is out of sync: better than nobody, and known to lack something."""
    image = altered(hosting((0, 1), min_insync_replicas="1"), 0)
    assert of(after(image, REPORT)).leader == NO_BROKER
    image = hosting((0, 1), min_insync_replicas="1", unclean_leader_election_enable="true")
    state = of(after(altered(image, 0), REPORT))
    assert (state.leader, state.recovery_state) == (1, RecoveryState.RECOVERING)


def test_a_proposal_that_is_under_way_does_not_take_it_in() -> None:
    """It had caught up, and its leader asks for it just now: the partition has another epoch."""
    image = altered(hosting((1, 0)), 1)
    image = altered(altered(image, 0, 1), 1)
    late = proposal(image, 0, 1)
    image = after(image, REPORT)
    assert of(image).eligible == ()
    assert refusal(image, late).code == ErrorCode.FENCED_LEADER_EPOCH
    late = proposal(image, 0, 1)
    image = after(image, REPORT)  # nothing is left to revoke
    assert refusal(image, late).code == ErrorCode.FENCED_LEADER_EPOCH


def test_what_a_leader_knows_of_a_damaged_follower_is_over() -> None:
    """The leader stays, in another epoch: it saw that follower hold what is gone by now."""
    image = after(hosting((1, 0)), REPORT)
    state = of(image)
    assert (state.leader, state.leader_epoch, state.isr) == (1, 1, (1,))


def test_a_leader_whose_disk_fails_hands_over_and_keeps_its_word() -> None:
    """Nothing is lost: it leaves the ISR, and below min ISR it may be elected again."""
    report = ReportDamage(0, epoch_of(0), (KEY,), Loss.NOTHING)
    image = hosting((0, 1), min_insync_replicas="2")
    changed = after(image, report)
    check(changed)
    check_step(image, changed)
    state = of(changed)
    assert (state.leader, state.isr, state.eligible, state.leader_epoch) == (1, (1,), (0,), 1)


@pytest.mark.parametrize(("min_isr", "eligible"), [("2", (1,)), ("1", ())])
def test_a_follower_whose_disk_fails_leaves_and_keeps_its_word(
    min_isr: str, eligible: tuple[int, ...]
) -> None:
    """The leader waits for it no more; where nothing is committed meanwhile, it may be elected."""
    image = hosting((0, 1), min_insync_replicas=min_isr)
    changed = after(image, ReportDamage(1, epoch_of(1), (KEY,), Loss.NOTHING))
    check(changed)
    check_step(image, changed)
    state = of(changed)
    assert (state.leader, state.isr, state.leader_epoch) == (0, (0,), 1)
    assert state.eligible == eligible


@pytest.mark.parametrize("command", [FenceBroker, BeginControlledShutdown])
def test_a_follower_stays_while_its_leader_is_about_to_go(
    command: type[FenceBroker | BeginControlledShutdown],
) -> None:
    """It may have to lead next, as nobody else can; what it has lost does count."""
    image = after(hosting((0, 1), min_insync_replicas="1"), command(0, epoch_of(0)))
    report = ReportDamage(1, epoch_of(1), (KEY,), Loss.NOTHING)
    assert of(after(image, report)) is of(image)
    assert of(after(image, replace(report, loss=Loss.RECORDS))).isr == (0,)


def test_a_follower_stays_where_nobody_leads() -> None:
    """The last leader was dropped, and a broker that shut down was the last in sync."""
    image = gone(altered(hosting((0, 1), min_insync_replicas="1"), 0), 0)
    assert of(image).leader == NO_BROKER
    report = ReportDamage(1, epoch_of(1), (KEY,), Loss.NOTHING)
    assert of(after(image, report)) is of(image)


@pytest.mark.parametrize("loss", [Loss.NOTHING, Loss.UNSYNCED])
def test_the_only_one_leads_on_in_another_epoch(loss: Loss) -> None:
    """What it appended in the last epoch may be gone; nobody else has more."""
    image = hosting((0,))
    changed = after(image, ReportDamage(0, epoch_of(0), (KEY,), loss))
    check(changed)
    check_step(image, changed)
    state = of(changed)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (0, (0,), 1, 1)
    is_recovering = state.recovery_state is RecoveryState.RECOVERING
    assert is_recovering == (loss is Loss.UNSYNCED)


def test_a_report_is_of_a_registration_and_bounded() -> None:
    """An earlier process, nobody, or too much at once."""
    image = hosting()
    old, stranger = ReportDamage(0, 3, (KEY,)), ReportDamage(9, 3, (KEY,))
    assert refusal(image, old).code == ErrorCode.STALE_BROKER_EPOCH
    assert refusal(image, stranger).code == ErrorCode.BROKER_ID_NOT_REGISTERED
    many = (KEY,) * (REVIEWED_MAX + 1)
    for kind in (ReportDamage, ReviewPartitions):
        assert "at most 1000" in refusal(image, kind(0, epoch_of(0), many)).message
