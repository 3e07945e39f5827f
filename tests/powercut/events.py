"""What a writer tells its parent, one JSON line each, over a pipe that outlives the power cut.

Owns the words and their encoding. What only *begins* (a truncation, a deletion) is told before it
is done; what is promised (an acknowledgement) is told after it was.
"""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True):
    """Offsets are those of the partition that the event names."""


class Ready(Event, frozen=True):
    """The process is up and has not touched the disk yet."""

    pid: int


class Opened(Event, frozen=True):
    """Recovery found the log holding offsets [log_start_offset, log_end_offset), durably."""

    partition: int
    log_start_offset: int
    log_end_offset: int
    cut_bytes: int
    damage: str


class Appended(Event, frozen=True):
    """Offsets [base_offset, end_offset) hold the sequences from `first_sequence` on."""

    partition: int
    base_offset: int
    end_offset: int
    first_sequence: int
    leader_epoch: int


class Acknowledged(Event, frozen=True):
    """Everything below `end_offset` is durable."""

    partition: int
    end_offset: int


class Truncating(Event, frozen=True):
    """Everything from `offset` on may be gone from now on."""

    partition: int
    offset: int


class Truncated(Event, frozen=True):
    """... and now it is gone for good."""

    partition: int
    log_end_offset: int


class Deleting(Event, frozen=True):
    """Everything before `before_offset` may be gone from now on."""

    partition: int
    before_offset: int


class Deleted(Event, frozen=True):
    """... and now it is gone for good."""

    partition: int
    log_start_offset: int


class NotDeleted(Event, frozen=True):
    """... or there was no room to note the new start: nothing has changed, and the log goes on."""

    partition: int


class WentOffline(Event, frozen=True):
    """An operation failed; no append and no acknowledgement may follow in this life."""

    partition: int
    reason: str


class Pending(Event, frozen=True):
    """`LogDirectory.oldest_pending_age`, and by how much the loop was late when it was asked."""

    age: float  # seconds
    lateness: float  # seconds


class Refused(Event, frozen=True):
    """The directory could not be opened: the disk failed, and said how."""

    reason: str


class Closed(Event, frozen=True):
    """The directory was closed cleanly."""


AnyEvent = (
    Ready
    | Opened
    | Appended
    | Acknowledged
    | Truncating
    | Truncated
    | Deleting
    | Deleted
    | NotDeleted
    | WentOffline
    | Pending
    | Refused
    | Closed
)
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def decode(line: bytes) -> AnyEvent:
    return _decoder.decode(line)
