"""Transaction ids for tests of the rules: a cluster that coordinates them, commands in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.metadata.commands import (
    AssignSlot,
    CreateTopic,
    EndOutcome,
    EndTransactions,
    OpenTransaction,
    StoredOffset,
    TransactionEnd,
    TransactionOffsets,
    TransactionOpened,
    TransactionsEnded,
)
from raftmq.metadata.image import (
    EMPTY_IMAGE,
    SLOT_COUNT,
    ChangeKind,
    TouchedKey,
    TransactionState,
    slot_of,
)
from tests.unit.metadata.states import ORDERS, after, answer, apply_next, cluster

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage

ID = "copy-1"
SLOT = slot_of(ID)
OWNER, OTHER = b"owner".ljust(16), b"other".ljust(16)
LEVEL = 3
PID = EMPTY_IMAGE.next_producer_id  # of the first id that is opened
FIRST, SECOND, THIRD = (ORDERS, 0), (ORDERS, 1), (ORDERS, 2)


def coordinated(*, partitions: int = 3) -> MetadataImage:
    """Broker 0 coordinates every slot, under epoch 1; the topic has a leader everywhere."""
    image = cluster()._replace(feature_level=LEVEL)
    slots = (AssignSlot(slot, 0, 0) for slot in range(SLOT_COUNT))
    topic = CreateTopic(ORDERS, "orders", ((0, 1, 2),) * partitions)
    return after(image, topic, *slots)


def opening(
    number: int = 1, *, owner: bytes = OWNER, name: str = ID, **fields: Any
) -> OpenTransaction:
    return OpenTransaction(1, name, owner, number, 60_000, **fields)


def open_once() -> MetadataImage:
    return after(coordinated(), opening())


def touched(*producer_ids: int) -> set[TouchedKey]:
    return {TouchedKey(ChangeKind.TRANSACTION, number) for number in producer_ids}


def end(
    epoch: int, *, commit: bool = True, owner: bytes = OWNER, name: str = ID, **fields: Any
) -> TransactionEnd:
    producer_id = fields.pop("producer_id", PID)
    return TransactionEnd(name, producer_id, epoch, commit, owner, **fields)


def ends(*wanted: TransactionEnd, slot_epoch: int = 1, at_ms: int = 7) -> EndTransactions:
    slot = slot_of(wanted[0].transaction_id) if wanted else SLOT
    return EndTransactions(slot, slot_epoch, wanted, at_ms)


def offsets(
    *values: tuple[int, int], group: str = "g", generation: int = -1, member: str = "",
    instance: str | None = None,
) -> TransactionOffsets:  # fmt: skip
    """Pairs of a partition and its offset."""
    stored = tuple(StoredOffset(ORDERS, partition, offset) for partition, offset in values)
    return TransactionOffsets(group, generation, member, instance, stored)


def opened(image: MetadataImage, command: OpenTransaction) -> tuple[int, int]:
    """The producer id and epoch that it is answered with."""
    result = answer(image, command)
    assert isinstance(result, TransactionOpened), result
    return result.producer_id, result.producer_epoch


def decide(image: MetadataImage, wanted: TransactionEnd) -> tuple[MetadataImage, EndOutcome | None]:
    """The outcome that is told; None: the usual one."""
    after_it, result = apply_next(image, ends(wanted))
    assert isinstance(result, TransactionsEnded), result
    return after_it, result.outcomes[0] if result.outcomes else None


def told(image: MetadataImage, wanted: TransactionEnd) -> EndOutcome:
    outcome = decide(image, wanted)[1]
    assert outcome is not None, "decided as usual"
    return outcome


def state_of(image: MetadataImage, name: str = ID) -> TransactionState:
    return image.transactions[name]
