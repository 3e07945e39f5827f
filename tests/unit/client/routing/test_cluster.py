"""The way in, fresh metadata, and what a cancelled caller leaves behind."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.client.routing.cluster import HEDGE_SECONDS, Cluster
from raftmq.errors import Closed, ErrorCode, InvalidConfig, InvalidRequest, RaftmqError, Unreachable
from raftmq.model import Address
from raftmq.wire.messages.metadata import Metadata, MetadataReply
from raftmq.wire.messages.produce import Produce
from tests.fetching import fetch
from tests.producing import produce
from tests.unit.client.world import Broker, World, batch, done_and_lost, lost, open_world, refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

    from tests.unit.client.world import Step

DATA = batch("a")


async def refresh(client: Cluster, topic: str | None = "t", seconds: float = 30) -> None:
    await client.refresh(topic, deadline=trio.current_time() + seconds)


async def test_nothing_is_dialled_before_the_first_question(autojump_clock: MockClock) -> None:
    """A client of a cluster that is down can be made; it fails when it is used."""
    async with open_world() as (world, _), world.client(Address("b1", 1)) as client:
        await trio.sleep(10)
        assert world.metadata_requests == 0
        with pytest.raises(Unreachable, match="b1:1: connect to b1:1: Connection refused"):
            await refresh(client)


def test_somebody_must_be_named() -> None:
    """Without an address there is no way in."""
    with pytest.raises(InvalidConfig, match="bootstrap"):
        Cluster([], None, random=Random(0))  # type: ignore[arg-type]


def test_a_name_that_no_broker_would_take() -> None:
    """Told where the client is made, and not by a connection that ends."""
    with pytest.raises(InvalidRequest):
        Cluster([Address("b1", 1)], None, random=Random(0), client_id="x" * 300)  # type: ignore[arg-type]


async def test_one_address_that_answers_is_enough(autojump_clock: MockClock) -> None:
    """The first refuses, the second is silent, the third is a broker: the rest is learned."""
    async with open_world() as (world, _):
        world.network.cut_both("client", "b2")
        silent, refusing = world.brokers[2].address, Address("b1", 1)
        async with world.client(refusing, silent, world.brokers[1].address) as client:
            assert await produce(client, "t", 0, DATA) == 0
            assert set(client.routes.addresses) == {1, 2}


async def test_a_silent_address_is_given_up(autojump_clock: MockClock) -> None:
    """Three seconds are enough to answer; then it is the turn of the next one."""
    async with open_world() as (world, _), world.client(Address("b1", 9000)) as client:
        world.network.cut_both("client", "b1")
        begin = trio.current_time()
        with pytest.raises(Unreachable, match="b1:9000: no answer within 3 s"):
            await refresh(client)
        assert trio.current_time() - begin == pytest.approx(3)


async def test_the_same_news_reads_the_same(autojump_clock: MockClock) -> None:
    """All brokers are dead: commands wait, and print each reason once, however often they ask."""
    addresses = [Address(f"b{number}", 1) for number in (1, 2)]
    async with open_world() as (world, _), world.client(*addresses) as client:
        told = set()
        for _ in range(10):
            with pytest.raises(Unreachable) as caught:
                await refresh(client)
            told.add(str(caught.value))
        assert len(told) == 1


async def test_a_known_broker_that_is_silent_is_not_waited_for(autojump_clock: MockClock) -> None:
    """Its process stands still: the other one is asked in a moment, and first from then on."""
    async with open_world() as (world, _), world.client() as client:
        await know_both(client)
        world.network.cut_both("client", "b1")
        assert await slow_refreshes(world, client) == [pytest.approx(HEDGE_SECONDS, abs=0.1)]
        world.network.heal()
        assert await slow_refreshes(world, client) == []


async def test_an_address_that_is_silent_is_not_waited_for(autojump_clock: MockClock) -> None:
    """The way in: of two brokers one stands still from the beginning."""
    async with open_world() as (world, _):
        world.network.cut_both("client", "b1")
        async with world.client() as client:
            begin = trio.current_time()
            await refresh(client)
            assert trio.current_time() - begin < HEDGE_SECONDS + 0.1


async def test_whoever_was_not_waited_for_costs_nothing(autojump_clock: MockClock) -> None:
    """A hundred questions while one broker is silent: as many tasks as before."""
    async with open_world() as (world, _), world.client() as client:
        await know_both(client)
        await wait_all_tasks_blocked()
        tasks = trio.lowlevel.current_statistics().tasks_living
        world.network.cut_both("client", "b1")
        for _ in range(5):
            await slow_refreshes(world, client)
        world.network.heal()
        await know_both(client)
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == tasks


async def know_both(client: Cluster) -> None:
    """There is a connection with either, and both have answered just now."""
    await refresh(client)
    for broker_id in (1, 2):
        await client.ask(broker_id, Metadata(()), deadline=trio.current_time() + 5)


async def slow_refreshes(world: World, client: Cluster) -> list[float]:
    """Of twenty, each of which brings news, those that took long."""
    seconds = []
    for _ in range(20):
        world.lead("t", 0, 1)
        begin = trio.current_time()
        await refresh(client)
        seconds.append(trio.current_time() - begin)
    return [each for each in seconds if each > 0.1]


async def test_an_address_that_was_given_to_another_cluster(autojump_clock: MockClock) -> None:
    """The client names its cluster once it knows it, and is refused by any other."""
    async with open_world(World(1)) as (world, nursery), world.client() as client:
        await produce(client, "t", 0, DATA)
        world.brokers[1].stop()
        await trio.sleep(1)
        stranger = Broker(world, 1, cluster_id="cluster-b")
        await nursery.start(stranger.run)
        with pytest.raises(Unreachable, match="'cluster-a' was asked for"):
            await produce(client, "t", 0, DATA, timeout_seconds=3)
        assert not stranger.asked


async def test_who_was_there_first_is_not_needed_any_more(autojump_clock: MockClock) -> None:
    """Once the brokers are known, those that are left say where the rest of them went."""
    async with open_world() as (world, _), world.client(Address("b1", 9000)) as client:
        await produce(client, "t", 0, DATA)
        world.brokers[1].stop()
        world.lead("t", 0, 2)
        await trio.sleep(1)
        assert await produce(client, "t", 0, DATA) == 1


async def test_all_brokers_have_moved(autojump_clock: MockClock) -> None:
    """None of the known ones answers: the addresses that the program was given count again."""
    async with (
        open_world(World(1)) as (world, nursery),
        world.client(Address("b9", 9000)) as client,
    ):
        door = Broker(world, 1)
        door.address = Address("b9", 9000)
        await nursery.start(door.run)
        await produce(client, "t", 0, DATA)
        old = world.brokers[1]
        old.stop()
        await trio.sleep(1)
        world.brokers[1] = door
        world.version += 1
        assert await produce(client, "t", 0, DATA) == 1
        assert (old.count(Produce), door.count(Produce)) == (1, 1)


async def test_a_broker_that_is_behind_is_not_the_last_one_asked(
    autojump_clock: MockClock,
) -> None:
    """It has heard less than the leader that refused has told: the next one is asked, too."""
    async with open_world() as (world, _), world.client() as client:
        await produce(client, "t", 0, DATA)
        world.brokers[2].behind = world.metadata(["t"])
        for _ in range(5):
            await client.ask(2, Metadata(()), deadline=trio.current_time() + 5)  # it may be first
            world.lead("t", 0, 1)
            begin = trio.current_time()
            await produce(client, "t", 0, DATA)
            assert trio.current_time() - begin < 0.1
            assert client.routes.version == client.newest_version == world.version
        assert world.brokers[1].count(Produce) == 11  # each was refused once
        assert 1 < world.brokers[2].count(Metadata) - 5 < 6


async def test_all_brokers_are_behind(autojump_clock: MockClock) -> None:
    """Whatever they say has to do, and changes nothing that is known."""
    async with open_world() as (world, _), world.client() as client:
        await refresh(client)
        behind = world.metadata(["t"])
        world.lead("t", 0, 2)
        await refresh(client)
        for broker in world.brokers.values():
            broker.behind = behind
        await refresh(client)
        assert client.routes.place("t", 0).leader == 2


async def test_a_broker_that_has_no_metadata_yet(autojump_clock: MockClock) -> None:
    """It has just started: the other one is asked; the error says that none has metadata."""
    async with open_world() as (world, _), world.client() as client:
        world.brokers[1].behind = MetadataReply(-1, "cluster-a")
        assert await produce(client, "t", 0, DATA) == 0
        world.brokers[2].behind = world.brokers[1].behind
        with pytest.raises(Unreachable, match=r"^no broker has metadata yet: .* has not begun"):
            await refresh(client)


@pytest.mark.parametrize("is_newer", [False, True])
async def test_a_failure_asks_for_metadata_if_there_is_newer(
    autojump_clock: MockClock, is_newer: bool
) -> None:
    """An error that says nothing of metadata, in an answer that knows more of it than we do."""
    async with open_world() as (world, _), world.client() as client:
        await produce(client, "t", 0, DATA)
        world.version += is_newer
        world.brokers[1].produces = [refused(ErrorCode.NOT_ENOUGH_REPLICAS)]
        await produce(client, "t", 0, DATA)
        assert world.metadata_requests == 1 + is_newer


async def test_questions_without_news_become_rare(autojump_clock: MockClock) -> None:
    """A hundred tasks ask for ten seconds for a topic that is not there."""
    async with open_world() as (world, _), world.client() as client:

        async def ask() -> None:
            with pytest.raises(RaftmqError):
                await fetch(client, "u", 0, 0, timeout_seconds=10)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(ask)
        assert 10 < world.metadata_requests < 40


async def test_after_news_the_next_question_is_asked_at_once(autojump_clock: MockClock) -> None:
    """A topic is long in coming, which makes questions rare; the one after that is not."""
    async with open_world() as (world, _), world.client() as client:
        for _ in range(8):
            await refresh(client, "u")
        world.add_topic("u", 1)
        await refresh(client, "u")
        begin = trio.current_time()
        for _ in range(2):
            await refresh(client, "u")
        assert trio.current_time() - begin < 0.1


async def test_one_question_under_way(autojump_clock: MockClock) -> None:
    """A hundred ask at once for two topics: one question for the first, one for all that follow."""
    async with open_world() as (world, _), world.client() as client:
        world.add_topic("u", 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh, client)
            await wait_all_tasks_blocked()
            for number in range(100):
                nursery.start_soon(refresh, client, "tu"[number % 2])
        assert world.metadata_requests == 2
        asked = [body for broker in world.brokers.values() for body in broker.asked]
        names = sorted(body.topics for body in asked if isinstance(body, Metadata) and body.topics)
        assert names == [("t",), ("u",)]


async def test_whoever_waits_when_the_client_is_closed_is_told(autojump_clock: MockClock) -> None:
    """And whoever asks afterwards; nobody waits for ever."""
    problems: list[str] = []

    async def ask(client: Cluster, topic: str) -> None:
        try:
            await refresh(client, topic)
        except (Unreachable, Closed) as error:
            problems.append(str(error))

    async with open_world() as (world, nursery):
        async with world.client() as client:
            world.network.cut_both("client", "b1")
            world.network.cut_both("client", "b2")
            nursery.start_soon(ask, client, "t")
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, client, "u")
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        await ask(client, "t")
    assert problems[:2] == ["the client is closed"] * 2
    assert problems[2].startswith("the client has been closed")


async def test_an_error_of_the_program_stays_what_it_is(autojump_clock: MockClock) -> None:
    """It leaves the client as it was raised, not in a group."""

    async def fail(world: World) -> None:
        async with world.client() as client:
            await produce(client, "t", 0, DATA)
            raise ZeroDivisionError

    async with open_world() as (world, _):
        with pytest.raises(ZeroDivisionError):
            await fail(world)


class _CancelAt(trio.abc.Instrument):
    """Cancels `scope` after a number of steps of one task."""

    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, steps: int) -> None:
        self._task, self._scope, self._steps = task, scope, steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._steps -= 1
            if self._steps == 0:
                self._scope.cancel()


async def _is_cancelled(operation: Callable[[], Awaitable[object]], *, steps: int) -> bool:
    """Whether it took so many steps at all; 0: it is left alone."""
    with trio.CancelScope() as scope:
        instrument = _CancelAt(trio.lowlevel.current_task(), scope, steps)
        trio.lowlevel.add_instrument(instrument)
        try:
            await operation()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


@pytest.mark.parametrize("trouble", [[], [lost], [done_and_lost]])
@pytest.mark.parametrize("is_warm", [False, True])
async def test_a_cancelled_caller_leaves_nothing_behind(
    autojump_clock: MockClock, is_warm: bool, trouble: list[Step]
) -> None:
    """Cancelled at every await of a produce; the first one, or one whose leader has changed.

    The batch stands there as often as it was sent, the next one passes, and then there are as
    many tasks as if nobody had cancelled anything.
    """
    _, expected = await _left_by(trouble, is_warm=is_warm, steps=0)
    for steps in range(1, 100):
        is_cancelled, tasks = await _left_by(trouble, is_warm=is_warm, steps=steps)
        assert tasks == expected, f"cancelled after {steps} steps"
        if not is_cancelled:
            break
    assert 3 < steps < 99


async def _left_by(trouble: list[Step], *, is_warm: bool, steps: int) -> tuple[bool, int]:
    """Whether it was cancelled, and how many tasks there are in the end."""
    async with open_world() as (world, _), world.client() as client:
        if is_warm:
            await produce(client, "t", 0, DATA)
            world.lead("t", 0, 2)
        leader = world.brokers[2 if is_warm else 1]
        leader.produces = list(trouble)
        operation = partial(produce, client, "t", 0, DATA, retries_unknown=True)
        is_cancelled = await _is_cancelled(operation, steps=steps)
        await trio.sleep(5)  # what is on its way arrives
        leader.produces = []
        lost_count = (lost in trouble) and leader.count(Produce) > 0
        appended = leader.count(Produce) - lost_count + is_warm
        assert await produce(client, "t", 0, DATA) == appended
        for broker_id in world.brokers:  # so that there are as many connections each time
            await client.ask(broker_id, Metadata(()), deadline=trio.current_time() + 5)
        await trio.sleep(5)
        await wait_all_tasks_blocked()
        return is_cancelled, trio.lowlevel.current_statistics().tasks_living
