"""Replicas here whose bytes may have rotted: looked at, told of, handed to `repairs`.

Owns how often disks are read because somebody says so: one look at a time, with rests in between,
for whoever reports all the time is no reason to be slow. A report is no evidence: what this broker
reads on its own disk decides.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

from raftmq.errors import (
    CorruptRecord,
    ErrorCode,
    OffsetOutOfRange,
    RaftmqError,
    RequestTimedOut,
    error_for,
)
from raftmq.partition.storage.mending import plan_mending
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.corruption import (
    DAMAGED_MAX,
    CorruptionVerdict,
    DamagedReplicaRow,
    DescribeDamageReply,
    ReportCorruption,
    ReportCorruptionReply,
)
from raftmq.wire.messages.fetch import Fetch, FetchPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.broker.replication.fetch_exchange import FetchEnvironment
    from raftmq.partition.leader import Assignment
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import BatchStart
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handler
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.corruption import DescribeDamage
    from raftmq.wire.messages.fetch import PartitionFetched


logger = logging.getLogger("raftmq.broker")


WAITING_MAX = 100  # looks that wait for their turn
LINE_MAX = 8  # ... of them at one partition, each at another offset and of another connection
REST_SECONDS = 0.02  # after each look ...
REST_FACTOR = 9  # ... and so many times as long as it read: a tenth of a disk's time ...
REST_SECONDS_MAX = 5.0  # ... unless it is so slow that others would wait for too long
WHOLE_TOLD_SECONDS = 10.0  # between two lines that nothing is wrong here
OURSELVES = "this broker", -1


class WatchedReplicas(Protocol):
    """Where the replicas are, see `replicas.Replicas`."""

    def get(self, topic_id: bytes, partition: int) -> Replica:
        """Raises RaftmqError: it is not here."""

    def find(self, key: PartitionKey) -> Replica | None: ...
    def ailing(self) -> Sequence[Replica]: ...


class _Look:
    """`reader`: in words; `connection_id`: where it has come from."""

    def __init__(self, replica: Replica, offset: int, reader: str, connection_id: int) -> None:
        self.replica, self.offset = replica, offset
        self.reader, self.connection_id = reader, connection_id
        self.verdict, self.ended = CorruptionVerdict.NOT_LOOKED, trio.Event()


class RotWatch:
    """Looks at nothing before `run`. `repair(key)`: rot was found there."""

    def __init__(
        self,
        hosting: WatchedReplicas,
        directory: LogDirectory,
        repair: Callable[[PartitionKey], None],
    ) -> None:
        self._hosting, self._directory, self._repair = hosting, directory, repair
        self._waiting: dict[tuple[PartitionKey, int], _Look] = {}  # first come, first served
        self._woken = trio.Event()
        self._reading_since = float("inf")
        self._whole_told_at = float("-inf")

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.REPORT_CORRUPTION: self.report, ApiKey.DESCRIBE_DAMAGE: self.describe}

    # -- requests --------------------------------------------------------------------------

    async def report(
        self, context: RequestContext, request: ReportCorruption, _payload: Buffer
    ) -> Reply:
        """Of what this broker sent as the leader of that epoch; nobody else's bytes are meant."""
        try:
            replica = self._hosting.get(request.topic_id, request.partition)
            replica.leading(request.leader_epoch)
            _check_offset(replica, request.offset)
        except RaftmqError as error:
            return Reply(ReportCorruptionReply(error.code, clip_message(str(error))))
        reader = f"broker {context.node_id}" if context.node_id >= 0 else context.peer
        reader = f"{reader} {context.client_id}".strip()
        look = self._begin(replica, request.offset, reader, context.connection_id)
        if look is None:
            return Reply(ReportCorruptionReply())
        await look.ended.wait()
        return Reply(ReportCorruptionReply(verdict=look.verdict))

    def describe(
        self, _context: RequestContext, _request: DescribeDamage, _payload: Buffer
    ) -> Reply:
        ailing = self._hosting.ailing()
        told = tuple(_describe(replica) for replica in ailing[:DAMAGED_MAX])
        return Reply(DescribeDamageReply(told, len(ailing)))

    # -- looking ---------------------------------------------------------------------------

    def doubt(self, key: PartitionKey, offset: int) -> None:
        """Reading there failed on this very broker."""
        replica = self._hosting.find(key)
        if replica is not None:
            self._begin(replica, offset, *OURSELVES)

    def _begin(
        self, replica: Replica, offset: int, reader: str, connection_id: int
    ) -> _Look | None:
        """The look at that very offset, of another reader perhaps; None: not now.

        Who reports all the time has one place in a partition's line, and takes nobody else's.
        """
        look = self._waiting.get((replica.key, offset))
        if look is not None:
            return look
        line = [
            each.connection_id for (key, _), each in self._waiting.items() if key == replica.key
        ]
        is_full = len(line) >= LINE_MAX or len(self._waiting) >= WAITING_MAX
        if is_full or connection_id in line:
            return None
        look = _Look(replica, offset, reader, connection_id)
        self._waiting[replica.key, offset] = look
        self._woken.set()
        return look

    async def run(self) -> NoReturn:
        while True:
            await self._woken.wait()
            self._woken = trio.Event()
            while self._waiting:
                spot = next(iter(self._waiting))
                self._reading_since = float("inf")
                try:
                    await self._look(self._waiting[spot])
                finally:
                    self._waiting.pop(spot).ended.set()
                took = max(0.0, trio.current_time() - self._reading_since)
                await trio.sleep(min(REST_SECONDS + REST_FACTOR * took, REST_SECONDS_MAX))

    async def _look(self, look: _Look) -> None:
        log, offset = look.replica.log, look.offset
        if log.is_rotten_at(offset):
            look.verdict = CorruptionVerdict.ROTTEN
            return
        try:
            found = await self._directory.look(log, offset, on_begin=self._on_reading)
        except RaftmqError as error:
            logger.warning(
                "cannot look after rot: log=%s offset=%d reason=%s", log.name, offset, error
            )
            return
        if found is None:
            look.verdict = CorruptionVerdict.WHOLE
            self._tell_whole(look)
            return
        look.verdict = CorruptionVerdict.ROTTEN
        logger.error(
            "rot found: log=%s offset=%d end_offset=%d file=%s position=%d what=%s noticed_by=%s",
            log.name, found.offset, found.end_offset, found.path, found.begin.position,
            found.what, look.reader,
        )  # fmt: skip
        self._repair(look.replica.key)

    def _on_reading(self) -> None:
        """It has waited long enough for what was done to the log: that cost no disk."""
        self._reading_since = trio.current_time()

    def _tell_whole(self, look: _Look) -> None:
        """Who says so all the time does not fill the disk with it."""
        now = trio.current_time()
        if now >= self._whole_told_at + WHOLE_TOLD_SECONDS:
            self._whole_told_at = now
            logger.warning(
                "no rot here, the reader got other bytes than the disk holds: log=%s offset=%d"
                " noticed_by=%s",
                look.replica.log.name, look.offset, look.reader,
            )  # fmt: skip


def _check_offset(replica: Replica, offset: int) -> None:
    log = replica.log
    if not log.log_start_offset <= offset < log.log_end_offset:
        raise OffsetOutOfRange(
            f"{log.name} has offsets from {log.log_start_offset} to {log.log_end_offset - 1}, not"
            f" {offset}"
        )


def _describe(replica: Replica) -> DamagedReplicaRow:
    log = replica.log
    what = str(log.damage or log.rotten[0])
    return DamagedReplicaRow(*replica.key, offset=log.whole_end_offset, message=clip_message(what))


# -- Rot repair -----------------------------------------------------------------------------------
# What has rotted here, put right with what the leader holds.
#
# Owns the way there: batch after batch as any reader gets them, checked, and written in their old
# place. Nothing is cut for it: what is whole behind the rot may be all that is left where the
# leader has rotted, too.


PIECE_BYTES = 1 << 20
ANSWER_SECONDS_MAX = 10.0


class RotRepair:
    def __init__(self, peers: FetchEnvironment, directory: LogDirectory) -> None:
        self._peers, self._directory = peers, directory

    async def put_right(self, replica: Replica, known: Assignment) -> None:
        """As far as it can be: rot that is still there afterwards lies where the leader's log is
        another one, or does not show what it holds, and has to be cut.

        Raises:
            RaftmqError: some of it not now. Nothing must be cut.
        """
        problem: RaftmqError | None = None
        for rot in replica.log.rotten:
            try:
                await self._put_right(replica, rot, known)
            except RaftmqError as error:  # the leader has rotted there, perhaps, and nowhere else
                problem = error
        if problem is not None:
            raise problem

    async def _put_right(self, replica: Replica, rot: Rot, known: Assignment) -> None:
        place: BatchStart | None = rot.begin
        while place is not None and rot in replica.log.rotten:
            told, data = await self._fetch(replica, place.offset, known)
            if told.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._begin_behind(replica, rot, told.log_start_offset)
                return
            if told.error != ErrorCode.NONE:
                raise error_for(told.error, told.message)
            place = await self._write(replica, rot, place, data, known)

    async def _fetch(
        self, replica: Replica, offset: int, known: Assignment
    ) -> tuple[PartitionFetched, bytes | memoryview]:
        wanted = FetchPartition(
            *replica.key,
            fetch_offset=offset,
            leader_epoch=known.leader_epoch,
            bytes_max=PIECE_BYTES,
        )
        request = Fetch(max_wait_ms=0, bytes_min=0, bytes_max=PIECE_BYTES, partitions=(wanted,))
        answer = await self._peers.request(
            known.leader, request, timeout_seconds=ANSWER_SECONDS_MAX
        )
        told = answer.body.partitions
        if len(told) != 1:
            raise RequestTimedOut(f"broker {known.leader} tells nothing of {replica.log.name}")
        return told[0], answer.payload

    async def _write(
        self,
        replica: Replica,
        rot: Rot,
        place: BatchStart,
        data: bytes | memoryview,
        known: Assignment,
    ) -> BatchStart | None:
        """Where the next batch goes; None: there is none, or it does not belong there."""
        log = replica.log
        try:
            mending = plan_mending(log, rot, place, data) if data else None
        except CorruptRecord as error:
            self._report(replica, error.offset, known)
            raise
        if mending is None:
            return None
        await self._directory.mend(log, mending)
        if mending.is_last:
            logger.info(
                "rot is put right: log=%s offset=%d end_offset=%d leader=%d",
                log.name, rot.offset, mending.end.offset, known.leader,
            )  # fmt: skip
        return mending.end

    def _report(self, replica: Replica, offset: int | None, known: Assignment) -> None:
        """The leader should look at its disk; what it finds it shows by what it does."""
        if offset is not None:
            report = ReportCorruption(*replica.key, offset, known.leader_epoch)
            self._peers.ask(
                known.leader, report, lambda _outcome: None, timeout_seconds=ANSWER_SECONDS_MAX
            )

    async def _begin_behind(self, replica: Replica, rot: Rot, leader_start_offset: int) -> None:
        """The leader has deleted it."""
        if leader_start_offset >= rot.end_offset:
            replica.leader_start_offset = leader_start_offset
            await replica.follow_log_start()
