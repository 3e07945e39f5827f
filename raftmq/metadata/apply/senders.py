"""Is the broker that a command speaks of, or that sent it, still the one it was?

Owns that check only: a process that was replaced by a newer one of the same id changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import Refused

if TYPE_CHECKING:
    from raftmq.metadata.image import BrokerState


def sender_refusal(
    broker: BrokerState | None, *, broker_id: int, broker_epoch: int
) -> Refused | None:
    """`broker` is what is registered under `broker_id`; None if its epoch is the given one."""
    if broker is None:
        message = f"broker {broker_id} is not registered: register it first"
        return Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    if broker.broker_epoch != broker_epoch:
        message = (
            f"broker {broker_id} has epoch {broker.broker_epoch}, not {broker_epoch}: register it"
            " again"
        )
        return Refused(ErrorCode.STALE_BROKER_EPOCH, message)
    return None
