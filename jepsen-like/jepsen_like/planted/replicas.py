"""Planted bugs of replicas: acknowledgements, high watermarks, truncation, deletion, fsync.

Each is a function that patches the code through a `Patch`. A bug takes away one rule, or one step;
never a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.broker.replication.followed_partition import FollowedPartition
from raftmq.broker.replication.leader_fetcher import LeaderFetcher
from raftmq.broker.replication.replicas import HighWatermarks
from raftmq.broker.requests.fetch import ConsumerView
from raftmq.broker.requests.fetch_sessions import PartitionView
from raftmq.broker.requests.offsets import RecordDeletion
from raftmq.broker.requests.produce import ProduceRequests
from raftmq.errors import NotLeaderOrFollower
from raftmq.partition import acknowledgements
from raftmq.partition import replica as replica_module
from raftmq.partition.acknowledgements import Acknowledgements
from raftmq.partition.admission import Admission
from raftmq.partition.leader import FollowerProgress, Leader
from raftmq.partition.replica import Replica
from raftmq.partition.storage.log import PartitionLog
from raftmq.partition.storage.work import LogTrim
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.topics import DeleteRecordsReply, RecordsDeleted

if TYPE_CHECKING:
    from jepsen_like.planted.patch import Patch
    from raftmq.broker.requests.fetch_sessions import SessionPartition
    from raftmq.errors import RaftmqError
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.topics import DeleteRecords


# -- what is acknowledged ----------------------------------------------------------------------


def ack_before_followers_hold(patch: Patch) -> None:
    """acks=all waits for the leader's disk alone."""

    def reached(leader: Leader, _acks: int) -> int:
        return leader.held_end_offset

    patch.setattr(acknowledgements, "reached", reached)
    patch.setattr(replica_module, "reached", reached)


def hold_before_fsync(patch: Patch) -> None:
    """Written records count as held before fsync, for any durability of the topic."""
    patch.setattr(PartitionLog, "held_end_offset", PartitionLog.log_end_offset)


def tell_before_fsync(patch: Patch) -> None:
    """A follower tells its leader what it has written; the leader waits for its own disk."""

    def held_to_tell(self: FollowedPartition) -> int | None:
        if self.replica.follower is not self.part or not self.part.agrees:
            return None
        held = min(self.replica.log.log_end_offset, self.named_offset)
        return held if held > max(self.told_held, 0) else None

    patch.setattr(FollowedPartition, "held_to_tell", held_to_tell)


def count_what_is_fetched(patch: Patch) -> None:
    """A follower that fetches from an offset is taken to hold everything before it."""
    on_fetch = FollowerProgress.on_fetch

    def on_fetch_and_held(self: FollowerProgress, broker_epoch: int, fetch_offset: int) -> None:
        on_fetch(self, broker_epoch, fetch_offset)
        self.held_offset = self.fetch_offset

    patch.setattr(FollowerProgress, "on_fetch", on_fetch_and_held)


def answer_across_epochs(patch: Patch) -> None:
    """A produce request goes on waiting when its leader is deposed, and is answered when records
    of a later epoch are at its offsets.
    """
    fail = Acknowledgements.fail

    def fail_others(self: Acknowledgements, error: RaftmqError) -> None:
        if not isinstance(error, NotLeaderOrFollower):
            fail(self, error)

    patch.setattr(Acknowledgements, "fail", fail_others)


def deny_what_was_appended(patch: Patch) -> None:
    """An answer does not say that the records are in the log, so they are sent once more."""
    refused = ProduceRequests._refused

    def refuse(self: ProduceRequests, wanted: Any, error: RaftmqError, *_: int, **__: int) -> Any:
        return refused(self, wanted, error)

    patch.setattr(ProduceRequests, "_refused", refuse)


def numbers_are_not_looked_at(patch: Patch) -> None:
    """Retries of an idempotent producer are appended again."""
    patch.setattr(Admission, "original_offset", lambda self, placed, account=None: None)


# -- what is read, copied and kept -------------------------------------------------------------


def read_above_the_high_watermark(patch: Patch) -> None:
    """A consumer gets all that the leader has, and is told that it is committed."""
    look = ConsumerView.look

    def look_further(
        self: ConsumerView, replica: Replica, partition: SessionPartition
    ) -> PartitionView:
        seen, end = look(self, replica, partition), replica.log.log_end_offset
        bounds = end, end, seen.log_start_offset
        return PartitionView(*bounds, seen.diverged, seen.last_stable_offset)

    patch.setattr(ConsumerView, "look", look_further)


def skip_the_divergence_answer(patch: Patch) -> None:
    """A follower's log is taken for a part of the leader's."""
    patch.setattr(Replica, "divergence", lambda *_: None)

    def on_fetch(
        self: Leader,
        follower: int,
        broker_epoch: int,
        offset: int,
        *,
        now: float,
        held_offset: int = 0,
    ) -> Any:
        progress = self._progress[follower]
        progress.on_fetch(broker_epoch, min(offset, self.log_end_offset))
        progress.on_held(held_offset)
        return self._after_word_of(follower, progress, now)

    patch.setattr(Leader, "on_fetch", on_fetch)


def give_up_after_an_error(patch: Patch) -> None:
    """A follower that was refused once does not ask again before the next election."""
    patch.setattr(LeaderFetcher, "_rest", lambda self, followed, error=None: None)


def the_log_start_is_not_written(patch: Patch) -> None:
    """Deleted records are gone until the next start, unless a whole file was."""
    patch.setattr(LogTrim, "prepare", lambda self, files: None)
    patch.setattr(LogTrim, "perform", lambda self, files: None)


def deletions_are_answered_alone(patch: Patch) -> None:
    """A deletion is answered after the leader's own; the quorum does not record it."""

    async def delete(
        self: RecordDeletion, _: object, request: DeleteRecords, _data: Buffer
    ) -> Reply:
        told = []
        for wanted in request.partitions:
            replica = self._replicas.get(wanted.topic_id, wanted.partition)
            replica.leading()
            before = min(wanted.before_offset, replica.high_watermark)
            start = await self._directory.delete_records(replica.log, before)
            done = RecordsDeleted(wanted.topic_id, wanted.partition, log_start_offset=start)
            told.append(done)
        return Reply(DeleteRecordsReply(tuple(told)))

    patch.setattr(RecordDeletion, "delete", delete)


def leaders_begin_where_their_logs_do(patch: Patch) -> None:
    """A new leader does not apply the start offset that the quorum has recorded."""

    async def begin_at(self: Replica, start_offset: int) -> None:
        pass

    patch.setattr(Replica, "_begin_at", begin_at)


def high_watermarks_are_forgotten(patch: Patch) -> None:
    """Harmless: a leader learns them again from its followers before it serves reads."""
    patch.setattr(HighWatermarks, "of", lambda self, name: 0)
