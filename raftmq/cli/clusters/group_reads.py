"""`raftmq group list` and `describe`: what there is, in rows."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from raftmq.cli.clusters.group_names import hinting
from raftmq.cli.clusters.topic_reads import counted
from raftmq.cli.connected import run_connected
from raftmq.cli.exits import ExitCode
from raftmq.cli.output import NOTHING, Row, shown, write_json, write_notes, write_table
from raftmq.client.administration.groups.checks import check_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raftmq.client.administration.groups.results import (
        GroupDetails,
        GroupMember,
        GroupSummary,
        TopicPartition,
    )
    from raftmq.client.client import Client

LIST_TITLES = ("group", "state", "type", "members", "coordinator")
MEMBER_TITLES = ("member", "instance", "client", "host", "reads")
TEXT_CHARS_MAX = 200  # whatever a program calls itself, a table stays one


def list_groups(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    async def ask(client: Client) -> tuple[GroupSummary, ...]:
        return await client.admin.with_timeout(timeout).list_groups()

    groups = run_connected(ask, bootstrap, timeout_seconds=timeout)
    if as_json:
        write_json(map(_summary_object, groups))
        return ExitCode.OK
    write_table(LIST_TITLES, map(_summary_row, groups))
    if not groups:
        sys.stderr.write("raftmq: no groups yet: a consumer with a group makes one\n")
    return ExitCode.OK


def describe_groups(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, as_json: bool
) -> int:
    for name in names:
        check_group(name)

    async def ask(client: Client) -> list[GroupDetails]:
        admin, found = client.admin.with_timeout(timeout), []
        for name in dict.fromkeys(names):
            async with hinting(admin, name):
                found.append(await admin.describe_group(name))
        return found

    found = run_connected(ask, bootstrap, timeout_seconds=timeout)
    if as_json:
        write_json(map(_details_object, found))
        return ExitCode.OK
    for number, group in enumerate(found):
        sys.stdout.write("\n" if number else "")
        _write_details(group)
    return ExitCode.OK


def _summary_object(group: GroupSummary) -> Row:
    return {
        "name": group.name,
        "state": group.state,
        "protocol_type": group.protocol_type or None,
        "members": group.member_count,
        "coordinator": group.coordinator,
    }


def _summary_row(group: GroupSummary) -> tuple[object, ...]:
    name = shown(group.name, TEXT_CHARS_MAX)
    return name, group.state, group.protocol_type, group.member_count, group.coordinator


def _details_object(group: GroupDetails) -> Row:
    return {
        "name": group.name,
        "state": group.state,
        "generation": group.generation if group.generation >= 0 else None,
        "protocol_type": group.protocol_type or None,
        "protocol": group.protocol or None,
        "leader": group.leader or None,
        "coordinator": group.coordinator,
        "members": [_member_object(one) for one in group.members],
    }


def _member_object(member: GroupMember) -> Row:
    partitions = member.partitions
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id or None,
        "host": member.host or None,
        "topics": None if member.topics is None else list(member.topics),
        "partitions": None
        if partitions is None
        else [{"topic": topic, "partition": number} for topic, number in partitions],
    }


def _write_details(group: GroupDetails) -> None:
    facts = [group.state]
    facts += [f"generation {group.generation}"] if group.generation >= 0 else []
    facts += [f"assignor {shown(group.protocol, TEXT_CHARS_MAX)}"] if group.protocol else []
    facts += [counted(len(group.members), "member"), f"coordinator broker {group.coordinator}"]
    sys.stdout.write(f"group {shown(group.name, TEXT_CHARS_MAX)}: {', '.join(facts)}\n")
    if group.members:
        sys.stdout.write("\n")
        write_notes(MEMBER_TITLES, [_member_row(one) for one in group.members])
    sys.stdout.flush()


def _member_row(member: GroupMember) -> tuple[str, ...]:
    texts = (member.member_id, member.instance_id, member.client_id, member.host)
    cells = tuple(shown(text or None, TEXT_CHARS_MAX) for text in texts)
    if member.partitions is None:
        return *cells, "not known"
    return *cells, show_partitions(member.partitions) or NOTHING


def show_partitions(partitions: Sequence[TopicPartition]) -> str:
    """`orders 0-2,5; returns 0`"""
    topics = groupby(sorted(partitions), key=lambda one: one[0])
    return "; ".join(f"{topic} {_runs(number for _, number in each)}" for topic, each in topics)


def _runs(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
