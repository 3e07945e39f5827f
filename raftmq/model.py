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
TRANSACTION_ID_CHARS_MAX = 255  # of a transaction id: a key of the metadata
LINEAGE_CHARS_MAX = 255  # of whose versions these are, in a shared transaction
DELAY_TICK_MS = 100  # brokers deliver in steps of it, and producers round due times up to it
TAG_BYTES_MAX = 255  # of one tag of a record, in UTF-8
GROUP_CHARS_MAX = 200  # of a group's name: a key of the metadata, and in every command of the group
# Crashes that are counted beside a committed offset while more records than one were at work. From
# then on the first of them is handled alone.
ACCIDENTS_MAX = 2


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


class IsolationLevel(IntEnum):
    """Which records of transactions a reader gets (Kafka's numbers)."""

    READ_UNCOMMITTED = 0  # all below the high watermark, aborted ones, too
    READ_COMMITTED = 1  # below the last stable offset, and none of an aborted transaction


class TransactionOutcome(IntEnum):
    """What a broker's metadata say of one transaction: a producer id in one of its epochs.

    It moves only from AHEAD over OPEN to COMMITTED or ABORTED; a commit that is settled in all of
    its partitions is forgotten, and reads as ABORTED then, when no log has it open any more.
    """

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2
    AHEAD = 3  # of an epoch or producer id that these metadata do not know yet
    FORGED = 4  # so far ahead that nobody can have given it out


class AbortReason(IntEnum):
    """Why a transaction was aborted; 0 for one that was committed."""

    NONE = 0
    PROGRAM = 1  # its own producer asked for it
    TIMEOUT = 2
    OWNER = 3  # another producer has opened its id
    OPERATOR = 4


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
