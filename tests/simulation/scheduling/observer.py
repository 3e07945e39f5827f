"""Sees every leader commit and deliver, in the turn in which it happens; never disturbs it.

Owns what only a leader knows: by its clock nothing is delivered before it is due. What is committed
goes to the `CommittedLog` of the partition, and to the base ledger, which faults read offsets from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.partition.replica import Replica
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import RecordBatch
from tests.log_reading import read_slice
from tests.simulation.brokers.hosts import NAME
from tests.simulation.brokers.ledger import Spot
from tests.simulation.raft.checks import Violation, demand
from tests.simulation.scheduling.committed_log import CommittedLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.replica_environment import PartitionKey
    from raftmq.partition.storage.log import PartitionLog
    from tests.simulation.brokers.world import World

READ_BYTES = 1 << 20


class Observer:
    """Attributes:
    logs: what was committed, by partition.
    late_ms: by how much each delivery was late, by its leader's clock.
    violation: the first one; brokers, in whose turns it is raised, may make something else of it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.logs: dict[Spot, CommittedLog] = {}
        self.late_ms: list[int] = []
        self.violation: Violation | None = None

    def new_replica(self, *given: object, **how: object) -> Replica:
        """In place of `Replica`."""
        replica = Replica(*given, **how)  # type: ignore[arg-type]
        replica.watchers[_Watcher(self, replica)] = None
        return replica

    def spot_of(self, key: PartitionKey) -> Spot | None:
        for (topic, life), topic_id in self._world.topic_ids.items():
            if topic_id == key.topic_id:
                return Spot(topic, key.partition, life)
        return None

    def log_of(self, spot: Spot) -> CommittedLog:
        if spot not in self.logs:
            self.logs[spot] = CommittedLog(spot)
        return self.logs[spot]

    def on_committed(self, replica: Replica) -> None:
        spot = self.spot_of(replica.key)
        if spot is None:  # whoever makes the topic has no answer yet, and nobody has sent anything
            return
        known = self.log_of(spot)
        begin, end = known.end_offset, replica.high_watermark
        if begin >= end:
            return
        start = replica.log.log_start_offset
        demand(start <= begin, f"{NAME.get()}: {spot} starts at {start}, committed was {begin}")
        known.take(content(replica.log, begin, end))
        stands = self._world.ledger.of(spot).stands
        stands.update({one.offset: one.value for one in known.visible_in(begin, end)})

    def on_trimmed(self, replica: Replica, before: int) -> None:
        """A replica deletes only what is settled, below its own high watermark."""
        spot, start = self.spot_of(replica.key), replica.log.log_start_offset
        if spot is None:
            return
        for seen in self.log_of(spot).scheduled_in(before, start):
            is_settled = 0 <= seen.settled_at < replica.high_watermark
            demand(
                is_settled,
                f"{NAME.get()}: {spot} starts at {start}, {seen.base_offset} was settled at"
                f" {seen.settled_at}, here committed is {replica.high_watermark}",
            )

    def on_appended(self, replica: Replica, begin: int) -> None:
        """By its leader, who has done so just now."""
        data, now_ms = content(replica.log, begin, replica.log.log_end_offset), replica.now_ms()
        for position, header in iter_batches(data):
            mark = RecordBatch.decode(data, position).mark if header.is_columns else None
            if mark is not None and mark.delivers is not None and header.base_offset >= begin:
                late = now_ms - mark.due_ms
                where = f"{NAME.get()}: {replica.log.name} {header.base_offset}"
                demand(late >= 0, f"{where}: delivered {-late} ms early")
                demand(header.max_timestamp <= now_ms, f"{where}: its time is to come")
                self.late_ms.append(late)


def _told(look: Callable[[_Watcher], None]) -> Callable[[_Watcher, PartitionKey], None]:
    def looks(self: _Watcher, _key: PartitionKey) -> None:
        try:
            look(self)
        except Violation as error:
            self._observer.violation = self._observer.violation or error
            raise

    return looks


class _Watcher:
    """Of one replica."""

    def __init__(self, observer: Observer, replica: Replica) -> None:
        self._observer, self._replica = observer, replica
        self._epoch, self._end = -1, 0
        self._start = replica.log.log_start_offset

    @_told
    def on_append(self) -> None:
        replica = self._replica
        assert replica.leader is not None, "it has appended"
        log, epoch = replica.log, replica.leader.leader_epoch
        if epoch != self._epoch:
            self._epoch, self._end = epoch, log.epochs.entries[-1].start_offset
        self._observer.on_appended(replica, max(self._end, log.log_start_offset))
        self._end = log.log_end_offset

    @_told
    def on_high_watermark(self) -> None:
        self._start = self._replica.log.log_start_offset  # it may have started over meanwhile
        if self._replica.leader is not None:
            self._observer.on_committed(self._replica)

    @_told
    def on_news(self) -> None:
        """Perhaps that the log starts later."""
        log, before = self._replica.log, self._start
        self._start = log.log_start_offset
        if before < self._start < log.log_end_offset:  # else it has started over
            self._observer.on_trimmed(self._replica, before)


def content(log: PartitionLog, begin: int, end: int) -> bytes:
    """Whole batches, from the one with `begin` up to `end`."""
    pieces, offset = list[bytes](), begin
    while offset < end:
        found = read_slice(log, offset, bytes_max=READ_BYTES, end_offset=end)
        pieces.append(bytes(found.bytes.read()))
        offset = found.end_offset
    return b"".join(pieces)
