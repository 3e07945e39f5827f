"""The bytes of the journal: batches of records, and how a reader tells a whole one from a torn one.

    batch:   magic | CRC-32C of all that follows | disk | version | sequence | records | bytes
    record:  kind | body bytes | two numbers | body

Pure. A batch is the unit of writing: all of its records count, or none. It carries the first
bytes of the disk's random id, so that neither another node's file nor bytes inside of a command
can pass for a batch of this journal. Integers are big-endian.

| kind     | two numbers            | body                                    |
|----------|------------------------|-----------------------------------------|
| ENTRY    | index, term            | the command                             |
| BOUNDS   | base index, its term   | last index, its term                    |
| VOTE     | term, candidate + 1    |                                         |
| COMMIT   | index, 0               |                                         |
| IDENTITY | node id, starts        | standing, enrolled index, disk, cluster |
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from crc32c import crc32c

from raftmq.errors import CorruptRecord
from raftmq.metadata.raft.messages import Standing

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"\xd1raftmq\n"
VERSION = 1
DISK_ID_BYTES = 16
BATCH_BYTES_MAX = (1 << 32) - 1

ENTRY, BOUNDS, VOTE, COMMIT, IDENTITY = range(1, 6)

_HEADER = Struct(">8sI8sHQII")
_CHECKED_FROM = 12  # what stands behind the CRC
_CHECKED = Struct(">8sHQII")
_RECORD = Struct(">BIQQ")
_BOUNDS_BODY = Struct(">QQ")
_IDENTITY_BODY = Struct(">BQ16sH")
_VOTER = Struct(">Q")

HEADER_BYTES = _HEADER.size
RECORD_BYTES = _RECORD.size

Entry: TypeAlias = tuple[bytes, int, int]  # command, index, term: what PySyncObj keeps
Record: TypeAlias = tuple[int, int, int, bytes]  # kind, two numbers, body


class Identity(NamedTuple):
    """Whose journal this is. Standing and the numbers behind it only rise, the rest never changes.

    `voters` are all of the quorum, sorted: two majorities of different sets need not meet.
    """

    disk_id: bytes
    cluster_id: str
    node_id: int
    standing: Standing = Standing.BLANK
    enrolled_index: int = 0  # of the entry that enrolled the disk; 0: none yet
    start_count: int = 0
    voters: tuple[int, ...] = ()

    def may_become(self, later: Identity) -> bool:
        is_same = self[:3] == later[:3] and self.voters == later.voters
        return is_same and all(now <= then for now, then in zip(self[3:6], later[3:6], strict=True))


class Bounds(NamedTuple):
    """Keep, of the log so far, what stands above the base up to the last index.

    One record for everything that shortens a log: a conflict lowers the last index, a compaction
    raises the base, and where both are the same the log starts afresh. The terms are there to
    be compared with what the reader has.
    """

    base_index: int
    base_term: int
    last_index: int
    last_term: int


class BatchHeader(NamedTuple):
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
    """Collects records on their way to one batch."""

    def __init__(self) -> None:
        self.record_count = 0
        self._pieces: list[bytes] = []

    def add_entry(self, entry: Entry) -> None:
        command, index, term = entry
        self._add(ENTRY, index, term, command)

    def add_bounds(self, bounds: Bounds) -> None:
        base_index, base_term, last_index, last_term = bounds
        self._add(BOUNDS, base_index, base_term, _BOUNDS_BODY.pack(last_index, last_term))

    def add_vote(self, term: int, voted_for: int | None) -> None:
        assert voted_for is None or voted_for >= 0, f"a vote for {voted_for}"
        self._add(VOTE, term, 0 if voted_for is None else voted_for + 1, b"")

    def add_commit(self, index: int) -> None:
        self._add(COMMIT, index, 0, b"")

    def add_identity(self, identity: Identity) -> None:
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


def find_batch(data: bytes, position: int) -> BatchHeader | None:
    """The whole and undamaged batch at this very byte, if there is one."""
    if len(data) - position < HEADER_BYTES:
        return None
    magic, checksum, *fields = _HEADER.unpack_from(data, position)
    header = BatchHeader(position, *fields)
    if magic != MAGIC or header.end > len(data):
        return None
    checked = memoryview(data)[position + _CHECKED_FROM : header.end]
    return header if crc32c(checked) == checksum else None


def later_batches(data: bytes, position: int, disk: bytes) -> Iterator[BatchHeader]:
    """Whole batches of this disk at any byte from `position` on, though what is before is not."""
    while (position := data.find(MAGIC, position)) >= 0:
        # The disk first: a CRC over a hostile length at every magic would take for ever.
        claimed = data[position + _CHECKED_FROM : position + _CHECKED_FROM + len(disk)]
        header = find_batch(data, position) if claimed == disk else None
        if header:
            yield header
        position += 1


def records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records of a batch that `find_batch` found; CorruptRecord if they do not add up."""
    position, end, count = header.position + HEADER_BYTES, header.end, 0
    unpack, size = _RECORD.unpack_from, RECORD_BYTES
    while position + size <= end:
        kind, body_bytes, first, second = unpack(data, position)
        body_at = position + size
        position = body_at + body_bytes
        count += 1
        yield kind, first, second, data[body_at:position]
    if position != end or count != header.record_count:
        what = f"batch {header.sequence} does not hold the {header.record_count} records it claims"
        raise CorruptRecord(what, position=header.position)


def read_bounds(record: Record) -> Bounds:
    _, base_index, base_term, body = record
    return Bounds(base_index, base_term, *_BOUNDS_BODY.unpack(body))


def read_vote(record: Record) -> tuple[int, int | None]:
    _, term, candidate, _ = record
    return term, candidate - 1 if candidate else None


def read_identity(record: Record) -> Identity:
    _, node_id, start_count, body = record
    standing, enrolled_index, disk_id, voter_count = _IDENTITY_BODY.unpack_from(body)
    end = _IDENTITY_BODY.size + voter_count * _VOTER.size
    voters = tuple(voter for (voter,) in _VOTER.iter_unpack(body[_IDENTITY_BODY.size : end]))
    return Identity(
        disk_id, body[end:].decode(), node_id, Standing(standing), enrolled_index, start_count,
        voters,
    )  # fmt: skip
