"""Fails early if a topic or partition that was named on the command line does not exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.client.administration.checks import check_topic
from raftmq.errors import RaftmqError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.client import Client

LEADERS_SECONDS_MAX = 2.0  # for the leaders to answer; without one the command waits, and says why


async def check_there(client: Client, topic: str, partitions: Sequence[int] = ()) -> None:
    """
    Raises:
        InvalidTopic: no topic can have that name.
        UnknownTopicOrPartition: with the way out.
    """
    check_topic(topic)
    try:
        # Needs no leader of a partition, and is answered by any broker.
        await client.admin.describe_config(topic)
    except UnknownTopicOrPartition as error:
        raise UnknownTopicOrPartition(f"{error}; `raftmq topic create {topic}` makes it") from error
    if partitions:
        await _check_partitions(client, topic, partitions)


async def check_all_there(
    client: Client, topics: Sequence[str], partitions: Sequence[int] = ()
) -> None:
    """Before any of them is read. Raises CommandError: names all that do not exist."""
    missing: list[str] = []
    for topic in topics:
        try:
            await check_there(client, topic, partitions)
        except UnknownTopicOrPartition as error:
            missing.append(str(error))
    if missing:
        missing[-1] += "; nothing was read" if len(topics) > 1 else ""
        raise CommandError("\n".join(missing), ExitCode.NOT_FOUND)


async def _check_partitions(client: Client, topic: str, partitions: Sequence[int]) -> None:
    """Raises UnknownTopicOrPartition. A partition without a leader exists nevertheless."""
    admin = client.admin.with_timeout(LEADERS_SECONDS_MAX)
    try:
        await admin.offsets(topic, "latest", partitions=partitions)
    except UnknownTopicOrPartition:
        raise
    # No leader answers now: the command will wait for one itself.
    except RaftmqError:
        return
