"""What the entries of the log are: commands of the state machine, and the quorum's own.

Owns the two bytes in front of each and the quorum's own entries. Pure. PySyncObj wants the first
byte (0: a command, 1: the no-op of a new leader); the second tells whose command it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from raftmq.metadata.raft.state_machine import StateMachine

NO_OP = b"\x01"
_FOR_MACHINE = b"\x00\x00"
_FOR_QUORUM = b"\x00\x01"


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """From here on `disk_id` is the disk of `voter` (docs/decisions/0012)."""

    voter: int
    disk_id: bytes


_decoder = Decoder[Enrol](Enrol)


def machine_entry(command: bytes) -> bytes:
    return _FOR_MACHINE + command


def quorum_entry(own: Enrol) -> bytes:
    return _FOR_QUORUM + msgspec.msgpack.encode(own)


def own_entry(entry: bytes) -> Enrol | None:
    """The quorum's own command, if it is one."""
    if entry.startswith(_FOR_QUORUM):
        return _decoder.decode(entry[len(_FOR_QUORUM) :])
    return None


def apply_entry(machine: StateMachine, index: int, entry: bytes) -> object:
    """Hand a command to the state machine; anything else means nothing to it."""
    if entry.startswith(_FOR_MACHINE):
        return machine.apply(index, entry[len(_FOR_MACHINE) :])
    return None
