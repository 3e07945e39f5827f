"""A group whose coordinator dies or moves, and members that do not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import (
    InconsistentGroupFilter,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidSessionTimeout,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from raftmq.metadata.commands import FeatureLevel
from raftmq.wire.messages.groups import JoinGroup, LeaveGroup
from tests.unit.client.consumer.reading import take
from tests.unit.client.group.grouped import (
    HOME,
    SESSION_SECONDS,
    grouped,
    keys,
    parted,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trio.testing import MockClock

    from raftmq.client.group.assignors.assignor import Key, Subscribed


async def test_the_coordinator_dies(autojump_clock: MockClock) -> None:
    """Another one takes over: members go on with what they had, in the same generation, and their
    commits count."""
    async with grouped(4) as here:
        for partition in range(4):  # not led by the one that dies
            here.world.lead("orders", partition, 1)
        first, second = here.begin("a"), here.begin("b")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        generation, told = first.consumer.generation, len(here.told)
        here.kill(HOME)
        await trio.sleep(2.0)
        await here.give(3)
        for partition in range(4):
            here.append(partition, "x")
        await until(lambda: len(first.records) + len(second.records) == 4)
        await until(lambda: [here.committed(partition) for partition in range(4)] == [1] * 4)
        await trio.sleep(10.0)
        assert first.consumer.generation == second.consumer.generation == generation
        assert len(here.told) == told


async def test_the_coordinator_moves_to_and_fro(autojump_clock: MockClock) -> None:
    """While members come and go: in the end everything is somebody's, and all was read."""
    async with grouped(4) as here:
        readings = [here.begin("a")]
        for step in range(8):
            await trio.sleep(0.7)
            await here.give(1 + step % 3)
            here.append(step % 4, f"step {step}")
            if step in (1, 3, 5):
                readings.append(here.begin(f"b{step}"))
            if step == 6:
                await readings.pop(0).leave()
        await until(lambda: parted(readings, 0, 1, 2, 3))
        await until(lambda: [here.committed(partition) for partition in range(4)] == [2] * 4)


async def test_nobody_coordinates_for_longer_than_a_session(autojump_clock: MockClock) -> None:
    """Members stop in time, as somebody may have begun what was theirs; and come back."""
    async with grouped(2) as here:
        first, second = here.begin("a"), here.begin("b")
        await until(lambda: parted((first, second), 0, 1))
        here.kill(HOME)
        await until(lambda: not first.held and not second.held, seconds=10.0)
        await here.give(3)
        await until(lambda: parted((first, second), 0, 1), seconds=20.0)


async def test_no_assignor_in_common(autojump_clock: MockClock) -> None:
    """Who knows none that the others know is told so, and is not let in."""
    async with grouped(1) as here:
        first = here.begin("a", assignor="range")
        await until(lambda: first.held)
        with pytest.raises(InconsistentGroupProtocol, match="use the same"):
            async with here.consumer("b", assignor="sticky") as c:
                await anext(c)
        assert first.held == keys(0)


async def test_all_members_have_one_filter(autojump_clock: MockClock) -> None:
    """Who has another one is told so at once, and the others hear nothing of it; when they have
    left it may begin. A12.1.
    """
    async with grouped(2, level=FeatureLevel.TAGS) as here:
        first = here.begin("a", tags="paid & (eu | us)")
        second = here.begin("b", tags="us & paid | eu & paid")
        await until(lambda: parted((first, second), 0, 1))
        generation = first.consumer.generation
        expected = "read by filter eu & paid | paid & us, this one by filter test. Stop all members"
        with trio.fail_after(2.0), pytest.raises(InconsistentGroupFilter) as caught:
            async with here.consumer("c", tags={"test"}) as c:
                await anext(c)
        assert expected in str(caught.value)
        with pytest.raises(InconsistentGroupFilter, match="this one by no filter"):
            async with here.consumer("d") as c:
                await anext(c)
        await trio.sleep(SESSION_SECONDS)
        assert first.consumer.generation == second.consumer.generation == generation
        await first.leave()
        await second.leave()
        third = here.begin("c", tags={"test"})
        await until(lambda: parted([third], 0, 1))
        assert here.saved().tags == "test"


async def test_a_filter_waits_for_the_last_broker(autojump_clock: MockClock) -> None:
    """One of an older version would not keep it: the program is told which. A12.1."""
    async with grouped(1) as here:
        with trio.fail_after(2.0), pytest.raises(UnsupportedVersion, match=r"brokers \[1, 2, 3\]"):
            async with here.consumer("a", tags="eu") as c:
                await anext(c)


async def test_an_assignor_that_all_know(autojump_clock: MockClock) -> None:
    """Several may be named; the group takes one that everybody knows."""
    async with grouped(4) as here:
        first = here.begin("a", assignor=["sticky", "range"])
        second = here.begin("b", assignor=["range", "round_robin"])
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        assert here.saved().protocol == "range"


async def test_a_programs_own_assignor(autojump_clock: MockClock) -> None:
    """A function deals out; what it forgets nobody reads."""

    def to_the_last(
        partitions: Mapping[str, int], members: Sequence[Subscribed]
    ) -> Mapping[str, list[Key]]:
        last = max(one.member_id for one in members)
        return {last: [(topic, at) for topic, n in partitions.items() for at in range(n)]}

    async with grouped(3) as here:
        readings = [here.begin(name, assignor=to_the_last) for name in "ab"]
        await until(lambda: sorted(len(one.held) for one in readings) == [0, 3])


async def test_a_session_that_is_refused(autojump_clock: MockClock) -> None:
    """The bounds are the coordinator's, and what it says reaches the program."""
    async with grouped(1) as here:
        with pytest.raises(InvalidSessionTimeout, match="6000"):
            async with here.consumer("a", session_timeout_ms=5000) as c:
                await anext(c)


async def test_bad_options(autojump_clock: MockClock) -> None:
    """All of them are named at once, before anybody is asked."""
    async with grouped(1) as here:
        with pytest.raises(InvalidConfig) as caught:
            async with here.consumer("a", commit="often", pattern="(", session_timeout_ms=0):
                pass
        said = str(caught.value)
        assert all(name in said for name in ("commit", "pattern", "session_timeout_ms"))


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """The program is told; the others of the group read on."""
    async with grouped(1) as here:
        other = here.begin("a")
        await until(lambda: other.held)
        with pytest.raises(UnknownTopicOrPartition, match="nowhere"):
            async with here.consumer("b", "nowhere") as c:
                await anext(c)
        await trio.sleep(2.0)
        assert other.held == keys(0)
        here.append(0, "x")
        await until(lambda: other.values == ["x"])


async def test_a_topic_is_made_anew(autojump_clock: MockClock) -> None:
    """What was committed of the one before says nothing of the new one: a new member begins at its
    start."""
    async with grouped(1) as here:
        here.append(0, *map(str, range(5)))
        async with here.consumer("a") as c:
            await take(c, 5)
        here.world.add_topic("orders", 1)
        here.append(0, "new")
        async with here.consumer("b") as c:
            assert await take(c, 1) == ["new"]


async def test_cancelled_while_it_joins(autojump_clock: MockClock) -> None:
    """A program that is cancelled before it has anything leaves nothing behind."""
    async with grouped(1) as here:
        for seconds in (0.0, 0.001, 0.01, 0.1, 0.15, 0.3):
            with trio.move_on_after(seconds):
                async with here.consumer(f"a{seconds}") as c:
                    await anext(c)
        other = here.begin("b")
        await until(lambda: other.held == keys(0), seconds=15.0)


async def soon(condition: Callable[[], object]) -> None:
    """Until a request has come, and is not answered yet."""
    while not condition():  # noqa: ASYNC110  # what is looked at has no event
        await trio.sleep(0.0001)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_it_ends_before_it_knows_its_id(
    autojump_clock: MockClock, is_cancelled: bool
) -> None:
    """Its first JoinGroup has arrived, and the answer is on its way: the group need not wait for
    that id until a session is over."""
    async with grouped(2) as here:
        first = here.begin("a")
        await until(lambda: first.held)
        count = len(here.asked(JoinGroup))
        second = here.begin("b")
        await soon(lambda: len(here.asked(JoinGroup)) > count)
        await (second.cancel() if is_cancelled else second.leave())
        assert [join.member_id for join in here.asked(JoinGroup)[count:]] == [""]
        third = here.begin("c")
        await until(lambda: parted((first, third), 0, 1), seconds=SESSION_SECONDS / 2)


async def test_cancelled_while_it_leaves(autojump_clock: MockClock) -> None:
    """The answer to its LeaveGroup comes to no task any more: it is asked again, and the block
    ends at once."""
    async with grouped(1) as here:
        first = here.begin("a")
        await until(lambda: first.held)
        began_at = trio.current_time()
        here.nursery.start_soon(first.leave)
        await soon(lambda: here.asked(LeaveGroup))
        await first.cancel()
        assert trio.current_time() - began_at <= 1.0


async def test_cancelled_where_no_join_is_answered(autojump_clock: MockClock) -> None:
    """It waits for its id for the second that it has to leave, and no longer."""
    async with grouped(1) as here:
        first = here.begin("a")
        await soon(lambda: here.asked(JoinGroup))
        here.world.network.isolate("a")
        began_at = trio.current_time()
        await first.cancel()
        assert trio.current_time() - began_at <= 1.0


@pytest.mark.parametrize("is_killed", [False, True])
async def test_cancelled_while_the_coordinator_moves(
    autojump_clock: MockClock,
    is_killed: bool,
) -> None:
    """The new one is told that the member is gone: others need not wait for its session."""
    async with grouped(1) as here:
        other = here.begin("a", commit="transaction")
        await until(lambda: other.held)
        if is_killed:
            here.kill(HOME)
        else:
            await here.give(3)
        here.nursery.start_soon(other.cancel)
        await trio.sleep(0.3)
        await here.give(3)
        await other.ended.wait()
        assert LeaveGroup in map(type, here.world.brokers[3].asked)
        assert here.committed(0) is None
        following = here.begin("b")
        await until(lambda: following.held == keys(0), seconds=SESSION_SECONDS / 2)


async def test_waiting_for_records_is_cancelled(autojump_clock: MockClock) -> None:
    """Whoever asks again gets what comes; nothing is lost by that, in any mode."""
    async with grouped(1) as here:
        for commit in ("batch", "record", "before"):
            async with here.consumer(commit, commit=commit) as c:
                values = []
                here.append(0, *map(str, range(5)))
                for step in range(200):
                    with trio.move_on_after(0.001 * (step % 10)):
                        values += await take(c, 1)
                assert values == [str(number) for number in range(5)]
