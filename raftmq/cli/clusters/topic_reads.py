"""`raftmq topic list` and `describe`: partitions, leaders, ISR, offsets and configuration, as rows.

Reads only.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import Row, write_json, write_table
from raftmq.cli.terminal.program import as_called
from raftmq.client.administration.checks import check_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import PartitionDetails, TopicDetails, TopicSummary

LIST_TITLES = ("topic", "partitions", "replicas", "under-replicated", "leaderless")
PARTITION_TITLES = ("partition", "leader", "epoch", "replicas", "isr", "start", "end", "note")


def list_topics(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    topics = run_admin(lambda admin: admin.list_topics(), bootstrap, timeout)
    if as_json:
        write_json(map(_summary_object, topics))
        return ExitCode.OK
    write_table(LIST_TITLES, map(_summary_row, topics))
    if not topics:
        sys.stderr.write(as_called("raftmq: no topics yet: `raftmq topic create NAME` makes one\n"))
    return ExitCode.OK


def describe_topics(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, as_json: bool
) -> int:
    for name in names:
        check_topic(name)

    async def ask(admin: Admin) -> list[TopicDetails]:
        return [await admin.describe_topic(name) for name in dict.fromkeys(names)]

    found = run_admin(ask, bootstrap, timeout)
    if as_json:
        write_json(map(_details_object, found))
        return ExitCode.OK
    for number, topic in enumerate(found):
        sys.stdout.write("\n" if number else "")
        _write_details(topic)
    return ExitCode.OK


def _summary_object(topic: TopicSummary) -> Row:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": topic.partition_count,
        "replication_factor": topic.replication_factor,
        "under_replicated": topic.under_replicated,
        "leaderless": topic.leaderless,
    }


def _summary_row(topic: TopicSummary) -> tuple[object, ...]:
    return (
        topic.name,
        topic.partition_count,
        topic.replication_factor,
        topic.under_replicated,
        topic.leaderless,
    )


def _details_object(topic: TopicDetails) -> Row:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "replication_factor": topic.replication_factor,
        "partitions": msgspec.to_builtins(topic.partitions),
        "config": msgspec.to_builtins(topic.config),
    }


def _write_details(topic: TopicDetails) -> None:
    sys.stdout.write(
        f"topic {topic.name}: {counted(len(topic.partitions), 'partition')},"
        f" replication factor {topic.replication_factor}, id {topic.topic_id.hex()}\n\n"
    )
    write_table(PARTITION_TITLES, map(_partition_row, topic.partitions))
    sys.stdout.write("\n")
    rows = [
        (key, each.value, "" if each.is_default else "(set)") for key, each in topic.config.items()
    ]
    sys.stdout.write("configuration\n")
    width = max((len(key) for key in topic.config), default=0)
    for key, value, mark in rows:
        sys.stdout.write(f"  {key.ljust(width)}  {value} {mark}".rstrip() + "\n")
    sys.stdout.flush()


def _partition_row(partition: PartitionDetails) -> tuple[object, ...]:
    return (
        partition.partition,
        partition.leader,
        partition.leader_epoch,
        ",".join(map(str, partition.replicas)),
        ",".join(map(str, partition.isr)),
        partition.start_offset,
        partition.end_offset,
        _note(partition),
    )


def _note(partition: PartitionDetails) -> str:
    missing = [str(one) for one in partition.replicas if one not in partition.isr]
    notes = ["no leader"] if partition.leader is None else []
    notes += [f"not in sync: {', '.join(missing)}"] if missing else []
    notes += ["last election was unclean"] if partition.is_recovering else []
    return "; ".join(notes)


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
