"""What a member process writes down of its life, a JSON line each, and what it is ordered. Pure.

Times are of CLOCK_MONOTONIC, in seconds, which all processes of a machine share. A line is written
before the member goes on, so that whatever it does next comes after it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import NamedTuple

import msgspec

STOP = "stop"  # what is said on stdin: leave the group, and end
READY = b"ready"  # what is said on stdout: the consumer is open
BATCH, RECORD, MANUAL, BEFORE = "batch", "record", "manual", "before"  # commit modes


class MemberOrder(NamedTuple):
    """What a member is to be; its command line.

    Attributes:
        way: how it iterates, over "batches" or "records".
    """

    bootstrap: str
    group: str
    topic: str
    log: str
    commit: str
    way: str
    session_ms: int

    def arguments(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={value}" for name, value in self._asdict().items()]


def parse_order(arguments: list[str] | None = None) -> MemberOrder:
    parser = ArgumentParser()
    for name in MemberOrder._fields:
        kind = int if name == "session_ms" else str
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=True)
    return MemberOrder(**vars(parser.parse_args(arguments)))


class Word(msgspec.Struct, frozen=True, tag=True):
    """Base of all that is written down; `at`: when it was."""

    at: float


class Began(Word, frozen=True):
    """The consumer is open."""


class Handed(Word, frozen=True):
    """Records of a partition were handed out, at offsets that follow each other.

    `step_at`: when the event loop began with the step in which that was.
    """

    step_at: float
    partition: int
    base_offset: int
    numbers: list[int]

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.numbers)


class Scattered(Word, frozen=True):
    """The same, where offsets do not follow each other."""

    partition: int
    offsets: list[int]


class Assigned(Word, frozen=True):
    generation: int
    partitions: list[int]


class Revoked(Word, frozen=True):
    generation: int
    partitions: list[int]


class Lost(Word, frozen=True):
    partitions: list[int]


class Committed(Word, frozen=True):
    """`commit` has returned: records before `offset` are done."""

    partition: int
    offset: int


class Refused(Word, frozen=True):
    """`commit` has not."""

    partition: int
    offset: int
    error: str


class Problem(Word, frozen=True):
    """Something else was raised where the next record was asked for."""

    error: str
    is_passing: bool


class Ended(Word, frozen=True):
    """The block was left in order."""


AnyWord = (
    Began | Handed | Scattered | Assigned | Revoked | Lost | Committed | Refused | Problem | Ended
)
_decoder: msgspec.json.Decoder[AnyWord] = msgspec.json.Decoder(AnyWord)


def encode(word: Word) -> bytes:
    return msgspec.json.encode(word) + b"\n"


def decode_log(data: bytes) -> list[AnyWord]:
    """Of a process that may have been killed while it wrote the last line."""
    *lines, _unfinished = data.split(b"\n")
    return [_decoder.decode(line) for line in lines]
