"""Commands of every class with random fields, for tests that nothing of it raises.

Values are drawn from what the image knows, so that many commands come far, and from the ends of
what the encoding can carry.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec.inspect as kinds

from raftmq.metadata.commands import (
    NO_VERSION,
    AnyCommand,
    CommandId,
    ProposedIsrMember,
    SharedEnd,
)
from raftmq.metadata.image import slot_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import MetadataImage, SharedVersions, TransactionState

CLASSES: tuple[type, ...] = get_args(AnyCommand)
EXTREMES = (-(1 << 63), -2, -1, 64, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TEXTS = (
    "", "a", "b", "orders", "..", "x" * 201, "\0", "ä\U0001f600", "min.insync.replicas",
    "retention.ms", "1", "2", "true", "page_cache",
)  # fmt: skip
BYTES = (*(bytes([0] * 15 + [n]) for n in range(4)), b"", b"x", b"y" * 17)


class RandomCommands:
    """Draws commands for one image; `random` alone decides, so a seed replays them."""

    def __init__(self, random: Random, image: MetadataImage) -> None:
        self.random, self.image = random, image
        self.brokers = sorted(image.brokers)

    def any(self) -> AnyCommand:
        return self.of(self.random.choice(CLASSES))

    def of(self, kind: type) -> Any:
        return self._struct(_described(kind))

    def command_id(self) -> CommandId | None:
        """None; a fresh or a repeated one; or a wrong one."""
        if self.random.random() < 0.5:
            return None
        if self.random.random() < 0.2 or not self.brokers:
            return self._struct(_described(CommandId))
        origin = self.random.choice(self.brokers)
        epoch = self.image.brokers[origin].broker_epoch
        return CommandId(origin, epoch, self.random.randrange(3000))

    def _struct(self, described: kinds.StructType) -> Any:
        values = {field.name: self._value(field.type) for field in described.fields}
        if self.random.random() < 0.8:
            values |= self._plausible(values)
        return described.cls(**values)

    def _plausible(self, values: dict[str, Any]) -> dict[str, Any]:
        """What would make a command that passes the checks of the image; for some fields."""
        found: dict[str, Any] = {}
        if self.brokers:
            found |= self._of_broker(self.random.choice(self.brokers))
        if self.image.partitions:
            found |= self._of_partition(self.random.choice(sorted(self.image.partitions)))
        if self.image.transactions and values.keys() & {"transaction_id", "producer_id"}:
            found |= self._of_transaction(self.random.choice(sorted(self.image.transactions)))
        for name in self._names(found | values):
            found["slot"] = slot_of(name)
            found["slot_epoch"] = self.image.slots[found["slot"]].epoch
        found["expected_epoch"] = self.random.choice((-1, 0, 1))
        minimum = self.random.choice("123")
        found["configs"] = found["changes"] = {"min.insync.replicas": minimum}
        return {name: value for name, value in found.items() if name in values}

    def _names(self, values: dict[str, Any]) -> list[str]:
        """Of a group or transaction id whose slot the command needs."""
        if "group" in values:
            return [values["group"]] if isinstance(values["group"], str) else []
        if "owner" in values and "slot_epoch" in values:
            return [values["transaction_id"]]
        lists = ("ends", "joins", "transactions", "seen")
        nested = [each for name in lists for each in values.get(name, ())]
        return [each.transaction_id for each in nested[:1]]

    def _of_transaction(self, transaction_id: str) -> dict[str, Any]:
        """The present transaction of an id, or one that is not settled."""
        state = self.image.transactions[transaction_id]
        if state.shared is not None and self.random.random() < 0.9:
            return self._of_version(transaction_id, state, state.shared)
        present = state.producer_epoch
        last = -1 if state.last is None else state.last.producer_epoch
        partitions = sorted(self.image.partitions)
        found = {
            "transaction_id": transaction_id,
            "producer_id": state.producer_id,
            "producer_epoch": self.random.choice((present, present, present, last)),
            "expected_producer_id": self.random.choice((-1, state.producer_id)),
            "expected_epoch": self.random.choice((present, last)),
            "owner": self.random.choice((state.owner, state.owner, b"")),
            "opening": self._near(state.opening),
            "changed_at_ms": self.random.choice((state.changed_at_ms, 1, 2)),
            "version": self._near(state.last_version),
            "partitions": tuple(self.random.sample(partitions, min(2, len(partitions)))),
        }
        if self.random.random() < 0.5:
            found["groups"] = found["settled"] = ()
        if state.settling and self.random.random() < 0.3:
            commit = self.random.choice(state.settling)
            found |= {"producer_id": commit.producer_id, "producer_epoch": commit.producer_epoch}
            found["partitions"] = commit.partitions
        return found

    def _of_version(
        self, transaction_id: str, state: TransactionState, shared: SharedVersions
    ) -> dict[str, Any]:
        """The version that is open, an earlier or a later one; now and then of nobody."""
        last = -1 if state.last is None else state.last.producer_id
        lineage = self.random.choice((shared.lineage, shared.lineage, *TEXTS))
        listed = self.random.randrange(1 << max(1, min(shared.joined + 1, 16)))
        partitions = sorted(self.image.partitions)
        partitions = self.random.sample(partitions, min(2, len(partitions)))
        block = self.random.choice((shared.block, shared.block, shared.block, last))
        if self.random.random() < 0.3:
            block, listed = -1, 0
        return {
            "transaction_id": transaction_id,
            "lineage": lineage,
            "version": self._near(self.random.choice((shared.open_version, state.last_version))),
            "producer_id": block,
            "producer_epoch": 0,
            "shared": SharedEnd(lineage, listed.to_bytes(2, "little").rstrip(bytes(1))),
            "partitions": tuple(partitions) if listed else (),
            "groups": (),
            "settled": (),
            "changed_at_ms": self.random.choice((state.changed_at_ms, 1, 2)),
        }

    def _near(self, number: int) -> int:
        return max(EXTREMES[0], min(number + self.random.choice((-1, 0, 1, 1)), EXTREMES[-1]))

    def _of_broker(self, broker_id: int) -> dict[str, Any]:
        broker = self.image.brokers[broker_id]
        count = self.random.randint(1, len(self.brokers))
        replicas = tuple(self.random.sample(self.brokers, count))
        return {
            "broker_id": broker_id,
            "broker_epoch": broker.broker_epoch,
            "previous_broker_epoch": broker.broker_epoch,
            "clean_shutdown_epoch": self.random.choice((-1, broker.broker_epoch)),
            "expected_broker_epoch": self.random.choice((None, broker.broker_epoch)),
            "directory_id": broker.directory_id,
            "pending_since": broker.pending_since,
            "partitions": tuple(sorted(self.image.hosted_by(broker_id))),
            "replicas": replicas,
            "assignments": (replicas,) * self.random.randint(1, 3),
        }

    def _of_partition(self, key: PartitionId) -> dict[str, Any]:
        state = self.image.partitions[key]
        found: dict[str, Any] = {
            "topic_id": self.random.choice((key.topic_id, key.topic_id, *BYTES[:4])),
            "partition": key.partition,
            "leader_epoch": state.leader_epoch,
            "partition_epoch": state.partition_epoch,
            "planned_at": self.random.choice((NO_VERSION, self._planned_at(key))),
            "expected_count": self.image.topics[key.topic_id].partition_count,
        }
        leader = self.image.brokers.get(state.leader)
        if leader is not None:
            found |= {"broker_id": state.leader, "broker_epoch": leader.broker_epoch}
            others = [b for b in state.replicas if b != state.leader and self.random.random() < 0.5]
            epochs = {b: self.image.brokers[b].broker_epoch for b in (state.leader, *others)}
            found["isr"] = tuple(ProposedIsrMember(*pair) for pair in epochs.items())
        return found

    def _planned_at(self, key: PartitionId) -> int:
        plan = self.image.moves.get(key)
        return NO_VERSION if plan is None else plan.planned_at

    def _value(self, kind: kinds.Type) -> Any:
        count = self.random.choice((0, 1, 1, 2, 3))
        match kind:
            case kinds.UnionType():
                return self._value(self.random.choice(kind.types))
            case kinds.VarTupleType():
                return tuple(self._value(kind.item_type) for _ in range(count))
            case kinds.TupleType():
                return tuple(map(self._value, kind.item_types))
            case kinds.DictType():
                keys = [self._value(kind.key_type) for _ in range(count)]
                return {key: self._value(kind.value_type) for key in keys}
            case kinds.StructType():
                return self._struct(kind)
        return self.random.choice(self._choices(kind))

    def _choices(self, kind: kinds.Type) -> Sequence[object]:
        match kind:
            case kinds.IntType():
                return EXTREMES if self.random.random() < 0.1 else (0, 0, 1, 1, 2)
            case kinds.StrType():
                return TEXTS
            case kinds.BytesType():
                return BYTES
            case kinds.BoolType():
                return (False, True)
            case kinds.NoneType():
                return (None,)
            case kinds.EnumType():
                return list(kind.cls)
        raise AssertionError(f"no random values for {kind}")


@cache
def _described(kind: type) -> kinds.StructType:
    described = kinds.type_info(kind)
    assert isinstance(described, kinds.StructType)
    return described
