"""What a producer does when brokers fail, and who is told of what."""

from __future__ import annotations

import logging
import sys
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from raftmq.client.producer.statistics import REMEMBERED_MAX, Failures
from raftmq.errors import (
    Closed,
    DeliveryTimedOut,
    ErrorCode,
    InvalidTimestamp,
    MessageTooLarge,
    NotEnoughReplicas,
    OutcomeUnknown,
    RaftmqError,
)
from tests.unit.client.producer.shell import (
    dispatcher_of,
    in_log,
    open_producer,
    open_stage,
    requests,
    used_bytes,
)
from tests.unit.client.world import World, done_and_lost, done_but, limited, lost, refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.world import Step

TOO_LARGE = refused(ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize(
    ("step", "copies"),
    [
        (refused(ErrorCode.NOT_ENOUGH_REPLICAS), 1),
        (refused(ErrorCode.NOT_LEADER_OR_FOLLOWER), 1),
        (done_but(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND), 2),
        (lost, 1),
        (done_and_lost, 2),
    ],
)
@pytest.mark.parametrize("idempotence", [True, False])
async def test_sent_again(
    autojump_clock: MockClock, step: Step, copies: int, *, idempotence: bool
) -> None:
    """Until it succeeds; it is twice in the log only where the first outcome was unknown, and
    batches have no numbers.
    """
    copies = 1 if idempotence else copies
    async with open_producer(idempotence=idempotence) as (world, producer):
        await producer.send("t", b"dials")
        world.brokers[1].produces += [step]
        delivery = producer.send_nowait("t", b"x")
        [result] = await producer.send_many("t", [b"y"])
        assert (await delivery).offset == 1 + 2 * (copies - 1)
        assert in_log(world)[1:] == ["x", "y"] * copies
        assert result.is_repeated or copies == 1
        assert producer.statistics.repeated_records == (2 if result.is_repeated else 0)


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_a_leader_that_is_gone(autojump_clock: MockClock, acks: Any) -> None:
    """Another one leads three seconds later: all arrive, in order, none twice."""
    async with open_producer(acks=acks) as (world, producer):
        await producer.send("t", b"first")
        await trio.sleep(0.1)
        world.brokers[1].stop()
        await trio.sleep(0.1)
        for number in range(5):
            producer.send_nowait("t", b"%d" % number)
            await trio.sleep(0.5)
        world.lead("t", 0, 2)
        begin = trio.current_time()
        await producer.flush()
        assert trio.current_time() - begin < 3
        await trio.sleep(0.1)
        assert in_log(world) == ["first", *"01234"]


async def test_never_accepted(autojump_clock: MockClock) -> None:
    """Nobody has listened until the time was over: certainly nowhere."""
    async with open_producer(delivery_timeout_ms=3000) as (world, producer):
        world.brokers[1].stop()
        begin = trio.current_time()
        with pytest.raises(DeliveryTimedOut) as caught:
            await producer.send("t", b"x")
        assert 3 <= trio.current_time() - begin < 3.5
        assert caught.value.definite
        assert (caught.value.topic, caught.value.partition) == ("t", 0)
        assert not in_log(world)


@pytest.mark.parametrize("step", [silent, done_and_lost])
async def test_perhaps_accepted(autojump_clock: MockClock, step: Step) -> None:
    """After an attempt of unknown outcome nobody can say more."""
    async with open_producer(delivery_timeout_ms=3000) as (world, producer):
        world.brokers[1].produces += [step, *[silent] * 9]
        begin = trio.current_time()
        with pytest.raises(OutcomeUnknown) as caught:
            await producer.send("t", b"x")
        assert 3 <= trio.current_time() - begin < 3.5
        assert not caught.value.definite
        assert isinstance(caught.value.__cause__, DeliveryTimedOut)


async def test_a_late_answer_changes_nothing(autojump_clock: MockClock) -> None:
    """Old and new records share a request: the old ones are told in time nevertheless."""

    async def slow(turn: Any) -> Any:
        await trio.sleep(5)
        return turn.carry_out()

    async with open_producer(
        delivery_timeout_ms=6000, retry_backoff_ms=2500, retry_backoff_max_ms=2500
    ) as (world, producer):
        world.brokers[1].produces += [refused(ErrorCode.NOT_ENOUGH_REPLICAS), slow]
        old = producer.send_nowait("t", b"old")
        await trio.sleep(2)
        new = producer.send_nowait("t", b"new")
        with pytest.raises(OutcomeUnknown):
            await old
        assert trio.current_time() == pytest.approx(6, abs=0.1)
        assert (await new).offset == 1
        assert in_log(world) == ["old", "new"]
        assert used_bytes(producer) == 0


async def test_at_most_once_is_never_twice(autojump_clock: MockClock) -> None:
    """With acks=0: connections break, leaders move; what arrives, arrives once and in order.

    A4.8.
    """
    world = World(2)
    async with open_producer(world, acks=0, delivery_timeout_ms=20_000) as (_, producer):
        for number in range(60):
            producer.send_nowait("t", b"%d" % number)
            if number % 10 == 5:
                world.brokers[1 + number % 2].hang_up()
            if number % 20 == 19:
                world.lead("t", 0, 1 + number % 2)
            await trio.sleep(0.1)
    await trio.sleep(1)
    arrived = [int(value) for value in in_log(world)]
    assert arrived == sorted(set(arrived))
    assert len(arrived) > 20


# -- who is told ---------------------------------------------------------------------------


async def test_flush_tells_what_nobody_knows(autojump_clock: MockClock) -> None:
    """The first failure, once, with how many there were."""
    async with open_producer(linger_ms=1, batch_size=1) as (world, producer):
        world.brokers[1].produces += [TOO_LARGE] * 3
        for _ in range(3):
            producer.send_nowait("t", b"x")
            await trio.sleep(0.1)
        with pytest.raises(MessageTooLarge) as caught:
            await producer.flush()
        assert caught.value.__notes__ == [
            "3 records or more ended so, and no other call has reported it"
        ]
        await producer.flush()


async def test_leaving_tells_what_nobody_knows(autojump_clock: MockClock) -> None:
    """The error itself, and no group of one."""
    async with open_stage() as stage:
        stage.world.brokers[1].produces += [TOO_LARGE]
        caught = None
        try:
            async with stage.client.producer() as producer:
                producer.send_nowait("t", b"x")
        except MessageTooLarge as error:
            caught = error
        assert caught is not None


async def test_of_a_batch_in_pieces_only_what_failed_is_told(autojump_clock: MockClock) -> None:
    """Others were delivered; and whoever has asked about a record knows of it."""
    async with open_producer(linger_ms=1000) as (world, producer):
        world.brokers[1].produces += [limited(ErrorCode.INVALID_TIMESTAMP, 2000)]
        deliveries = [
            producer.send_nowait("t", b"x", timestamp=3000 if number in {4, 7} else 1000)
            for number in range(20)
        ]
        await trio.sleep(5)
        with pytest.raises(InvalidTimestamp):
            deliveries[4].result()
        with pytest.raises(InvalidTimestamp) as caught:
            await producer.flush()
        assert caught.value.__notes__[-1].startswith("1 record or more")
        assert len(in_log(world)) == 18


@pytest.mark.parametrize("how", ["await", "result", "call back", "before"])
async def test_flush_is_silent_about_what_is_known(autojump_clock: MockClock, how: str) -> None:
    """Somebody awaits it now or has asked before, or is called back."""
    async with open_producer() as (world, producer), trio.open_nursery() as tasks:
        world.brokers[1].produces += [TOO_LARGE]
        told: list[Any] = []

        async def wait() -> None:
            with pytest.raises(MessageTooLarge):
                await delivery

        if how == "call back":
            producer.send_nowait("t", b"x", on_delivery=lambda *given: told.append(given))
        else:
            delivery = producer.send_nowait("t", b"x")
        if how == "await":
            tasks.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.0001)
        if how in {"result", "before"}:
            await trio.sleep(1)
            assert delivery.is_done
            if how == "before":
                await wait()
            else:
                with pytest.raises(MessageTooLarge):
                    delivery.result()
        await producer.flush()
        if how == "call back":
            [(error, metadata)] = told
            assert isinstance(error, MessageTooLarge)
            assert metadata is None


async def test_a_wait_that_was_cancelled_knows_nothing(autojump_clock: MockClock) -> None:
    """So flush tells; of two who waited the other one was told."""
    async with open_producer(request_timeout_ms=5000) as (world, producer):

        async def slow(turn: Any) -> Any:
            await trio.sleep(3)
            return turn.refuse(ErrorCode.MESSAGE_TOO_LARGE)

        world.brokers[1].produces += [slow]
        with trio.move_on_after(1):
            await producer.send("t", b"x")
        with pytest.raises(MessageTooLarge):
            await producer.flush()
        world.brokers[1].produces += [slow]
        delivery = producer.send_nowait("t", b"x")
        async with trio.open_nursery() as tasks:

            async def wait() -> None:
                with pytest.raises(MessageTooLarge):
                    await delivery

            tasks.start_soon(wait)
            with trio.move_on_after(1):
                await delivery
            await producer.flush()


async def test_each_who_awaits_gets_an_error_of_his_own(autojump_clock: MockClock) -> None:
    """Tracebacks and notes of one are not those of another."""
    async with open_producer() as (world, producer):
        world.brokers[1].produces += [TOO_LARGE]
        deliveries = [producer.send_nowait("t", b"x") for _ in range(2)]
        errors = []
        for delivery in [*deliveries, deliveries[0]]:
            with pytest.raises(MessageTooLarge) as caught:
                await delivery
            caught.value.add_note("mine")
            errors.append(caught.value)
        assert len(set(map(id, errors))) == 3
        assert all(error.__notes__ == ["mine"] for error in errors)


async def test_callbacks(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """One that fails is logged and harms nobody; one may send again, even into a full buffer."""
    async with open_producer() as (world, producer):
        told: list[Any] = []

        def fail(*_given: object) -> None:
            raise KeyError("mine")

        def again(error: RaftmqError | None, metadata: Any) -> None:
            told.append(metadata.offset)
            if len(told) < 3:
                producer.send_nowait("t", b"again", on_delivery=again)

        producer.send_nowait("t", b"1", on_delivery=fail)
        await producer.enqueue("t", b"2", on_delivery=again)
        with caplog.at_level(logging.ERROR):
            await trio.sleep(1)
        assert "on_delivery has failed" in caplog.text
        assert told == [1, 2, 3]
        assert in_log(world) == ["1", "2", "again", "again"]


async def test_a_callback_that_fails_in_a_program_without_logging(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is printed, as that of a thread is; nothing would be seen of it otherwise."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: told.append(given))
    monkeypatch.setattr(logging.getLogger("raftmq"), "propagate", False)

    def fail(*_given: object) -> None:
        raise KeyError("mine")

    async with open_producer() as (_, producer):
        await producer.enqueue("t", b"1", on_delivery=fail)
        await producer.enqueue("nope", b"1", on_delivery=fail)
        await producer.send("t", b"2")
    for kind, error, traceback in told:
        assert (kind, traceback) == (KeyError, error.__traceback__)
        assert error.__notes__ == ["raised by on_delivery; the producer goes on"]
    assert len(told) == 2


async def test_a_callback_of_a_topic_that_there_is_not(autojump_clock: MockClock) -> None:
    """Told once, and flush is silent."""
    async with open_producer() as (_, producer):
        told: list[Any] = []
        producer.send_nowait("nope", b"x", on_delivery=lambda *given: told.append(given))
        await producer.flush()
        [(error, metadata)] = told
        assert error.topic == "nope"
        assert metadata is None
        producer.send_nowait("nope", b"x")
        with pytest.raises(type(error)):
            await producer.flush()


def test_failures_that_are_known_make_room() -> None:
    """However many there were of which somebody knows, the one that nobody knows is told."""
    failures = Failures()
    for _ in range(3 * REMEMBERED_MAX):
        failures.add(NotEnoughReplicas("known"), lambda: 0)
    failures.add(Closed("unknown"), lambda: 1)
    with pytest.raises(Closed):
        failures.raise_first()
    failures.raise_first()


def test_many_failures_cost_little_each() -> None:
    """Nobody asks about any of twenty thousand: nobody looks again and again who has."""
    failures, looks = Failures(), count()
    for number in range(20 * REMEMBERED_MAX):
        failures.add(NotEnoughReplicas(str(number)), lambda: next(looks) >= 0)
    assert next(looks) < 3 * 20 * REMEMBERED_MAX
    assert len(failures._failures) < 3 * REMEMBERED_MAX
    with pytest.raises(NotEnoughReplicas) as caught:
        failures.raise_first()
    assert caught.value.args == ("0",)


async def test_a_defect_of_the_producer_is_told(autojump_clock: MockClock) -> None:
    """An assertion in one of its tasks ends the block with that error, and nobody hangs."""
    async with open_stage() as stage:

        def fail(*_arguments: object, **_named: object) -> None:
            raise AssertionError("broken")

        caught = None
        try:
            async with stage.client.producer() as producer:
                dispatcher_of(producer)._sending.step = fail  # type: ignore[method-assign, assignment]
                await producer.send("t", b"x")
        except AssertionError as error:
            caught = error
        assert str(caught) == "broken"
        assert used_bytes(producer) == 0
        assert len(requests(stage.world)) == 0


@pytest.mark.parametrize("acks", ["all", 1])
async def test_a_leader_that_waits(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, acks: Any
) -> None:
    """A leader does not answer, as its followers are down: once a request may not take longer, one
    warning for each time that the partition fails; with acks=all it names the likely reason, as
    the error does."""
    options = {"acks": acks, "request_timeout_ms": 1000, "delivery_timeout_ms": 5000}
    async with open_producer(**options) as (world, producer):
        for _ in range(2):
            world.brokers[1].produces += [silent] * 9
            with pytest.raises(OutcomeUnknown) as caught:
                await producer.send("t", b"x")
            world.brokers[1].produces.clear()
            await producer.send("t", b"y")
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(said) == 2
    assert "topic=t partition=0 seconds=1 reason=" in said[0]
    for text in (*said, str(caught.value)):
        assert ("most likely it waits for replicas" in text) is (acks == "all")
