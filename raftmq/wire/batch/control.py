"""Control batches: transaction markers (abort, commit), and fences of named producers.

Owns key and value of the one record of such a batch, in Kafka's record encoding. An unknown type is
passed on as it is: older readers must be able to skip newer markers. Types from 128 on are
raftmq's own. Source: https://kafka.apache.org/documentation/#controlbatch

     key: version i16 | type i16
     value of abort and commit: version i16 | coordinator epoch i32
     value of fence: version i16 | generation u64 | digest u32 | partition count u32
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.batch.header import GENERATION_MAX, PARTITION_COUNT_MAX, Account

if TYPE_CHECKING:
    from raftmq.wire.batch.columns import Key, Value
    from raftmq.wire.batch.header import BytesOrigin

# Kafka's version of both key and value.
VERSION = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_FENCE = Struct(">hQII")


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    FENCE = 128


_LAYOUTS = {
    int(ControlType.ABORT): _VALUE,
    int(ControlType.COMMIT): _VALUE,
    int(ControlType.FENCE): _FENCE,
}


class ControlRecord(NamedTuple):
    """`type` is a plain number if no ControlType has it; then only `value` is filled in.

    After a fence, batches of the named producer must have the epoch in the fence's header;
    `account` is of the records before it.
    """

    version: int
    type: ControlType | int
    value: bytes
    coordinator_epoch: int | None  # of abort and commit
    account: Account | None = None  # of a fence


def pack_marker(kind: ControlType, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return _KEY.pack(VERSION, kind), _VALUE.pack(VERSION, coordinator_epoch)


def pack_fence(account: Account) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return _KEY.pack(VERSION, ControlType.FENCE), _FENCE.pack(VERSION, *account)


def read_control(key: Key, value: Value, origin: BytesOrigin) -> ControlRecord:
    """The one record of a control batch.

    Raises:
        CorruptRecord: too short for its type.
    """
    if not isinstance(key, bytes) or len(key) < _KEY.size:
        raise origin.corrupt("control record without version and type")
    version, kind = _KEY.unpack_from(key)
    value = value or b""
    layout = _LAYOUTS.get(kind)
    if layout is None:  # of a newer version: readers skip it
        return ControlRecord(version, kind, value, None)
    if len(value) < layout.size:  # longer is allowed: later versions may add fields
        raise origin.corrupt(f"control record of type {kind} with a value of {len(value)} bytes")
    _, *fields = layout.unpack_from(value)
    if kind == ControlType.FENCE:
        return ControlRecord(version, ControlType.FENCE, value, None, _account(fields, origin))
    return ControlRecord(version, ControlType(kind), value, *fields)


def _account(fields: list[int], origin: BytesOrigin) -> Account:
    account = Account(*fields)
    if account.generation > GENERATION_MAX:  # u64 in the fence, i64 in requests and snapshots
        raise origin.corrupt(f"fence of generation {account.generation}, allowed {GENERATION_MAX}")
    if account.partition_count > PARTITION_COUNT_MAX:
        raise origin.corrupt(f"fence of a topic with {account.partition_count} partitions")
    return account
