"""What is asked of whom: everything that is wanted, and no more than there is room for."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from raftmq.client.consumer.partition_state import FROM_EARLIEST, Start, StartKind
from raftmq.errors import Disconnected, UnknownLeaderEpoch
from raftmq.wire.messages.fetch import WITHOUT_SESSION, Fetch
from raftmq.wire.messages.offsets import EARLIEST, LATEST, ListOffsets
from tests.unit.client.consumer.pure_world import PureWorld
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from raftmq.client.consumer.fetch_plan import PlannedRequest


def partitions_of(question: PlannedRequest | None) -> list[int]:
    assert question is not None
    return [one.partition for one in question.body.partitions]


def fetch_of(question: PlannedRequest | None) -> Fetch:
    assert question is not None
    assert isinstance(question.body, Fetch)
    return question.body


def test_first_where_to_start_then_what_is_there() -> None:
    """One question names all partitions of a leader."""
    world = PureWorld(1, 2, 1)
    question = world.ask(1)
    assert question is not None
    assert isinstance(question.body, ListOffsets)
    assert [one.timestamp for one in question.body.partitions] == [EARLIEST] * 2
    world.answer(question)
    body = fetch_of(world.ask(1))
    assert [one.partition for one in body.partitions] == [0, 2]
    assert (body.max_wait_ms, body.bytes_min, body.bytes_max) == (500, 1, 8 << 20)
    assert (body.session_epoch, body.partitions[0].bytes_max) == (WITHOUT_SESSION, 1 << 20)
    assert world.plan.leaders() == {1, 2}


def test_a_point_in_time_is_asked_for_with_the_end() -> None:
    """The end first: what comes between the two is not passed over."""
    world = PureWorld(1)
    world.state(0).seek(Start(StartKind.TIMESTAMP, 5000))
    question = world.ask(1)
    assert question is not None
    assert isinstance(question.body, ListOffsets)
    assert [one.timestamp for one in question.body.partitions] == [LATEST, 5000]


def test_what_is_not_wanted() -> None:
    """Paused, failed, without a leader, or full."""
    world = PureWorld(1, 1, 1, 1, 1, max_partition_fetch_bytes=100)
    world.append(3, "x" * 200)
    world.start()
    world.answer(world.ask(1))  # type: ignore[arg-type]
    world.state(0).is_paused = True
    world.state(1).fail(Disconnected("x"))
    world.lead(2, -1)
    world.tell_metadata()
    assert partitions_of(world.ask(1)) == [4]


def test_one_question_at_a_time() -> None:
    """A second one while one is under way is a mistake."""
    world = PureWorld(1)
    world.ask(1)
    with pytest.raises(AssertionError, match="two questions"):
        world.ask(1)


def test_a_pause_after_a_failure_and_none_elsewhere() -> None:
    """The same leader is left alone for a moment; another one is asked at once."""
    world = PureWorld(1, 1)
    world.start()
    question = world.ask(1)
    assert question is not None
    world.drop(question)
    world.intake.on_failure(question, Disconnected("gone"), now=world.now)
    assert world.ask(1) is None
    wake_at = world.plan.wake_at(1, now=world.now)
    assert world.now < wake_at < world.now + 0.1
    world.lead(1, 2)
    world.tell_metadata()
    assert partitions_of(world.ask(2)) == [1]
    world.now = wake_at + 0.02
    assert partitions_of(world.ask(1)) == [0]


def test_a_wait_ends_with_the_next_pause() -> None:
    """A partition that is tried again soon is not kept waiting by those that have no news."""
    world = PureWorld(1, 1)
    world.start()
    world.state(0).on_failure(world.routes.find("t", 0), now=world.now)
    question = world.ask(1)
    assert partitions_of(question) == [1]
    assert 10 <= fetch_of(question).max_wait_ms < 50
    assert world.plan.wake_at(2, now=world.now) == inf


def test_leaders_share_the_room() -> None:
    """Each has its part, whatever the others do with theirs."""
    world = PureWorld(1, 2, prefetch_bytes=10_000)
    world.start()
    for broker_id in (1, 2):
        assert fetch_of(world.ask(broker_id)).bytes_max == 5_000


def test_no_more_than_there_is_room_for() -> None:
    """While three quarters of the share are taken nothing is asked; then for what is free."""
    world = PureWorld(1, 1, prefetch_bytes=10_000)
    size = len(batch("x" * 1000))
    for _ in range(8):
        world.append(0, "x" * 1000)
    world.start()
    world.answer(world.ask(1))  # type: ignore[arg-type]
    assert world.state(0).undelivered.byte_count == 8 * size > 7_500
    assert world.ask(1) is None
    for _ in range(2):
        world.delivery.take(1)
    assert fetch_of(world.ask(1)).bytes_max == 10_000 - 6 * size


def test_what_is_paused_makes_room() -> None:
    """Only when room is short: what it holds would be fetched again."""
    world = PureWorld(1, 1, prefetch_bytes=10_000)
    for _ in range(8):
        world.append(0, "x" * 1000)
    world.start()
    world.answer(world.ask(1))  # type: ignore[arg-type]
    world.state(0).is_paused = True
    question = world.ask(1)
    assert partitions_of(question) == [1]
    assert not world.state(0).undelivered
    assert world.state(0).fetch_offset == world.state(0).position == 0


def test_a_question_that_is_late() -> None:
    """It waits for news, and something else is wanted at once; not if an answer is due anyway."""
    world = PureWorld(1, 1)
    world.append(0, "a")
    world.append(1, "b")
    world.start()
    world.state(1).is_paused = True
    question = world.ask(1)
    assert question is not None
    world.state(1).is_paused = False
    assert not world.plan.is_late(1, now=world.now)  # there is something in 0, as far as one knows
    world.answer(question)
    world.state(1).is_paused = True
    assert world.ask(1) is not None
    assert not world.plan.is_late(1, now=world.now)
    world.state(1).is_paused = False
    assert world.plan.is_late(1, now=world.now)
    assert world.plan.is_late_for(world.state(1), 1, now=world.now)
    assert not world.plan.is_late_for(world.state(0), 1, now=world.now)
    world.state(0).seek(FROM_EARLIEST)
    assert world.plan.is_late_for(world.state(0), 1, now=world.now)
    assert not world.plan.is_late_for(world.state(0), 2, now=world.now)


def test_who_was_served_comes_last() -> None:
    """An answer that is full of one partition must not be so for ever."""
    world = PureWorld(1, 1, 1, fetch_max_bytes=1)
    for partition in range(3):
        for _ in range(3):
            world.append(partition, "x")
    world.start()
    order = []
    for _ in range(6):
        question = world.ask(1)
        order.append(partitions_of(question)[0])
        world.answer(question)  # type: ignore[arg-type]
    assert order == [0, 1, 2, 0, 1, 2]


def test_errors_of_a_partition_do_not_stop_the_others() -> None:
    """Only it is left alone."""
    world = PureWorld(1, 1)
    world.start()
    place = world.routes.find("t", 0)
    world.state(0).on_failure(place, now=world.now)
    assert UnknownLeaderEpoch.retriable
    assert partitions_of(world.ask(1)) == [1]
