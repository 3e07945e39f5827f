"""What the conformance scenarios of `MetadataQuorum` need: a cluster to hurt, and things to say.

`Harness` is the border to an implementation; a test module writes one for each. The rest is what
several scenarios do, in terms of the two protocols alone; time is that of `autojump_clock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import trio

from raftmq.errors import NotController, ProposalDiscarded, ProposalUncertain
from raftmq.metadata.commands import (
    AllocateProducerIds,
    AssignSlot,
    BrokerRegistered,
    CommandId,
    CommitOffsets,
    Done,
    GroupCommits,
    RegisterBroker,
    StoredOffset,
    UnfenceBroker,
)
from raftmq.metadata.image import slot_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

PATIENCE_SECONDS = 60.0  # of virtual time, for what must happen at last
BROKER = 7


class Harness(Protocol):
    """A cluster of quorum nodes that can be hurt. An async context manager of the test makes it."""

    @property
    def nodes(self) -> Mapping[int, MetadataQuorum]:
        """The voters by node id; at least three, all running."""

    async def leader(self) -> MetadataQuorum:
        """The node that leads a majority; waits until there is one.

        After `isolate_leader` it is one of the others, whatever the isolated one believes.
        """

    async def move_leadership(self) -> None:
        """Make another node lead; returns once it does. Nobody is cut off afterwards."""

    async def isolate_leader(self) -> MetadataQuorum:
        """Cut all links of the leader to the other nodes and return it, at once.

        It still believes to lead when this returns. The others elect a new leader by and by.
        """

    async def heal(self) -> None:
        """Restore all links. Returns at once; the nodes find each other by and by."""

    def unanswered(self, node: MetadataQuorum) -> int:
        """How many proposals and reads `node` still remembers somebody to wait for."""


Scenario: TypeAlias = "Callable[[Harness], Awaitable[None]]"


def collect_into(scenarios: list[Scenario]) -> Callable[[Scenario], Scenario]:
    """A decorator, so that no scenario is written and never run."""

    def scenario(function: Scenario) -> Scenario:
        scenarios.append(function)
        return function

    return scenario


# What scenarios say and ask


def registration(*, incarnation: int = 1, boot_id: str = "") -> RegisterBroker:
    return RegisterBroker(BROKER, bytes([incarnation]) * 16, b"d" * 16, boot_id=boot_id)


async def register(cluster: Harness) -> int:
    """The epoch of a broker that may send commands with ids."""
    result = await (await cluster.leader()).propose(registration())
    assert isinstance(result, BrokerRegistered), result
    return result.broker_epoch


def allocation(broker_epoch: int, *, ids: int = 10) -> AllocateProducerIds:
    """A command that answers something else whenever it is applied again."""
    return AllocateProducerIds(BROKER, broker_epoch, ids)


async def coordinate(cluster: Harness, broker_epoch: int, *groups: str) -> None:
    """Make the broker the first coordinator of these groups."""
    leader = await cluster.leader()
    await leader.propose(UnfenceBroker(BROKER, broker_epoch))
    for slot in sorted({slot_of(group) for group in groups}):
        result = await leader.propose(AssignSlot(slot, 0, BROKER))
        assert result == Done(), result


def large_commit(group: str, *, size: int) -> CommitOffsets:
    """Of about `size` bytes, in the first epoch of the group's slot."""
    metadata = "x" * 4000
    count = size // 4040
    commits = tuple(StoredOffset(b"t" * 16, n, n, metadata=metadata) for n in range(count))
    return CommitOffsets(slot_of(group), 1, (GroupCommits(group, commits),))


async def propose_until_certain(
    cluster: Harness, command: AllocateProducerIds, command_id: CommandId
) -> object:
    """What every careful sender does: again, with the same id, to whoever leads."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            leader = await cluster.leader()
            try:
                return await leader.propose(command, command_id=command_id, timeout=1.0)
            except (NotController, ProposalDiscarded, ProposalUncertain):
                await trio.sleep(0.05)  # the clock jumps: virtual time


async def wait_version(node: MetadataQuorum, version: int) -> MetadataImage:
    with trio.fail_after(PATIENCE_SECONDS):
        return await node.wait_changed(version - 1)


async def others(cluster: Harness) -> list[MetadataQuorum]:
    leader = await cluster.leader()
    return [node for node in cluster.nodes.values() if node is not leader]


def node_id_of(cluster: Harness, node: MetadataQuorum) -> int:
    return next(node_id for node_id, other in cluster.nodes.items() if other is node)
