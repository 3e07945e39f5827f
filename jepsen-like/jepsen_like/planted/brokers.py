"""Planted bugs of brokers and controllers: registrations, elections, topic ids, clocks.

Each is a function that patches the code through a `Patch`. A bug takes away one rule, or one step;
never a check.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from raftmq.broker.broker_clock import BrokerClock
from raftmq.broker.lifetime import Lifetime
from raftmq.broker.replication.replicas import Replicas
from raftmq.broker.requests.fetch import ReplicaFetchRequests
from raftmq.errors import UnknownTopicId
from raftmq.metadata import election
from raftmq.metadata.apply import brokers, partitions
from raftmq.metadata.image import Pending
from raftmq.partition.leader import FollowerProgress
from raftmq.partition.replica import Replica

if TYPE_CHECKING:
    from jepsen_like.planted.patch import Patch
    from raftmq.metadata.election import Elected, Rules
    from raftmq.metadata.image import PartitionState


# -- registrations -----------------------------------------------------------------------------


def trust_an_old_registration(patch: Patch) -> None:
    """What an earlier process of a broker has said counts for the one that runs now."""
    patch.setattr(ReplicaFetchRequests, "_check_epoch", lambda *_: None)

    def on_fetch(self: FollowerProgress, broker_epoch: int, fetch_offset: int) -> None:
        self.broker_epoch, self.has_fetched = broker_epoch, True
        self.fetch_offset = max(self.fetch_offset, fetch_offset)

    patch.setattr(FollowerProgress, "on_fetch", on_fetch)


def trust_any_directory(patch: Patch) -> None:
    """A broker that lost its page cache, or records, is as good as it was."""
    patch.setattr(brokers, "_revocation", lambda known, command: Pending.NOTHING)


def lead_for_the_predecessor(patch: Patch) -> None:
    """A new process takes the leadership that its predecessor had."""

    async def run(self: Replicas) -> NoReturn:
        while True:
            await self._quorum.wait_changed(self._seen.version)
            await self._take(self._quorum.delta_since(self._seen.version))

    patch.setattr(Replicas, "run", run)


def stop_without_waiting(patch: Patch) -> None:
    """A broker that stops in order leaves before other brokers have taken over its partitions."""

    async def stop(self: Lifetime) -> bool:
        self._stop_wanted.set()
        return True

    patch.setattr(Lifetime, "stop", stop)


# -- elections ---------------------------------------------------------------------------------


def elect_anybody(patch: Patch) -> None:
    """Any live replica is elected, in sync or not, although the topic does not allow it."""
    elect = election.elect

    def elect_uncleanly(partition: PartitionState, rules: Rules) -> Elected:
        return elect(partition, rules._replace(is_unclean_allowed=True))

    patch.setattr(election, "elect", elect_uncleanly)


def elect_in_the_same_epoch(patch: Patch) -> None:
    """A new leader goes on with the epoch of the one before."""

    def concluded(before: PartitionState, after: PartitionState) -> PartitionState:
        if after == before:
            return before
        return replace(after, partition_epoch=before.partition_epoch + 1)

    patch.setattr(election, "concluded", concluded)
    patch.setattr(partitions, "concluded", concluded)


# -- topics ------------------------------------------------------------------------------------


def a_name_is_enough(patch: Patch) -> None:
    """What was sent to a topic goes to its successor of the same name."""
    get = Replicas.get
    names: dict[bytes, str] = {}

    def get_by_name(self: Replicas, topic_id: bytes, partition: int) -> Replica:
        topics = self._quorum.image.topics
        names.update((key, topic.name) for key, topic in topics.items())
        with suppress(UnknownTopicId):
            return get(self, topic_id, partition)
        same = [key for key, topic in topics.items() if topic.name == names.get(topic_id)]
        return get(self, same[0] if same else topic_id, partition)

    patch.setattr(Replicas, "get", get_by_name)


# -- clocks ------------------------------------------------------------------------------------


def believe_the_own_clock(patch: Patch) -> None:
    """What is old is deleted without asking whether other brokers' clocks agree."""
    patch.setattr(BrokerClock, "confirmed_ms", lambda self: self.read().wall_ms)


def stamp_by_the_own_clock(patch: Patch) -> None:
    """Records get the time of this broker's clock, although that is known to be wrong."""
    patch.setattr(BrokerClock, "stamp_ms", lambda self: self.read().wall_ms)


def followers_retire(patch: Patch) -> None:
    """Each replica removes old records by itself, and no other broker's clock is compared."""
    patch.setattr(Replica, "_retirable_end", lambda self: self.high_watermark)
    believe_the_own_clock(patch)
