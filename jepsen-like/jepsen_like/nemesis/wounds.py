"""Writes damage: flipped bits in a file, and truncated files, durably.

Which damage is promised to be survived is for `log_places` and `quorum_places` to know.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.nodes.disk import sync_path

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random


class Place(NamedTuple):
    """The bytes `[begin, end)` of a file, of which some may be hit."""

    path: Path
    begin: int
    end: int


class Flip(NamedTuple):
    """Attributes:
    before, after: the bytes of the whole place.
    """

    place: Place
    before: bytes
    after: bytes

    def told(self, root: Path) -> str:
        changed = [
            self.place.begin + position
            for position, (old, new) in enumerate(zip(self.before, self.after, strict=True))
            if old != new
        ]
        return f"{self.place.path.relative_to(root)} at {', '.join(map(str, changed))}"


def flip_bits(place: Place, count: int, random: Random, *, spared: range = range(0)) -> Flip:
    """
    Args:
        count: of bits, all different.
        spared: bytes from the begin of the place that stay as they are.
    """
    before = read(place)
    assert 8 * (len(before) - len(spared)) >= count, f"{place} is too small for {count} flips"
    after = bytearray(before)
    while count:
        at = random.randrange(len(before))
        mask = 1 << random.randrange(8)
        if at not in spared and after[at] & mask == before[at] & mask:
            after[at] ^= mask
            count -= 1
    write(place, bytes(after))
    return Flip(place, before, bytes(after))


def read(place: Place) -> bytes:
    with place.path.open("rb") as file:
        file.seek(place.begin)
        return file.read(place.end - place.begin)


def write(place: Place, data: bytes) -> None:
    assert len(data) <= place.end - place.begin, f"{len(data)} bytes do not fit into {place}"
    with place.path.open("r+b") as file:
        file.seek(place.begin)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def truncate(path: Path, size: int) -> None:
    assert size <= path.stat().st_size, f"{path} is shorter than {size} bytes"
    os.truncate(path, size)
    sync_path(path)


def remove(path: Path) -> None:
    path.unlink()
    sync_path(path.parent)
