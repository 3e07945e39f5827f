"""Control batches: the markers that end a transaction, and those that fence a producer's name.

Owns key and value of the one record that such a batch holds, in Kafka's record encoding. A type
that is not known is handed on as it is: older readers must be able to step over newer markers.
Types from 128 on are raftmq's own. Source: https://kafka.apache.org/documentation/#controlbatch

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
    """`type` is a plain number where no ControlType has it; then only `value` is filled in.

    A fence says that from here on a producer's name stands for another epoch, which the batch's
    header names; `account` is of the records before it.
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
    """What the one record of a control batch says.

    Raises:
        CorruptRecord: too short for what its type promises.
    """
    if not isinstance(key, bytes) or len(key) < _KEY.size:
        raise origin.corrupt("control record without version and type")
    version, kind = _KEY.unpack_from(key)
    value = value or b""
    layout = _LAYOUTS.get(kind)
    if layout is None:
        return ControlRecord(version, kind, value, None)
    if len(value) < layout.size:
        raise origin.corrupt(f"control record of type {kind} with a value of {len(value)} bytes")
    _, *fields = layout.unpack_from(value)
    if kind == ControlType.FENCE:
        return ControlRecord(version, ControlType.FENCE, value, None, _account(fields, origin))
    return ControlRecord(version, ControlType(kind), value, *fields)


def _account(fields: list[int], origin: BytesOrigin) -> Account:
    account = Account(*fields)
    if account.generation > GENERATION_MAX:
        raise origin.corrupt(f"fence of generation {account.generation}, allowed {GENERATION_MAX}")
    if account.partition_count > PARTITION_COUNT_MAX:
        raise origin.corrupt(f"fence of a topic with {account.partition_count} partitions")
    return account
