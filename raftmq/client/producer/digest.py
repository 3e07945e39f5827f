"""Running digest of the keys and values that a named producer has sent to a partition. Pure.

By it the fence of a later run finds that a program does not send the same records again (decision
0022). It covers neither headers nor tags, nor timestamps, which differ in each run where the
program leaves them out. It does not depend on how records are cut into batches.

     CRC-32C of: CRC-32C of the keys u32 | CRC-32C of the values u32 | record count u64

Big endian; keys and values as msgpack items one after the other, nil where there is none. Without
records it is 0. Nothing here runs once per record in Python.
"""

from __future__ import annotations

from copy import copy
from struct import Struct
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.wire.batch.columns import Key, Value

_PARTS = Struct(">IIQ")  # CRC of keys, CRC of values, record count
_ENCODER = msgspec.msgpack.Encoder()


class RunningDigest:
    """A digest that grows with the records of one partition.

    Attributes:
        count: number of records so far.
    """

    __slots__ = ("_keys", "_values", "count")

    def __init__(self) -> None:
        self.count = self._keys = self._values = 0

    def add(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        """Add the records that follow: one key and one value of each."""
        assert len(keys) == len(values), "columns of different lengths"
        self.count += len(values)
        self._keys = crc32c(_items(keys), self._keys)
        self._values = crc32c(_items(values), self._values)

    def followed_by(self, keys: Sequence[Key], values: Sequence[Value]) -> RunningDigest:
        """A copy with these records added."""
        other = copy(self)
        other.add(keys, values)
        return other

    @property
    def value(self) -> int:
        if not self.count:  # what a fence reports of an empty partition
            return 0
        return int(crc32c(_PARTS.pack(self._keys, self._values, self.count)))


def _items(column: Sequence[Key]) -> memoryview:
    """The msgpack array without its header, which says how many items it has."""
    count = len(column)
    # msgpack's fixarray, array 16 and array 32.
    header_size = 1 if count < 16 else 3 if count < 1 << 16 else 5
    return memoryview(_ENCODER.encode(column))[header_size:]
