"""The producer id that a name stands for, in every partition, and what its batches say. Pure.

Owns the border between ids: those that are given out one by one stay below `NAMED_FIRST`, those of
names begin there. A name is not kept anywhere; two names with the same id would fence each other,
which 62 bits of a cryptographic hash make something that does not happen.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

NAMED_FIRST = 1 << 62
GENERATION_MAX = (1 << 63) - 1
DIGEST_MAX = (1 << 32) - 1
PARTITION_COUNT_MAX = (1 << 31) - 1
_DOMAIN = b"raftmq producer\0"  # nothing else that is hashed begins so
_HASH_BYTES = 8


class Account(NamedTuple):
    """What a named producer says of its records in a partition. `digest`: of all of this
    generation, up to the end of the batch that says it; 0 where there are none.
    `partition_count`: so many the topic had when the generation began; only fences say it, and 0
    where it is not known.
    """

    generation: int
    digest: int
    partition_count: int = 0


def is_named(producer_id: int) -> bool:
    return producer_id >= NAMED_FIRST


def named_producer_id(name: str) -> int:
    digest = hashlib.sha256(_DOMAIN + name.encode()).digest()
    return NAMED_FIRST | int.from_bytes(digest[:_HASH_BYTES], "big") >> 2
