"""Control batches: transaction markers (abort, commit), fences of named producers, and cancels.

Owns key and value of the one record of such a batch, in Kafka's record encoding. An unknown type is
passed on as it is: older readers must be able to skip newer markers. Types from 128 on are
raftmq's own. Source: https://kafka.apache.org/documentation/#controlbatch

     key: version i16 | type i16
     value of abort and commit: version i16 | coordinator epoch i32
     value of fence: version i16 | generation u64 | digest u32 | partition count u32
     value of cancel: version i16 | offsets of scheduled records i64 ..., 1 to 10,000, rising
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from struct import Struct, pack, unpack
from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.batch.header import GENERATION_MAX, PARTITION_COUNT_MAX, Account

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.wire.batch.columns import Key, Value
    from raftmq.wire.batch.header import BytesOrigin

# Kafka's version of both key and value.
VERSION = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_FENCE = Struct(">hQII")
_CANCEL = Struct(">h")  # and the offsets
_OFFSET_BYTES = 8
CANCELLED_MAX = 10_000  # records of one cancel


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    FENCE = 128
    CANCEL = 129


_LAYOUTS = {
    int(ControlType.ABORT): _VALUE,
    int(ControlType.COMMIT): _VALUE,
    int(ControlType.FENCE): _FENCE,
    int(ControlType.CANCEL): _CANCEL,
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
    cancelled: tuple[int, ...] = ()  # offsets of records, of a cancel


def pack_marker(kind: ControlType, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return _KEY.pack(VERSION, kind), _VALUE.pack(VERSION, coordinator_epoch)


def pack_fence(account: Account) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return _KEY.pack(VERSION, ControlType.FENCE), _FENCE.pack(VERSION, *account)


def pack_cancel(offsets: Sequence[int]) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    assert not (problem := _problem_of_cancelled(offsets)), problem
    key = _KEY.pack(VERSION, ControlType.CANCEL)
    return key, _CANCEL.pack(VERSION) + pack(f">{len(offsets)}q", *offsets)


def read_control(key: Key, value: Value, origin: BytesOrigin) -> ControlRecord:
    """The one record of a control batch.

    Raises:
        CorruptRecord: too short for its type, or not what that promises.
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
    if kind == ControlType.CANCEL:
        cancelled = _cancelled(value, origin)
        return ControlRecord(version, ControlType.CANCEL, value, None, cancelled=cancelled)
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


def _cancelled(value: bytes, origin: BytesOrigin) -> tuple[int, ...]:
    """What settles records is believed in one form only: nothing may stand behind it."""
    (version,) = _CANCEL.unpack_from(value)
    packed = value[_CANCEL.size :]
    if version != VERSION or len(packed) % _OFFSET_BYTES:
        raise origin.corrupt(f"cancel of version {version} with a value of {len(value)} bytes")
    # Before unpacking: bounds its memory.
    count = min(len(packed) // _OFFSET_BYTES, CANCELLED_MAX + 1)
    cancelled: tuple[int, ...] = unpack(f">{count}q", packed[: count * _OFFSET_BYTES])
    if problem := _problem_of_cancelled(cancelled):
        raise origin.corrupt(f"cancel {problem}")
    return cancelled


def _problem_of_cancelled(offsets: Sequence[int]) -> str:
    if not 1 <= len(offsets) <= CANCELLED_MAX:
        return f"of no record, or of more than {CANCELLED_MAX}"
    if offsets[0] < 0 or any(one >= following for one, following in pairwise(offsets)):
        return "of offsets that do not rise from 0 on"
    return ""
