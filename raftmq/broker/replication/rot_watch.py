"""Corruption reports (bit rot): checks the reported batch on disk, and repairs it from the leader.

`RotWatch` owns how often disks are read because of reports: one check at a time, with pauses in
between, so that a reader that reports all the time cannot slow the broker. A report is no evidence:
what this broker reads on its own disk decides (decision 0027). `RotRepair` owns the repair.
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
    ServerError,
    error_for,
)
from raftmq.partition.storage.mending import plan_mending
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.corruption import (
    DAMAGED_MAX,
    CorruptionVerdict,
    DamagedReplicaRow,
    DescribeDamage,
    DescribeDamageReply,
    ReportCorruption,
    ReportCorruptionReply,
)
from raftmq.wire.messages.fetch import Fetch, FetchPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.partition.leader import Assignment
    from raftmq.partition.replica import Replica
    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import BatchStart
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.peers import Peers
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.fetch import PartitionFetched


logger = logging.getLogger("raftmq.broker")


WAITING_MAX = 100  # checks in line, in all ...
LINE_MAX = 8  # ... and of one partition, each at another offset and from another connection
DOUBTS_MAX = 1000  # a partition, of this broker itself, that wait for a place; as ROTTEN_MAX
REST_SECONDS = 0.02  # pause after each check ...
REST_FACTOR = 9  # ... plus so many times its duration, so that checks take a tenth of disk time ...
REST_SECONDS_MAX = 5.0  # ... unless the disk is so slow that the others would wait for too long
WHOLE_TOLD_SECONDS = 10.0  # between log lines about false reports, which one reader could flood
OURSELVES = "this broker", -1  # as a reader: no connection


class WatchedReplicas(Protocol):
    """The replicas on this broker, see `replicas.Replicas`."""

    def get(self, topic_id: bytes, partition: int) -> Replica:
        """Raises RaftmqError: it is not on this broker."""

    def find(self, key: PartitionKey) -> Replica | None: ...
    def ailing(self) -> Sequence[Replica]: ...


class _Check:
    """One check of an offset. `reader`: who reported, for the log; `connection_id`: over which."""

    def __init__(self, replica: Replica, offset: int, reader: str, connection_id: int) -> None:
        self.replica, self.offset = replica, offset
        self.reader, self.connection_id = reader, connection_id
        self.verdict, self.ended = CorruptionVerdict.NOT_LOOKED, trio.Event()


class RotWatch:
    """Checks nothing before `run`. `repair(key)` is called where rot was found."""

    def __init__(
        self,
        hosting: WatchedReplicas,
        directory: LogDirectory,
        repair: Callable[[PartitionKey], None],
    ) -> None:
        self._hosting, self._directory, self._repair = hosting, directory, repair
        self._waiting: dict[tuple[PartitionKey, int], _Check] = {}  # in order of arrival
        # Of this broker itself, not in line yet: offsets by partition.
        self._doubts: dict[PartitionKey, dict[int, None]] = {}
        self._woken = trio.Event()
        self._reading_since = float("inf")  # of the check under way; inf while it waits for the log
        self._whole_told_at = float("-inf")

    def handlers(self) -> Handlers:
        return {ReportCorruption: self.report, DescribeDamage: self.describe}

    # -- requests --------------------------------------------------------------------------

    async def report(
        self, context: RequestContext, request: ReportCorruption, _payload: Buffer
    ) -> Reply:
        """A report about bytes that this broker sent as the leader of that epoch."""
        try:
            replica = self._hosting.get(request.topic_id, request.partition)
            replica.leading(request.leader_epoch)
            _check_offset(replica, request.offset)
        # Another epoch's leader sent those bytes, or the offset is gone: not this broker's to
        # check.
        except RaftmqError as error:
            return Reply(ReportCorruptionReply(error.code, clip_message(str(error))))
        reader = f"broker {context.node_id}" if context.node_id >= 0 else context.peer
        reader = f"{reader} {context.client_id}".strip()
        look = self._begin(replica, request.offset, reader, context.connection_id)
        # NOT_LOOKED: too many checks in line; the reader may report again.
        if look is None:
            return Reply(ReportCorruptionReply())
        # Until the check is done; another reader's check of the same offset counts.
        await look.ended.wait()
        return Reply(ReportCorruptionReply(verdict=look.verdict))

    def describe(
        self, _context: RequestContext, _request: DescribeDamage, _payload: Buffer
    ) -> Reply:
        ailing = self._hosting.ailing()
        # A reply has a size limit; `len(ailing)` says that there are more.
        told = tuple(_describe(replica) for replica in ailing[:DAMAGED_MAX])
        return Reply(DescribeDamageReply(told, len(ailing)))

    # -- checking --------------------------------------------------------------------------

    def doubt(self, key: PartitionKey, offset: int) -> None:
        """A read of this broker itself failed there. It may not be repeated, as one at an opening:
        without a place in line it waits for one.
        """
        replica = self._hosting.find(key)
        if replica is None:  # closed meanwhile
            return
        if self._begin(replica, offset, *OURSELVES) is None:
            offsets = self._doubts.setdefault(key, {})
            if len(offsets) < DOUBTS_MAX:
                offsets[offset] = None

    def _begin(
        self, replica: Replica, offset: int, reader: str, connection_id: int
    ) -> _Check | None:
        """The check of that offset, possibly begun for another reader; None: too many in line.

        One connection has one place in a partition's line, so it cannot crowd out others.
        """
        look = self._waiting.get((replica.key, offset))
        if look is not None:  # share the check that is waiting
            return look
        line = [
            each.connection_id for (key, _), each in self._waiting.items() if key == replica.key
        ]
        is_full = len(line) >= LINE_MAX or len(self._waiting) >= WAITING_MAX
        # The reader repeats its report if it meets the rot again.
        if is_full or connection_id in line:
            return None
        look = _Check(replica, offset, reader, connection_id)
        self._waiting[replica.key, offset] = look
        self._woken.set()
        return look

    async def run(self) -> NoReturn:
        while True:
            # Until something is reported.
            await self._woken.wait()
            self._woken = trio.Event()
            while self._waiting:
                spot = next(iter(self._waiting))
                # Set when reading begins: waiting for other work on the log costs no disk time.
                self._reading_since = float("inf")
                try:
                    await self._look(self._waiting[spot])  # reads one batch in a worker thread
                finally:
                    # Also when cancelled: readers wait for the event.
                    self._waiting.pop(spot).ended.set()
                took = max(0.0, trio.current_time() - self._reading_since)
                # Leaves the disk to everything else, see REST_FACTOR.
                await trio.sleep(min(REST_SECONDS + REST_FACTOR * took, REST_SECONDS_MAX))
                self._doubt_next()

    def _doubt_next(self) -> None:
        """Give places in line that have become free to this broker's own doubts."""
        for key, offsets in list(self._doubts.items()):
            # One of each partition: its line has one place for this broker.
            offset = next(iter(offsets))
            del offsets[offset]
            if not offsets:
                del self._doubts[key]
            self.doubt(key, offset)

    async def _look(self, look: _Check) -> None:
        log, offset = look.replica.log, look.offset
        # Known already and under repair: no read.
        if log.is_rotten_at(offset):
            look.verdict = CorruptionVerdict.ROTTEN
            return
        try:
            # A worker thread; waits for other work on the log first.
            found = await self._directory.look(log, offset, on_begin=self._on_reading)
        # The disk does not read at all, which is no rot (decision 0027); NOT_LOOKED is the answer.
        except RaftmqError as error:
            logger.warning(
                "cannot look after rot: log=%s offset=%d reason=%s", log.name, offset, error
            )
            return
        # The reader's memory or network is at fault, or the page cache, which was given up.
        if found is None:
            look.verdict = CorruptionVerdict.WHOLE
            self._tell_whole(look)
            # A read at an opening was wrong: it is read back, as after a repair.
            if look.replica.has_unread:
                self._repair(look.replica.key)
            return
        look.verdict = CorruptionVerdict.ROTTEN
        logger.error(
            "rot found: log=%s offset=%d end_offset=%d file=%s position=%d what=%s noticed_by=%s",
            log.name, found.offset, found.end_offset, found.path, found.begin.position,
            found.what, look.reader,
        )  # fmt: skip
        self._repair(look.replica.key)

    def _on_reading(self) -> None:
        """The work that was being done on this log is over; reading begins."""
        self._reading_since = trio.current_time()

    def _tell_whole(self, look: _Check) -> None:
        """Log a false report, at most one in WHOLE_TOLD_SECONDS."""
        now = trio.current_time()
        if now >= self._whole_told_at + WHOLE_TOLD_SECONDS:  # rate limit of the log
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
    if log.damage or log.rotten:
        what = str(log.damage or log.rotten[0])
    else:
        what = f"takes nothing: {log.offline_reason}"
    return DamagedReplicaRow(*replica.key, offset=log.whole_end_offset, message=clip_message(what))


# -- Rot repair -----------------------------------------------------------------------------------
# Overwriting rotten batches with those of the leader.
#
# Owns the transfer: batch after batch as any reader gets them, checked, and written in their old
# place. Nothing is truncated for it: what is whole behind the rot may be the last copy, where the
# leader has rotted as well (decision 0027).


PIECE_BYTES = 1 << 20  # of one fetch; a larger first batch comes whole
ANSWER_SECONDS_MAX = 10.0  # the leader reads from its disk, and does not wait for new records


class RotRepair:
    def __init__(self, peers: Peers, directory: LogDirectory) -> None:
        self._peers, self._directory = peers, directory

    async def put_right(self, replica: Replica, known: Assignment) -> None:
        """Repair as far as possible: rot that is left afterwards lies where the leader's log
        differs, or does not reach, and has to be truncated.

        Raises:
            RaftmqError: some of it cannot be repaired now. Nothing must be truncated.
        """
        problem: RaftmqError | None = None
        for rot in replica.log.rotten:
            try:
                await self._put_right(replica, rot, known)
            except RaftmqError as error:  # the leader may have rotted there, and nowhere else
                problem = error
        if problem is not None:  # raised after all other rot was tried
            raise problem

    async def _put_right(self, replica: Replica, rot: Rot, known: Assignment) -> None:
        place: BatchStart | None = rot.begin
        # Batch by batch, until the end of this rot: `_write` returns the next place.
        while place is not None and rot in replica.log.rotten:
            told, data = await self._fetch(replica, place.offset, known)
            # Deleted at the leader: then it need not be repaired, only deleted here.
            if told.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._begin_behind(replica, rot, told.log_start_offset)
                return
            if told.error != ErrorCode.NONE:  # not the leader any more, or rotten there too
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
        answer = await self._peers.request(  # from the leader, within ANSWER_SECONDS_MAX
            known.leader, request, timeout_seconds=ANSWER_SECONDS_MAX
        )
        told = answer.body.partitions
        # A fault of the leader: the repair tries again later.
        if [(one.topic_id, one.partition) for one in told] != [tuple(replica.key)]:
            raise ServerError(
                f"broker {known.leader} was asked for {replica.log.name} and answered for"
                f" {len(told)} partitions that are not it"
            )
        return told[0], answer.payload

    async def _write(
        self,
        replica: Replica,
        rot: Rot,
        place: BatchStart,
        data: bytes | memoryview,
        known: Assignment,
    ) -> BatchStart | None:
        """The place of the next batch; None: none is left, or this one does not belong there."""
        log = replica.log
        try:
            mending = plan_mending(log, rot, place, data) if data else None
        # The leader's bytes are wrong too: have it check its own disk.
        except CorruptRecord as error:
            self._report(replica, error.offset, known)
            raise
        # Another offset or epoch than our table names: the logs differ here.
        if mending is None:
            return None
        await self._directory.mend(log, mending)  # written and synced in its old place
        if mending.is_last:  # the disk shows all of this rot repaired
            logger.info(
                "rot is put right: log=%s offset=%d end_offset=%d leader=%d",
                log.name, rot.offset, mending.end.offset, known.leader,
            )  # fmt: skip
        return mending.end

    def _report(self, replica: Replica, offset: int | None, known: Assignment) -> None:
        """Report to the leader; what it finds shows in its next answers, so none is awaited."""
        if offset is not None:
            report = ReportCorruption(*replica.key, offset, known.leader_epoch)
            self._peers.ask(
                known.leader, report, lambda _outcome: None, timeout_seconds=ANSWER_SECONDS_MAX
            )

    async def _begin_behind(self, replica: Replica, rot: Rot, leader_start_offset: int) -> None:
        """The leader has deleted this offset: follow its log start."""
        if leader_start_offset >= rot.end_offset:
            replica.leader_start_offset = leader_start_offset
            await replica.follow_log_start()
