"""raftmq: a distributed message queue with Kafka's guarantees and none of its machinery.

Owns the public names of the SDK, imported on first access, so that commands which need none of them
start quickly. Programs begin with `connect`; `raftmq.sync` has the same calls, blocking, and
`raftmq.errors` every error, each of which is a name here, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from raftmq.version import __version__ as __version__

if TYPE_CHECKING:  # `X as X` and a star are what type checkers take for public names
    from raftmq import errors as errors
    from raftmq import sync as sync
    from raftmq import testing as testing
    from raftmq.client.administration.admin import Admin as Admin
    from raftmq.client.administration.moves import CancelledMove as CancelledMove
    from raftmq.client.administration.moves import PartitionMove as PartitionMove
    from raftmq.client.administration.moves import ReplicationChange as ReplicationChange
    from raftmq.client.administration.moves import RequestedMove as RequestedMove
    from raftmq.client.administration.results import AilingPartition as AilingPartition
    from raftmq.client.administration.results import BrokerDetails as BrokerDetails
    from raftmq.client.administration.results import BrokerLoad as BrokerLoad
    from raftmq.client.administration.results import ClusterDetails as ClusterDetails
    from raftmq.client.administration.results import ConfigValue as ConfigValue
    from raftmq.client.administration.results import CreatedTopic as CreatedTopic
    from raftmq.client.administration.results import DamagedReplica as DamagedReplica
    from raftmq.client.administration.results import Election as Election
    from raftmq.client.administration.results import FragileTopic as FragileTopic
    from raftmq.client.administration.results import GroupDetails as GroupDetails
    from raftmq.client.administration.results import GroupMember as GroupMember
    from raftmq.client.administration.results import GroupOffset as GroupOffset
    from raftmq.client.administration.results import GroupSummary as GroupSummary
    from raftmq.client.administration.results import Health as Health
    from raftmq.client.administration.results import HeldPartition as HeldPartition
    from raftmq.client.administration.results import OffsetReset as OffsetReset
    from raftmq.client.administration.results import OpenInTopic as OpenInTopic
    from raftmq.client.administration.results import PartitionDetails as PartitionDetails
    from raftmq.client.administration.results import PartitionLag as PartitionLag
    from raftmq.client.administration.results import PartitionLeader as PartitionLeader
    from raftmq.client.administration.results import PartitionSize as PartitionSize
    from raftmq.client.administration.results import TopicDetails as TopicDetails
    from raftmq.client.administration.results import TopicSize as TopicSize
    from raftmq.client.administration.results import TopicSummary as TopicSummary
    from raftmq.client.administration.results import TransactionDetails as TransactionDetails
    from raftmq.client.administration.results import UnsettledTransaction as UnsettledTransaction
    from raftmq.client.administration.results import WrongClock as WrongClock
    from raftmq.client.administration.scheduled import PartitionSchedule as PartitionSchedule
    from raftmq.client.administration.scheduled import ScheduledRecord as ScheduledRecord
    from raftmq.client.administration.scheduled import TopicSchedule as TopicSchedule
    from raftmq.client.client import Client as Client
    from raftmq.client.client import connect as connect
    from raftmq.client.consumer.batch import ConsumedBatch as ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer as Consumer
    from raftmq.client.consumer.options import ConsumerOptions as ConsumerOptions
    from raftmq.client.consumer.record import ConsumerRecord as ConsumerRecord
    from raftmq.client.group.effects import Rebalance as Rebalance
    from raftmq.client.processing.retry_policy import Exponential as Exponential
    from raftmq.client.processing.retry_policy import RetryPolicy as RetryPolicy
    from raftmq.client.producer.batch import BatchMetadata as BatchMetadata
    from raftmq.client.producer.batch import RecordMetadata as RecordMetadata
    from raftmq.client.producer.delivery import Delivery as Delivery
    from raftmq.client.producer.options import ProducerOptions as ProducerOptions
    from raftmq.client.producer.producer import Producer as Producer
    from raftmq.client.producer.statistics import Statistics as Statistics
    from raftmq.client.scheduling.handles import ScheduleHandle as ScheduleHandle
    from raftmq.client.transactions.exactly_once import exactly_once as exactly_once
    from raftmq.client.transactions.members import CommittedVersion as CommittedVersion
    from raftmq.client.transactions.members import Receipt as Receipt
    from raftmq.client.transactions.shared import Member as Member
    from raftmq.client.transactions.shared import SharedTransaction as SharedTransaction
    from raftmq.client.transactions.shared import SharedVersion as SharedVersion
    from raftmq.client.transactions.transaction import Transaction as Transaction
    from raftmq.errors import *  # noqa: F403

_MODULES = ("errors", "sync", "testing")
_HOMES = {
    "raftmq.client.administration.admin": ("Admin",),
    "raftmq.client.administration.moves": (
        "CancelledMove",
        "PartitionMove",
        "ReplicationChange",
        "RequestedMove",
    ),
    "raftmq.client.administration.results": (
        "AilingPartition",
        "BrokerDetails",
        "BrokerLoad",
        "ClusterDetails",
        "ConfigValue",
        "CreatedTopic",
        "DamagedReplica",
        "HeldPartition",
        "UnsettledTransaction",
        "OpenInTopic",
        "TransactionDetails",
        "Election",
        "FragileTopic",
        "GroupDetails",
        "GroupMember",
        "GroupOffset",
        "GroupSummary",
        "Health",
        "OffsetReset",
        "PartitionDetails",
        "PartitionLag",
        "PartitionLeader",
        "PartitionSize",
        "TopicDetails",
        "TopicSize",
        "TopicSummary",
        "WrongClock",
    ),
    "raftmq.client.administration.scheduled": (
        "PartitionSchedule",
        "ScheduledRecord",
        "TopicSchedule",
    ),
    "raftmq.client.client": (
        "Client",
        "connect",
    ),
    "raftmq.client.consumer.batch": ("ConsumedBatch",),
    "raftmq.client.consumer.consumer": ("Consumer",),
    "raftmq.client.consumer.options": ("ConsumerOptions",),
    "raftmq.client.consumer.record": ("ConsumerRecord",),
    "raftmq.client.group.effects": ("Rebalance",),
    "raftmq.client.processing.retry_policy": ("Exponential", "RetryPolicy"),
    "raftmq.client.producer.batch": (
        "BatchMetadata",
        "RecordMetadata",
    ),
    "raftmq.client.producer.delivery": ("Delivery",),
    "raftmq.client.producer.options": ("ProducerOptions",),
    "raftmq.client.producer.producer": ("Producer",),
    "raftmq.client.producer.statistics": ("Statistics",),
    "raftmq.client.scheduling.handles": ("ScheduleHandle",),
    "raftmq.client.transactions.exactly_once": ("exactly_once",),
    "raftmq.client.transactions.members": ("CommittedVersion", "Receipt"),
    "raftmq.client.transactions.shared": ("Member", "SharedTransaction", "SharedVersion"),
    "raftmq.client.transactions.transaction": ("Transaction",),
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}


# Type checkers read the imports above: to them this would make every name one of the package.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _NAMES:  # imported now, and not with the package
            return getattr(import_module(_NAMES[name]), name)
        if name in _MODULES:
            return import_module(f"raftmq.{name}")
        if name == "__all__":  # computed, as the errors would have to be imported for it
            return __dir__()
        if not name.startswith("_") and name in _errors():
            return getattr(import_module("raftmq.errors"), name)
        raise AttributeError(f"module 'raftmq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_NAMES, *_MODULES, *_errors(), "__version__"])


def _errors() -> list[str]:
    found: list[str] = import_module("raftmq.errors").__all__
    return found
