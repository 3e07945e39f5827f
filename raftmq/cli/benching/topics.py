"""The topic of a bench: one that is there, or one of its own that is gone afterwards."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.data.topics_there import check_there
from raftmq.errors import RaftmqError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.client.client import Client

DELETE_SECONDS_MAX = 10.0


class Wanted(NamedTuple):
    """`name`: None: one of its own."""

    name: str | None
    own_name: str
    partitions: int | None
    replication_factor: int | None


@asynccontextmanager
async def topic_of(client: Client, wanted: Wanted) -> AsyncIterator[str]:
    """Raises UnknownTopicOrPartition, RaftmqError."""
    if wanted.name is not None:
        await check_there(client, wanted.name)
        yield wanted.name
        return
    name, is_made = wanted.own_name, True
    try:
        try:
            await client.admin.create_topic(
                name, partitions=wanted.partitions, replication_factor=wanted.replication_factor
            )
        except RaftmqError as error:
            is_made = not error.definite
            raise
        yield name
    finally:
        if is_made:
            await _delete(client, name)


async def _delete(client: Client, name: str) -> None:
    """Also when the bench was interrupted, be it while the topic was made."""
    reason: str | None = "no answer"
    try:
        with anyio.move_on_after(DELETE_SECONDS_MAX, shield=True):
            await client.admin.delete_topic(name)
            reason = None
    except UnknownTopicOrPartition:
        reason = None
    except RaftmqError as error:
        reason = str(error)
    finally:  # also after another Ctrl-C
        if reason is not None:
            sys.stderr.write(
                f"raftmq: topic {name} may be left, as deleting it has failed ({reason}): "
                f"`raftmq topic delete {name}`\n"
            )
