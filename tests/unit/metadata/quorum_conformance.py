"""The promises of `MetadataQuorum` as scenarios, for every implementation there is.

A test module runs each of SCENARIOS on a cluster of its own, through a `Harness` for its
implementation, with `autojump_clock`. Scenarios use nothing but the two protocols, and hold for
whatever is slow or quick, certain or uncertain, within the promises. They expect three nodes or
more, and metadata without brokers at the start. Here stands what becomes of a proposal;
`quorum_views` has the rest.
"""

from __future__ import annotations

import re
from itertools import count
from math import nan
from typing import Any

import pytest
import trio

from raftmq.errors import (
    ErrorCode,
    InvalidCommand,
    NotController,
    ProposalDiscarded,
    ProposalUncertain,
)
from raftmq.metadata.commands import (
    CommandId,
    CreateTopic,
    FenceBroker,
    OffsetsCommitted,
    ProducerIdBlock,
    Refused,
    encode_command,
)
from raftmq.wire.messages.cluster import COMMAND_BYTES_MAX
from tests.unit.metadata.quorum_harness import (
    BROKER,
    Harness,
    Scenario,
    allocation,
    collect_into,
    coordinate,
    large_commit,
    node_id_of,
    others,
    propose_until_certain,
    register,
    wait_version,
)
from tests.unit.metadata.quorum_views import VIEW_SCENARIOS

SCENARIOS: list[Scenario] = [*VIEW_SCENARIOS]
scenario = collect_into(SCENARIOS)


# Results


@scenario
async def a_result_is_what_applying_answered(cluster: Harness) -> None:
    """A broker registers: its epoch is the version, and the image that follows holds it."""
    leader = await cluster.leader()
    before = leader.image.version
    epoch = await register(cluster)
    assert epoch > before
    assert leader.image.version >= epoch
    assert leader.image.brokers[BROKER].broker_epoch == epoch


@scenario
async def a_refusal_is_a_result(cluster: Harness) -> None:
    """A broker that is not there cannot be fenced: nothing raises, nothing changes."""
    leader = await cluster.leader()
    result = await leader.propose(FenceBroker(BROKER, 1))
    assert isinstance(result, Refused)
    assert result.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert not leader.image.brokers


@scenario
async def proposals_at_the_same_time_get_their_own_results(cluster: Harness) -> None:
    """Twenty tasks allocate 1 to 20 ids: each gets as many as it asked for, none twice."""
    epoch, leader = await register(cluster), await cluster.leader()
    given: dict[int, object] = {}

    async def allocate(ids: int) -> None:
        given[ids] = await leader.propose(allocation(epoch, ids=ids))

    async with trio.open_nursery() as nursery:
        for ids in range(1, 21):
            nursery.start_soon(allocate, ids)
    taken: set[int] = set()
    for ids, result in given.items():
        assert isinstance(result, ProducerIdBlock)
        assert result.count == ids
        taken.update(range(result.first, result.first + ids))
    assert len(taken) == sum(range(1, 21))
    assert leader.image.next_producer_id == max(taken) + 1


@scenario
async def a_result_is_never_lost(cluster: Harness) -> None:
    """The leader answers and is deposed: the next leader has the command, as has every node."""
    epoch = await register(cluster)
    await cluster.move_leadership()
    image = await (await cluster.leader()).read_barrier()
    assert image.brokers[BROKER].broker_epoch == epoch
    for node in cluster.nodes.values():
        assert (await wait_version(node, epoch)).brokers == image.brokers


# Refused proposals


@scenario
async def only_the_leader_takes_commands(cluster: Harness) -> None:
    """The others say who leads, and nothing was appended."""
    epoch, leader = await register(cluster), await cluster.leader()
    for node in await others(cluster):
        await wait_version(node, epoch)
        with pytest.raises(NotController) as error:
            await node.propose(allocation(epoch))
        assert error.value.leader_id == node_id_of(cluster, leader)
        assert error.value.definite
    result = await leader.propose(allocation(epoch))
    assert result == ProducerIdBlock(0, 10)


@scenario
async def a_command_that_is_too_large_is_not_sent(cluster: Harness) -> None:
    """One byte over the limit is refused with the limit, and later commands are not harmed."""
    leader = await cluster.leader()
    command = CreateTopic(b"t" * 16, "t", ((1,),), {"k": "x" * COMMAND_BYTES_MAX})
    with pytest.raises(InvalidCommand, match=str(COMMAND_BYTES_MAX)):
        await leader.propose(command)
    await register(cluster)


@scenario
async def a_command_of_nearly_the_limit_goes_through(cluster: Harness) -> None:
    """It reaches every node."""
    await coordinate(cluster, await register(cluster), "g")
    leader = await cluster.leader()
    command = large_commit("g", size=COMMAND_BYTES_MAX - 20_000)
    assert len(encode_command(command)) > COMMAND_BYTES_MAX - 40_000
    assert await leader.propose(command) == OffsetsCommitted()
    for node in cluster.nodes.values():
        image = await wait_version(node, leader.image.version)
        assert len(image.offsets["g"]) == len(command.groups[0].commits)


@scenario
async def what_is_no_proposal_is_not_sent(cluster: Harness) -> None:
    """Neither a command, nor an id, nor a time: named, on the leader and elsewhere alike."""
    epoch, leader = await register(cluster), await cluster.leader()
    sound = allocation(epoch)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ("nonsense", {}, "command = 'nonsense'"),
        (None, {}, "command = None"),
        (encode_command(sound), {}, "command = b'"),
        (Refused(ErrorCode.NONE, ""), {}, "command = Refused"),
        (sound, {"command_id": (BROKER, epoch, 0)}, "command_id = "),
        (sound, {"timeout": -1}, "timeout = -1"),
        (sound, {"timeout": nan}, "timeout = nan"),
        (sound, {"timeout": "5"}, "timeout = '5'"),
    ]
    for node in (leader, *await others(cluster)):
        for command, arguments, told in cases:
            with pytest.raises(InvalidCommand, match=re.escape(told)) as error:
                await node.propose(command, **arguments)
            assert error.value.definite
    assert await leader.propose(sound, timeout=5) == ProducerIdBlock(0, 10)


# Uncertain ones


@scenario
async def no_answer_in_time_is_uncertain(cluster: Harness) -> None:
    """A leader without its followers cannot commit, and does not know that yet."""
    epoch = await register(cluster)
    leader = await cluster.isolate_leader()
    started = trio.current_time()
    with pytest.raises(ProposalUncertain) as error:
        await leader.propose(allocation(epoch), timeout=0.1)
    assert trio.current_time() - started <= 0.5
    assert not error.value.definite
    await cluster.heal()


@scenario
async def an_isolated_leader_acknowledges_nothing(cluster: Harness) -> None:
    """However long it waits: its command ends as uncertain, discarded or refused, never applied."""
    epoch = await register(cluster)
    old = await cluster.isolate_leader()
    errors: list[Exception] = []

    async def propose_in_vain() -> None:
        with pytest.raises((NotController, ProposalDiscarded, ProposalUncertain)) as error:
            await old.propose(allocation(epoch), timeout=10.0)
        errors.append(error.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(propose_in_vain)
        new = await cluster.leader()
        assert new is not old
        assert await new.propose(allocation(epoch)) == ProducerIdBlock(0, 10)
        await trio.sleep(1.0)  # virtual
        await cluster.heal()
    assert errors
    final = await propose_until_certain(cluster, allocation(epoch), CommandId(BROKER, epoch, 0))
    assert final == ProducerIdBlock(10, 10)


@scenario
async def an_old_leader_follows_after_it_healed(cluster: Harness) -> None:
    """It comes to the image of the others, and does not lead."""
    epoch = await register(cluster)
    old = await cluster.isolate_leader()
    with pytest.raises(ProposalUncertain):
        await old.propose(allocation(epoch, ids=77), timeout=0.1)
    command_id = CommandId(BROKER, epoch, 0)
    await propose_until_certain(cluster, allocation(epoch), command_id)
    await cluster.heal()
    image = await (await cluster.leader()).read_barrier()
    found = await wait_version(old, image.version)
    assert found.next_producer_id == image.next_producer_id == 10


# Retries


@scenario
async def a_command_id_is_applied_once(cluster: Harness) -> None:
    """Proposed three times: one result, one change. Without an id each proposal counts."""
    epoch, leader = await register(cluster), await cluster.leader()
    command_id = CommandId(BROKER, epoch, 5)
    results = [await leader.propose(allocation(epoch), command_id=command_id) for _ in range(3)]
    assert results == [ProducerIdBlock(0, 10)] * 3
    assert await leader.propose(allocation(epoch)) == ProducerIdBlock(10, 10)


@scenario
async def a_retry_to_the_next_leader_is_applied_once(cluster: Harness) -> None:
    """The memory of ids is part of the metadata: it moves with the leadership."""
    epoch = await register(cluster)
    command_id = CommandId(BROKER, epoch, 0)
    leader = await cluster.leader()
    first = await leader.propose(allocation(epoch), command_id=command_id)
    await cluster.move_leadership()
    assert await propose_until_certain(cluster, allocation(epoch), command_id) == first
    assert (await cluster.leader()).image.next_producer_id == 10


@scenario
async def nothing_is_lost_or_doubled_while_leadership_moves(cluster: Harness) -> None:
    """Four senders of ten commands each, every one retried until certain, and three moves."""
    epoch = await register(cluster)
    sequences, results = count(), []

    async def send() -> None:
        for _ in range(10):
            command_id = CommandId(BROKER, epoch, next(sequences))
            results.append(await propose_until_certain(cluster, allocation(epoch), command_id))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(send)
        for _ in range(3):
            await cluster.move_leadership()
    assert sorted(result.first for result in results) == list(range(0, 400, 10))
    image = await (await cluster.leader()).read_barrier()
    assert image.next_producer_id == 400


# Cancellation


@scenario
async def a_cancelled_proposal_leaves_nothing_behind(cluster: Harness) -> None:
    """Hundreds of callers give up at once: nobody waits any more, and others get their answers."""
    epoch, leader = await register(cluster), await cluster.leader()
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(leader.propose, allocation(epoch, ids=1))
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    result = await leader.propose(allocation(epoch))
    assert isinstance(result, ProducerIdBlock)
    assert 0 <= result.first <= 200, "a cancelled one was applied once, or not at all"
    assert leader.image.next_producer_id == result.first + 10
    assert cluster.unanswered(leader) == 0


@scenario
async def giving_up_on_an_isolated_leader_leaves_nothing_behind(cluster: Harness) -> None:
    """Proposals, reads and waits are cancelled while it is cut off; it heals and forgets them."""
    epoch = await register(cluster)
    old = await cluster.isolate_leader()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(old.propose, allocation(epoch, ids=1))
            nursery.start_soon(old.read_barrier)
            nursery.start_soon(old.wait_changed, old.image.version)
        await trio.sleep(0.05)  # virtual
        nursery.cancel_scope.cancel()
    await cluster.heal()
    result = await propose_until_certain(cluster, allocation(epoch), CommandId(BROKER, epoch, 0))
    assert isinstance(result, ProducerIdBlock)
    await wait_version(old, (await (await cluster.leader()).read_barrier()).version)
    assert cluster.unanswered(old) == 0
