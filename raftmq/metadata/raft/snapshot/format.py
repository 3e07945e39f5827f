"""Byte format of a snapshot file, and its verification in one pass: header, slices, trailer, CRCs.

    header   magic | version | bytes of the cluster id | index | term | cluster id | CRC-32C
    slice    length | CRC-32C of length and data | data                         (any number)
    trailer  0 | CRC-32C of this line | slices | bytes of the file | CRC-32C of all lines above

Owns layout and limits; `store` opens, writes and names files. By the trailer a reader recognises a
file that was cut between two slices. Integers are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from raftmq.errors import CorruptRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.disk.files import File


MAGIC = b"\xd1rmqsnap"
VERSION = 1  # a reader refuses other versions
# A reader holds one slice in memory, and believes no larger length. The metadata's slices are of
# 64 KiB; the limit leaves room for other formats.
SLICE_BYTES_MAX = 4 << 20

_HEADER = Struct(">8sHHQQ")  # magic, version, bytes of the cluster id, index, term
_CRC = Struct(">I")
_LENGTH = Struct(">I")
_SLICE = Struct(">II")  # length, CRC
_TRAILER = Struct(">QQI")  # slices, bytes of the file, CRC of all above
_TRAILER_BYTES = _SLICE.size + _TRAILER.size


@dataclass(frozen=True, order=True, slots=True)
class SnapshotKey:
    """The last entry that a snapshot covers."""

    index: int
    term: int

    def __str__(self) -> str:
        return f"entry {self.index} of term {self.term}"


class SnapshotPacker:
    """The parts of one snapshot, in order: header, slices, trailer.

    Attributes:
        size_bytes: packed so far.
        crc: of the bytes packed so far, without the trailer; it identifies the content.
    """

    def __init__(self) -> None:
        self.size_bytes = self.crc = self._slice_count = 0

    def header(self, key: SnapshotKey, cluster_id: str) -> list[bytes]:
        name = cluster_id.encode()
        fields = _HEADER.pack(MAGIC, VERSION, len(name), key.index, key.term) + name
        return self._counted(fields, _CRC.pack(crc32c(fields)))

    def slice(self, data: bytes) -> list[bytes]:
        assert 0 < len(data) <= SLICE_BYTES_MAX, f"a slice of {len(data)} bytes"
        self._slice_count += 1
        return self._counted(_SLICE.pack(len(data), _checksum(len(data), data)), data)

    def trailer(self) -> list[bytes]:
        data = _TRAILER.pack(self._slice_count, self.size_bytes + _TRAILER_BYTES, self.crc)
        self.size_bytes += _TRAILER_BYTES
        return [_SLICE.pack(0, _checksum(0, data)), data]

    def _counted(self, *buffers: bytes) -> list[bytes]:
        for buffer in buffers:
            self.crc = crc32c(buffer, self.crc)
            self.size_bytes += len(buffer)
        return [*buffers]


class SnapshotWalk:
    """One pass over a file: `header`, then `slices`. Damage is a CorruptRecord with its position.

    Attributes:
        crc: at the end, of all but the trailer; as in SnapshotPacker.
    """

    def __init__(self, file: File) -> None:
        self.size_bytes = file.size()
        self.key, self.cluster_id = SnapshotKey(0, 0), ""
        self.crc = self.slice_count = self.position = 0
        self._file = file

    def damage(self, what: str, position: int) -> CorruptRecord:
        return CorruptRecord(what, position=position, where=str(self._file.path))

    def header(self) -> None:
        fields = self._take(_HEADER.size)
        magic, version, name_bytes, index, term = _HEADER.unpack(fields)
        if magic != MAGIC:
            raise self.damage(f"begins with {magic!r}, so it is no snapshot", 0)
        if version != VERSION:
            raise self.damage(f"has format {version}, this release reads {VERSION}", len(MAGIC))
        fields += self._take(name_bytes)
        if self._take(_CRC.size) != _CRC.pack(crc32c(fields)):
            raise self.damage("the header fails its CRC", 0)
        self.key = SnapshotKey(index, term)
        self.cluster_id = fields[_HEADER.size :].decode(errors="replace")

    def expect(self, key: SnapshotKey, cluster_id: str) -> None:
        """Read the header, which must be of this key and cluster."""
        self.header()
        if self.cluster_id != cluster_id:
            what = f"is of cluster {self.cluster_id!r}, this node's is {cluster_id!r}"
            raise self.damage(what, _HEADER.size)
        if self.key != key:
            raise self.damage(f"holds {self.key} instead of {key}", 0)

    def slices(self) -> Iterator[bytes]:
        """The slices one by one; the trailer is checked after the last."""
        while True:
            start, crc_before = self.position, self.crc
            length, crc = _SLICE.unpack(self._take(_SLICE.size))
            if length == 0:  # the trailer; no slice is empty
                self._check_trailer(start, crc, crc_before)
                return
            if length > SLICE_BYTES_MAX:  # a damaged length must not make it read gigabytes
                raise self.damage(f"a slice claims {length} bytes", start)
            data = self._take(length)
            if crc != _checksum(length, data):
                raise self.damage(f"a slice of {length} bytes fails its CRC", start)
            self.slice_count += 1
            yield data

    def exhaust(self) -> None:
        for _ in self.slices():
            pass

    def _check_trailer(self, start: int, crc: int, crc_before: int) -> None:
        data = self._take(_TRAILER.size)
        if crc != _checksum(0, data):
            raise self.damage("the trailer fails its CRC", start)
        if _TRAILER.unpack(data) != (self.slice_count, self.position, crc_before):
            raise self.damage("the trailer does not fit to what is before it", start)
        # Two files were joined, or the file is longer than was written.
        if self.position != self.size_bytes:
            what = f"{self.size_bytes - self.position} bytes follow the trailer"
            raise self.damage(what, self.position)
        self.crc = crc_before

    def _take(self, length: int) -> bytes:
        data = self._file.read(self.position, length)
        if len(data) < length:
            raise self.damage(f"ends where {length} more bytes should be", self.position)
        self.position += length
        self.crc = crc32c(data, self.crc)
        return data


def _checksum(length: int, data: bytes) -> int:
    """CRC of a slice, or of the trailer, whose length field is 0."""
    return crc32c(data, crc32c(_LENGTH.pack(length)))
