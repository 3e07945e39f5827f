"""Members of a group share partitions, and take over from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tests.unit.client.group.grouped import SESSION_SECONDS, grouped, keys, parted, until

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_one_member_has_everything(autojump_clock: MockClock) -> None:
    """Alone in its group it reads all partitions from the earliest, and what it did is committed
    while it goes on (A7.3)."""
    async with grouped(4) as here:
        for partition in range(4):
            here.append(partition, f"{partition}a", f"{partition}b")
        only = here.begin("a")
        await until(lambda: len(only.records) == 8)
        assert sorted(only.values) == [
            f"{number}{letter}" for number in range(4) for letter in "ab"
        ]
        await trio.sleep(1.0)
        assert [here.committed(partition) for partition in range(4)].count(2) >= 3
        assert only.consumer.generation == 1
        assert "-a-" in only.consumer.member_id


async def test_records_come_with_the_assignment(autojump_clock: MockClock) -> None:
    """No leader is fetched from before a member has partitions; the first fetch does not wait until
    the metadata are looked at next."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, "a", "b")
        only = here.begin("a")
        await until(lambda: only.assigned)
        assigned_at = trio.current_time()
        await until(lambda: len(only.records) == 4)
        assert trio.current_time() < assigned_at + 0.2


async def test_a_second_member_gets_half(autojump_clock: MockClock) -> None:
    """It joins later; the first one gives up two of four, goes on with the others, and no record
    comes to both (A1.2)."""
    async with grouped(4) as here:
        first = here.begin("a")
        await until(lambda: first.held == keys(0, 1, 2, 3))
        for partition in range(4):
            here.append(partition, "before")
        await until(lambda: len(first.records) == 4)
        second = here.begin("b")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        assert len(first.held) == len(second.held) == 2
        assert first.revoked == [tuple(sorted(second.held))]
        assert first.assigned == [tuple(sorted(keys(0, 1, 2, 3)))]
        for partition in range(4):
            here.append(partition, "after")
        await until(lambda: len(first.records) + len(second.records) == 8)
        assert first.values == ["before"] * 4 + ["after"] * 2
        assert second.values == ["after"] * 2


async def test_who_leaves_hands_over_at_once(autojump_clock: MockClock) -> None:
    """After a clean exit the other one has everything within a moment, and nothing comes twice.

    A8.4.
    """
    async with grouped(4) as here:
        first, second = here.begin("a"), here.begin("b")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        for partition in range(4):
            here.append(partition, "before")
        await until(lambda: len(first.records) + len(second.records) == 4)
        await first.leave()
        await until(lambda: second.held == keys(0, 1, 2, 3), seconds=1.5)
        for partition in range(4):
            here.append(partition, "after")
        await until(lambda: len(second.records) >= 6)
        await trio.sleep(1.0)
        assert sorted(first.values + second.values) == ["after"] * 4 + ["before"] * 4


async def test_who_crashes_is_missed_after_its_session(autojump_clock: MockClock) -> None:
    """Nobody hears of its end: the other one gets its partitions once the session is over, and
    does again what was not committed (A7.5)."""
    async with grouped(4) as here:
        first, second = here.begin("a", commit="none"), here.begin("b")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        of_first = first.held
        for partition in range(4):
            here.append(partition, str(partition))
        await until(lambda: len(first.records) + len(second.records) == 4)
        crashed_at = trio.current_time()
        await first.crash()
        await until(lambda: second.held == keys(0, 1, 2, 3))
        assert SESSION_SECONDS - 1.0 <= trio.current_time() - crashed_at < SESSION_SECONDS + 2.0
        await until(lambda: len(second.records) == 4)
        assert {second.values[-2], second.values[-1]} == {str(number) for _, number in of_first}


async def test_who_is_cut_off_stops_in_time(autojump_clock: MockClock) -> None:
    """A member that hears nobody hands out nothing any more by the time that the other one has its
    partitions; when it is back it gets a part again."""
    async with grouped(4) as here:
        first, second = here.begin("a"), here.begin("b")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        here.world.network.isolate("a")
        await until(lambda: second.held == keys(0, 1, 2, 3))
        (name, loss), (_, gain) = here.told[-2:]
        assert (name, loss.lost) == ("a", gain.assigned)
        for partition in range(4):
            here.append(partition, "x")
        await until(lambda: len(second.records) == 4)
        here.world.network.heal()
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        assert first.values == []


async def test_more_members_than_partitions(autojump_clock: MockClock) -> None:
    """Some have nothing to do, and nobody is the worse for it; they are there when somebody
    leaves (A1.7)."""
    async with grouped(2) as here:
        readings = [here.begin(name) for name in "abcd"]
        await until(lambda: sum(len(one.held) for one in readings) == 2)
        await trio.sleep(3.0)
        assert sorted(len(one.held) for one in readings) == [0, 0, 1, 1]
        assert len({one.consumer.generation for one in readings}) == 1
        busy = next(one for one in readings if one.held)
        await busy.leave()
        others = [one for one in readings if one is not busy]
        await until(lambda: sum(len(one.held) for one in others) == 2)


async def test_two_groups_read_the_same(autojump_clock: MockClock) -> None:
    """Each group gets every record, whatever the other one has read (A1.1)."""
    async with grouped(2) as here:
        await here.give(1, "audit")
        billing, audit = here.begin("a"), here.begin("b", group="audit")
        for number in range(10):
            here.append(number % 2, str(number))
        for reading in (billing, audit):
            await until(lambda reading=reading: len(reading.records) == 10)
            assert sorted(reading.values) == [str(number) for number in range(10)]
        await billing.leave()
        assert [here.committed(partition) for partition in (0, 1)] == [5, 5]


async def test_a_topic_is_read_again(autojump_clock: MockClock) -> None:
    """A group of another name begins anew, long after the first one came to the end; without a
    group one reads beside them (A1.3)."""
    async with grouped(2) as here:
        await here.give(1, "again")
        for number in range(6):
            here.append(number % 2, str(number))
        for name, group in (("a", "billing"), ("b", "again")):
            reading = here.begin(name, group=group)
            await until(lambda reading=reading: len(reading.records) == 6)
            await reading.leave()
        again = here.begin("c")
        await until(lambda: again.held == keys(0, 1))
        await trio.sleep(2.0)
        assert again.values == []


async def test_partitions_are_added(autojump_clock: MockClock) -> None:
    """They are dealt out, too, and read from their first record on, whatever `start` says.

    A8.4.
    """
    async with grouped(2) as here:
        first, second = here.begin("a", start="latest"), here.begin("b", start="latest")
        await until(lambda: parted((first, second), 0, 1))
        for number in (2, 3):
            here.world.add_partition("orders", number)
            here.append(number, f"first of {number}")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        await until(lambda: len(first.records) + len(second.records) == 2)
        assert sorted(first.values + second.values) == ["first of 2", "first of 3"]


async def test_a_pattern_finds_new_topics(autojump_clock: MockClock) -> None:
    """Members who subscribe to a pattern share what matches, also what is created later (A1.6)."""
    async with grouped(1, logs_a=2, other=1) as here:
        first, second = (here.begin(name, pattern="logs_.*") for name in "ab")
        await until(lambda: parted((first, second), 0, 1, topic="logs_a"))
        here.world.add_topic("logs_b", 1, 2)
        for topic in ("logs_a", "logs_b", "other"):
            here.append(0, topic, topic=topic)
        await until(lambda: len(first.held | second.held) == 4)
        await until(lambda: len(first.records) + len(second.records) == 2)
        assert sorted(first.values + second.values) == ["logs_a", "logs_b"]
        assert first.held | second.held == keys(0, 1, topic="logs_a") | keys(0, 1, topic="logs_b")


async def test_where_nothing_matches_nobody_joins(autojump_clock: MockClock) -> None:
    """A pattern without a topic waits for one."""
    async with grouped(1) as here:
        reading = here.begin("a", pattern="logs_.*")
        await trio.sleep(5.0)
        assert reading.consumer.generation == -1
        here.world.add_topic("logs_b", 1)
        here.append(0, "there", topic="logs_b")
        await until(lambda: reading.values == ["there"])
