"""Value types and limits that all layers share: durability, record format, compression, address.

Owns names only, no behaviour. Imports nothing of raftmq, so that every module may import it.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

# Absent values, with Kafka's numbers: these stand in batch headers.
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

PORT_MAX = 65_535
GROUP_CHARS_MAX = 200  # of a group's name: a key of the metadata, and in every command of the group


class Durability(StrEnum):
    """When a replica counts a record as held (topic config `durability`)."""

    FSYNC = "fsync"  # once fdatasync has returned
    PAGE_CACHE = "page_cache"  # once the kernel has it: survives kill -9, not a power cut


class RecordFormat(StrEnum):
    """Which encoding of records a topic stores (topic config `record.format`)."""

    COLUMNS = "columns"
    KAFKA = "kafka"


class TimestampType(IntEnum):
    """Whose clock stamped the records; the value is bit 3 of the batch attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Compression(IntEnum):
    """Codec ids of Kafka's record batch attributes (bits 0-2). Snappy (2) is not supported."""

    NONE = 0
    GZIP = 1
    LZ4 = 3
    ZSTD = 4


class TimestampOffset(NamedTuple):
    """Answer to "which offset belongs to this time": the first record at or after it."""

    timestamp: int  # milliseconds since 1970-01-01 UTC
    offset: int


class Address(NamedTuple):
    """Host and port of a listener. `raftmq/rpc/protocol.py` parses the text `host:port`."""

    host: str  # a name, an IPv4 address, or an IPv6 address without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
