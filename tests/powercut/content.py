"""What the records hold and how the topic is configured: the same for writer and checker.

A record is a pure function of (seed, partition, sequence), so that the checker needs no copy of
what was written. Sequences grow within a partition and across lives, so that a record that comes
back from before a truncation cannot be taken for its successor.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import Durability
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch

if TYPE_CHECKING:
    from raftmq.wire.batch.records import Record

TOPIC = "powercut-0001"
SEQUENCES_PER_LIFE = 1_000_000
_FIRST_TIMESTAMP_MS = 1_700_000_000_000
_SEGMENT_BYTES = (1 << 20, 32 << 10, 8 << 10, 256 << 10)


class Content(NamedTuple):
    """Of one record."""

    key: bytes
    value: bytes
    timestamp: int  # ms


def content_of(seed: int, partition: int, sequence: int) -> Content:
    key = b"%d" % sequence
    digest = blake2b(b"%d/%d/%d" % (seed, partition, sequence)).digest()
    length = _value_length(digest)
    value = (digest * (length // len(digest) + 1))[:length]
    return Content(key, value, _FIRST_TIMESTAMP_MS + sequence)


def _value_length(digest: bytes) -> int:
    """Mostly small, some larger than a page, a few larger than a small segment."""
    kind, number = digest[0], int.from_bytes(digest[1:4], "big")
    if kind < 160:
        return number % 100
    return number % 2_000 if kind < 250 else number % 20_000


def batch_of(seed: int, partition: int, sequences: range) -> bytearray:
    """One batch as a producer sends it."""
    contents = [content_of(seed, partition, sequence) for sequence in sequences]
    return encode_batch(
        values=[content.value for content in contents],
        keys=[content.key for content in contents],
        timestamps=[content.timestamp for content in contents],
    )


def sequence_of(seed: int, partition: int, record: Record) -> int | None:
    """Which record this is; None if nobody ever wrote it."""
    key = bytes(record.key or b"")
    if not key.isdigit():
        return None
    sequence = int(key)
    written = content_of(seed, partition, sequence)
    found = Content(key, bytes(record.value or b""), record.timestamp)
    return sequence if found == written else None


def config_of(partition: int) -> TopicConfig:
    """Small segments, so that logs roll under load; one partition in four waits for no disk."""
    return TopicConfig(
        segment_bytes=_SEGMENT_BYTES[partition % len(_SEGMENT_BYTES)],
        index_interval_bytes=1024,
        durability=Durability.PAGE_CACHE if partition % 4 == 3 else Durability.FSYNC,
    )
