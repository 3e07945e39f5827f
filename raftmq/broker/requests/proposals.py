"""Controller requests of brokers: proposals (commands for the quorum), heartbeats, read barriers.

Owns these requests, who may send which command, and the encoding of results. A broker speaks for
itself only; what follows from the state of brokers the controller alone proposes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import ClusterAuthorizationFailed, InvalidRequest
from raftmq.metadata.commands import (
    AllocateProducerIds,
    AlterPartition,
    AnyResult,
    AssignSlot,
    BeginControlledShutdown,
    FenceBroker,
    FinishReview,
    RaiseLogStart,
    RegisterBroker,
    ReportDamage,
    ReviewPartitions,
    SetFeatureLevel,
    UnfenceBroker,
    decode_command,
)
from raftmq.metadata.liveness import BrokerContact
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.cluster import (
    BrokerHeartbeat,
    Propose,
    ProposeReply,
    ReadBarrier,
    ReadBarrierReply,
)
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from raftmq.broker.controller_leadership import ControllerLeadership
    from raftmq.metadata.commands import Envelope
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers

PROPOSE_SECONDS_LONGEST = 60.0  # a longer wait is cut to this; the sender may repeat it
# Conclusions of the controller from heartbeats and probes, which no other node receives.
OF_CONTROLLER = (
    FenceBroker,
    UnfenceBroker,
    BeginControlledShutdown,
    ReviewPartitions,
    FinishReview,
    AssignSlot,
    SetFeatureLevel,
)
# Commands that name the broker they are about, which must be the sender.
OF_SENDER = (RegisterBroker, AlterPartition, AllocateProducerIds, ReportDamage, RaiseLogStart)

_encoder = msgspec.msgpack.Encoder()
_decoder = Decoder[AnyResult](AnyResult)


def encode_result(result: AnyResult) -> bytes:
    return _encoder.encode(result)


def decode_result(data: bytes) -> AnyResult:
    """The inverse of `encode_result`.

    Raises:
        InvalidRequest: bytes of no version, or of a newer one.
    """
    try:
        return _decoder.decode(data)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise InvalidRequest(f"result of {len(data)} bytes does not decode: {error}") from error


class ControllerRequests:
    """On a node that is not the controller all requests raise NotController."""

    def __init__(self, quorum: MetadataQuorum, office: ControllerLeadership) -> None:
        self._quorum, self._office = quorum, office

    def handlers(self) -> Handlers:
        return {
            Propose: self.propose,
            BrokerHeartbeat: self.heartbeat,
            ReadBarrier: self.read_barrier,
        }

    def propose(
        self, context: RequestContext, request: Propose, _payload: bytes | memoryview
    ) -> Awaitable[Reply]:
        """
        Raises:
            InvalidCommand: it does not decode.
            ClusterAuthorizationFailed: this broker may not send it.
        """
        envelope = decode_command(request.command)
        _check_sender(context, envelope)
        seconds = min(request.timeout_ms / 1000, PROPOSE_SECONDS_LONGEST)
        return self._propose(envelope, seconds)

    async def _propose(self, envelope: Envelope, seconds: float) -> Reply:
        """Raises what `MetadataQuorum.propose` raises; the server answers with that."""
        # Until it is committed and applied, or `seconds` are over.
        result = await self._quorum.propose(
            envelope.command, command_id=envelope.command_id, timeout=seconds
        )
        return Reply(ProposeReply(encode_result(result)))

    def heartbeat(
        self, context: RequestContext, request: BrokerHeartbeat, _payload: bytes | memoryview
    ) -> Reply:
        """Raises what `ControllerLeadership.on_heartbeat` raises."""
        _check_self(context, request.broker_id, "a heartbeat")
        said = BrokerContact(
            request.broker_id,
            request.broker_epoch,
            request.metadata_version,
            request.pending_flush_seconds,
            request.wants_shutdown,
            request.wall_clock_ms,
        )
        return Reply(self._office.on_heartbeat(said))

    async def read_barrier(
        self, _context: RequestContext, _request: ReadBarrier, _payload: bytes | memoryview
    ) -> Reply:
        """Raises what `MetadataQuorum.read_barrier` raises."""
        # Ends with a round of answers from a majority, or when this node is deposed.
        return Reply(ReadBarrierReply((await self._quorum.read_barrier()).version))


def _check_sender(context: RequestContext, envelope: Envelope) -> None:
    command, command_id = envelope.command, envelope.command_id
    name = type(command).__name__
    if isinstance(command, OF_CONTROLLER):  # a broker could fence others with them
        raise ClusterAuthorizationFailed(f"{name}: the controller alone decides on it")
    if isinstance(command, OF_SENDER):  # a broker may only speak for itself
        _check_self(context, command.broker_id, name)
    # A command id names its origin: a retry must not be taken for another broker's.
    if command_id is not None:
        _check_self(context, command_id.origin, f"the command id of {name}")


def _check_self(context: RequestContext, broker_id: int, what: str) -> None:
    """The sender named itself in Hello: this finds mistakes, and does not stop an attacker."""
    if broker_id != context.node_id:
        raise ClusterAuthorizationFailed(
            f"{what} of broker {broker_id}, on a connection of node {context.node_id}"
        )
