"""Messages of the cluster: describe cluster, broker heartbeat, propose, read barrier, ping.

Owns what brokers send to the controller, and what clients may ask about brokers and voters.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.wire.bodies import (
    ABSENT,
    BROKERS_MAX,
    TIMEOUT_MS,
    Body,
    BrokerEpoch,
    BrokerId,
    BrokerIdOrAbsent,
    Milliseconds,
    Name,
    Natural,
    NaturalOrAbsent,
    Nothing,
    Number,
    Port,
    Request,
)

# Of a metadata command, which has to fit into a frame's header. Every node applies one in one step
# of its event loop, and the leader sends it whole. 1 MiB holds the largest ones: a slice of
# partitions, or a group's plan with all subscriptions.
COMMAND_BYTES_MAX = 1 << 20
RESULT_BYTES_MAX = 1 << 20  # likewise
LISTENERS_MAX = 32  # of one broker
VOTERS_MAX = 99  # far above any quorum (3 to 7); the Hello of a voter lists all of them
SECONDS_MAX = 1e9  # some 30 years: refuses infinity and nonsense
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]


class ListenerAddress(Body, frozen=True):
    listener: Name
    host: Name
    port: Port


class BrokerDescription(Body, frozen=True):
    broker_id: BrokerId
    broker_epoch: NaturalOrAbsent = ABSENT
    listeners: Annotated[tuple[ListenerAddress, ...], Meta(max_length=LISTENERS_MAX)] = ()
    rack: Name | None = None
    is_fenced: bool = False
    in_controlled_shutdown: bool = False
    clock_ahead_ms: Number | None = None  # of a clock that is wrong; None for all others
    software_version: Name = ""  # of raftmq; empty: too old to tell it


class VoterAddress(Body, frozen=True):
    """Where a voter listens for other voters, and for clients that ask for the quorum's status."""

    node_id: BrokerId
    host: Name
    port: Port


class DescribeClusterReply(Body, frozen=True):
    """`voters`: by the settings of the answering broker. `own_epoch`: of its process, -1 while that
    is not registered; nil: too old to tell.
    """

    cluster_id: Name
    controller_id: BrokerIdOrAbsent = ABSENT
    metadata_version: NaturalOrAbsent = ABSENT
    feature_level: Natural = 0
    brokers: Annotated[tuple[BrokerDescription, ...], Meta(max_length=BROKERS_MAX)] = ()
    voters: Annotated[tuple[VoterAddress, ...], Meta(max_length=VOTERS_MAX)] = ()
    own_epoch: NaturalOrAbsent | None = None


class DescribeCluster(Request, frozen=True):
    api_key = 60
    reply = DescribeClusterReply


class ProposeReply(Body, frozen=True):
    """The result of the command, encoded by `raftmq.metadata`."""

    result: Annotated[bytes, Meta(max_length=RESULT_BYTES_MAX)]


class Propose(Request, frozen=True):
    """A broker's command for the quorum, encoded by `raftmq.metadata`, sent to the controller."""

    api_key = 1003
    reply = ProposeReply
    is_for_brokers = True

    command: Annotated[bytes, Meta(max_length=COMMAND_BYTES_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS


class WrongClockRow(Body, frozen=True):
    """A broker whose wall clock differs from most others'. Negative: it is behind them."""

    broker_id: BrokerId
    ahead_ms: Number


class BrokerHeartbeatReply(Body, frozen=True):
    """`is_clock_confirmed`: most brokers' clocks agree with the one in the heartbeat (decision
    0026). `clock_ahead_ms`: by how much it is ahead of the confirmed ones, if there are any.
    """

    is_fenced: bool
    may_shut_down: bool
    is_clock_confirmed: bool = False
    wrong_clocks: Annotated[tuple[WrongClockRow, ...], Meta(max_length=BROKERS_MAX)] = ()
    clock_ahead_ms: Number | None = None


class BrokerHeartbeat(Request, frozen=True):
    """`metadata_version`: the newest that it has applied. `pending_flush_seconds`: age of the
    oldest flush that has not returned, by which the controller notices a disk that hangs.
    `wall_clock_ms`: the broker's time.
    """

    api_key = 1004
    reply = BrokerHeartbeatReply
    is_for_brokers = True

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    metadata_version: NaturalOrAbsent
    pending_flush_seconds: Seconds = 0.0
    wants_shutdown: bool = False
    wall_clock_ms: Number | None = None


class ReadBarrierReply(Body, frozen=True):
    """A broker that has applied this version has every change that was acknowledged before the
    request."""

    metadata_version: Natural


class ReadBarrier(Request, frozen=True):
    """Asks the controller for the metadata version to wait for before a linearizable read."""

    api_key = 1005
    reply = ReadBarrierReply
    is_for_brokers = True


class Ping(Request, frozen=True):
    """Checks that the other side answers."""

    api_key = 1000
    reply = Nothing
