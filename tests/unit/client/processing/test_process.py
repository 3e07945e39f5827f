"""`process`: each record is handled, in the order of its key, and only then committed; what fails
is tried again, set aside, or raised (A11.2, A12.4, A12.5).
"""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from anyio.lowlevel import checkpoint

import raftmq
from raftmq.errors import ErrorCode, InvalidConfig, MessageTooLarge, UndecodableRecord
from tests.unit.client.group.grouped import GROUP, until
from tests.unit.client.processing.mill import DEAD, mill, numbers
from tests.unit.client.world import done_and_lost, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from trio.testing import MockClock

    from raftmq.client.consumer.record import ConsumerRecord

SOON = raftmq.Exponential(10, factor=1)
THREE = raftmq.RetryPolicy(attempts=3, backoff=SOON, in_place=True)


async def pass_by(record: ConsumerRecord) -> None:
    """A handler with which all goes well."""
    await checkpoint()


def failing(*values: str) -> Any:
    async def handle(record: ConsumerRecord) -> None:
        if record.text() in values:
            raise ValueError(record.text())

    return handle


# -- All goes well --------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_all_is_handled_and_committed(autojump_clock: MockClock, concurrency: int) -> None:
    """Once each; what has come before the group's first member, too."""
    async with mill(2) as here:
        await here.send(*numbers(700))
        await here.send(*numbers(300, 700), partition=1)
        async with here.running(pass_by, concurrency=concurrency):
            await here.until_committed(700, 300)
        assert sorted(here.handled) == numbers(1000)


async def test_order_of_a_key(autojump_clock: MockClock) -> None:
    """Eight workers at different speeds: records of one key never overlap or overtake each other,
    in any kind of key, while others do."""
    random, at_work, most = Random(1), Counter[Any](), 0
    seen = defaultdict[Any, list[str]](list)

    async def handle(record: ConsumerRecord) -> None:
        nonlocal most
        at_work[record.key] += 1
        most = max(most, at_work.total())
        assert at_work[record.key] == 1 or record.key is None
        await trio.sleep(random.random())
        at_work[record.key] -= 1
        seen[record.key].append(record.text())

    async with mill() as here:
        kinds = [None, b"a", "text", 17, b"b", "c", 18, b"d"]
        await here.send(*numbers(400), key=lambda value: kinds[int(value) % 8])
        async with here.running(handle, concurrency=8):
            await here.until_committed(400)
        assert most == 8
        del seen[None]
        assert len(seen) == 7
        assert all(values == sorted(values) for values in seen.values())


async def test_no_gap_is_committed(autojump_clock: MockClock) -> None:
    """The first of a hundred takes two minutes, the others nothing: none is committed before it."""

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            await trio.sleep(120)

    async with mill() as here:
        await here.send(*numbers(100))
        async with here.running(handle, concurrency=2):
            await until(lambda: len(here.handled) == 99)
            await trio.sleep(30)
            assert here.here.committed(0) in (None, 0)
            await trio.sleep(60)
            await here.until_committed(100)
        assert here.handled[-1] == "000"


# -- Bounds ---------------------------------------------------------------------------------------


async def test_one_partition_is_stuck(autojump_clock: MockClock) -> None:
    """A key that never ends holds up its partition after so many records, and no other."""

    async def handle(record: ConsumerRecord) -> None:
        if record.text() == "000":
            await trio.sleep_forever()

    async with mill(2) as here:
        await here.send(*numbers(500))
        await here.send(*numbers(500, 500), partition=1)
        async with here.running(handle, concurrency=2, max_in_hand=40):
            await until(lambda: here.here.committed(1) == 500)
            await trio.sleep(60)
        of_the_stuck = {value for value in here.begun if int(value) < 500}
        assert 10 <= len(of_the_stuck) <= 40


async def test_more_than_there_is_room_for(autojump_clock: MockClock) -> None:
    """The least of room there can be: all is handled."""
    async with mill(3) as here:
        for partition in range(3):
            await here.send(*numbers(20, 20 * partition), partition=partition)
        async with here.running(pass_by, concurrency=1, max_in_hand=2):
            await here.until_committed(20, 20, 20)
        assert sorted(here.handled) == numbers(60)


# -- Failures -------------------------------------------------------------------------------------


async def test_the_first_error_ends_it(autojump_clock: MockClock) -> None:
    """By default: it is raised with the name of the record, and what was finished is committed.
    The next process begins with that record."""
    async with mill() as here:
        await here.send(*numbers(20))
        with pytest.raises(ValueError, match="007") as caught:
            await here.run(failing("007"))
        [note] = caught.value.__notes__
        assert note == (
            "orders-0, offset 7: not finished, after 1 attempt; it comes again;"
            " retry=RetryPolicy() tries again and sets it aside"
        )
        assert here.here.committed(0) == 7
        assert here.handled == numbers(7)
        async with here.running(pass_by):
            await here.until_committed(20)
        assert here.handled == numbers(20)


async def test_tried_again_in_place(autojump_clock: MockClock) -> None:
    """Two attempts fail, the third one does it: its key waits meanwhile, all others go on."""
    left = Counter({"002": 2})
    times: dict[str, float] = {}

    async def handle(record: ConsumerRecord) -> None:
        if left[record.text()] > 0:
            left[record.text()] -= 1
            raise OSError("not now")
        times[record.text()] = trio.current_time()

    async with mill() as here:
        await here.send(*numbers(30), key=lambda value: int(value) % 3)
        async with here.running(handle, retry=THREE):
            await until(lambda: len(here.handled) == 20)
            await here.until_committed(2)
            await here.until_committed(30)
        of_the_key = numbers(30)[2::3]
        assert here.handled[-10:] == of_the_key
        assert here.begun.count("002") == 3
        assert 16 <= times["002"] - max(times[value] for value in numbers(2)) <= 24
        assert here.letters() == []


async def test_dead_letters(autojump_clock: MockClock) -> None:
    """After its last attempt a record is set aside, with its error, and counts as done."""
    async with mill() as here:
        await here.send(*numbers(10))
        async with here.running(failing("004", "006"), retry=THREE, concurrency=3):
            await here.until_committed(10)
        assert sorted(here.letters()) == [
            ("004", 3, "ValueError: 004"),
            ("006", 3, "ValueError: 006"),
        ]
        assert sorted(here.handled) == [one for one in numbers(10) if one not in ("004", "006")]
        assert here.begun.count("004") == 3


async def test_without_dead_letters(autojump_clock: MockClock) -> None:
    """The error of the last attempt is raised."""
    policy = raftmq.RetryPolicy(attempts=2, backoff=SOON, dead_letters=False, in_place=True)
    async with mill() as here:
        await here.send(*numbers(10))
        with pytest.raises(ValueError, match="004") as caught:
            await here.run(failing("004"), retry=policy)
        assert "offset 4: not finished, after 2 attempts" in caught.value.__notes__[0]
        assert here.here.committed(0) == 4


def refuse_four(value: bytes) -> bytes:
    if value == b"004":
        raise ValueError("no order")
    return value


async def test_a_deserializer_fails(autojump_clock: MockClock) -> None:
    """Set aside as it was sent, without another attempt: it would fail again."""
    async with mill() as here:
        await here.send(*numbers(10))
        async with here.running(pass_by, retry="in_place", value_deserializer=refuse_four):
            await here.until_committed(10)
        [(value, attempts, error)] = here.letters()
        assert (value, attempts) == ("004", 1)
        assert "no order" in error
        assert "004" not in here.begun


async def test_a_deserializer_fails_without_a_policy(autojump_clock: MockClock) -> None:
    """Raised as the consumer raises it."""
    async with mill() as here:
        await here.send(*numbers(10))
        with pytest.raises(UndecodableRecord, match="no order") as caught:
            await here.run(pass_by, value_deserializer=refuse_four)
        assert caught.value.record.value == b"004"
        assert here.here.committed(0) == 4


async def test_a_handler_that_is_interrupted(autojump_clock: MockClock) -> None:
    """What is no Exception ends it whatever the policy says; what is finished is committed."""

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 5:
            raise SystemExit(3)

    async with mill() as here:
        await here.send(*numbers(10))
        with pytest.raises(BaseException) as caught:  # noqa: PT011  # trio may wrap it
            await here.run(handle, retry="in_place")
        found = caught.value
        while isinstance(found, BaseExceptionGroup):
            [found] = found.exceptions
        assert isinstance(found, SystemExit)
        assert here.handled == numbers(5)
        assert here.letters() == []


# -- The end --------------------------------------------------------------------------------------


async def test_stopped(autojump_clock: MockClock) -> None:
    """What is at work is finished and committed, nothing else is begun, and it returns."""
    stop = trio.Event()

    async def handle(record: ConsumerRecord) -> None:
        await trio.sleep(10)

    async with mill() as here, trio.open_nursery() as nursery:
        await here.send(*numbers(100))

        async def run() -> None:
            await here.run(handle, concurrency=4, stop=stop)
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await until(lambda: len(here.begun) == 8)
        stop.set()
        with trio.fail_after(30):
            await trio.sleep_forever()
    assert sorted(here.handled) == numbers(8)
    assert here.here.committed(0) == 8


async def test_stopped_while_a_record_waits(autojump_clock: MockClock) -> None:
    """A record between two attempts is no work: it comes again, with what is behind it."""
    stop = trio.Event()
    policy = raftmq.RetryPolicy(backoff=raftmq.Exponential(3600), in_place=True)
    async with mill() as here, trio.open_nursery() as nursery:
        await here.send(*numbers(10))
        nursery.start_soon(lambda: here.run(failing("003"), retry=policy, stop=stop))
        await until(lambda: len(here.handled) == 9)
        stop.set()
        await until(lambda: not nursery.child_tasks, seconds=10)
        assert here.here.committed(0) == 3


async def test_cancelled(autojump_clock: MockClock) -> None:
    """Handlers at work are cancelled, and what was finished is committed."""
    async with mill() as here:
        await here.send(*numbers(10))

        async def handle(record: ConsumerRecord) -> None:
            if record.offset >= 6:
                await trio.sleep_forever()

        async with here.running(handle, concurrency=2, commit_interval_ms=60_000):
            await until(lambda: len(here.begun) == 8)
        assert here.here.committed(0) == 6


# -- Groups ---------------------------------------------------------------------------------------


async def test_another_member_comes(autojump_clock: MockClock) -> None:
    """The first one has hundreds of records in hand, and one at work: the second gets its share
    once that one is finished, and no record is handled twice."""

    async def handle(record: ConsumerRecord) -> None:
        await trio.sleep(1)

    async with mill(2) as here:
        await here.send(*numbers(100))
        await here.send(*numbers(100, 100), partition=1)
        async with here.running(handle, concurrency=2):
            await until(lambda: len(here.handled) >= 10)
            before = trio.current_time()
            async with here.running(handle, "second", concurrency=2):
                await until(lambda: here.here.committed(1) == here.here.committed(0) == 100,
                            seconds=400)  # fmt: skip
        assert trio.current_time() - before < 70
        assert sorted(here.handled) == numbers(200)


async def test_a_rebalance_waits_for_no_pause(autojump_clock: MockClock) -> None:
    """A record whose next attempt is in an hour: its partition goes to the new member at once,
    which tries it anew."""
    fails = {"first"}
    policy = raftmq.RetryPolicy(backoff=raftmq.Exponential(3600), in_place=True)

    def handler(name: str) -> Any:
        async def handle(record: ConsumerRecord) -> None:
            if name in fails:
                raise OSError("not here")

        return handle

    async with mill(2) as here:
        await here.send(*numbers(10))
        await here.send(*numbers(10, 10), partition=1)
        async with here.running(handler("first"), "first", retry=policy):
            await until(lambda: len(here.begun) == 20)
            async with here.running(handler("second"), "second", retry=policy):
                await until(lambda: len(here.handled) == 10, seconds=9)


async def test_it_fails_while_another_member_comes(autojump_clock: MockClock) -> None:
    """An attempt that ends badly is over, too: the rebalance goes on in that moment."""

    async def handle(record: ConsumerRecord) -> None:
        await trio.sleep(6)
        raise OSError("not now")

    policy = raftmq.RetryPolicy(backoff=raftmq.Exponential(3600), in_place=True)
    async with mill(2) as here:
        await here.send("0")
        await here.send("1", partition=1)
        async with here.running(handle, "first", retry=policy, concurrency=2):
            await until(lambda: len(here.begun) == 2)
            async with here.running(pass_by, "second"):
                await until(lambda: here.handled, seconds=9)


async def test_a_rebalance_waits_for_no_commit_interval(autojump_clock: MockClock) -> None:
    """It goes on when the record at work is finished, however seldom commits are made."""

    async def handle(record: ConsumerRecord) -> None:
        await trio.sleep(0 if record.text() == "first" else 6)

    seldom = {"commit_interval_ms": 3_600_000}
    async with mill(2) as here:
        await here.send("first", "second")
        await here.send("third", partition=1)
        async with here.running(handle, "first", concurrency=2, **seldom):
            await until(lambda: len(here.begun) == 3)
            async with here.running(handle, "second", **seldom):
                await until(
                    lambda: here.here.committed(0) == 2 or here.here.committed(1) == 1, seconds=9
                )


async def test_a_dead_letter_comes_late(autojump_clock: MockClock) -> None:
    """What it is stored in refuses it and loses answers for a while: it is tried until it works,
    and the handler sees the record no more often for that."""
    async with mill() as here:
        await here.send(*numbers(10))
        for broker in here.here.world.brokers.values():
            broker.produces += [
                refused(ErrorCode.NOT_ENOUGH_REPLICAS),
                done_and_lost,
                refused(ErrorCode.KAFKA_STORAGE_ERROR),
            ]
        async with here.running(failing("004"), retry=THREE):
            await here.until_committed(10)
        assert here.begun.count("004") == 3
        assert set(here.letters()) == {("004", 3, "ValueError: 004")}


async def test_a_dead_letter_is_refused(autojump_clock: MockClock) -> None:
    """For good: the reason is raised, and the record comes again."""
    async with mill() as here:
        await here.send(*numbers(10))
        for broker in here.here.world.brokers.values():
            broker.produces += [refused(ErrorCode.MESSAGE_TOO_LARGE)]
        with pytest.raises(MessageTooLarge) as caught:
            await here.run(failing("004"), retry=THREE)
        assert "offset 4: not finished, after 3 attempts" in caught.value.__notes__[0]
        assert here.here.committed(0) == 4


async def test_a_long_pause_is_no_silence(autojump_clock: MockClock) -> None:
    """Neither minutes between attempts nor minutes of work is taken for a program that hangs,
    whether or not it has room for more."""
    lost: list[Any] = []
    slow = {"000"}

    async def handle(record: ConsumerRecord) -> None:
        if record.text() in slow:
            slow.clear()
            raise OSError("not now")
        if record.text() == "001":
            await trio.sleep(300)

    policy = raftmq.RetryPolicy(backoff=raftmq.Exponential(300), in_place=True)
    async with mill() as here:
        await here.send(*numbers(100))

        def note(rebalance: raftmq.Rebalance) -> None:
            lost.extend(rebalance.lost)

        options = {"max_poll_interval_ms": 10_000, "on_rebalance": note, "max_in_hand": 20}
        async with here.running(handle, retry=policy, concurrency=2, **options):
            await until(lambda: here.here.committed(0) == 100, seconds=900)
        assert sorted(here.handled) == numbers(100)
        assert lost == []


async def test_work_without_room_for_more(autojump_clock: MockClock) -> None:
    """All room is taken by records that take minutes: nothing is asked for, and that is no reason
    to be expelled, either."""
    lost: list[Any] = []

    async def handle(record: ConsumerRecord) -> None:
        await trio.sleep(60)

    def note(rebalance: raftmq.Rebalance) -> None:
        lost.extend(rebalance.lost)

    async with mill(3) as here:
        for partition in range(3):
            await here.send("a", "b", partition=partition)
        options = {"max_poll_interval_ms": 10_000, "on_rebalance": note, "max_in_hand": 2}
        async with here.running(handle, **options):
            await until(lambda: [here.here.committed(n) for n in range(3)] == [2] * 3, seconds=500)
        assert len(here.begun) == 6
        assert lost == []


async def test_lost_while_it_is_handled(autojump_clock: MockClock) -> None:
    """A member is cut off until its session ends: another one handles what it had in hand, too, and
    it begins nothing more of that. Its result does not count."""
    begun = defaultdict[str, list[str]](list)

    def handler(name: str) -> Any:
        async def handle(record: ConsumerRecord) -> None:
            begun[name].append(record.text())
            if name == "first" and record.offset == 3:
                here.here.world.network.isolate("first")
                cut_off.set()
            await trio.sleep(1)

        return handle

    cut_off = trio.Event()
    async with mill() as here:
        await here.send(*numbers(40))
        async with here.running(handler("first"), "first"):
            await cut_off.wait()
            async with here.running(handler("second"), "second"):
                await here.until_committed(40)
        assert begun["first"] == numbers(len(begun["first"]))
        assert 4 <= len(begun["first"]) <= 12
        assert begun["second"] == numbers(40)[int(begun["second"][0]) :]


# -- What is seen of it ---------------------------------------------------------------------------


async def test_a_failure_in_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of a record, and its last, with their tracebacks."""
    async with mill() as here:
        await here.send(*numbers(3))
        with caplog.at_level(logging.INFO):
            async with here.running(failing("001"), retry=THREE):
                await until(lambda: here.letters())
    told = [one for one in caplog.records if "record=orders-0, offset 1" in one.getMessage()]
    levels = [(one.levelname, bool(one.exc_info)) for one in told]
    assert levels == [("WARNING", True), ("INFO", False), ("WARNING", True)]
    assert told[-1].getMessage() == (
        "process: to the dead letters: group=billing record=orders-0, offset 1 attempts=3"
        " reason=ValueError('001')"
    )


async def test_a_failure_in_a_program_without_logging(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one of each process is printed."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: told.append(given))
    monkeypatch.setattr(logging.getLogger("raftmq"), "propagate", False)
    async with mill() as here:
        await here.send(*numbers(3))
        for _ in range(2):
            async with here.running(failing("000", "002"), retry=THREE):
                await trio.sleep(15)
        [(kind, error, traceback), _] = told
        assert (kind, str(error), traceback) == (ValueError, "000", error.__traceback__)
        [note] = error.__notes__
        assert note.startswith("orders-0, offset 0: failed, again in ")
        assert note.endswith("no other failure is printed: begin with logging.basicConfig()")


# -- Options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"commit": "manual"}, "commit = 'manual': process commits what is finished"),
        ({"delivery": "exactly_once"}, "see raftmq.exactly_once"),
        ({"assign": [("orders", 0)]}, "name topics"),
        ({"group": None}, "process needs a group"),
        ({"concurrency": 0}, "concurrency = 0: expected a whole number from 1"),
        ({"concurrency": 8, "max_in_hand": 15}, "from 16 to 1000000: twice `concurrency`"),
        ({"stop": 5}, "stop = 5: expected an event"),
    ],
)
async def test_what_is_refused(
    autojump_clock: MockClock, options: dict[str, Any], words: str
) -> None:
    async with mill() as here:
        with pytest.raises(InvalidConfig, match=words):
            await here.run(pass_by, **options)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (
            "concurency",
            r"^process: no option 'concurency' \(did you mean 'concurrency'\?\); .* are",
        ),
        ("max_inhand", "did you mean 'max_in_hand'"),
        ("fetch_minbytes", "did you mean 'fetch_min_bytes'"),
        ("colour", "no option 'colour'; the options are"),
    ],
)
async def test_an_unknown_option(autojump_clock: MockClock, option: str, words: str) -> None:
    """Of its own names, and those of its consumer that it takes."""
    async with mill() as here:
        with pytest.raises(TypeError, match=words) as caught:
            await here.run(pass_by, **{option: 4})
        assert "assign," not in str(caught.value)


async def test_handlers_that_would_do_nothing(autojump_clock: MockClock) -> None:
    """A function with `yield` makes a generator that nobody runs: its records would count as
    handled."""

    def generator(record: object) -> Iterator[object]:
        yield record

    async def asynchronous(record: object) -> AsyncIterator[object]:
        yield record

    async with mill() as here, here.client() as mq:
        for handler in (generator, asynchronous):
            with pytest.raises(InvalidConfig, match="has `yield`, so that calling it does nothing"):
                await mq.process("orders", group=GROUP, handler=handler)


async def test_its_own_dead_letters(autojump_clock: MockClock) -> None:
    """One that fails again would be read again, for ever."""
    async with mill() as here, here.client() as mq:
        with pytest.raises(InvalidConfig, match="read it in a group of its own"):
            await mq.process(DEAD, group=GROUP, handler=pass_by)


async def test_all_that_is_wrong_at_once(autojump_clock: MockClock) -> None:
    async with mill() as here, here.client() as mq:
        with pytest.raises(InvalidConfig) as caught:
            await mq.process("orders", handler=5, concurrency=True, retry=5, commit="none")  # type: ignore[arg-type]
        assert len(caught.value.problems) == 5
