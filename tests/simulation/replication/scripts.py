"""Scripts that a test plays, and that planted bugs must fail."""

from __future__ import annotations

from raftmq.errors import ErrorCode, RaftmqError
from raftmq.metadata.commands import Refused
from raftmq.partition.leader import FetchFromLeader
from tests.simulation.replication.messages import Failed, FetchRequest, Progress
from tests.simulation.replication.network import CONTROLLER
from tests.simulation.replication.stage import Stage
from tests.simulation.transactions.replica import header_of


def _about_to_take_back_2() -> Stage:
    """The leader has proposed that 2 joins again, and the controller has not heard of it."""
    stage = Stage()
    stage.cut(0, 2)
    stage.produce(0)
    stage.run_until(lambda: stage.state.isr == (0, 1))
    stage.run(0.5)
    stage.world.network.cut = {(0, CONTROLLER)}
    stage.run_until(lambda: stage.leading(0).rules.maximal_isr == (0, 1, 2))
    return stage


def late_proposal() -> None:
    """1 leaves the ISR and comes into service again, then the proposal of before arrives."""
    stage = _about_to_take_back_2()
    leading = stage.leading(0)
    assert leading.sent is not None
    command = leading.command_of(leading.sent[0])
    stage.fence(1)
    stage.run_until(lambda: stage.state.isr == (0,))
    stage.run_until(lambda: stage.world.quorum.image.is_active(1))
    stage.run(0.2)
    result = stage.world.quorum.commit(command)
    stage.run(0.1)
    assert isinstance(result, Refused)
    assert result.code == ErrorCode.INVALID_UPDATE_VERSION
    assert stage.state.isr == (0,)
    stage.finish()


def proposal_sent_again() -> None:
    """2 is fenced when it arrives and not when its copy does: the copy is refused as well."""
    stage = _about_to_take_back_2()
    leading = stage.leading(0)
    assert leading.sent is not None
    proposal, first_id = leading.sent
    command = leading.command_of(proposal)
    stage.run(1.0)  # it is sent again
    assert leading.sent is not None
    again = leading.sent[1]
    stage.fence(2)
    refused = stage.world.quorum.commit(command, again)
    assert isinstance(refused, Refused)
    stage.run_until(lambda: stage.world.quorum.image.is_active(2))
    leading.on_result(proposal, refused)
    late = stage.world.quorum.commit(command, first_id)
    assert isinstance(late, Refused), f"2 joins, and its leader does not know: {late}"
    stage.finish()


def fetch_of_another_epoch() -> None:
    """One epoch too late, and one too early."""
    stage = Stage()
    leading, key = stage.leading(0), stage.key
    epoch = leading.leader_epoch
    codes = {epoch - 1: ErrorCode.FENCED_LEADER_EPOCH, epoch + 1: ErrorCode.UNKNOWN_LEADER_EPOCH}
    for other, code in codes.items():
        answer = leading.on_fetch(FetchRequest(key, 1, 1, other, FetchFromLeader(99, 0, -1)))
        assert answer == Failed(code), f"epoch {other} is served by epoch {epoch}: {answer}"
    stage.finish()


def word_of_the_dead() -> None:
    """The successor has lost its page cache, and what its predecessor said is not true of it."""
    stage = Stage(durability="page_cache")
    leading, key = stage.leading(0), stage.key
    stage.produce(0)
    broker_epoch, end = stage.world.quorum.image.brokers[1].broker_epoch, leading.log.end
    stage.broker(1).kill()
    alive = FetchRequest(
        key, 1, broker_epoch + 100, leading.leader_epoch, FetchFromLeader(1, 0, -1)
    )
    dead = alive._replace(
        broker_epoch=broker_epoch, fetch=FetchFromLeader(9, end, leading.leader_epoch)
    )
    leading.on_fetch(alive)
    leading.on_fetch(dead)
    leading.on_progress(Progress(key, 1, broker_epoch, leading.leader_epoch, end))
    progress = leading.rules.progress_of(1)
    assert progress is not None
    assert (progress.broker_epoch, progress.held_offset) == (broker_epoch + 100, 0)


def word_before_agreement() -> None:
    """A follower hears no answers: it does not know whether it will have to cut what it holds."""
    stage = Stage()
    stage.produce(0)
    stage.kill(1)
    stage.world.network.cut = {(0, 1)}
    stage.broker(1).start()
    stage.run(2.0)
    progress = stage.leading(0).rules.progress_of(1)
    assert progress is not None
    assert progress.has_fetched
    assert progress.held_offset == 0, "it told what it holds"
    stage.finish()


def settled_in_another_epoch() -> None:
    """A leader that was deposed never had the records: it must not say that they are ended."""
    stage = Stage()
    deposed = stage.leading(0)
    stage.cut(0, 1, 2, CONTROLLER)
    stage.run_until(lambda: stage.state.leader in (1, 2))
    stage.run(0.5)
    leading = stage.leading(stage.state.leader)
    leading.on_transactional(1_000_000, header_of(0, 7, 0, 0, 0), lambda _outcome: None)
    stage.run(1.0)
    assert leading.log.transactions.open.keys() == {7}
    assert deposed.process.roles.get(stage.key) is deposed
    for role in (deposed, leading):
        try:
            is_settled = role.is_settled(leading.leader_epoch, [7], 0)
        except RaftmqError:
            is_settled = False
        assert not is_settled, f"the leader of epoch {role.leader_epoch} says that it is settled"
    stage.finish()
