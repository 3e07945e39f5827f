"""The replicas on this broker: opens logs, follows the metadata, makes leaders and followers.

Owns the replicas, and applies the metadata images to them. An image changes nothing before it knows
this very process (its broker epoch): what an earlier process led, this one does not. Nothing is
deleted but what an older image had and a newer one has not, and what the quorum remembers to have
deleted while this broker was down (decision 0030). A replica whose log cannot be used stays without
a role; `ReplicaRepair` brings it back. (Kafka: ReplicaManager)
"""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.broker.replication.replica_repair import ReplicaRepair
from raftmq.broker.replication.rot_watch import RotWatch
from raftmq.broker.replication.scheduled_delivery import ScheduledDelivery
from raftmq.broker.requests.levels import check_level
from raftmq.broker.transactions.open_transactions import OpenTransactions
from raftmq.disk.checkpoint import read_checkpoint, write_checkpoint
from raftmq.errors import (
    NotLeaderOrFollower,
    RaftmqError,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raftmq.metadata.cluster_events import counted
from raftmq.metadata.commands import FeatureLevel, PartitionId, RecoveryState
from raftmq.metadata.delta import BecomeFollower, BecomeLeader, LetGo, duties, duty_of
from raftmq.metadata.election import min_isr_of
from raftmq.metadata.image import EMPTY_IMAGE, ChangeKind
from raftmq.metadata.transactions import lists_partition, outcome_of
from raftmq.partition.leader import NO_LEADER, Assignment
from raftmq.partition.replica import Replica
from raftmq.partition.replica_environment import PartitionKey, ReplicaEnvironment
from raftmq.partition.storage.directory import LogId
from raftmq.topic_config import TopicConfig, parse_topic_config

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from raftmq.broker.replication.fetchers import Fetchers
    from raftmq.broker.replication.isr_proposals import IsrProposals
    from raftmq.broker.replication.replica_repair import DamageReports
    from raftmq.disk.files import Files
    from raftmq.disk.thread import RunSync
    from raftmq.metadata.delta import Duty, MetadataDelta
    from raftmq.metadata.image import MetadataImage, PartitionState, TopicState
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.model import TransactionOutcome
    from raftmq.partition.leader import ProposeIsr
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.rpc.peers import Peers


logger = logging.getLogger("raftmq.broker")


# -- High watermarks ------------------------------------------------------------------------------
# The checkpoint of high watermarks on disk, for the next start.
#
# Owns the file `checkpoints/high-watermarks`. A value below the true one is harmless: it rises with
# the first answer of the leader, or with the first fetches of followers. Until then consumers read
# less. A log cannot start below what was once committed.


class HighWatermarks:
    """By names of logs."""

    def __init__(self, files: Files, root: Path, run_sync: RunSync) -> None:
        self._files, self._path, self._run_sync = (
            files,
            root / "checkpoints/high-watermarks",
            run_sync,
        )
        self._known: dict[str, int] = {}
        self._written: dict[str, int] = {}

    async def load(self) -> None:
        """Once, before `of` is called."""
        known = await self._run_sync(lambda: read_checkpoint(self._files, self._path))
        self._known, self._written = known or {}, known or {}

    def of(self, name: str) -> int:
        """0 where the checkpoint has no entry."""
        return self._known.get(name, 0)

    def keep(self, names: Iterable[str]) -> None:
        """Drop the entries of all other logs: their folders are gone."""
        self._known = {name: self._known[name] for name in names if name in self._known}

    def forget(self, name: str) -> None:
        """The log is deleted."""
        self._known.pop(name, None)

    async def write(self, high_watermarks: Mapping[str, int]) -> None:
        """Raises StorageError."""
        self._known = {**self._known, **high_watermarks}
        known = dict(self._known)
        # Idle brokers write nothing.
        if known != self._written:
            # A thread: a slow disk must not stop the replicas.
            await self._run_sync(partial(write_checkpoint, self._files, self._path, known))
            self._written = known


# -- Hosted ---------------------------------------------------------------------------------------
# From the metadata to what replicas and logs understand: folder names, configs, assignments.
#
# Pure. Owns the name of a partition's folder.


# Name, then the id that tells topics of one name apart.
_TOPIC_FOLDER = re.compile(r".+-(?P<topic_id>[0-9a-f]{32})")
_PARTITION_FOLDER = re.compile(r"Partition-(?P<partition>\d+)")


def log_id_of(topic: TopicState, partition: int) -> LogId:
    return LogId(f"{topic.name}-{topic.topic_id.hex()}", partition)


def key_of(topic_folder: str, partition_folder: str) -> PartitionKey | None:
    """The partition that a folder belongs to; None for a folder that raftmq did not make."""
    topic = _TOPIC_FOLDER.fullmatch(topic_folder)
    partition = _PARTITION_FOLDER.fullmatch(partition_folder)
    if topic is None or partition is None:  # such as lost+found, or a folder made by hand
        return None
    return PartitionKey(bytes.fromhex(topic["topic_id"]), int(partition["partition"]))


def config_of(topic: TopicState) -> TopicConfig:
    """Parses configs that were checked when they were set."""
    return parse_topic_config(topic.configs)


def assignment_of(state: PartitionState, config: TopicConfig, *, level: int) -> Assignment:
    """`level`: the feature level of the image that `state` is of."""
    return Assignment(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=state.isr,
        min_isr=min_isr_of(state, config.min_insync_replicas, level),
        is_recovering=state.recovery_state is RecoveryState.RECOVERING,
        log_start_offset=state.log_start_offset,
    )


def epoch_in_isr(image: MetadataImage, broker_id: int) -> int | None:
    """The broker epoch of a broker that may be in an ISR; None if it is fenced or stopping."""
    return image.brokers[broker_id].broker_epoch if image.is_active(broker_id) else None


# -- Replicas -------------------------------------------------------------------------------------


TICK_SECONDS = 0.5  # how often leaders check for lagging followers; lag is counted in seconds
CHECKPOINT_SECONDS = 5.0  # a crash costs readers at most so much, until the first fetch
# Between the metadata showing a registration and `Lifetime` setting its epoch lies a disk write.
REGISTRATION_SECONDS = 0.1


class Replicas:
    """
    Args:
        broker_epoch: of this process, once it is registered; -1 before.
        voters: of the quorum.

    Attributes:
        repair, rot_watch, scheduled: of these very replicas; the broker runs them.
        open_transactions: where something is open; `resolving` ends it.
    """

    def __init__(
        self,
        broker_id: int,
        quorum: MetadataQuorum,
        directory: LogDirectory,
        high_watermarks: HighWatermarks,
        *,
        broker_epoch: Callable[[], int],
        following: Fetchers,
        proposing: IsrProposals,
        reports: DamageReports,
        peers: Peers,
        random: Random,
        voters: Collection[int] = (),
    ) -> None:
        self._voters = voters
        self._broker_id, self._quorum, self._directory = broker_id, quorum, directory
        self._high_watermarks, self._broker_epoch = high_watermarks, broker_epoch
        self._following, self._proposing = following, proposing
        self._replicas: dict[PartitionKey, Replica] = {}
        self._logs: dict[PartitionKey, PartitionLog] = {}  # opened, and without a replica yet
        self._unknown: dict[PartitionKey, LogId] = {}  # folders of topics unknown to the metadata
        self._seen = EMPTY_IMAGE  # applied completely
        self._acted_upon = EMPTY_IMAGE  # being applied; `_seen` outside of that
        # Damaged, as the registration has reported: not to be reported again.
        self._told: frozenset[PartitionKey] = frozenset()
        # Made here, as each needs the other: this one says which logs have failed, and the repair
        # puts the replicas of repaired logs back into their roles.
        self.repair = ReplicaRepair(broker_id, self, directory, reports, peers, random)
        self.rot_watch = RotWatch(self, directory, self.repair.watch)
        self.open_transactions = OpenTransactions()
        self.scheduled = ScheduledDelivery(self, directory)
        self._around = ReplicaEnvironment(
            broker_id,
            self._epoch_of,
            self._propose,
            following.on_held,
            self.repair.watch,
            self.rot_watch.doubt,
            self.outcome,
            self.open_transactions.note,
            self._check_listed,
            self._check_scheduled,
            self.scheduled.on_pending,
        )

    def _propose(self, key: PartitionKey, proposal: ProposeIsr) -> None:
        self._proposing.propose(self._replicas[key], proposal)

    def _epoch_of(self, broker_id: int) -> int | None:
        """This broker may be in its own ISRs even while it shuts down, as it still leads them."""
        # The image would call a stopping broker inactive.
        if broker_id == self._broker_id:
            return self._broker_epoch()
        return epoch_in_isr(self._quorum.image, broker_id)

    # -- lookups ---------------------------------------------------------------------------

    def get(self, topic_id: bytes, partition: int) -> Replica:
        """
        Raises:
            UnknownTopicId, UnknownTopicOrPartition: it does not exist, as far as is known here.
            NotLeaderOrFollower: it is on other brokers, or not opened here yet.
        """
        replica = self._replicas.get(PartitionKey(topic_id, partition))
        if replica is not None:  # the usual case
            return replica
        # Three cases, so that the client knows whether to refresh its metadata or to give up.
        topic = self._quorum.image.topics.get(topic_id)
        if topic is None:  # deleted, or not known here yet: the client refreshes its metadata
            raise UnknownTopicId(f"topic {topic_id.hex()} is not known to broker {self._broker_id}")
        if partition >= topic.partition_count:  # a mistake, or partitions added a moment ago
            raise UnknownTopicOrPartition(
                f"{topic.name} has {topic.partition_count} partitions, there is no {partition}"
            )
        name, state = f"{topic.name}-{partition}", self.state_of(PartitionKey(topic_id, partition))
        # This broker has just started, or was just given the replica.
        if state is not None and self._broker_id in state.replicas:
            raise NotLeaderOrFollower(f"broker {self._broker_id} has not opened {name} yet")
        raise NotLeaderOrFollower(f"{name} is not on broker {self._broker_id}")

    def leader_of(self, topic_id: bytes, partition: int) -> tuple[int, int]:
        """Leader and leader epoch in the metadata; -1 where there is none."""
        state = self._quorum.image.partitions.get(PartitionId(topic_id, partition))
        return (NO_LEADER, -1) if state is None else (state.leader, state.leader_epoch)

    def all(self) -> Iterable[Replica]:
        return self._replicas.values()

    def find(self, key: PartitionKey) -> Replica | None:
        return self._replicas.get(key)

    def image(self) -> MetadataImage:
        return self._quorum.image

    def state_of(self, key: PartitionKey) -> PartitionState | None:
        return self._quorum.image.partitions.get(PartitionId(*key))

    def outcome(self, producer_id: int, producer_epoch: int) -> TransactionOutcome:
        """What became of a transaction, by the newest metadata: these never go back."""
        return outcome_of(self._quorum.image, producer_id, producer_epoch)

    def _check_listed(self, key: PartitionKey, producer_id: int, producer_epoch: int) -> None:
        """A commit is kept until the partitions that it lists are settled: one that it does not
        list sees it only by chance. A mistake of the client, then."""
        if not lists_partition(self._quorum.image, producer_id, producer_epoch, key):
            what = "a commit does not list its partition: log=%s producer_id=%d epoch=%d"
            logger.error(what, self._replicas[key].log.name, producer_id, producer_epoch)

    def _check_scheduled(self) -> None:
        """Raises UnsupportedVersion, NotController: older brokers would take it for damage."""
        what = "a delayed or scheduled record"
        image = self._quorum.image
        check_level(image, FeatureLevel.SCHEDULED, voters=self._voters, what=what)

    def ailing(self) -> list[Replica]:
        """Replicas whose logs are damaged, rotten somewhere, or offline, as on a full disk."""
        logs = ((one, one.log) for one in self._replicas.values())
        return [one for one, log in logs if log.damage or log.rotten or log.offline_reason]

    def damaged(self) -> list[PartitionKey]:
        """Partitions whose logs have lost durable records and are not repaired yet."""
        logs = {**self._logs, **{key: replica.log for key, replica in self._replicas.items()}}
        return sorted(key for key, log in logs.items() if log.damage)

    # -- logs on disk ----------------------------------------------------------------------

    async def open_found(self, folders: Sequence[tuple[str, str]]) -> None:
        """Open every log that the metadata knows, before this broker registers: the registration
        has to report which of them are damaged.
        """
        image = self._quorum.image
        found = {key: folder for folder in folders if (key := key_of(*folder))}
        known = [key for key in found if key.topic_id in image.topics]
        # Kept, not deleted: the metadata may be behind (decision 0030).
        for key in sorted(found.keys() - set(known)):
            self._unknown[key] = LogId(found[key][0], key.partition)
        if self._unknown:
            first = next(iter(self._unknown.values())).name
            what = "logs of topics that are not known yet: count=%d first=%s"
            logger.info(what, len(self._unknown), first)
        # All logs before the registration, which reports their damage.
        await self._open(known, image)
        self._told = frozenset(self.damaged())

    async def _open(self, keys: Sequence[PartitionKey], image: MetadataImage) -> None:
        """All at once; a log that fails to open does not affect the others."""
        if not keys:
            return  # the usual change of metadata must not wait for the disk
        topics = {key: image.topics[key.topic_id] for key in keys}
        ids = {key: log_id_of(topic, key.partition) for key, topic in topics.items()}
        for key in keys:
            self._unknown.pop(key, None)
        wanted = [(ids[key], config_of(topics[key])) for key in keys]
        try:
            await self._directory.open_logs(wanted)
        # Those that failed are missing in `logs`; repair tries them again.
        except StorageError as error:
            logger.error("some logs cannot be opened: reason=%s", error)
        opened = self._directory.logs
        self._logs |= {key: opened[ids[key].name] for key in keys if ids[key].name in opened}

    # -- following the metadata ------------------------------------------------------------

    async def run(self) -> NoReturn:
        while True:
            # Until the next version of the metadata.
            image = await self._quorum.wait_changed(self._seen.version)
            me = image.brokers.get(self._broker_id)
            # Registered, and this image knows it.
            if me is not None and me.broker_epoch == self._broker_epoch():
                # Opens logs and changes roles, in the order of the metadata.
                await self._take(self._quorum.delta_since(self._seen.version))
            else:  # the metadata is behind, or `Lifetime` has not set the epoch yet
                # Nothing wakes this task when the epoch changes, hence the short wait.
                with trio.move_on_after(REGISTRATION_SECONDS):
                    # Or the registration is complete after the pause.
                    await self._quorum.wait_changed(image.version)

    async def _take(self, delta: MetadataDelta) -> None:
        self._acted_upon = delta.image
        wanted = list(duties(delta, self._broker_id, self._seen))
        new = [duty.partition_id for duty in wanted if not isinstance(duty, LetGo)]
        missing = [key for key in map(_key, new) if key not in self._replicas]
        late = [key for key in missing if key not in self._logs]
        # From disk, many at once.
        await self._open([key for key in late if not self.repair.is_watched(key)], delta.image)
        # No log to open: repair opens it, now or later.
        for key in late:
            if key not in self._logs:  # the disk refused: repair tries again
                self.repair.watch(key)
        led = self._led(wanted)
        for duty in wanted:
            try:
                # One after the other, in the order of the metadata.
                await self._do(duty, delta.image)
            # One partition's failure must not keep the others from their roles.
            except RaftmqError as error:
                logger.error("duty failed: %s reason=%s", duty, error)
        # A start with a thousand partitions makes one line.
        if taken := [name for name, _ in sorted(self._led(wanted) - led)]:
            logger.info("leads: %s", counted("logs", taken))
        # After the new duties, which must not wait for deletions.
        await self._let_go_deleted(delta.image)
        await self._reconfigure(delta)
        self._seen = delta.image

    def _led(self, wanted: Iterable[Duty]) -> set[tuple[str, int]]:
        """Names and leader epochs of the logs that this broker leads, of these duties."""
        found = (self._replicas.get(_key(duty.partition_id)) for duty in wanted)
        return {(one.log.name, one.leader.leader_epoch) for one in found if one and one.leader}

    async def _let_go_deleted(self, image: MetadataImage) -> None:
        """Remove topics that were deleted while this broker was down.

        Only what the quorum remembers to have deleted: another quorum, or one that began anew, does
        not know these topics either. And only under an image that knows this very process: it is
        newer than all that earlier processes hosted, so that none of these is a topic made since.
        """
        found = sorted({*self._unknown, *self._logs})
        # The list of deletions is long-lived and usually the same: compared by identity.
        if not found or image.deleted_topics is self._seen.deleted_topics:
            return
        deleted = set(image.deleted_topics)
        for key in found:
            if key.topic_id in deleted:
                try:
                    await self._let_go(key)  # closes the replica, then removes its folder
                except RaftmqError as error:
                    # The folder stays; the next change of the list tries again.
                    name = f"{key.topic_id.hex()}-{key.partition}"
                    logger.error("not removed: log=%s reason=%s", name, error)

    async def _do(self, duty: Duty, image: MetadataImage) -> None:
        key = _key(duty.partition_id)
        match duty:  # three duties: give up the replica, lead, follow
            case LetGo():
                await self._let_go(key)
            case BecomeLeader(_, state) | BecomeFollower(_, state):
                await self._take_up(key, state, image)

    async def _take_up(
        self, key: PartitionKey, state: PartitionState, image: MetadataImage
    ) -> None:
        replica = self._replicas.get(key) or self._make(key)
        if replica is None:  # no log: repair makes the replica once it is open
            return
        config = config_of(image.topics[key.topic_id])
        replica.log.config = config
        # Waits for a truncation under way; a new leader also trims its log to the committed start.
        await replica.take_up(assignment_of(state, config, level=image.feature_level))
        self.on_repaired(key, replica)
        self.repair.on_assignment(key)

    def on_repaired(self, key: PartitionKey, replica: Replica) -> None:
        """Start or stop fetching, after a repair or a change of role."""
        # A leader, or a replica without a role, fetches from no broker.
        if replica.follower is not None:
            state = self._acted_upon.partitions.get(PartitionId(*key))
            is_added = state is not None and self._broker_id in {*state.adding} - {*state.isr}
            self._following.follow(key, replica, is_added=is_added)
        else:
            self._following.unfollow(key)

    async def open_again(self, key: PartitionKey) -> None:
        """Open a log that failed to open, if the partition is still hosted here.

        Raises:
            StorageError: it still fails.
        """
        duty = duty_of(self._acted_upon, PartitionId(*key), self._broker_id)
        # Reassigned to other brokers meanwhile, or opened by `_take`.
        if duty is None or key in self._replicas:
            return
        topic = self._acted_upon.topics[key.topic_id]
        log = await self._directory.open_log(  # scans the log after a crash
            *log_id_of(topic, key.partition), config=config_of(topic)
        )
        self._logs[key] = log
        # Opening took its time: the metadata may have another role for it by now.
        duty = duty_of(self._acted_upon, PartitionId(*key), self._broker_id)  # as of now
        if duty is not None:  # still hosted here
            await self._do(duty, self._acted_upon)

    async def discard(self, key: PartitionKey) -> None:
        """Remove the folder of a log that cannot be opened. Raises StorageError."""
        topic = self._acted_upon.topics.get(key.topic_id)
        if topic is not None:
            await self._directory.discard(log_id_of(topic, key.partition))

    def _make(self, key: PartitionKey) -> Replica | None:
        log = self._logs.pop(key, None)
        if log is None:
            return None  # it failed to open
        replica = self._replicas[key] = Replica(
            key,
            log,
            self._directory,
            self._around,
            high_watermark=self._high_watermarks.of(log.name),
        )
        # Opened, yet damaged or rotten: repair decides when it may have a role.
        if not log.is_whole:
            self.repair.watch(key, is_told=key in self._told)
        log.doubt_unread()  # the log was opened before a check could be made for it
        return replica

    async def _let_go(self, key: PartitionKey) -> None:
        self._following.unfollow(key, is_let_go=True)
        replica = self._replicas.get(key)
        if replica is not None:  # a leader may be proposing, a follower fetching
            # Stays in `_replicas` until closed: closing may still propose a change of the ISR.
            await replica.close()
        await self.repair.let_go(key)  # before the files go that it may be working on
        self._told -= {key}
        # Four cases: a replica, an open log without one, a folder of a topic that was unknown, and
        # a folder that failed to open.
        if replica is not None:
            del self._replicas[key]
            await self._delete(replica.log)
        elif (log := self._logs.pop(key, None)) is not None:
            await self._delete(log)
        elif (log_id := self._unknown.pop(key, None)) is not None:
            logger.warning("its topic was deleted, and it goes: log=%s", log_id.name)
            await self._discard(log_id)
        elif (topic := self._seen.topics.get(key.topic_id)) is not None:
            await self._discard(log_id_of(topic, key.partition))

    async def _delete(self, log: PartitionLog) -> None:
        self._high_watermarks.forget(log.name)
        await self._directory.delete_log(log)

    async def _discard(self, log_id: LogId) -> None:
        self._high_watermarks.forget(log_id.name)
        await self._directory.discard(log_id)

    async def _reconfigure(self, delta: MetadataDelta) -> None:
        """Apply topic configs: they are no change of a partition, but `min.insync.replicas` and
        retention belong to its rules.
        """
        image = delta.image
        # An incomplete delta does not name what changed, so all are compared.
        if delta.is_complete:
            changed = {change.key for change in delta.changes if change.kind is ChangeKind.TOPIC}
            keys = [key for key in self._replicas if key.topic_id in changed]
        else:
            keys = list(self._replicas)
        for key in sorted(keys):
            state = image.partitions.get(PartitionId(*key))
            replica = self._replicas[key]
            # No role yet: `_take_up` brings the config.
            if state is not None and (known := replica.assignment) is not None:
                config = config_of(image.topics[key.topic_id])
                replica.log.config = config
                # A proposal was answered ahead of this image: a later one brings its minimum.
                if known.partition_epoch == state.partition_epoch:
                    min_isr = min_isr_of(state, config.min_insync_replicas, image.feature_level)
                    # The leader judges its ISR by the new minimum.
                    await replica.take_up(known._replace(min_isr=min_isr))

    # -- upkeep ----------------------------------------------------------------------------

    async def run_ticks(self) -> NoReturn:
        while True:
            await trio.sleep(TICK_SECONDS)
            self._tick()

    def _tick(self) -> None:
        """A function of its own: its loop variable would keep the last replica's files open."""
        now = trio.current_time()
        for replica in list(self._replicas.values()):
            replica.tick(now)

    async def run_checkpoints(self) -> NoReturn:
        while True:
            await trio.sleep(CHECKPOINT_SECONDS)
            await self.checkpoint()
            await self._keep_starts()

    async def checkpoint(self) -> None:
        try:
            await self._high_watermarks.write(
                {replica.log.name: replica.high_watermark for replica in self._replicas.values()}
            )
        except StorageError as error:  # the older checkpoint is still true, only lower
            logger.warning("no checkpoint of high watermarks: reason=%s", error)

    async def _keep_starts(self) -> None:
        """Delete what the quorum let go after a request to delete it was answered as uncertain."""
        for replica in list(self._replicas.values()):
            try:
                await replica.keep_start()
            except RaftmqError as error:  # tried again with the next checkpoint
                logger.warning("log start stays: log=%s reason=%s", replica.log.name, error)


def _key(partition_id: PartitionId) -> PartitionKey:
    return PartitionKey(partition_id.topic_id, partition_id.partition)
