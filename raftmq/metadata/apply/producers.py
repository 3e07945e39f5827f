"""Allocates producer ids of idempotent producers in blocks, none twice (Kafka: ProducerIdsBlock).

The ids of a block that its broker does not use before it stops are lost: 2^62 ids are enough, and
tracking single ids would cost a command each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.brokers import sender_refusal
from raftmq.metadata.commands import ProducerIdBlock, Refused
from raftmq.metadata.image import PRODUCER_ID_MAX

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import AllocateProducerIds, AnyResult

BLOCK_MAX = 100_000  # so that a faulty request cannot use up the ids, which are never given back


def allocate_producer_ids(draft: Draft, command: AllocateProducerIds) -> AnyResult:
    broker_id, broker_epoch = command.broker_id, command.broker_epoch
    refusal = sender_refusal(
        draft.broker(broker_id), broker_id=broker_id, broker_epoch=broker_epoch
    )
    if refusal is not None:
        return refusal
    count, first = command.count, draft.next_producer_id
    if not 1 <= count <= BLOCK_MAX:
        message = f"{count} producer ids: allowed are 1 to {BLOCK_MAX} at once"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if first + count - 1 > PRODUCER_ID_MAX:  # the ids above belong to named producers
        message = f"{count} producer ids from {first}: there are none above {PRODUCER_ID_MAX}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    draft.set_next_producer_id(first + count)
    return ProducerIdBlock(first, count)
