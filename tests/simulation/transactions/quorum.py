"""The metadata of a walk: every version of the image, made by the quorum's own rules.

Three brokers that never fail, one topic, all slots of coordinators with broker 1. Leaders of
partitions change without commands: a table says which broker leads from which version on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.apply.dispatch import apply
from raftmq.metadata.commands import (
    FORMAT_VERSION,
    AssignSlot,
    BrokerRegistered,
    CreateTopic,
    EndTransactions,
    Envelope,
    FeatureLevel,
    ForgetSettled,
    OpenTransaction,
    Refused,
    RegisterBroker,
    SetFeatureLevel,
    SettledCommits,
    SettledTransaction,
    TransactionEnd,
    TransactionOpened,
    TransactionsEnded,
    UnfenceBroker,
)
from raftmq.metadata.image import EMPTY_IMAGE, ChangeKind, slot_of

if TYPE_CHECKING:
    from raftmq.metadata.commands import AnyCommand, AnyResult, EndOutcome
    from raftmq.metadata.image import MetadataImage, UnsettledCommit

TOPIC_ID = b"payments--------"
PARTITIONS = range(2)
BROKERS = range(3)
TIMEOUT_MS = 60_000


class Tenure(NamedTuple):
    """A broker leads a partition from this version of the metadata on."""

    version: int
    leader_epoch: int
    broker: int


class Quorum:
    """Attributes:
    images: by version.
    tenures: of each partition, the newest last.
    """

    def __init__(self) -> None:
        self.images: list[MetadataImage] = [EMPTY_IMAGE]
        self.tenures = {partition: [Tenure(0, 0, partition)] for partition in PARTITIONS}
        for broker in BROKERS:
            registered = self.do(
                RegisterBroker(broker, bytes(16), bytes([broker]) * 16, feature_level_max=9)
            )
            assert isinstance(registered, BrokerRegistered), registered
            self.do(UnfenceBroker(broker, registered.broker_epoch))
        for level in range(2, FeatureLevel.TRANSACTIONS + 1):
            self.do(SetFeatureLevel(level - 1, level))
        self.do(CreateTopic(TOPIC_ID, "payments", tuple((broker,) for broker in PARTITIONS)))
        for slot in range(len(self.newest.slots)):
            self.do(AssignSlot(slot, 0, 1))

    @property
    def newest(self) -> MetadataImage:
        return self.images[-1]

    @property
    def version(self) -> int:
        return len(self.images) - 1

    def do(self, command: AnyCommand) -> AnyResult:
        image, result = apply(self.newest, len(self.images), Envelope(FORMAT_VERSION, command))
        self.images.append(image)
        assert not isinstance(result, Refused), f"{command} {result}"
        return result

    def open(self, name: str, owner: bytes, opening: int) -> TransactionOpened:
        result = self.do(OpenTransaction(self._slot_epoch(name), name, owner, opening, TIMEOUT_MS))
        assert isinstance(result, TransactionOpened)
        return result

    def end(self, end: TransactionEnd) -> EndOutcome | None:
        """None: decided as asked, and the next epoch is the one after."""
        name = end.transaction_id
        result = self.do(EndTransactions(slot_of(name), self._slot_epoch(name), (end,)))
        assert isinstance(result, TransactionsEnded)
        return result.outcomes[0] if result.outcomes else None

    def forget(self, name: str, commit: UnsettledCommit) -> None:
        settled = SettledTransaction(commit.producer_id, commit.producer_epoch, commit.partitions)
        self.do(
            ForgetSettled(
                slot_of(name), self._slot_epoch(name), (SettledCommits(name, (settled,)),)
            )
        )

    def _slot_epoch(self, name: str) -> int:
        return self.newest.slots[slot_of(name)].epoch

    def elect(self, partition: int, broker: int) -> None:
        self.images.append(self.newest._replace(version=len(self.images), changes=()))
        epoch = self.tenures[partition][-1].leader_epoch + 1
        self.tenures[partition].append(Tenure(self.version, epoch, broker))

    def leading(self, partition: int, version: int) -> Tenure:
        return [each for each in self.tenures[partition] if each.version <= version][-1]

    def touched(self, after: int, version: int) -> set[int]:
        """Producer ids of transactions that the commands of (after, version] changed."""
        changes = (each for image in self.images[after + 1 : version + 1] for each in image.changes)
        return {
            key for kind, key in changes if kind is ChangeKind.TRANSACTION and isinstance(key, int)
        }
