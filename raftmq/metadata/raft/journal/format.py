"""Byte format of the Raft journal: batches of records with a CRC, and the state they describe.

    batch:   magic | CRC-32C of all that follows | disk | version | sequence | records | bytes
    record:  kind | body bytes | two numbers | body

Pure. A batch is the unit of writing: all of its records count, or none. It carries the first 8
bytes of the disk's random id, so that neither another node's file nor bytes inside of a command
can be mistaken for a batch of this journal. Integers are big-endian.

| kind     | two numbers            | body                                    |
|----------|------------------------|-----------------------------------------|
| ENTRY    | index, term            | the command                             |
| BOUNDS   | base index, its term   | last index, its term                    |
| VOTE     | term, candidate + 1    |                                         |
| COMMIT   | index, 0               |                                         |
| IDENTITY | node id, starts        | standing, enrolled index, disk, cluster |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from crc32c import crc32c

from raftmq.errors import CorruptRecord
from raftmq.metadata.raft.net.messages import Standing

if TYPE_CHECKING:
    from collections.abc import Iterator


MAGIC = b"\xd1raftmq\n"
VERSION = 1  # a reader refuses other versions
BATCH_BYTES_MAX = (1 << 32) - 1  # its length is an unsigned 32-bit field

ENTRY, BOUNDS, VOTE, COMMIT, IDENTITY = range(1, 6)  # on disk: never reused

_HEADER = Struct(">8sI8sHQII")  # magic, CRC, disk, version, sequence, records, bytes
_CHECKED_FROM = 12  # magic and CRC; the CRC covers the rest
_CHECKED = Struct(">8sHQII")  # the header behind the CRC
_RECORD = Struct(">BIQQ")  # kind, body bytes, two numbers
_BOUNDS_BODY = Struct(">QQ")  # last index, its term
_IDENTITY_BODY = Struct(">BQ16sH")  # standing, enrolled index, disk, number of voters
_VOTER = Struct(">Q")

HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size

Entry: TypeAlias = tuple[bytes, int, int]  # command, index, term: what PySyncObj keeps
Record: TypeAlias = tuple[int, int, int, bytes]  # kind, two numbers, body


class VoterIdentity(NamedTuple):
    """The owner of a journal. Standing and the two numbers after it only rise, the rest is fixed.

    `voters` are all of the quorum, sorted: two majorities of different sets need not meet.
    """

    disk_id: bytes
    cluster_id: str
    node_id: int
    standing: Standing = Standing.BLANK
    enrolled_index: int = 0  # of the entry that enrolled the disk; 0: none yet
    start_count: int = 0
    voters: tuple[int, ...] = ()

    def may_become(self, later: VoterIdentity) -> bool:
        is_same = self[:3] == later[:3] and self.voters == later.voters
        return is_same and all(now <= then for now, then in zip(self[3:6], later[3:6], strict=True))


class JournalBounds(NamedTuple):
    """Of the log so far, keep the entries above the base up to the last index.

    One record for everything that shortens a log: a conflict lowers the last index, a compaction
    raises the base, and if both are equal the log starts again there. The terms let the reader
    check that its log is the same.
    """

    base_index: int
    base_term: int
    last_index: int
    last_term: int


class JournalBatchHeader(NamedTuple):
    """A whole batch that was found in a buffer."""

    position: int
    disk: bytes
    version: int
    sequence: int
    record_count: int
    payload_bytes: int

    @property
    def end(self) -> int:
        return self.position + HEADER_BYTES + self.payload_bytes


class BatchBuilder:
    """Collects the records of one batch."""

    def __init__(self) -> None:
        self.record_count = 0
        self._pieces: list[bytes] = []

    def add_entry(self, entry: Entry) -> None:
        command, index, term = entry
        self._add(ENTRY, index, term, command)

    def add_bounds(self, bounds: JournalBounds) -> None:
        base_index, base_term, last_index, last_term = bounds
        self._add(BOUNDS, base_index, base_term, _BOUNDS_BODY.pack(last_index, last_term))

    def add_vote(self, term: int, voted_for: int | None) -> None:
        assert voted_for is None or voted_for >= 0, f"a vote for {voted_for}"
        self._add(VOTE, term, 0 if voted_for is None else voted_for + 1, b"")

    def add_commit(self, index: int) -> None:
        self._add(COMMIT, index, 0, b"")

    def add_identity(self, identity: VoterIdentity) -> None:
        disk_id, cluster_id, node_id, standing, enrolled_index, start_count, voters = identity
        body = _IDENTITY_BODY.pack(standing, enrolled_index, disk_id, len(voters))
        body += b"".join(map(_VOTER.pack, voters)) + cluster_id.encode()
        self._add(IDENTITY, node_id, start_count, body)

    def build(self, sequence: int, disk_id: bytes) -> bytes:
        """The batch with this sequence number."""
        payload = b"".join(self._pieces)
        assert len(payload) <= BATCH_BYTES_MAX, f"a batch of {len(payload)} bytes"
        checked = _CHECKED.pack(disk_id[:8], VERSION, sequence, self.record_count, len(payload))
        checksum = crc32c(payload, crc32c(checked))
        return b"".join((MAGIC, checksum.to_bytes(4, "big"), checked, payload))

    def _add(self, kind: int, first: int, second: int, body: bytes) -> None:
        self.record_count += 1
        self._pieces += (_RECORD.pack(kind, len(body), first, second), body)


def find_batch(data: bytes, position: int) -> JournalBatchHeader | None:
    """The whole and undamaged batch at exactly this byte, if there is one."""
    if len(data) - position < HEADER_BYTES:  # not even a header: the end of the file, or torn
        return None
    magic, checksum, *fields = _HEADER.unpack_from(data, position)
    header = JournalBatchHeader(position, *fields)
    if magic != MAGIC or header.end > len(data):  # no batch, or one that was cut off
        return None
    checked = memoryview(data)[position + _CHECKED_FROM : header.end]
    return header if crc32c(checked) == checksum else None


def later_batches(data: bytes, position: int, disk: bytes) -> Iterator[JournalBatchHeader]:
    """Whole batches of this disk at any byte from `position` on, behind damaged bytes."""
    # At every byte: where a torn batch ends is unknown.
    while (position := data.find(MAGIC, position)) >= 0:
        # The disk id first: commands may contain the magic, and a CRC over a claimed length at
        # each of them would take too long.
        claimed = data[position + _CHECKED_FROM : position + _CHECKED_FROM + len(disk)]
        header = find_batch(data, position) if claimed == disk else None
        if header:  # else the magic is inside of a command
            yield header
        position += 1


def records(data: bytes, header: JournalBatchHeader) -> Iterator[Record]:
    """The records of a batch that `find_batch` found; CorruptRecord if they do not add up."""
    position, end, count = header.position + HEADER_BYTES, header.end, 0
    unpack, size = _RECORD.unpack_from, RECORD_BYTES
    while position + size <= end:
        kind, body_bytes, first, second = unpack(data, position)
        body_at = position + size
        position = body_at + body_bytes
        count += 1
        yield kind, first, second, data[body_at:position]
    # The CRC fits, so a faulty program wrote it.
    if position != end or count != header.record_count:
        what = f"batch {header.sequence} does not hold the {header.record_count} records it claims"
        raise CorruptRecord(what, position=header.position)


def read_bounds(record: Record) -> JournalBounds:
    _, base_index, base_term, body = record
    return JournalBounds(base_index, base_term, *_BOUNDS_BODY.unpack(body))


def read_vote(record: Record) -> tuple[int, int | None]:
    _, term, candidate, _ = record
    return term, candidate - 1 if candidate else None


def read_identity(record: Record) -> VoterIdentity:
    _, node_id, start_count, body = record
    standing, enrolled_index, disk_id, voter_count = _IDENTITY_BODY.unpack_from(body)
    end = _IDENTITY_BODY.size + voter_count * _VOTER.size
    voters = tuple(voter for (voter,) in _VOTER.iter_unpack(body[_IDENTITY_BODY.size : end]))
    return VoterIdentity(
        disk_id, body[end:].decode(), node_id, Standing(standing), enrolled_index, start_count,
        voters,
    )  # fmt: skip


# -- Journal state --------------------------------------------------------------------------------
# The contents of a journal: log, term and vote, identity, and the entries that each segment holds.
#
# Pure. The reader and the writer of a journal use the same class, so that a record cannot mean
# different things to them. The log is a list of tuples, as PySyncObj expects it; the first is the
# base, which stands for all entries up to a snapshot's last one.
#
# Invariants: indexes are contiguous and terms never fall; a segment's `highest_index` never exceeds
# that of a later segment or the log's last index.


BASE_COMMAND = b"\x01"  # PySyncObj's NO_OP: an entry that changes nothing


class Entries:
    """A contiguous run of entries above a base."""

    def __init__(self, base_index: int, base_term: int) -> None:
        self.items: list[Entry] = []
        self.size_bytes = 0
        self.restart(base_index, base_term)

    @property
    def first_index(self) -> int:
        return self.items[0][1]

    @property
    def last_index(self) -> int:
        return self.items[-1][1]

    @property
    def last_term(self) -> int:
        return self.items[-1][2]

    def term_at(self, index: int) -> int | None:
        """None if the log has no such entry (any more)."""
        position = index - self.first_index
        return self.items[position][2] if 0 <= position < len(self.items) else None

    def append(self, entry: Entry) -> None:
        self.items.append(entry)
        self.size_bytes += RECORD_BYTES + len(entry[0])

    def above(self, index: int) -> list[Entry]:
        assert index >= self.first_index, f"entry {index} is below the base {self.first_index}"
        return self.items[index + 1 - self.first_index :]

    def cut(self, last_index: int) -> None:
        """Drop the entries above `last_index`."""
        removed = self.above(last_index)
        del self.items[len(self.items) - len(removed) :]
        self.size_bytes -= _size_of(removed)

    def rebase(self, index: int) -> None:
        """Drop the entries up to `index`, which becomes the base."""
        term, kept = self.term_at(index), self.above(index)
        assert term is not None, f"entry {index} is not between base and end"
        # Usually nearly all of a long log is dropped, on the event loop: count what stays.
        self.size_bytes = _size_of(kept)
        self.items = [(BASE_COMMAND, index, term), *kept]

    def restart(self, index: int, term: int) -> None:
        self.items = [(BASE_COMMAND, index, term)]
        self.size_bytes = 0


def _size_of(entries: list[Entry]) -> int:
    return len(entries) * RECORD_BYTES + sum(len(command) for command, _, _ in entries)


@dataclass
class JournalSegment:
    """One file. Neither it nor an older one has an entry of the log above `highest_index`."""

    number: int
    first_sequence: int
    size_bytes: int = 0
    highest_index: int = 0
    batch_count: int = 0


@dataclass
class JournalState:
    """The contents of a journal after one of its batches."""

    identity: VoterIdentity
    segments: list[JournalSegment]
    log: Entries = field(default_factory=lambda: Entries(1, 0))
    term: int = 0
    voted_for: int | None = None
    commit_index: int = 1  # the base of every log is committed
    next_sequence: int = 1
    torn_bytes: int = 0  # behind the last whole batch

    @property
    def bounds(self) -> JournalBounds:
        log = self.log
        return JournalBounds(*log.items[0][1:], log.last_index, log.last_term)

    def cut(self, last_index: int) -> None:
        """The log ends at `last_index`, even if segments hold later entries."""
        self.log.cut(last_index)
        self.limit_segments(last_index)

    def limit_segments(self, last_index: int) -> None:
        for segment in self.segments:
            segment.highest_index = min(segment.highest_index, last_index)

    def restart(self, index: int, term: int) -> None:
        """Drop the whole log; it starts again after this entry."""
        self.log.restart(index, term)
        self.limit_segments(index)

    @property
    def first_live_segment(self) -> int:
        """Older segments hold no entry above the base; the last segment is always live."""
        base = self.log.first_index
        live = (old.number for old in self.segments[:-1] if old.highest_index > base)
        return next(live, self.segments[-1].number)

    def start_of_segment(self, sequence: int) -> bytes:
        """The first batch of the last segment: the state that must survive the removal of older
        ones, and the entries that no older one holds.
        """
        log = self.log
        held = max([log.first_index, *(older.highest_index for older in self.segments[:-1])])
        held_term = log.term_at(held)
        assert held_term is not None, f"a segment claims entry {held}, the log ends before"
        batch = BatchBuilder()
        batch.add_identity(self.identity)
        batch.add_vote(self.term, self.voted_for)
        batch.add_bounds(self.bounds._replace(last_index=held, last_term=held_term))
        for entry in log.above(held):
            batch.add_entry(entry)
        batch.add_commit(self.commit_index)
        return batch.build(sequence, self.identity.disk_id)
