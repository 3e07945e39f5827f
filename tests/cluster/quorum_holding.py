"""What an image holds, told so that two processes can be compared: a digest, and the keys in it.

Pure. The maps of an image iterate in an order that differs from process to process, so the digest
sorts them. `changes` is left out: it tells how an image came about, not what it is.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from immutables import Map

from raftmq.metadata.commands import StoredOffset
from tests.cluster.quorum_words import Holding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.metadata.image import MetadataImage

GROUP = "rehearsal"

_encode = msgspec.msgpack.Encoder().encode


def holding_of(image: MetadataImage) -> Holding:
    """Takes about a second for half a million keys: for a worker thread."""
    offsets = image.offsets.get(GROUP, Map())
    keys = sorted(int.from_bytes(topic_id, "big") for topic_id, _ in offsets)
    wrong = sum(
        committed.offset != int.from_bytes(topic_id, "big")
        for (topic_id, _), committed in offsets.items()
    )
    return Holding(image.version, digest_of(image), list(ranges_of(keys)), wrong)


def ranges_of(keys: list[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges that hold exactly these rising keys."""
    if keys:
        gaps = [(end + 1, first) for end, first in pairwise(keys) if first != end + 1]
        firsts = [keys[0], *(first for _, first in gaps)]
        ends = [*(end for end, _ in gaps), keys[-1] + 1]
        yield from zip(firsts, ends, strict=True)


def digest_of(image: MetadataImage) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(image._replace(changes=())):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterable[bytes]:
    """The same bytes for equal values, in every process."""
    if isinstance(value, Map):
        yield b"map %d" % len(value)
        for key, item in sorted((_encode(key), item) for key, item in value.items()):
            yield key
            yield from _pieces(item)
    elif isinstance(value, tuple):
        yield b"tuple %d" % len(value)
        for item in value:
            yield from _pieces(item)
    else:
        yield _encode(value)


def commit_of(key: int) -> StoredOffset:
    """The one commit that puts this key into the image."""

    return StoredOffset(key.to_bytes(16, "big"), 0, key)
