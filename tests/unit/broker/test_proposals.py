"""What the controller's node takes from brokers, and what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.broker.requests.proposals import decode_result, encode_result
from raftmq.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InvalidCommand,
    InvalidRequest,
    NewerCommand,
    NotController,
)
from raftmq.metadata.commands import (
    AllocateProducerIds,
    AssignSlot,
    BeginControlledShutdown,
    BrokerRegistered,
    CommandId,
    Done,
    FenceBroker,
    FinishReview,
    OffsetRefused,
    OffsetsCommitted,
    PartitionAltered,
    ProducerIdBlock,
    RaiseLogStart,
    RecoveryState,
    Refused,
    RegisterBroker,
    ReportDamage,
    ReviewPartitions,
    SetFeatureLevel,
    UnfenceBroker,
    encode_command,
)
from raftmq.rpc.context import RequestContext
from raftmq.wire.messages.cluster import BrokerHeartbeat, Propose, ReadBarrier
from tests.unit.broker.nodes import BROKERS, open_world

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.metadata.commands import AnyCommand, AnyResult

FROM_2 = RequestContext("anonymous", BROKERS, "test", 1, "here", node_id=2)


@pytest.mark.parametrize(
    "result",
    [
        Done(),
        Refused(ErrorCode.INVALID_REQUEST, "no"),
        BrokerRegistered(7),
        PartitionAltered(1, 2, 3, (1, 2), RecoveryState.RECOVERING),
        ProducerIdBlock(1000, 10),
        OffsetsCommitted((OffsetRefused("g", b"t" * 16, 0, 5),)),
    ],
)
def test_results_come_back_as_they_were(result: AnyResult) -> None:
    """Each kind of result, through bytes."""
    assert decode_result(encode_result(result)) == result


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\x63", b"\x91" * 100_000])
def test_what_is_no_result_is_refused(data: bytes) -> None:
    """Bytes of nobody, and a kind that only a newer version knows."""
    with pytest.raises(InvalidRequest, match="does not decode"):
        decode_result(data)


@pytest.mark.parametrize(
    "command",
    [
        FenceBroker(1, 1),
        UnfenceBroker(2, 1),
        BeginControlledShutdown(2, 1),
        ReviewPartitions(2, 1, ()),
        FinishReview(2, 1, 1),
        AssignSlot(0, 0, 2),
        SetFeatureLevel(1, 1),
    ],
)
async def test_the_controllers_commands_are_its_own(
    autojump_clock: MockClock, command: AnyCommand
) -> None:
    """A broker cannot unfence itself, nor fence another one."""
    async with open_world() as world:
        await world.start(with_lifetime=False)
        with pytest.raises(ClusterAuthorizationFailed, match=type(command).__name__):
            world.nodes[1].proposals.propose(FROM_2, Propose(encode_command(command)), b"")
        assert world.cluster.log == []


@pytest.mark.parametrize(
    ("command", "command_id"),
    [
        (RegisterBroker(3, b"i" * 16, b"d" * 16), None),
        (AllocateProducerIds(3, 1, 10), None),
        (ReportDamage(3, 1, ()), None),
        (RaiseLogStart(3, 1, b"t" * 16, 0, 1, 900), None),
        (AllocateProducerIds(2, 1, 10), CommandId(3, 1, 1)),
    ],
)
async def test_a_broker_speaks_for_itself(
    autojump_clock: MockClock, command: AnyCommand, command_id: CommandId | None
) -> None:
    """In the name of broker 3 on a connection of node 2: refused, with both named."""
    async with open_world() as world:
        await world.start(with_lifetime=False)
        request = Propose(encode_command(command, command_id))
        with pytest.raises(ClusterAuthorizationFailed, match="broker 3, on a connection of node 2"):
            world.nodes[1].proposals.propose(FROM_2, request, b"")
        with pytest.raises(ClusterAuthorizationFailed, match="broker 3, on a connection of node 2"):
            world.nodes[1].proposals.heartbeat(FROM_2, BrokerHeartbeat(3, 1, 1), b"")


async def test_bytes_that_are_no_command_are_refused(autojump_clock: MockClock) -> None:
    """Of nobody, and of a newer version: nothing is proposed."""
    async with open_world() as world:
        await world.start(with_lifetime=False)
        with pytest.raises(InvalidCommand):
            world.nodes[1].proposals.propose(FROM_2, Propose(b"\xc1"), b"")
        with pytest.raises(NewerCommand):
            world.nodes[1].proposals.propose(FROM_2, Propose(b"\x92\x63\x90"), b"")


async def test_who_does_not_lead_says_who_does(autojump_clock: MockClock) -> None:
    """A proposal, a read barrier and a heartbeat at node 2: node 1 leads."""
    async with open_world(2) as world:
        await world.start(with_lifetime=False)
        proposals, command = world.nodes[2].proposals, RegisterBroker(2, b"i" * 16, b"d" * 16)
        with pytest.raises(NotController, match="node 1 does"):
            await proposals.propose(FROM_2, Propose(encode_command(command)), b"")
        with pytest.raises(NotController, match="node 1 does"):
            await proposals.read_barrier(FROM_2, ReadBarrier(), b"")
        with pytest.raises(NotController, match="node 1 is") as caught:
            proposals.heartbeat(FROM_2, BrokerHeartbeat(2, 1, 1), b"")
        assert caught.value.leader_id == 1
