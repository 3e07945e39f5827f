"""Elections of leaders on demand.

Owns the request: the preferred leaders back, or with `is_unclean` anybody who is there. Each
partition stands for itself. Who may lead is the metadata's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.changes import Step, plan_each
from raftmq.metadata.commands import ElectionKind, ElectLeader, PartitionId
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import PartitionOutcome
from raftmq.wire.messages.topics import ElectLeadersReply

if TYPE_CHECKING:
    from raftmq.broker.changes import Changes
    from raftmq.metadata.image import MetadataImage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.topics import ElectLeaders, WantedElection


class Elections:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.ELECT_LEADERS: self.elect}

    async def elect(
        self, _context: RequestContext, request: ElectLeaders, _payload: Buffer
    ) -> Reply:
        image = self._changes.image
        kind = ElectionKind.UNCLEAN if request.is_unclean else ElectionKind.PREFERRED
        planned = plan_each(
            request.partitions,
            lambda it: (_election(image, it, kind),),
            key=lambda it: (it.topic_id, it.partition),
        )
        outcomes = await self._changes.make(planned, timeout_ms=request.timeout_ms)
        told = [
            PartitionOutcome(wanted.topic_id, wanted.partition, outcome.code, outcome.message)
            for wanted, outcome in zip(request.partitions, outcomes, strict=True)
        ]
        return Reply(ElectLeadersReply(tuple(told)))


def _election(before: MetadataImage, wanted: WantedElection, kind: ElectionKind) -> Step:
    """Each election has an epoch of its own; that it was this one, nothing proves."""
    key = PartitionId(wanted.topic_id, wanted.partition)
    known = before.partitions.get(key)

    def is_shown(image: MetadataImage) -> bool:
        state = image.partitions.get(key)
        if state is None:
            return known is not None  # deleted meanwhile
        return known is None or state.leader_epoch > known.leader_epoch

    return Step(ElectLeader(*key, kind, wanted.leader_epoch), is_shown)
