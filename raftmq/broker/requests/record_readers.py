"""Reads the records of an answer to a fetch: all of them, or those that a filter of tags lets pass.

Records are never touched, only named as file slices, or copied in short pieces. Each way to read
comes in two forms: `read_now` on the event loop, which raises WouldBlock where the page cache does
not have what it needs; and `read`, which waits for the disk.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import trio

from raftmq.broker.requests.fetched_records import (
    LOOK_SECONDS_MAX,
    LOOK_UNITS,
    Looked,
    Records,
    told_aborted,
)
from raftmq.disk.files import WouldBlock
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.filtered_read import Verdicts
from raftmq.tag_filter import parse
from raftmq.wire.messages.fetch import ABORTED_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.broker.requests.fetch_sessions import PartitionView, SessionPartition
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.aborted_index import Aborted
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import LogSlice, PartitionLog
    from raftmq.tag_filter import TagFilter

# For which the heads of all batches are read.
ANY_TAGS = parse("x | !x")


class RecordReader(Protocol):
    """One way to read, for one request."""

    def begin(self) -> None:
        """A pass over partitions begins, on the loop."""

    def read_now(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        """At most `limit` bytes, but for a first batch. Raises WouldBlock."""

    async def read(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        """The same in worker threads, where the page cache does not have it."""


def _wanted(partition: SessionPartition, limit: int) -> tuple[Replica, int, int]:
    replica, wanted = partition.replica, partition.wanted
    assert replica is not None, "looked at, and not watched"
    # At least 1, as the first batch is read whole in any case.
    return replica, wanted.fetch_offset, max(1, min(wanted.bytes_max, limit))


# -- All records ----------------------------------------------------------------------------------


class AllRecords:
    """For brokers, and for consumers where the log has nothing scheduled."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory

    def begin(self) -> None:
        """Nothing is counted: a slice is found by few reads."""

    def read_now(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        replica, offset, bytes_max = _wanted(partition, limit)
        log = replica.log
        # A follower in sync, which may read up to the log's end, needs no file.
        if partition.keeps_up and log.tail is not None:
            found = log.tail.read(offset, bytes_max)
            if found is not None:
                is_cut = found.end_offset < seen.end_offset
                return Records(found.end_offset, found.pieces, found.length, is_cut=is_cut)
        directory, end_offset = self._directory, seen.end_offset
        part = directory.slice_now(log, offset, bytes_max=bytes_max, end_offset=end_offset)
        if not seen.hides_aborted or not part.bytes.length:
            return _in_file(part, seen)
        aborted = directory.aborted_in_now(log, offset, part.end_offset, ABORTED_MAX)
        if len(aborted) > ABORTED_MAX:  # the last one is one too many: end before it
            end_offset = aborted[-1].first_offset
            part = directory.slice_now(log, offset, bytes_max=bytes_max, end_offset=end_offset)
        return _in_file(part, seen, aborted)

    async def read(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        replica, offset, bytes_max = _wanted(partition, limit)
        log, directory, end_offset = replica.log, self._directory, seen.end_offset
        part = await directory.slice(log, offset, bytes_max=bytes_max, end_offset=end_offset)
        if not seen.hides_aborted or not part.bytes.length:
            return _in_file(part, seen)
        # An index that is lost is built first, from the batches.
        aborted = await directory.aborted_in(log, offset, part.end_offset, ABORTED_MAX)
        if len(aborted) > ABORTED_MAX:  # as above
            end_offset = aborted[-1].first_offset
            part = await directory.slice(log, offset, bytes_max=bytes_max, end_offset=end_offset)
        return _in_file(part, seen, aborted)


def _in_file(part: LogSlice, seen: PartitionView, aborted: Sequence[Aborted] = ()) -> Records:
    is_cut = part.end_offset < seen.end_offset
    return Records(
        part.end_offset, (part.bytes,), part.bytes.length, told_aborted(aborted), is_cut=is_cut
    )


class VisibleRecords:
    """For consumers without a filter: all but scheduled batches, which few logs have."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory, self._all = directory, AllRecords(directory)
        # Made for the first partition that needs one.
        self._visible: FilteredRecords | None = None
        self._looking: FilteredRecords | None = None

    def begin(self) -> None:
        for reader in (self._visible, self._looking):
            if reader is not None:
                reader.begin()

    def read_now(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        return self._reader(partition).read_now(partition, seen, limit)

    async def read(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        return await self._reader(partition).read(partition, seen, limit)

    def _reader(self, partition: SessionPartition) -> RecordReader:
        assert partition.replica is not None, "looked at, and not watched"
        log = partition.replica.log
        if not log.scheduled.is_known:
            # What was scheduled in a part that could not be read stands in the heads alone.
            self._looking = self._looking or FilteredRecords(self._directory, ANY_TAGS)
            return self._looking
        if log.schedule.is_empty:
            return self._all
        self._visible = self._visible or FilteredRecords(self._directory, None)
        return self._visible


# -- Filtered by tags -----------------------------------------------------------------------------


class FilteredRecords:
    """For consumers with a filter of tags; None: all that readers may have. A request goes on where
    it has looked before: what was passed over is not looked at again when there is new data."""

    def __init__(self, directory: LogDirectory, asked: TagFilter | None) -> None:
        self._directory = directory
        self._verdicts = None if asked is None else Verdicts(asked)
        self._units_left = LOOK_UNITS

    def begin(self) -> None:
        self._units_left = LOOK_UNITS

    def read_now(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        replica, offset, bytes_max = _wanted(partition, limit)
        looked = _looked(partition, replica, offset)
        end_offset, log = seen.end_offset, replica.log
        if looked.goes_on(end_offset, bytes_max) and self._units_left > 0:
            self._look_now(log, looked, offset, end_offset, bytes_max)
        if looked.goes_on(end_offset, bytes_max):  # a task does the rest, in slices
            raise WouldBlock
        aborted: Sequence[Aborted] = ()
        if seen.hides_aborted and looked.length:
            aborted = self._directory.aborted_in_now(log, offset, looked.next_offset, ABORTED_MAX)
        if len(aborted) > ABORTED_MAX:
            raise WouldBlock
        return looked.records(end_offset, aborted)

    def _look_now(
        self, log: PartitionLog, looked: Looked, offset: int, end_offset: int, bytes_max: int
    ) -> None:
        start, limits = looked.next_offset, looked.limits(bytes_max, self._units_left)
        look, verdicts = self._directory.look_filtered_now, self._verdicts
        with _answering_first(looked, offset):
            part = look(log, start, verdicts, limits, end_offset=end_offset)
            self._units_left -= part.units
            looked.add(part, end_offset, log.epochs)

    async def read(self, partition: SessionPartition, seen: PartitionView, limit: int) -> Records:
        replica, offset, bytes_max = _wanted(partition, limit)
        end_offset = seen.end_offset
        while True:
            looked = _looked(partition, replica, offset)
            await self._look(replica.log, looked, offset, end_offset, bytes_max)
            if not seen.hides_aborted or not looked.length:
                return looked.records(seen.end_offset, ())
            aborted = await self._directory.aborted_in(
                replica.log, offset, looked.next_offset, ABORTED_MAX
            )
            if len(aborted) <= ABORTED_MAX:
                return looked.records(seen.end_offset, aborted)
            # The last one is one too many: end before it.
            end_offset, partition.looked = aborted[-1].first_offset, None

    async def _look(
        self, log: PartitionLog, looked: Looked, offset: int, end_offset: int, bytes_max: int
    ) -> None:
        until = trio.current_time() + LOOK_SECONDS_MAX
        look, verdicts = self._directory.look_filtered, self._verdicts
        while looked.goes_on(end_offset, bytes_max):
            limits = looked.limits(bytes_max, LOOK_UNITS)
            with _answering_first(looked, offset):
                part = await look(log, looked.next_offset, verdicts, limits, end_offset=end_offset)
                looked.add(part, end_offset, log.epochs)
            if trio.current_time() >= until:
                looked.stop()
            await trio.lowlevel.checkpoint()  # others have their turn


@contextmanager
def _answering_first(looked: Looked, offset: int) -> Iterator[None]:
    """What is sound is answered before damage behind it is an error, as without a filter."""
    try:
        yield
    except (CorruptRecord, StorageError):
        if looked.next_offset == offset:  # the damage is where the reader is
            raise
        looked.stop()


def _looked(partition: SessionPartition, replica: Replica, offset: int) -> Looked:
    """What the request knows of the partition already, if it is still of use."""
    leader_epoch = -1 if replica.leader is None else replica.leader.leader_epoch
    looked = partition.looked
    if looked is None or looked.leader_epoch != leader_epoch:
        looked = partition.looked = Looked(offset, leader_epoch)
    return looked
