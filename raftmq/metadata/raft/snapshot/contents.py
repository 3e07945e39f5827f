"""Contents of a quorum snapshot: enrolments in the first slice, then the state machine's slices.

Owns that first slice, to which fields can be added at the end, and makes the worker thread that
encodes or decodes for seconds a good neighbour of the event loop: it yields the GIL after every
slice, and no garbage collection traverses an image that is being decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.engine.voter_disks import Enrolment
from raftmq.metadata.raft.gc_control import COLLECTOR, with_breaks
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from raftmq.metadata.raft.state_machine import StateMachine

FORMAT_VERSION = 1  # of `OwnState`; older nodes refuse a higher one


class OwnState(msgspec.Struct, frozen=True, array_like=True):
    format_version: int
    enrolled: dict[int, tuple[bytes, int]]  # by voter: disk id, and the index of its enrolment
    quorum_id: bytes = b""


_decoder = Decoder[OwnState](OwnState)


class SnapshotContents(NamedTuple):
    """A decoded snapshot."""

    enrolled: dict[int, Enrolment]
    decoded: object  # what the machine's `install` takes
    quorum_id: bytes = b""


def take_picture(
    machine: StateMachine, enrolled: Mapping[int, Enrolment], quorum_id: bytes = b""
) -> Callable[[], Iterator[bytes]]:
    """On the event loop, in O(1); the slices are encoded lazily, in a worker thread."""
    own = OwnState(
        FORMAT_VERSION,
        {voter: (disk.disk_id, disk.since_index) for voter, disk in enrolled.items()},
        quorum_id,
    )
    rest = machine.picture()

    def slices() -> Iterator[bytes]:
        yield msgspec.msgpack.encode(own)
        yield from with_breaks(rest())

    return slices


def read_picture(machine: StateMachine, slices: Iterable[bytes]) -> SnapshotContents:
    """Decode a snapshot. In a worker thread.

    Raises:
        CorruptJournal: not what `take_picture` makes, or made by a newer version.
    """
    rest = iter(slices)
    try:
        own = _decoder.decode(next(rest, b""))
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise CorruptJournal(
            f"the snapshot does not begin with the quorum's state: {error}"
        ) from error
    if own.format_version > FORMAT_VERSION:
        newer = f"format {own.format_version}, this node knows {FORMAT_VERSION}"
        raise CorruptJournal(f"the snapshot has {newer}: upgrade this node")
    enrolled = {voter: Enrolment(*entry) for voter, entry in own.enrolled.items()}
    with COLLECTOR.paused():
        return SnapshotContents(enrolled, machine.read_picture(with_breaks(rest)), own.quorum_id)
