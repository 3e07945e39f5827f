"""Control batches: the markers that end a transaction, in Kafka's record encoding.

Owns key and value of the one record that such a batch holds. A type that is not known is handed
on as it is: older readers must be able to step over newer markers.
Source: https://kafka.apache.org/documentation/#controlbatch

     key: version i16 | type i16
     value of abort and commit: version i16 | coordinator epoch i32
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from raftmq.wire.columns import Key, Value
    from raftmq.wire.origin import Origin

VERSION = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    """`type` is a plain number where no ControlType has it; then only `value` is filled in."""

    version: int
    type: ControlType | int
    value: bytes
    coordinator_epoch: int | None


def pack_marker(kind: ControlType, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return _KEY.pack(VERSION, kind), _VALUE.pack(VERSION, coordinator_epoch)


def read_control(key: Key, value: Value, origin: Origin) -> ControlRecord:
    """What the one record of a control batch says.

    Raises:
        CorruptRecord: too short for what its type promises.
    """
    if not isinstance(key, bytes) or len(key) < _KEY.size:
        raise origin.corrupt("control record without version and type")
    version, kind = _KEY.unpack_from(key)
    value = value or b""
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(version, kind, value, None)
    if len(value) < _VALUE.size:
        raise origin.corrupt(f"control record of type {kind} with a value of {len(value)} bytes")
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return ControlRecord(version, ControlType(kind), value, coordinator_epoch)
