"""The way to the controller: here, elsewhere, nowhere, and somebody else in the middle of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import (
    BrokerIdNotRegistered,
    ErrorCode,
    InvalidCommand,
    NotController,
    ProposalUncertain,
    QuorumBusy,
    StaleBrokerEpoch,
    Unreachable,
)
from raftmq.metadata.commands import (
    BrokerRegistered,
    CommandId,
    CreateTopic,
    Done,
    Refused,
    RegisterBroker,
    UnfenceBroker,
)
from raftmq.metadata.liveness import BrokerContact
from raftmq.metadata.quorum import PROPOSE_SECONDS_MAX
from tests.unit.broker.nodes import open_world

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from trio.testing import MockClock

    from tests.unit.broker.nodes import World

REGISTER = RegisterBroker(2, b"i" * 16, b"d" * 16)
TOPIC = CreateTopic(b"t" * 16, "orders", ((2,),))


def three() -> AbstractAsyncContextManager[World]:
    return open_world(3)


def applied(world: World) -> int:
    return len(world.cluster.log)


async def connect(world: World) -> int:
    """2 to 1, so that what follows is about the request alone. The epoch of broker 2."""
    await world.start(with_lifetime=False, with_office=False)
    result = await world.nodes[2].link.propose(REGISTER)
    assert isinstance(result, BrokerRegistered)
    await world.cluster.leader.propose(UnfenceBroker(2, result.broker_epoch))
    return result.broker_epoch


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_command_finds_the_leader(autojump_clock: MockClock, node_id: int) -> None:
    """Proposed on the leader and on another node: the results are those of the leader."""
    async with three() as world:
        await world.start(with_lifetime=False, with_office=False)
        link, epoch = world.nodes[node_id].link, world.cluster.index + 1
        command = RegisterBroker(node_id, b"i" * 16, b"d" * 16)
        assert await link.propose(command) == BrokerRegistered(epoch)
        topic = CreateTopic(b"t" * 16, "orders", ((7,),))
        refused = await link.propose(topic)
        assert isinstance(refused, Refused)
        assert refused.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_nobody_leads_for_a_while(autojump_clock: MockClock) -> None:
    """The proposal waits for the election, and takes no longer than that."""
    async with three() as world:
        await connect(world)
        world.cluster.depose()

        async def elect() -> None:
            await trio.sleep(2)
            world.cluster.elect(3)

        world.nursery.start_soon(elect)
        before = trio.current_time()
        assert await world.nodes[2].link.propose(TOPIC) == Done()
        assert trio.current_time() - before < 2.2


async def test_nobody_leads_for_too_long(autojump_clock: MockClock) -> None:
    """The error is definite, and comes when the time is over."""
    async with three() as world:
        await connect(world)
        world.cluster.depose()
        before = trio.current_time()
        with pytest.raises(NotController, match="node 2 has heard of no leader"):
            await world.nodes[2].link.propose(TOPIC, timeout=3.0)
        assert trio.current_time() - before == pytest.approx(3.0)


async def test_the_leader_is_not_reachable(autojump_clock: MockClock) -> None:
    """Its process is gone and nobody else is elected: definite, as it was never sent."""
    async with three() as world:
        await world.start(2, 3, with_lifetime=False, with_office=False)
        with pytest.raises(Unreachable):
            await world.nodes[2].link.propose(TOPIC, timeout=3.0)
        assert applied(world) == 0


async def test_a_leader_without_power_is_not_waited_for(autojump_clock: MockClock) -> None:
    """Dialling it takes long; as soon as another leads the command goes there."""
    async with three() as world:
        await world.start(with_lifetime=False, with_office=False)
        world.nodes[1].kill(power_lost=True)

        async def elect() -> None:
            await trio.sleep(1)
            world.cluster.elect(3)

        world.nursery.start_soon(elect)
        before = trio.current_time()
        assert isinstance(await world.nodes[2].link.propose(REGISTER), BrokerRegistered)
        assert trio.current_time() - before < 1.5
        assert applied(world) == 1


async def test_a_new_leader_answers_what_the_old_one_did_not_take(
    autojump_clock: MockClock,
) -> None:
    """Overwritten in the log: that is definite, so the command is proposed again."""
    async with three() as world:
        await connect(world)
        world.cluster.delay_seconds = 1.0

        async def elect() -> None:
            await trio.sleep(0.5)
            world.cluster.elect(3, keep_pending=False)

        world.nursery.start_soon(elect)
        assert await world.nodes[2].link.propose(TOPIC) == Done()
        assert applied(world) == 3


async def test_what_may_have_been_taken_is_not_proposed_again(autojump_clock: MockClock) -> None:
    """The leader falls while the command is on its way: only reading tells what became of it."""
    async with three() as world:
        await connect(world)
        world.cluster.delay_seconds = 1.0

        async def elect() -> None:
            await trio.sleep(0.5)
            world.cluster.elect(3)

        world.nursery.start_soon(elect)
        with pytest.raises(ProposalUncertain):
            await world.nodes[2].link.propose(TOPIC)
        await trio.sleep(5)
        assert applied(world) == 3


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_lost_answer_is_uncertain(autojump_clock: MockClock, node_id: int) -> None:
    """Here and elsewhere alike."""
    async with three() as world:
        await connect(world)
        world.cluster.lose_answers(1)
        with pytest.raises(ProposalUncertain):
            await world.nodes[node_id].link.propose(TOPIC)
        assert applied(world) == 3


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_command_id_makes_it_certain(autojump_clock: MockClock, node_id: int) -> None:
    """Two answers are lost: it is proposed again, and was applied once."""
    async with three() as world:
        epoch = await connect(world)
        if node_id == 1:
            result = await world.nodes[1].link.propose(RegisterBroker(1, b"i" * 16, b"d" * 16))
            assert isinstance(result, BrokerRegistered)
            epoch = result.broker_epoch
        before = applied(world)
        world.cluster.lose_answers(2)
        link, command_id = world.nodes[node_id].link, CommandId(node_id, epoch, 1)
        assert await link.propose(TOPIC, command_id=command_id) == Done()
        assert applied(world) == before + 3


async def test_an_uncertain_command_stays_so(autojump_clock: MockClock) -> None:
    """Its answer is lost, then nobody leads: the last error is definite, the outcome is not."""
    async with three() as world:
        await connect(world)
        world.cluster.lose_answers(1)

        async def depose() -> None:
            await trio.sleep(0.02)
            world.cluster.depose()

        world.nursery.start_soon(depose)
        with pytest.raises(ProposalUncertain, match="no leader in time"):
            await world.nodes[1].link.propose(TOPIC, command_id=CommandId(1, 5, 1), timeout=2.0)


async def test_a_broken_connection_leaves_it_unknown(autojump_clock: MockClock) -> None:
    """The leader's process is killed while it works on the command."""
    async with three() as world:
        await connect(world)
        world.cluster.delay_seconds = 1.0

        async def kill() -> None:
            await trio.sleep(0.5)
            world.nodes[1].kill()

        world.nursery.start_soon(kill)
        before = trio.current_time()
        with pytest.raises(ProposalUncertain, match="CreateTopic"):
            await world.nodes[2].link.propose(TOPIC)
        assert trio.current_time() - before < 1


async def test_a_silent_leader_is_given_up_once_another_leads(autojump_clock: MockClock) -> None:
    """The connection is cut, and nobody says so: the new leader is reason enough."""
    async with three() as world:
        await connect(world)
        world.network.isolate("n1")

        async def elect() -> None:
            await trio.sleep(1)
            world.cluster.elect(3)

        world.nursery.start_soon(elect)
        before = trio.current_time()
        with pytest.raises(ProposalUncertain, match="node 1 leads no more"):
            await world.nodes[2].link.propose(TOPIC)
        assert trio.current_time() - before == pytest.approx(2.0, abs=0.1)


async def test_a_silent_leader_that_leads_on_takes_all_the_time(autojump_clock: MockClock) -> None:
    """Cut off, and nobody is elected."""
    async with three() as world:
        await connect(world)
        world.network.isolate("n1")
        before = trio.current_time()
        with pytest.raises(ProposalUncertain):
            await world.nodes[2].link.propose(TOPIC)
        assert trio.current_time() - before == pytest.approx(PROPOSE_SECONDS_MAX, abs=0.1)


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_busy_quorum_is_asked_again(autojump_clock: MockClock, node_id: int) -> None:
    """Refused for the moment: definite, and not for long."""
    async with three() as world:
        await connect(world)
        world.cluster.proposals_max = 0

        async def relax() -> None:
            await trio.sleep(1)
            world.cluster.proposals_max = 10

        world.nursery.start_soon(relax)
        assert await world.nodes[node_id].link.propose(TOPIC) == Done()


async def test_a_quorum_that_stays_busy_says_so(autojump_clock: MockClock) -> None:
    """Whoever asked learns what the matter was, and that nothing was done."""
    async with three() as world:
        await connect(world)
        world.cluster.proposals_max = 0
        with pytest.raises(QuorumBusy):
            await world.nodes[2].link.propose(TOPIC, timeout=1.0)


async def test_what_no_leader_would_take_is_not_repeated(autojump_clock: MockClock) -> None:
    """A command over the limit: at once, and definite."""
    async with three() as world:
        await connect(world)
        large = CreateTopic(b"t" * 16, "x" * (2 << 20), ((2,),))
        before = trio.current_time()
        for node_id in (1, 2):
            with pytest.raises(InvalidCommand):
                await world.nodes[node_id].link.propose(large)
        assert trio.current_time() == before


# Heartbeats


@pytest.mark.parametrize("node_id", [1, 2])
async def test_a_heartbeat_finds_the_controller(autojump_clock: MockClock, node_id: int) -> None:
    """Here and elsewhere: the registered epoch is heard, another one and a stranger's are not."""
    async with three() as world:
        await world.start(with_lifetime=False)
        link = world.nodes[node_id].link
        with pytest.raises(BrokerIdNotRegistered):
            await link.heartbeat(BrokerContact(node_id, 0, 0))
        command = RegisterBroker(node_id, b"i" * 16, b"d" * 16)
        registered = await link.propose(command)
        assert isinstance(registered, BrokerRegistered)
        epoch = registered.broker_epoch
        reply = await link.heartbeat(BrokerContact(node_id, epoch, epoch))
        assert (reply.is_fenced, reply.may_shut_down) == (True, False)
        await trio.sleep(0.3)
        assert not (await link.heartbeat(BrokerContact(node_id, epoch, epoch))).is_fenced
        with pytest.raises(StaleBrokerEpoch):
            await link.heartbeat(BrokerContact(node_id, epoch - 1, 0))


async def test_a_heartbeat_is_sent_once(autojump_clock: MockClock) -> None:
    """Nobody leads: the next beat will tell more than this one repeated."""
    async with three() as world:
        await connect(world)
        world.cluster.depose()
        with pytest.raises(NotController):
            await world.nodes[2].link.heartbeat(BrokerContact(2, 2, 2), timeout=1.0)


# Read barriers


@pytest.mark.parametrize("node_id", [1, 2])
async def test_how_much_there_is_to_know(autojump_clock: MockClock, node_id: int) -> None:
    """Asked on the leader and on a node that has not heard of the last command yet."""
    async with three() as world:
        await connect(world)
        world.cluster.follow_seconds = 1.0
        await world.cluster.leader.propose(TOPIC)
        version = world.image.version
        assert await world.nodes[node_id].link.read_barrier() == version
        assert world.nodes[2].quorum.image.version < version


async def test_a_read_barrier_waits_for_an_election(autojump_clock: MockClock) -> None:
    """Nobody leads, and then node 3: it is node 3 that answers."""
    async with three() as world:
        await connect(world)
        world.cluster.depose()

        async def elect() -> None:
            await trio.sleep(2)
            world.cluster.elect(3)

        world.nursery.start_soon(elect)
        before = trio.current_time()
        assert await world.nodes[2].link.read_barrier() == world.image.version
        assert trio.current_time() - before < 2.2


async def test_a_leader_that_nobody_confirms_tells_nothing(autojump_clock: MockClock) -> None:
    """Node 1 is cut off from the others and thinks that it leads: what it knows may be old."""
    async with three() as world:
        await connect(world)
        world.cluster.isolate(1)
        with pytest.raises(NotController, match="not confirmed"):
            await world.nodes[1].link.read_barrier(timeout=0.5)
