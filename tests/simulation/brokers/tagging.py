"""Tags of simulated records: a function of the value, so that every judge knows them. Pure."""

from __future__ import annotations

from crc32c import crc32c

from raftmq.tag_filter import TagFilter, parse

TAG_SETS: tuple[tuple[str, ...], ...] = ((), ("a",), ("b",), ("a", "b"))
# Of consumers.
FILTERS: tuple[TagFilter | None, ...] = (*[None] * 3, *map(parse, ["a", "!a", "a & b", "c"]))
_TAGGED = b"sp"  # how values of the programs begin that tag them


def tags_of(value: bytes) -> tuple[str, ...]:
    return TAG_SETS[crc32c(value) % len(TAG_SETS)] if value.startswith(_TAGGED) else ()
