"""`process` with a policy that moves records aside: they come back after their pause, as often as
it says, and hold up nothing meanwhile (A12.4, A12.5).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import trio

import raftmq
from raftmq.client.dead_letters.letters import read_letter
from raftmq.errors import ErrorCode, InvalidConfig, MessageTooLarge, UndecodableRecord
from raftmq.metadata.commands import FeatureLevel
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.topics import CreateTopics
from tests.unit.client.group.grouped import GROUP, until
from tests.unit.client.processing.mill import RETRY, Mill, mill, numbers
from tests.unit.client.processing.test_process import failing, pass_by, refuse_four
from tests.unit.client.world import done_and_lost, refused

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.consumer.record import ConsumerRecord

SOON = raftmq.Exponential(10, factor=1)
THREE = raftmq.RetryPolicy(attempts=3, backoff=SOON)


async def test_it_comes_back(autojump_clock: MockClock) -> None:
    """Two attempts fail, the third one does it, each after its pause. The topic goes on at once,
    also with records of its key, and is committed."""
    left = Counter({"002": 2})
    seen: list[tuple[float, str, int | None, object]] = []

    async def handle(record: ConsumerRecord) -> None:
        if record.text() == "002":
            attempts = read_letter(record.headers).attempts
            seen.append((trio.current_time(), record.topic, attempts, record.origin))
        if left[record.text()] > 0:
            left[record.text()] -= 1
            raise OSError("not now")

    async with mill() as here:
        await here.send(*numbers(30), key=lambda value: int(value) % 3)
        async with here.running(handle, retry=THREE):
            await here.until_committed(30)
            assert here.handled == [one for one in numbers(30) if one != "002"]
            assert here.begun.count("002") == 1
            await until(lambda: len(here.handled) == 30)
            # A group that has done all has no lag in the topic of retries, either.
            end = here.here.world.topics[RETRY].partitions[0].end_offset
            await until(lambda: here.here.committed(0, topic=RETRY) == end)
        assert here.letters() == []
        assert [(topic, attempts) for _, topic, attempts, _ in seen] == [
            ("orders", None),
            (RETRY, 1),
            (RETRY, 2),
        ]
        [_, (_, _, _, origin), (_, _, _, still)] = seen
        assert origin == still
        assert origin[:3] == ("orders", 0, 2)  # type: ignore[index]
        times = [at for at, _, _, _ in seen]
        for before, after in pairwise(times):
            assert 8 <= after - before <= 13


async def test_the_last_attempt(autojump_clock: MockClock) -> None:
    """Then it goes to the dead letters, with all attempts and the place where it stood first."""
    async with mill() as here:
        await here.send(*numbers(10))
        async with here.running(failing("004", "006"), retry=THREE, concurrency=3):
            await until(lambda: len(here.letters()) == 2)
        assert sorted(here.letters()) == [
            ("004", 3, "ValueError: 004"),
            ("006", 3, "ValueError: 006"),
        ]
        assert sorted(here.handled) == [one for one in numbers(10) if one not in ("004", "006")]
        assert here.begun.count("004") == here.begun.count("006") == 3


async def test_without_dead_letters(autojump_clock: MockClock) -> None:
    """The error of the last attempt is raised, and the record comes again to the next process."""
    policy = raftmq.RetryPolicy(attempts=2, backoff=SOON, dead_letters=False)
    async with mill() as here:
        await here.send(*numbers(10))
        with pytest.raises(ValueError, match="004") as caught:
            await here.run(failing("004"), retry=policy)
        [note] = caught.value.__notes__
        assert note == f"{RETRY}-0, offset 1: not finished, after 2 attempts; it comes again"
        async with here.running(pass_by, retry=policy):
            await until(lambda: len(here.handled) == 10)
        assert here.handled[-1] == "004"


async def test_one_attempt(autojump_clock: MockClock) -> None:
    """Nothing is ever moved there, and the topic of retries is not made."""
    async with mill() as here:
        await here.send(*numbers(10))
        async with here.running(failing("004"), retry=raftmq.RetryPolicy(attempts=1)):
            await here.until_committed(10)
        assert here.letters() == [("004", 1, "ValueError: 004")]
        assert RETRY not in here.here.world.topics


async def test_a_deserializer_fails(autojump_clock: MockClock) -> None:
    """It takes the way of an exception, as the next process may have been repaired; the handler
    never sees it."""
    async with mill() as here:
        await here.send(*numbers(10))
        async with here.running(pass_by, retry=THREE, value_deserializer=refuse_four):
            await until(lambda: here.letters())
        [(value, attempts, error)] = here.letters()
        assert (value, attempts) == ("004", 3)
        assert "no order" in error
        assert "004" not in here.begun


async def test_a_deserializer_that_was_repaired(autojump_clock: MockClock) -> None:
    async with mill() as here:
        await here.send(*numbers(10))
        async with here.running(pass_by, retry=THREE, value_deserializer=refuse_four):
            await here.until_committed(10)
        async with here.running(pass_by, retry=THREE, value_deserializer=bytes):
            await until(lambda: here.handled[-1:] == ["004"])
        assert here.letters() == []


async def test_a_deserializer_without_dead_letters(autojump_clock: MockClock) -> None:
    """Raised as the consumer raises it."""
    policy = raftmq.RetryPolicy(attempts=2, backoff=SOON, dead_letters=False)
    async with mill() as here:
        await here.send(*numbers(10))
        with pytest.raises(UndecodableRecord, match="no order") as caught:
            await here.run(pass_by, retry=policy, value_deserializer=refuse_four)
        assert caught.value.record.topic == RETRY


async def test_what_the_log_says(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """When it comes again, and of what has come back where it stood first."""
    async with mill() as here:
        await here.send(*numbers(3))
        with caplog.at_level(logging.INFO):
            async with here.running(failing("001"), retry=THREE):
                await until(lambda: here.letters())
    told = [one.getMessage() for one in caplog.records if one.msg.startswith("process: ")]
    again, back = "process: to the retries: group=billing", f"record={RETRY}-0, offset"
    reason = "reason=ValueError('001')"
    assert told == [
        f"{again} record=orders-0, offset 1 attempts=1 again_in=~10s {reason}",
        f"{again} {back} 1 origin=orders-0@1 attempts=2 again_in=~10s {reason}",
        "process: to the dead letters: group=billing"
        f" {back} 3 origin=orders-0@1 attempts=3 {reason}",
    ]


# -- The topic ------------------------------------------------------------------------------------


async def test_the_topic(autojump_clock: MockClock) -> None:
    """Made with the first record that fails, once for all members."""
    async with mill(2) as here:
        await here.send("a", "b")
        await here.send("c", "d", partition=1)
        handler = failing("a", "c")
        async with (
            here.running(handler, "one", retry=THREE),
            here.running(handler, "two", retry=THREE),
        ):
            await until(lambda: len(here.letters()) == 2)
        wanted = [each for asked in created(here) for each in asked.topics if each.name == RETRY]
        for each in wanted:
            assert each.partition_count == 1
            assert each.configs["retention.ms"] == str(14 * 86_400_000)
        assert here.here.world.topics[RETRY].partitions[1:] == []


def created(here: Mill) -> list[CreateTopics]:
    return here.here.asked(CreateTopics)


async def test_it_is_not_missed(autojump_clock: MockClock) -> None:
    """A group whose records never fail has no such topic, hears of no error, and asks no more often
    than of a topic that is there."""
    async with mill() as here:
        await here.send(*numbers(10))
        async with here.running(pass_by, retry=THREE):
            await here.until_committed(10)
            before = len(here.here.asked(Metadata))
            await trio.sleep(300)
            assert len(here.here.asked(Metadata)) - before <= 2 * 30 + 5
        assert RETRY not in here.here.world.topics


async def test_it_is_deleted_meanwhile(autojump_clock: MockClock) -> None:
    """Whoever moves the next record makes it anew, and the group goes on with both."""
    async with mill() as here:
        await here.send(*numbers(4))
        async with here.running(failing("001"), retry=THREE):
            await until(lambda: here.letters())
            async with here.client("operator") as mq:
                await mq.admin.delete_topic(RETRY)
            await trio.sleep(30)
            await here.send("001")
            await until(lambda: len(here.letters()) == 2)
        assert here.letters() == [("001", 3, "ValueError: 001")] * 2


async def test_it_is_read_from_its_beginning(autojump_clock: MockClock) -> None:
    """Whatever `start` says of the others: what was moved before it was assigned comes, too."""
    async with mill() as here:
        async with here.running(failing("000"), retry=THREE, start="latest"):
            await trio.sleep(5)
            await here.send(*numbers(3))
            await until(lambda: here.letters())
        assert here.handled == ["001", "002"]


async def test_a_pattern(autojump_clock: MockClock) -> None:
    """It matches no topic of raftmq, and members read theirs along nevertheless."""
    async with mill() as here:
        await here.send(*numbers(3))
        async with here.client() as mq, trio.open_nursery() as nursery:

            async def run() -> None:
                await mq.process(
                    group=GROUP, handler=failing("001"), retry=THREE, pattern=".*", start="earliest"
                )

            nursery.start_soon(run)
            await until(lambda: here.letters())
            nursery.cancel_scope.cancel()


async def test_a_filter(autojump_clock: MockClock) -> None:
    """What is moved keeps its tags, so that it passes the filter of its group as it did before."""
    async with mill(level=FeatureLevel.TAGS) as here:
        async with here.client("sender") as mq, mq.producer() as producer:
            await producer.send("orders", "mine", tags=["eu"], partition=0)
            await producer.send("orders", "others", tags=["us"], partition=0)
        async with here.running(failing("mine"), retry=THREE, tags="eu & !test"):
            await until(lambda: here.letters())
        assert here.begun == ["mine"] * 3


# -- Groups ---------------------------------------------------------------------------------------


async def test_another_process(autojump_clock: MockClock) -> None:
    """The one that has moved a record has died: another one tries it, and counts on."""
    tried = defaultdict[str, int](int)

    def handler(name: str) -> Any:
        async def handle(record: ConsumerRecord) -> None:
            if record.text() == "001":
                tried[name] += 1
                raise OSError(name)

        return handle

    async with mill() as here:
        await here.send(*numbers(3))
        async with here.running(handler("one"), "one", retry=THREE):
            await here.until_committed(3)
        async with here.running(handler("two"), "two", retry=THREE):
            await until(lambda: here.letters())
        assert tried == {"one": 1, "two": 2}
        assert here.letters() == [("001", 3, "OSError: two")]


async def test_a_member_without_a_policy(autojump_clock: MockClock) -> None:
    """As in a rolling change: the others have the topic of retries, and it is never missing."""
    async with mill(2) as here:
        await here.send(*numbers(3))
        await here.send(*numbers(3, 3), partition=1)
        fails = failing("001", "004")
        async with here.running(pass_by, "old"):
            await here.until_committed(3, 3)
            async with here.running(fails, "new", retry=THREE):
                await trio.sleep(20)
                for partition in range(2):
                    await here.send("001", partition=partition)
                await until(lambda: here.letters())
        assert here.letters() == [("001", 3, "ValueError: 001")]


# -- Trouble --------------------------------------------------------------------------------------


async def test_a_move_comes_late(autojump_clock: MockClock) -> None:
    """Where it is stored refuses it and loses answers for a while: it is tried until it works, and
    the handler sees the record no more often for that."""
    async with mill() as here:
        await here.send(*numbers(10))
        for broker in here.here.world.brokers.values():
            broker.produces += [
                refused(ErrorCode.NOT_ENOUGH_REPLICAS),
                done_and_lost,
                refused(ErrorCode.KAFKA_STORAGE_ERROR),
            ]
        async with here.running(failing("004"), retry=THREE):
            await until(lambda: here.letters())
        assert here.begun.count("004") == 3
        assert set(here.letters()) == {("004", 3, "ValueError: 004")}


@pytest.mark.parametrize("policy", [THREE, raftmq.RetryPolicy(attempts=1)])
async def test_a_broker_is_down(autojump_clock: MockClock, policy: raftmq.RetryPolicy) -> None:
    """As the first record fails: no topic with so many replicas can be made, and it is tried until
    it can."""
    async with mill() as here:
        await here.send(*numbers(10))
        here.bureau.errors += [ErrorCode.INVALID_REPLICATION_FACTOR] * 5
        async with here.running(failing("004"), retry=policy):
            await until(lambda: here.letters())
        assert here.begun.count("004") == policy.attempts
        assert here.bureau.errors == []


async def test_a_move_is_refused(autojump_clock: MockClock) -> None:
    """For good: the reason is raised, and the record comes again."""
    async with mill() as here:
        await here.send(*numbers(10))
        for broker in here.here.world.brokers.values():
            broker.produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
        with pytest.raises(MessageTooLarge, match=r"too large for __retry\.billing") as caught:
            await here.run(failing("004"), retry=THREE)
        assert "offset 4: not finished, after 1 attempt" in caught.value.__notes__[0]
        assert here.here.committed(0) == 4


@pytest.mark.parametrize("topic", [RETRY, f"__dead.{GROUP}"])
async def test_its_own_topics(autojump_clock: MockClock, topic: str) -> None:
    """Are read along, or would be read for ever."""
    async with mill() as here, here.client() as mq:
        with pytest.raises(InvalidConfig, match=topic):
            await mq.process("orders", topic, group=GROUP, handler=pass_by, retry=THREE)


async def test_from_moving_to_in_place(autojump_clock: MockClock) -> None:
    """What waits there is read by naming it, and its attempts count on."""
    async with mill() as here:
        await here.send(*numbers(3))
        async with here.running(failing("001"), retry=THREE):
            await here.until_committed(3)
        in_place = raftmq.RetryPolicy(attempts=3, backoff=SOON, in_place=True)
        async with here.client() as mq, trio.open_nursery() as nursery:
            seen: list[str] = []

            async def handle(record: ConsumerRecord) -> None:
                seen.append(record.topic)
                raise ValueError("no")

            async def run() -> None:
                await mq.process("orders", RETRY, group=GROUP, handler=handle, retry=in_place)

            nursery.start_soon(run)
            await until(lambda: here.letters())
            nursery.cancel_scope.cancel()
        assert seen == [RETRY] * 2
        assert here.letters() == [("001", 3, "ValueError: no")]
