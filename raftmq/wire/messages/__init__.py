"""All requests and replies of the protocol, one module for each family; `REQUESTS` by api key.

The class of a request says its number, its version, its reply and who may send it. Types only:
handlers are in `raftmq/broker/requests/`.
"""

from __future__ import annotations

from raftmq.wire.bodies import REQUESTS
from raftmq.wire.messages import (
    cluster,
    configs,
    corruption,
    fetch,
    group_offsets,
    groups,
    hello,
    metadata,
    moves,
    offsets,
    produce,
    producers,
    replicate,
    scheduled,
    topics,
    transactions,
)

__all__ = ["FAMILIES", "REQUESTS"]

# A module that is imported nowhere would leave its requests unknown.
FAMILIES = (
    cluster, configs, corruption, fetch, group_offsets, groups, hello, metadata, moves, offsets,
    produce, producers, replicate, scheduled, topics, transactions,
)  # fmt: skip
