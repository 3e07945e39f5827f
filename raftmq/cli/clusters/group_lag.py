"""`raftmq group lag`: one look, or a look every second.

Who watches is patient with a cluster that does not answer for a while; who looks once is told.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.clusters.cluster_health import ANSWER_SECONDS_MAX, CLEAR, WATCH_SECONDS
from raftmq.cli.clusters.group_names import hinting
from raftmq.cli.clusters.group_reads import TEXT_CHARS_MAX
from raftmq.cli.clusters.topic_reads import counted
from raftmq.cli.connected import run_connected
from raftmq.cli.exits import ExitCode, exit_code_of
from raftmq.cli.output import Row, shown, write_json, write_table
from raftmq.client.administration.groups.checks import check_group
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.groups.results import PartitionLag
    from raftmq.client.client import Client

TITLES = ("topic", "partition", "committed", "end", "lag", "member", "client", "host")


class Look(NamedTuple):
    """What was typed."""

    name: str
    bootstrap: str | None
    timeout: float
    as_json: bool


def show_lag(look: Look) -> int:
    check_group(look.name)

    async def ask(client: Client) -> tuple[PartitionLag, ...]:
        return await _ask(client, look, look.timeout)

    rows = run_connected(ask, look.bootstrap, timeout_seconds=look.timeout, group=look.name)
    _report(rows, look)
    return ExitCode.OK


def watch_lag(look: Look) -> int:
    """Until Ctrl-C."""
    check_group(look.name)
    is_screen = sys.stdout.isatty() and not look.as_json

    async def ask(client: Client) -> None:
        while True:
            rows, problem = await _try(client, look)
            sys.stdout.write(CLEAR if is_screen else "")
            if rows is not None:
                _report(rows, look)
            elif look.as_json:
                sys.stderr.write(f"raftmq: {problem}\n")
            else:
                sys.stdout.write(f"{problem}\n")
                sys.stdout.flush()
            await anyio.sleep(WATCH_SECONDS)

    run_connected(ask, look.bootstrap, is_patient=True)
    return ExitCode.OK


async def _try(client: Client, look: Look) -> tuple[Sequence[PartitionLag] | None, str]:
    """The rows; or None, and why nobody has told them."""
    try:
        return await _ask(client, look, min(look.timeout, ANSWER_SECONDS_MAX)), ""
    except RaftmqError as error:
        if exit_code_of(error) is not ExitCode.UNREACHABLE:
            raise
        return None, f"no answer: {error}"


async def _ask(client: Client, look: Look, seconds: float) -> tuple[PartitionLag, ...]:
    admin = client.admin.with_timeout(seconds)
    async with hinting(admin, look.name):
        return await admin.group_lag(look.name)


def _report(rows: Sequence[PartitionLag], look: Look) -> None:
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
    write_table(TITLES, map(_row, rows))


def _object(name: str, row: PartitionLag) -> Row:
    member = row.member
    return {
        "group": name,
        "topic": row.topic,
        "partition": row.partition,
        "committed": row.committed,
        "end_offset": row.end_offset,
        "lag": row.lag,
        "member_id": member.member_id if member else None,
        "client_id": member.client_id or None if member else None,
        "host": member.host or None if member else None,
    }


def _row(row: PartitionLag) -> tuple[object, ...]:
    member = row.member
    texts = (member.member_id, member.client_id, member.host) if member else (None, None, None)
    cells = (shown(text or None, TEXT_CHARS_MAX) for text in texts)
    return row.topic, row.partition, row.committed, row.end_offset, row.lag, *cells
