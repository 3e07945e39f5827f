"""What a consumer makes of answers to a filter of tags: records, positions, damage (A12.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.client.consumer.completed_fetches import CompletedFetches, PassedOver
from raftmq.client.consumer.fetch_response import Expected, check_answer
from raftmq.errors import InvalidConfig
from raftmq.tag_filter import parse
from raftmq.wire.messages.fetch import Fetch, LeftOutRange
from raftmq.wire.tag_clauses import pack_filter
from tests.unit.client.consumer.gaps import END, ask_again, begun, told
from tests.unit.client.consumer.pieces import control_at, data_at, piece
from tests.unit.client.consumer.pure_world import PureWorld

if TYPE_CHECKING:
    from raftmq.client.consumer.fetch_plan import PlannedRequest


def started(**options: object) -> tuple[PureWorld, PlannedRequest]:
    """And asked for records that are tagged "eu"."""
    return begun(**{"tags": "eu", **options})


def eu(base_offset: int, *values: str, epoch: int = 0) -> bytes:
    return data_at(base_offset, *values, epoch=epoch, tags=[["eu"]] * len(values))


def test_the_filter_goes_with_each_request() -> None:
    world, question = started(tags="paid & !test")
    assert isinstance(question.body, Fetch)
    assert question.body.tags == pack_filter(parse("paid & !test"))
    assert world.plan.out


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("paid &", "expected a tag, ! or .* at character 7"),
        ("a & !a", "matches no record"),
        ([], "no tags"),
        (3, "expected an expression"),
        (["a", 3], "expected an expression"),
    ],
)
def test_filters_that_are_none(tags: object, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        PureWorld(1, tags=tags)


def test_records_between_what_was_left_out() -> None:
    """Positions move over it: at the beginning, between batches, at the end; offset and epoch."""
    world, question = started()
    world.give(question, told(eu(3, "a", epoch=1), left_out=[(0, 3, 0), (4, 9, 1)]))
    state = world.state(0)
    assert (state.position, state.position_epoch) == (3, 0)
    assert (state.fetch_offset, state.fetch_epoch) == (9, 1)
    batch = world.delivery.take(10)
    assert batch is not None
    assert (batch.offsets, batch.end_offset) == (range(3, 4), 4)
    assert (state.position, state.position_epoch) == (9, 1)
    assert ask_again(world).body.partitions[0].fetch_offset == 9  # type: ignore[union-attr]


def test_nothing_passes() -> None:
    """The position moves all the same, and what waits for that is woken: a group commits it."""
    world, question = started()
    passed = world.state(0)._events.passed
    world.give(question, told(left_out=[(0, 15, 2)]))
    state = world.state(0)
    assert (state.position, state.position_epoch, state.fetch_offset) == (15, 2, 15)
    assert passed.is_set()
    assert not state.is_deliverable
    assert world.delivery.take(10) is None


def test_an_older_broker_sends_everything() -> None:
    """The consumer leaves out what does not pass, in batches of one and of several tag sets."""
    world, question = started()
    tags = [["us"], ["eu"], None, ["eu", "us"]]
    world.give(
        question,
        told(
            data_at(0, "no", tags=[["us"]]),
            data_at(1, "a", "b", "c", "d", tags=tags),
            data_at(5, "e"),
            control_at(6),
        ),
    )
    batch = world.delivery.take(10)
    assert batch is not None
    assert (list(batch.values), list(batch.offsets)) == ([b"b", b"d"], [2, 4])
    assert (batch.tags[1], len(batch)) == (("eu", "us"), 2)
    world.delivery.take(10)
    assert world.state(0).position == 7


def test_records_one_by_one() -> None:
    """Out of a batch of which half passes; breaking off in the midst loses nothing."""
    world, question = started()
    tags = [["eu"], ["us"]] * 4
    world.give(question, told(data_at(0, *"abcdefgh", tags=tags), left_out=[(8, 20, 0)]))
    batch = world.delivery.take(3)
    assert batch is not None
    assert list(batch.offsets) == [0, 2, 4]
    assert world.state(0).position == 5
    batch = world.delivery.take(3)
    assert batch is not None
    assert (list(batch.offsets), batch.end_offset) == ([6], 8)
    assert world.state(0).position == 20


@pytest.mark.parametrize(
    ("batches", "left_out", "message"),
    [
        ([eu(4, "a")], [(0, 3, 0)], "base offset 4, expected 3"),
        ([eu(3, "a")], [(0, 4, 0)], "base offset 3, expected 4"),
        ([eu(1, "a")], [], "offsets 1 to 2 came, 0 was asked for"),
        ([eu(0, "a")], [(2, 4, 0)], "base offset 2, expected 1"),
        ([], [(0, 21, 0)], "end offset 21, committed is up to 20"),
        ([eu(0, "a")], [(1, 4, 9)], "leader epoch 9 from a leader of 7"),
        ([eu(2, "a", epoch=1)], [(0, 2, 3)], "leader epoch 1 after 3"),
        ([], [(3, 3, 0)], "offsets 3 to 3 came"),
        ([], [(0, 3, 0), (3, 3, 0), (3, 3, 0)], "offsets 3 to 3 are none"),
        ([], [(0, 3, 0), (3, 2, 0)], "offsets 3 to 2 are none"),
    ],
)
def test_a_gap_that_is_not_said_is_damage(
    batches: list[bytes], left_out: list[tuple[int, int, int]], message: str
) -> None:
    """As a wrong checksum is: nothing is skipped on the word of half an answer."""
    ranges = [LeftOutRange(*one) for one in left_out]
    expected = Expected(0, -1, 7, END, "t-0", (), parse("eu"), ranges)
    damage = check_answer(b"".join(batches), expected).damage
    assert damage is not None
    assert message in str(damage)


def test_damage_behind_ranges_is_where_it_is() -> None:
    """What is said to be left out before a damaged batch is passed over: the leader looks at the
    batch that is damaged, and not at the one where the answer began."""
    world, question = started()
    damaged = bytearray(eu(10, "a"))
    damaged[-1] ^= 1
    world.give(question, told(bytes(damaged), left_out=[(0, 4, 0), (4, 10, 0), (11, 14, 0)]))
    state = world.state(0)
    assert (state.position, state.fetch_offset, state.error) == (10, 10, None)
    world.give(ask_again(world), told(bytes(damaged), left_out=[(11, 14, 0)]))
    assert [asked.offset for asked in world.intake.take_refused()] == [10]


def test_ranges_that_follow_each_other_are_one() -> None:
    """A program that stands still at one record keeps few of them."""
    world, question = started()
    world.give(question, told(eu(0, "a"), left_out=[(1, 3, 0)]))
    for end in range(4, 20):
        world.give(ask_again(world), told(left_out=[(end - 1, end, 1)]))
    state = world.state(0)
    assert len(state.undelivered._pieces) == 2
    assert (state.position, state.fetch_offset) == (0, 19)
    assert state.behind(1) == (19, 1)


def test_what_was_passed_over_takes_no_memory() -> None:
    """Ranges count no bytes, and leave as soon as what is before them is handed out."""
    undelivered = CompletedFetches()
    undelivered.add([piece(eu(0, "a")), PassedOver(1, 9, 0), piece(eu(9, "b", epoch=1))])
    assert undelivered.byte_count == 2 * len(eu(0, "a"))
    assert undelivered.pass_over(1) == (9, 0)
    assert undelivered.drop_before(1) == (9, 0)
    assert undelivered.byte_count == len(eu(0, "a"))
    assert undelivered.drop_before(10) == (10, 1)
    assert not undelivered
