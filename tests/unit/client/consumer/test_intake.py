"""What an answer means for each partition: records, another attempt, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import (
    ClusterAuthorizationFailed,
    CorruptRecord,
    ErrorCode,
    LogTruncation,
    OffsetOutOfRange,
    RemoteProtocolError,
    RequestTimedOut,
    ServerError,
    Unreachable,
)
from raftmq.rpc.reply import Answer
from raftmq.wire.messages.corruption import CorruptionVerdict
from raftmq.wire.messages.fetch import Diverging, PartitionFetched
from raftmq.wire.messages.offsets import FoundOffset, ListOffsetsReply
from tests.unit.client.consumer.pieces import data_at
from tests.unit.client.consumer.pure_world import TOPIC_ID, PureWorld, fetched

if TYPE_CHECKING:
    from raftmq.client.consumer.fetch_plan import PlannedRequest


def started(*leaders: int) -> tuple[PureWorld, PlannedRequest]:
    """And asked for records."""
    world = PureWorld(*leaders)
    world.start()
    question = world.ask(1)
    assert question is not None
    return world, question


def ask_again(world: PureWorld) -> PlannedRequest:
    world.now += 1
    question = world.ask(1)
    assert question is not None
    return question


def told(error: int = 0, data: bytes = b"", **fields: object) -> Answer:
    """Of partition 0."""
    one = PartitionFetched(TOPIC_ID, 0, error, 9, 0, len(data), **fields)  # type: ignore[arg-type]
    return fetched([one], [data])


def test_records() -> None:
    """They lie ready, and fetching goes on behind them."""
    world, question = started(1)
    world.give(question, told(data=data_at(0, "a", "b")))
    state = world.state(0)
    assert (state.position, state.fetch_offset, state.high_watermark) == (0, 2, 9)
    assert ask_again(world).body.partitions[0].fetch_offset == 2  # type: ignore[union-attr]


def test_an_answer_that_is_too_late() -> None:
    """The partition has been moved since: dropped."""
    world, question = started(1)
    world.state(0).found(5)
    world.give(question, told(data=data_at(0, "a")))
    assert (world.state(0).fetch_offset, bool(world.state(0).undelivered)) == (5, False)


@pytest.mark.parametrize(
    "answer",
    [
        fetched([PartitionFetched(TOPIC_ID, 7)]),
        fetched([PartitionFetched(b"x" * 16, 0)]),
        fetched([PartitionFetched(TOPIC_ID, 0)] * 2),
        fetched([PartitionFetched(TOPIC_ID, 0, length=3)], [b"12"]),
        fetched([PartitionFetched(TOPIC_ID, 0)], [b"12"]),
    ],
)
def test_an_answer_to_something_else(answer: Answer) -> None:
    """Nothing of it is taken in."""
    world, question = started(1)
    with pytest.raises(RemoteProtocolError):
        world.give(question, answer)
    assert world.state(0).high_watermark is None


def test_offsets_that_do_not_match() -> None:
    """One too few."""
    world = PureWorld(1, 1)
    question = world.ask(1)
    assert question is not None
    found = FoundOffset(TOPIC_ID, 0, offset=3)
    with pytest.raises(RemoteProtocolError, match="2 offsets"):
        world.give(question, Answer(ListOffsetsReply((found,)), b"", -1, 0))


def test_a_partition_of_which_nothing_is_told() -> None:
    """The answer was full: asked again, without a pause."""
    world, question = started(1, 1)
    world.give(question, told(data=data_at(0, "a")))
    assert world.state(1).failures == 0
    assert world.ask(1) is not None


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_what_doubts_the_leader(error: ErrorCode) -> None:
    """The metadata is asked for again, unless the answer itself says who leads."""
    world, question = started(1)
    world.give(question, told(error))
    assert not world.routes.use("t")
    world.tell_metadata()
    world.give(ask_again(world), told(error, leader=2, leader_epoch=1))
    assert world.routes.use("t")
    assert world.plan.leaders() == {2}


def test_what_does_not_doubt_the_leader() -> None:
    """It will know more in a moment."""
    world, question = started(1)
    world.give(question, told(ErrorCode.UNKNOWN_LEADER_EPOCH))
    assert world.routes.use("t")
    assert world.state(0).failures == 1


def test_a_broker_that_is_not_reached() -> None:
    """All of its partitions wait, and somebody else may lead them."""
    world, question = started(1, 1)
    world.drop(question)
    world.intake.on_failure(question, Unreachable("nobody there"), now=world.now)
    assert [world.state(each).failures for each in (0, 1)] == [1, 1]
    assert not world.routes.use("t")


def test_a_broker_that_is_silent_is_given_more_time() -> None:
    """Its answers may be large, and the way slow; one answer, and it is as before."""
    world, question = started(1)
    seconds = []
    for _ in range(6):
        seconds.append(world.intake.answer_seconds(1))
        world.intake.on_failure(question, RequestTimedOut("silence"), now=world.now)
    assert seconds == [3, 6, 12, 24, 48, 48]
    world.drop(question)
    world.answer(ask_again(world))
    assert world.intake.answer_seconds(1) == 3


@pytest.mark.parametrize("error", [ClusterAuthorizationFailed("no"), ServerError("what", 999)])
def test_what_no_attempt_would_change(error: Exception) -> None:
    """Told, with the partition."""
    world, question = started(1)
    world.drop(question)
    world.intake.on_failure(question, error, now=world.now)  # type: ignore[arg-type]
    found = world.state(0).error
    assert type(found) is type(error)
    assert str(found).startswith("t-0: ")


def test_damage_that_the_leader_denies_is_told_the_second_time() -> None:
    """A2.3: whatever else went wrong before; its disk is right, and nobody will repair anything."""
    world, question = started(1)
    world.give(question, told(ErrorCode.UNKNOWN_LEADER_EPOCH))
    world.give(ask_again(world), told(data=b"junk"))
    assert world.state(0).error is None
    [asked] = world.intake.take_refused()
    assert asked.offset == 0
    world.intake.on_verdict(asked, CorruptionVerdict.WHOLE)
    world.tell_metadata()
    world.give(ask_again(world), told(data=b"junk"))
    assert isinstance(world.state(0).error, CorruptRecord)
    assert "t-0 at offset 0, again and again: shorter than" in str(world.state(0).error)
    assert world.intake.take_refused() == []


@pytest.mark.parametrize("verdict", [CorruptionVerdict.NOT_LOOKED, CorruptionVerdict.ROTTEN])
def test_damage_that_may_be_repaired_is_fetched_for_a_while(verdict: CorruptionVerdict) -> None:
    """A2.3: each time the leader is told of it; after five seconds the program is."""
    world, question = started(1)
    for _ in range(5):
        world.give(question, told(data=b"junk"))
        assert world.state(0).error is None
        [asked] = world.intake.take_refused()
        world.intake.on_verdict(asked, verdict)
        question = ask_again(world)
    world.give(question, told(data=b"junk"))
    assert isinstance(world.state(0).error, CorruptRecord)


def test_another_leader_denies_for_itself_alone() -> None:
    """What came from the one before says nothing of its disk."""
    world, question = started(1)
    world.give(question, told(data=b"junk"))
    [asked] = world.intake.take_refused()
    world.intake.on_verdict(asked, CorruptionVerdict.WHOLE)
    world.lead(0, 2)
    world.tell_metadata()
    other = world.ask(2)
    assert other is not None
    world.give(other, told(data=b"junk"))
    assert world.state(0).error is None


def test_another_leader_has_its_own_time_to_repair() -> None:
    """A2.3: the hand-over took longer than one has; leaders that only take turns end it."""
    world, question = started(1)
    begin, now_leads, bad_answers = world.now, 1, 0
    while world.state(0).error is None:
        world.give(question, told(data=b"junk"))
        bad_answers += 1
        world.now += 6
        now_leads = 3 - now_leads
        world.lead(0, now_leads)
        world.tell_metadata()
        if world.state(0).error is None:
            found = world.ask(now_leads)
            assert found is not None
            question = found
    assert isinstance(world.state(0).error, CorruptRecord)
    assert (bad_answers, world.now - begin) == (6, 36)


def test_a_new_leader_has_no_longer_than_the_first_one() -> None:
    world, question = started(1)
    world.give(question, told(data=b"junk"))
    world.lead(0, 2)
    world.now += 8
    for seconds in (0, 2, 4):
        begin = world.now
        world.tell_metadata()
        other = world.ask(2)
        assert other is not None
        world.give(other, told(data=b"junk"))
        assert world.state(0).error is None, seconds
        world.now = begin + 2
    other = world.ask(2)
    assert other is not None
    world.give(other, told(data=b"junk"))
    assert isinstance(world.state(0).error, CorruptRecord)


def test_damage_that_is_gone_is_forgotten() -> None:
    """Another leader has had it right."""
    world, question = started(1)
    world.give(question, told(data=b"junk"))
    world.give(ask_again(world), told(data=data_at(0, "a")))
    world.give(ask_again(world), told(data=b"junk"))
    assert world.state(0).error is None


def test_an_offset_that_is_not_there() -> None:
    """Not while there is still something to hand out before it; then with what there is."""
    world, question = started(1)
    world.give(question, told(data=data_at(0, "a")))
    world.give(ask_again(world), told(ErrorCode.OFFSET_OUT_OF_RANGE))
    assert world.delivery.take(9) is not None
    with pytest.raises(OffsetOutOfRange, match="offset 1 is not there: the first is 0, the last 8"):
        world.delivery.take(9)
    assert world.delivery.take(9) is None


def test_an_empty_log() -> None:
    """Nothing to name but where the next record goes."""
    world, question = started(1)
    one = PartitionFetched(TOPIC_ID, 0, ErrorCode.OFFSET_OUT_OF_RANGE, 4, 4)
    world.give(question, fetched([one]))
    assert "it is empty, the next will be 4" in str(world.state(0).error)


def test_another_history() -> None:
    """1. What was fetched ahead is fetched again. 2. What was handed out is told."""
    world, question = started(1)
    world.give(question, told(data=data_at(0, "a", "b")))
    diverging = Diverging(0, 1)
    world.give(ask_again(world), told(diverging=diverging))
    state = world.state(0)
    assert world.given_up == [state]
    assert (state.error, state.fetch_offset, bool(state.undelivered)) == (None, 0, False)
    world.give(ask_again(world), told(data=data_at(0, "a", "b")))
    world.delivery.take(9)
    again = ask_again(world)
    assert again.body.partitions[0].last_fetched_epoch == 0  # type: ignore[union-attr]
    world.give(again, told(diverging=diverging))
    assert isinstance(state.error, LogTruncation)
    assert state.error.offset == 1


def test_no_record_is_so_young() -> None:
    """Then where the log ended before."""
    world = PureWorld(1)
    question = world.ask(1)
    assert question is not None
    found = [FoundOffset(TOPIC_ID, 0, offset=7), FoundOffset(TOPIC_ID, 0)]
    question = question._replace(
        body=type(question.body)(question.body.partitions * 2)  # type: ignore[call-arg,arg-type]
    )
    world.plan.out[1] = question
    world.give(question, Answer(ListOffsetsReply(tuple(found)), b"", -1, 0))
    assert world.state(0).position == 7
