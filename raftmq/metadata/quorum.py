"""`MetadataQuorum`, the interface of the metadata quorum: propose, read barrier, leadership, image.

Owns the protocol and its promises. `raft.quorum.RaftQuorum` keeps them with real nodes,
`tests/simulation/quorum_fake.py` in memory; both pass tests/unit/metadata/quorum_conformance.py.

Promises:
  1. A result returned by `propose` is of a command that is committed and will never be lost.
  2. Images have rising versions; every node goes through the same ones.
  3. After `read_barrier`, `image` holds everything whose `propose` had returned, anywhere, before
     the barrier was asked for.
  4. A command id is applied once, however often it is proposed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage

# Default wait for commit and apply. A leader that hears no majority steps down after three seconds
# (decision 0011), so most proposals have a known outcome by then and few end uncertain.
PROPOSE_SECONDS_MAX = 5.0


class Leadership(NamedTuple):
    """Who leads the quorum, as far as this node knows; a higher `term` is newer information."""

    term: int
    leader_id: int | None
    is_leader: bool


class MetadataQuorum(Protocol):
    """One node's view of the quorum. All calls are made from the node's own trio loop."""

    @property
    def image(self) -> MetadataImage:
        """The newest image that this node has applied; never goes back."""

    @property
    def leadership(self) -> Leadership: ...

    async def propose(
        self,
        command: AnyCommand,
        *,
        command_id: CommandId | None = None,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # ends in ProposalUncertain
    ) -> AnyResult:
        """Have `command` committed and applied, and return the result of applying it.

        Raises:
            NotController: this node does not lead; definite.
            QuorumBusy: the queue is full (back-pressure); definite.
            InvalidCommand: over 1 MiB, or `command`, `command_id` or `timeout` is not valid;
                definite.
            ProposalDiscarded: it was appended, and overwritten by another leader; definite.
            ProposalUncertain: the outcome is unknown: timed out, or leadership was lost.
        """

    async def wait_changed(self, seen: int) -> MetadataImage:
        """The image, once its version is above `seen`."""

    def delta_since(self, seen: int) -> MetadataDelta:
        """What changed after version `seen`; incomplete if the change log does not reach back."""

    async def wait_leadership_changed(self, seen: Leadership) -> Leadership: ...

    async def read_barrier(self) -> MetadataImage:
        """An image that holds everything that was acknowledged before this call.

        Raises:
            NotController: this node does not lead, or no majority confirmed it within 5 s.
            QuorumBusy: too many reads wait already.
        """
