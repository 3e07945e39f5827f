"""What a quorum process is ordered, and what it tells, as JSON lines over a pipe that outlives it.

Owns the words and their encoding. A key stands for one committed offset and is used once, by one
proposal of one process: so it is there at the end, or it is not, and nobody wrote it twice.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import NamedTuple

import msgspec

HOST = "127.0.0.1"
KEYS_PER_LIFE = 1 << 32  # of one process
WORK, REST, HOLD, STOP = "work", "rest", "hold", "stop"  # what is said on stdin

# How a process ends by itself. 1 is a bug: Python's own status for an exception.
STOPPED, CORRUPT_JOURNAL, STORAGE_ERROR = 0, 3, 4


class Order(NamedTuple):
    """What a process is to be; its command line."""

    directory: Path
    node_id: int
    ports: str  # of the voters 1, 2, ..., with commas
    life: int = 0  # of the cluster's processes, counted together
    cluster_id: str = "rehearsal"
    clients: int = 4
    snapshot_entries: int = 100_000
    trailing_entries: int = 20_000
    is_replacement: int = 0  # 1: an empty directory may take the seat of a disk that is lost
    sync: int = 1  # 0 is a planted bug: what is acknowledged is in the page cache only

    def arguments(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={value}" for name, value in self._asdict().items()]

    def voters(self) -> dict[int, int]:
        """The port of each voter."""
        return {number: int(port) for number, port in enumerate(self.ports.split(","), 1)}


def parse_order(arguments: list[str] | None = None) -> Order:
    parser = ArgumentParser()
    types = {"directory": Path, "ports": str, "cluster_id": str}
    for name in Order._fields:
        default = Order._field_defaults.get(name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(
            flag, type=types.get(name, int), default=default, required=default is None
        )
    return Order(**vars(parser.parse_args(arguments)))


class Told(msgspec.Struct, frozen=True, tag=True):
    """Base of all that is told."""


class Opened(Told, frozen=True):
    """The directory was found in order, and the voter runs."""


class Leads(Told, frozen=True):
    """What this node believes of its own leadership, at each change."""

    term: int
    is_leader: bool


class Acknowledged(Told, frozen=True):
    """`propose` returned: never to be lost."""

    keys: list[int]


class Denied(Told, frozen=True):
    """A definite error: never to be found."""

    keys: list[int]


class Uncertain(Told, frozen=True):
    """An indefinite error: there or not, both are right."""

    keys: list[int]


class Holding(Told, frozen=True):
    """What the image holds, and a digest of all of it that does not depend on the process."""

    version: int
    digest: str
    ranges: list[tuple[int, int]]  # of keys, half-open
    wrong_values: int

    def keys(self) -> set[int]:
        return {key for first, end in self.ranges for key in range(first, end)}


AnyTold = Opened | Leads | Acknowledged | Denied | Uncertain | Holding
_decoder: msgspec.json.Decoder[AnyTold] = msgspec.json.Decoder(AnyTold)


def encode(told: Told) -> bytes:
    return msgspec.json.encode(told) + b"\n"


def decode(line: bytes) -> AnyTold:
    return _decoder.decode(line)
