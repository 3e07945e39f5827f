"""`raftmq topic list` and `describe`: partitions, leaders, ISR, offsets, sizes and configuration.

Reads only.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

import msgspec

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import Row, fit_names, show_partitions, write_json, write_table
from raftmq.cli.terminal.program import as_called
from raftmq.client.administration.checks import check_topic
from raftmq.client.dead_letters.letters import INTERNAL_PREFIX
from raftmq.errors import GroupIdNotFound, UnknownTopicOrPartition, UnknownTransaction
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import (
        PartitionDetails,
        PartitionSize,
        TopicDetails,
        TopicSize,
        TopicSummary,
    )

T = TypeVar("T")
NAMED_MAX, PARTITIONS_MAX = 10, 1000  # topics and partitions that a message names in a line
LIST_TITLES = (
    "topic", "partitions", "replicas", "records", "bytes", "under-replicated", "leaderless",
)  # fmt: skip
PARTITION_TITLES = (
    "partition",
    "leader",
    "epoch",
    "replicas",
    "isr",
    "start",
    "end",
    "bytes",
    "note",
)


def list_topics(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    async def ask(admin: Admin) -> tuple[Sequence[TopicSummary], Mapping[str, TopicSize]]:
        topics = await admin.list_topics()
        return topics, await admin.topic_sizes() if topics else {}

    topics, sizes = run_admin(ask, bootstrap, timeout)
    found = [(topic, _size_of(topic, sizes)) for topic in topics]
    if as_json:
        write_json(_summary_object(topic, size) for topic, size in found)
        return ExitCode.OK
    rows = [_summary_row(topic, size) for topic, size in found]
    write_table(LIST_TITLES, fit_names(LIST_TITLES, rows))
    if not topics:
        sys.stderr.write(as_called("raftmq: no topics yet: `raftmq topic create NAME` makes one\n"))
    return ExitCode.OK


def describe_topics(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, as_json: bool
) -> int:
    for name in names:
        check_topic(name)

    async def ask(admin: Admin) -> tuple[list[TopicDetails], Mapping[str, TopicSize], list[str]]:
        topics, missing = await each_there(names, admin.describe_topic)
        known = [topic.name for topic in topics]
        return topics, await admin.topic_sizes(known) if known else {}, missing

    topics, sizes, missing = run_admin(ask, bootstrap, timeout)
    found = [(topic, _size_of(topic, sizes)) for topic in topics]
    if as_json:
        write_json(_details_object(topic, size) for topic, size in found)
    else:
        for number, (topic, size) in enumerate(found):
            sys.stdout.write("\n" if number else "")
            _write_details(topic, size)
    check_none_missing(missing)
    return ExitCode.OK


async def each_there(
    names: Iterable[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[list[T], list[str]]:
    """The answers about those that exist, each once; and a line about each of the others."""
    found: list[T] = []
    missing: list[str] = []
    for name in dict.fromkeys(names):
        try:
            found.append(await ask(name))
        except (GroupIdNotFound, UnknownTopicOrPartition, UnknownTransaction) as error:
            missing.append(str(error))
    return found, missing


def check_none_missing(missing: Sequence[str]) -> None:
    """Called after the others were printed. Raises CommandError, with a line for each."""
    if missing:
        raise CommandError("\n".join(missing), ExitCode.NOT_FOUND)


def _size_of(
    topic: TopicSummary | TopicDetails, sizes: Mapping[str, TopicSize]
) -> TopicSize | None:
    """None where the topic was deleted, and perhaps made again, between the two questions."""
    size = sizes.get(topic.name)
    return size if size is not None and size.topic_id == topic.topic_id else None


def _size_object(size: TopicSize | PartitionSize | None) -> Row:
    return {
        "records": size and size.record_count,
        "bytes": size and size.log_bytes,
        "replica_bytes": size and size.replica_bytes,
    }


def _summary_object(topic: TopicSummary, size: TopicSize | None) -> Row:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": topic.partition_count,
        "replication_factor": topic.replication_factor,
        "under_replicated": topic.under_replicated,
        "leaderless": topic.leaderless,
        "internal": topic.name.startswith(INTERNAL_PREFIX),
        **_size_object(size),
    }


def _summary_row(topic: TopicSummary, size: TopicSize | None) -> tuple[object, ...]:
    return (
        topic.name,
        topic.partition_count,
        topic.replication_factor,
        size and size.record_count,
        size and size.log_bytes,
        topic.under_replicated,
        topic.leaderless,
    )


def _details_object(topic: TopicDetails, size: TopicSize | None) -> Row:
    sizes = _partition_sizes(size)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "replication_factor": topic.replication_factor,
        **_size_object(size),
        "partitions": [
            {**msgspec.to_builtins(one), **_size_object(sizes.get(one.partition))}
            for one in topic.partitions
        ],
        "config": msgspec.to_builtins(topic.config),
    }


def _partition_sizes(size: TopicSize | None) -> Mapping[int, PartitionSize]:
    return {one.partition: one for one in size.partitions} if size else {}


def _write_details(topic: TopicDetails, size: TopicSize | None) -> None:
    sizes = _partition_sizes(size)
    sys.stdout.write(
        f"topic {topic.name}: {counted(len(topic.partitions), 'partition')},"
        f" replication factor {topic.replication_factor}, id {topic.topic_id.hex()}\n\n"
    )
    write_table(
        PARTITION_TITLES,
        (_partition_row(one, sizes.get(one.partition)) for one in topic.partitions),
    )
    sys.stdout.write("\n")
    rows = [
        (key, each.value, "" if each.is_default else "(set)") for key, each in topic.config.items()
    ]
    sys.stdout.write("configuration\n")
    width = max((len(key) for key in topic.config), default=0)
    for key, value, mark in rows:
        sys.stdout.write(f"  {key.ljust(width)}  {value} {mark}".rstrip() + "\n")
    sys.stdout.flush()


def _partition_row(partition: PartitionDetails, size: PartitionSize | None) -> tuple[object, ...]:
    return (
        partition.partition,
        partition.leader,
        partition.leader_epoch,
        ",".join(map(str, partition.replicas)),
        ",".join(map(str, partition.isr)),
        partition.start_offset,
        partition.end_offset,
        size and size.log_bytes,
        _note(partition),
    )


def _note(partition: PartitionDetails) -> str:
    there = {*partition.isr, *partition.adding}
    missing = [str(one) for one in partition.replicas if one not in there]
    notes = ["no leader"] if partition.leader is None else []
    notes += [_moving(partition)] if partition.adding or partition.removing else []
    notes += [f"not in sync: {', '.join(missing)}"] if missing else []
    notes += ["last election was unclean"] if partition.is_recovering else []
    stable, end = partition.last_stable_offset, partition.end_offset
    if stable is not None and end is not None and stable < end:
        notes.append(f"last stable offset {stable}: a transaction is open, or rot may hide one")
    return "; ".join(notes)


def _moving(partition: PartitionDetails) -> str:
    changes = {"new": partition.adding, "to go": partition.removing}
    told = [f"{what} {', '.join(map(str, ids))}" for what, ids in changes.items() if ids]
    return f"moving: {', '.join(told)}"


def name_partitions(partitions: Sequence[tuple[str, int]]) -> str:
    """`orders 0-59; returns 3; and 7 more partitions`"""
    topics = list(dict.fromkeys(topic for topic, _ in partitions))[:NAMED_MAX]
    named = [one for one in partitions if one[0] in topics][:PARTITIONS_MAX]
    more = len(partitions) - len(named)
    return show_partitions(named) + (f"; and {counted(more, 'more partition')}" if more else "")
