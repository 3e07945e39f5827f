"""`raftmq group list`, `describe`, `lag` and `delete`: consumer groups, their members and offsets.

Owns the rows and the confirmation before a deletion. Invariant: `delete` deletes nothing unless all
groups that were named exist and have no members.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_admin, watch
from raftmq.cli.clusters.topic_reads import check_none_missing, each_there
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import (
    NOTHING,
    Row,
    check_can_ask,
    confirm,
    show_partitions,
    shown,
    table_width,
    write_json,
    write_notes,
    write_table,
)
from raftmq.client.administration.groups.checks import check_group
from raftmq.client.administration.groups.descriptions import check_empty
from raftmq.errors import GroupIdNotFound, RaftmqError
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import (
        GroupDetails,
        GroupMember,
        GroupSummary,
        PartitionLag,
    )


# -- Group names ----------------------------------------------------------------------------------
# The message about a group that does not exist: a similar name, and the command that lists all.


# All brokers are asked, for a hint only: an error must not wait for one down.
LIST_SECONDS_MAX = 2.0


@asynccontextmanager
async def hinting(admin: Admin, name: str) -> AsyncIterator[None]:
    """Adds a similar name to GroupIdNotFound: most often the name was mistyped."""
    try:
        yield
    except GroupIdNotFound as error:
        raise GroupIdNotFound(f"{error}{await _hint(admin, name)}") from error


async def _hint(admin: Admin, name: str) -> str:
    try:
        known = [one.name for one in await admin.with_timeout(LIST_SECONDS_MAX).list_groups()]
    except RaftmqError:
        known = []
    close = get_close_matches(name, known, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ";"
    return f"{meant} `raftmq group list` shows what there is"


# -- Group reads ----------------------------------------------------------------------------------


LIST_TITLES = ("group", "state", "type", "members", "coordinator")
MEMBER_TITLES = ("member", "instance", "client", "host", "reads")
MEMBER_CHARS_MAX, UNIQUE_CHARS = 20, 6  # of a member id in tables, whole ids have 59
TEXT_CHARS_MAX = 200  # programs choose these names freely: a long one must not break the table


def list_groups(bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    groups = run_admin(lambda admin: admin.list_groups(), bootstrap, timeout)
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

    async def ask(admin: Admin) -> tuple[list[GroupDetails], list[str]]:
        async def describe(name: str) -> GroupDetails:
            async with hinting(admin, name):
                return await admin.describe_group(name)

        return await each_there(names, describe)

    found, missing = run_admin(ask, bootstrap, timeout)
    if as_json:
        write_json(map(_details_object, found))
    else:
        for number, group in enumerate(found):
            sys.stdout.write("\n" if number else "")
            _write_details(group)
    check_none_missing(missing)
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
        "tags": group.tags,
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
    facts += [f"filter {shown(group.tags, TEXT_CHARS_MAX)}"] if group.tags else []
    facts += [counted(len(group.members), "member"), f"coordinator broker {group.coordinator}"]
    sys.stdout.write(f"group {shown(group.name, TEXT_CHARS_MAX)}: {', '.join(facts)}\n")
    if group.members:
        sys.stdout.write("\n")
        write_notes(MEMBER_TITLES, [_member_row(one) for one in group.members])
    sys.stdout.flush()


def _member_row(member: GroupMember) -> tuple[str, ...]:
    texts = (member.instance_id, member.client_id, member.host)
    cells = short_member(member), *(shown(text or None, TEXT_CHARS_MAX) for text in texts)
    # Its assignment is written by a client with another protocol.
    if member.partitions is None:
        return *cells, "not known"
    return *cells, show_partitions(member.partitions) or NOTHING


def short_member(member: GroupMember) -> str:
    """Fits into a table of 80 columns: the client's name and the start of what makes it unique.

    JSON has the whole id.
    """
    name, member_id = member.client_id, member.member_id
    unique = member_id.removeprefix(f"{name}-")
    if not name or unique == member_id:  # an id of another form
        return shown(member_id, MEMBER_CHARS_MAX)
    return f"{shown(name, MEMBER_CHARS_MAX - UNIQUE_CHARS - 1)}-{unique[:UNIQUE_CHARS]}"


# -- Group delete ---------------------------------------------------------------------------------
# `raftmq group delete`: check all groups, ask once, print a line about each that was deleted.


def delete_groups(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, is_sure: bool, as_json: bool
) -> int:
    """All groups must exist, without members, before the first one is deleted."""
    names = list(dict.fromkeys(names))
    for name in names:
        check_group(name)
    check_can_ask(f"delete {', '.join(names)}", is_sure=is_sure)

    async def look(admin: Admin) -> dict[str, int]:
        """The number of offsets of each group."""

        async def count(name: str) -> tuple[str, int]:
            async with hinting(admin, name):
                check_empty(await admin.describe_group(name), "delete it")
                return name, len(await admin.group_offsets(name))

        found, missing = await each_there(names, count)
        check_none_missing([*missing, "nothing was deleted"] if missing and found else missing)
        return dict(found)

    async def delete(admin: Admin) -> None:
        for name in names:
            await admin.delete_group(name)
            if as_json:
                write_json([{"name": name, "deleted": True}])
            else:
                sys.stdout.write(f"group {name}: deleted\n")
                sys.stdout.flush()

    # A connection of its own: the person may take minutes to answer.
    found = run_admin(look, bootstrap, timeout)
    told = [f"{name} (offsets of {counted(count, 'partition')})" for name, count in found.items()]
    confirm(f"Delete {', '.join(told)}, for good?", is_sure=is_sure)
    run_admin(delete, bootstrap, timeout)
    return ExitCode.OK


# -- Group lag ------------------------------------------------------------------------------------
# `raftmq group lag`: once, or every second.
#
# Watching tolerates a cluster that does not answer for a while; a single call fails at once.


TITLES = ("topic", "partition", "committed", "end", "lag", "age", "member", "host")
WIDTH_MAX = 80  # columns of a table; a host that does not fit is left to `group describe` and JSON
# Up to which count of a unit it is used: "90m" is more precise than "1h", and no longer.
AGE_UNITS = (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48))


class GroupLagOptions(NamedTuple):
    """The options of one call."""

    name: str
    bootstrap: str | None
    timeout: float
    as_json: bool


def show_lag(look: GroupLagOptions) -> int:
    check_group(look.name)
    rows = run_admin(partial(_ask, look.name), look.bootstrap, look.timeout, group=look.name)
    _report(look, rows)
    return ExitCode.OK


def watch_lag(look: GroupLagOptions) -> int:
    """Print the lag every second until Ctrl-C."""
    check_group(look.name)
    ask, report = partial(_ask, look.name), partial(_report, look)
    return watch(ask, report, look.bootstrap, look.timeout, as_json=look.as_json)


async def _ask(name: str, admin: Admin) -> tuple[PartitionLag, ...]:
    async with hinting(admin, name):
        return await admin.group_lag(name, with_ages=True)


def _report(look: GroupLagOptions, rows: Sequence[PartitionLag]) -> None:
    if look.as_json:
        write_json(_object(look.name, row) for row in rows)
        return
    lags = [row.lag for row in rows if row.lag is not None]
    unknown = len(rows) - len(lags)
    more = f", {unknown} more not known" if unknown else ""
    sys.stdout.write(
        f"group {shown(look.name, TEXT_CHARS_MAX)}: lag {sum(lags)} in"
        f" {counted(len(lags), 'partition')}{more}\n"
    )
    cells = [_row(row) for row in rows]
    shown_count = len(TITLES) - (table_width(TITLES, cells) > WIDTH_MAX)
    write_table(TITLES[:shown_count], [row[:shown_count] for row in cells])


def _object(name: str, row: PartitionLag) -> Row:
    member = row.member
    return {
        "group": name,
        "topic": row.topic,
        "partition": row.partition,
        "committed": row.committed,
        "end_offset": row.end_offset,
        "lag": row.lag,
        "age_seconds": None if row.age_seconds is None else round(row.age_seconds, 3),
        "member_id": member.member_id if member else None,
        "client_id": member.client_id or None if member else None,
        "host": member.host or None if member else None,
    }


def _row(row: PartitionLag) -> tuple[object, ...]:
    member = row.member
    host = shown(member.host or None, TEXT_CHARS_MAX) if member else None
    who = short_member(member) if member else None
    age = show_age(row.age_seconds)
    return row.topic, row.partition, row.committed, row.end_offset, row.lag, age, who, host


def show_age(seconds: float | None) -> str | None:
    """In few characters: `90s`, `5m`, `47h`, `12d`."""
    if seconds is None:
        return None
    for unit, length, count_max in AGE_UNITS:
        if seconds < length * count_max:
            return f"{int(seconds / length)}{unit}"
    return f"{int(seconds / 86_400)}d"
