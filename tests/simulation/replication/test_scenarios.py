"""Known dangers of replication, one script each: elections, truncation, stale directories.

The checks of the simulation run after every event of every script; at the end all must heal.
"""

from __future__ import annotations

import pytest

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import NO_BROKER, RecoveryState, Refused
from raftmq.partition.leader import Diverged
from tests.simulation.replication.following import Following
from tests.simulation.replication.network import CONTROLLER
from tests.simulation.replication.scripts import (
    fetch_of_another_epoch,
    late_proposal,
    proposal_sent_again,
    settled_in_another_epoch,
    word_before_agreement,
    word_of_the_dead,
)
from tests.simulation.replication.stage import Stage


def test_a_leader_dies_and_its_successor_has_everything() -> None:
    """Three values are acknowledged, the leader is killed: another one leads and has them."""
    stage = Stage()
    values = [stage.produce(0) for _ in range(3)]
    stage.kill(0)
    leader = stage.state.leader
    assert leader in (1, 2)
    assert all(stage.has(leader, value) for value in values)
    assert stage.is_committed(stage.produce(leader))
    stage.finish()


def test_logs_that_part_in_several_epochs_meet_again() -> None:
    """Each of three leaders writes alone, in its own epoch, what no follower gets (KIP-279)."""
    stage = Stage()
    kept = stage.produce(0)
    stage.cut(0, 1, 2)
    lost = stage.produce(0)
    stage.fence(0)
    stage.run_until(lambda: stage.state.leader == 1)
    stage.run(0.3)
    stage.cut(1, 2)
    lost_too = stage.produce(1)
    stage.fence(1)
    stage.run_until(lambda: stage.state.leader not in (0, 1))
    stage.run(0.3)
    stage.finish()
    leader = stage.state.leader
    assert stage.has(leader, kept)
    alike = {(stage.has(b, lost), stage.has(b, lost_too)) for b in range(3)}
    assert len(alike) == 1, "the replicas agree on both"


def test_a_follower_out_of_reach_leaves_the_isr_and_comes_back() -> None:
    """Links to a follower are cut: the leader goes on without it after a while, then with it."""
    stage = Stage()
    stage.cut(0, 2)
    value = stage.produce(0, seconds=0.5)
    assert not stage.is_committed(value), "its absence is not known yet"
    stage.run_until(lambda: stage.state.isr == (0, 1))
    stage.run(0.5)
    assert stage.is_committed(value)
    stage.mend()
    stage.run_until(lambda: stage.state.isr == (0, 1, 2))
    stage.finish()


def test_a_zombie_commits_nothing() -> None:
    """A leader loses the controller and goes on to lead: what it takes is never acknowledged."""
    stage = Stage()
    stage.cut_from_controller(0)
    stage.run_until(lambda: stage.state.leader in (1, 2))
    stage.run(0.5)
    value = stage.produce(0)
    assert stage.leading(0).log.records[-1].value == value
    assert not stage.is_committed(value)
    assert stage.is_committed(stage.produce(stage.state.leader, seconds=3.0))
    stage.finish()
    assert not stage.has(0, value)


def test_the_last_replica_standing_is_waited_for() -> None:
    """One replica alone commits, and dies: those who left before do not lead, it does."""
    stage = Stage(min_isr=1)
    stage.kill(1)
    stage.kill(2)
    assert stage.state.isr == (0,)
    value = stage.produce(0)
    assert stage.is_committed(value)
    stage.kill(0)
    stage.broker(1).start()
    stage.broker(2).start()
    stage.run(4.0)
    assert stage.state.leader == NO_BROKER
    stage.broker(0).start()
    stage.run_until(lambda: stage.state.leader == 0)
    stage.finish()
    assert stage.has(1, value)


def test_a_restored_directory_is_not_electable() -> None:
    """A broker comes back on a directory of a week ago, alone: no leader until others are back."""
    stage = Stage()
    stage.kill(1)
    stage.broker(1).start()
    stage.run_until(lambda: len(stage.state.isr) == 3)
    value = stage.produce(0)
    stage.broker(1).kill()
    stage.broker(1).put_back(stage.broker(1).copies[-1].copy())
    stage.cut(1, 0, 2)
    stage.broker(1).start()
    stage.kill(0)
    stage.kill(2)
    stage.run(4.0)
    assert stage.world.quorum.image.is_active(1)
    assert 1 not in (*stage.state.isr, *stage.state.eligible)
    assert stage.state.leader == NO_BROKER
    stage.finish()
    assert stage.has(1, value)


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_disk_holds_up_nobody_for_long(frozen: int) -> None:
    """The disk of a leader or follower takes nothing: the others go on without it, then with it."""
    stage = Stage()
    stage.broker(frozen).frozen_until = 1e9
    value = stage.produce(0, seconds=0.5)
    assert not stage.is_committed(value)
    stage.run_until(lambda: frozen not in stage.state.isr)
    stage.run(1.0)
    newer = stage.produce(stage.state.leader, seconds=2.0)
    assert stage.is_committed(newer)
    stage.broker(frozen).frozen_until = 0.0
    stage.finish()


@pytest.mark.parametrize("is_allowed", [False, True])
def test_an_unclean_election_only_where_it_is_allowed(is_allowed: bool) -> None:
    """Only a replica that left long ago is up: it leads if the topic says so, and recovers.

    A5.10.
    """
    stage = Stage(min_isr=1, is_unclean_allowed=is_allowed)
    stage.kill(2)
    stage.produce(0)
    stage.kill(1)
    stage.produce(0)
    stage.kill(0)
    stage.broker(2).start()
    stage.run(3.0)
    assert stage.state.leader == (2 if is_allowed else NO_BROKER)
    assert stage.world.checks.unclean_elections == is_allowed
    assert stage.state.recovery_state == RecoveryState.RECOVERED
    stage.finish()


def test_a_late_order_to_cut_is_dropped() -> None:
    """An answer to a fetch of long ago tells to cut everything: the follower keeps its log."""
    stage = Stage()
    value = stage.produce(0)
    process = stage.broker(1).process
    assert process is not None
    following = process.roles[stage.key]
    assert isinstance(following, Following)
    following.on_answer(1, Diverged(0, 0))
    assert stage.has(1, value)
    stage.finish()


def test_only_a_definite_refusal_takes_a_proposal_back() -> None:
    """FENCED_LEADER_EPOCH: the leader is late. INELIGIBLE_REPLICA: it will never be applied."""
    stage = Stage()
    stage.cut(0, 2)
    stage.produce(0)
    stage.run_until(lambda: stage.state.isr == (0, 1))
    stage.run(0.5)
    stage.world.network.cut = {(0, CONTROLLER)}
    leading = stage.leading(0)
    stage.run_until(lambda: leading.rules.maximal_isr == (0, 1, 2))
    assert leading.sent is not None
    proposal = leading.sent[0]
    leading.on_result(proposal, Refused(ErrorCode.FENCED_LEADER_EPOCH, "there was an election"))
    assert leading.rules.maximal_isr == (0, 1, 2)
    leading.on_result(proposal, Refused(ErrorCode.INELIGIBLE_REPLICA, "2 is fenced"))
    assert leading.rules.maximal_isr == (0, 1)
    stage.finish()


def test_a_proposal_of_the_past_changes_nothing() -> None:
    """The ISR has changed since it was sent: it is refused, however late it comes."""
    late_proposal()


def test_a_proposal_that_is_sent_again_is_the_same_one() -> None:
    """Refused once is refused for ever: its copies on the way are no second chances."""
    proposal_sent_again()


def test_a_fetch_of_another_epoch_is_refused() -> None:
    """A follower that knows less than its leader, or more, does not count in this epoch."""
    fetch_of_another_epoch()


def test_word_of_a_dead_process_does_not_count() -> None:
    """A fetch and a progress of a process that is gone come after its successor's fetch."""
    word_of_the_dead()


def test_a_deposed_leader_says_nothing_of_transactions() -> None:
    """It is asked whether a commit is settled whose records it never had."""
    settled_in_another_epoch()


def test_a_follower_tells_nothing_before_it_agrees() -> None:
    """It has asked and heard no answer: what it tells could come after it has cut its log."""
    word_before_agreement()


def test_a_quiet_partition_does_not_wait_for_the_dead() -> None:
    """A replica that was about to join falls silent, and nothing else happens: time goes on."""
    stage = Stage(min_isr=1)
    stage.cut(0, 1, 2)
    stage.produce(0)
    stage.run_until(lambda: stage.state.isr == (0,))
    stage.run(0.5)
    leading = stage.leading(0)
    stage.world.network.cut = {(0, CONTROLLER), (0, 2), (2, 0)}  # 1 keeps up, and cannot join
    stage.run_until(lambda: 1 in leading.rules.maximal_isr)
    stage.broker(1).kill()
    stage.run(0.1)  # what it has sent before arrives
    assert leading.sent is not None
    leading.on_result(leading.sent[0], Refused(ErrorCode.INELIGIBLE_REPLICA, "it is fenced"))
    value = stage.produce(0, seconds=0.1)
    assert not stage.is_committed(value)
    stage.run(2.5)
    assert stage.is_committed(value)
    stage.finish()


# Where logs start


def test_a_leader_that_its_followers_do_not_hear_deletes_and_dies() -> None:
    """It was answered: the successor starts there, though it knows that from the quorum only."""
    stage = Stage()
    for _ in range(3):
        stage.produce(0)
    stage.run(0.5)
    stage.cut(0, 1, 2)
    stage.leading(0).delete_before(2)
    stage.run(0.1)
    assert stage.ledger.promised == {stage.state.leader_epoch: 2}
    assert [stage.broker(b).directory.logs[stage.key].start for b in (0, 1, 2)] == [2, 0, 0]
    stage.kill(0)
    stage.run_until(lambda: stage.state.leader in (1, 2))
    stage.run(0.5)
    assert stage.leading(stage.state.leader).log.start == 2
    stage.finish()


def test_a_deposed_leader_deletes_nothing() -> None:
    """It does not know of its successor, and is refused: its own log keeps all, too."""
    stage = Stage()
    for _ in range(3):
        stage.produce(0)
    stage.run(0.5)
    deposed = stage.leading(0)
    stage.fence(0)
    stage.world.network.cut = {(CONTROLLER, 0)}
    stage.run_until(lambda: stage.state.leader == 1)
    deposed.delete_before(2)
    stage.run(0.3)
    assert (deposed.log.start, stage.state.log_start_offset, stage.ledger.promised) == (0, 0, {})
    stage.finish()


def test_a_log_that_ends_before_the_start_is_elected() -> None:
    """2 has missed all that was written and deleted, and is the only one left: it begins anew at
    the start, and no offset is given again.
    """
    stage = Stage(is_unclean_allowed=True, min_isr=1)
    stage.cut(2, 0, 1)
    for _ in range(3):
        stage.produce(0)
    stage.run_until(lambda: stage.state.isr == (0, 1))
    stage.leading(0).delete_before(3)
    stage.run(0.3)
    assert stage.state.log_start_offset == 3
    stage.fence(0)
    stage.fence(1)
    stage.run_until(lambda: stage.state.leader == 2)
    stage.run(0.3)
    log = stage.leading(2).log
    assert (log.start, log.end) == (3, 3)
    stage.finish()


def test_a_move_ends_and_its_leader_does_not_know() -> None:
    """From one replica to three, of which two have to be in sync. One is enough as long as others
    copy. When they are there the leader learns it by the answer to its proposal, not that it needs
    two now: alone again it commits nothing, as each of them may be elected.

    A10.2.
    """
    stage = Stage(replicas=(0,))
    stage.cut(0, 1, 2)
    stage.move(0, 1, 2)
    stage.run(0.5)
    assert stage.is_committed(stage.produce(0))
    stage.world.quorum.hold_back(stage.broker(0))
    stage.mend()
    stage.run_until(lambda: not stage.state.is_moving)
    stage.cut(0, 1, 2)
    value = stage.produce(0)
    stage.run_until(lambda: stage.state.isr == (0,))
    assert stage.state.eligible == (1, 2)
    stage.run(0.5)
    assert not stage.is_committed(value)
    stage.kill(0)
    assert stage.state.leader in (1, 2)
    stage.world.quorum.let_through(stage.broker(0))
    stage.finish()
    assert not stage.has(stage.state.leader, value)
