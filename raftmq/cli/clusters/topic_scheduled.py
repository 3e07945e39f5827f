"""`raftmq topic scheduled`: what is to be delivered later, and cancels of single records.

Owns the rows. Invariant: nothing is cancelled unless all handles are of the topic that was named.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.terminal.exits import CommandError, ExitCode, exit_code_of
from raftmq.cli.terminal.output import (
    NOTHING,
    Row,
    put_bytes,
    show_time,
    shown,
    write_json,
    write_table,
)
from raftmq.client.administration.checks import check_topic
from raftmq.client.scheduling.handles import ScheduleHandle
from raftmq.errors import UnknownTopicOrPartition
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.scheduled import ScheduledRecord, TopicSchedule
    from raftmq.errors import RaftmqError

TITLES = ("due", "in", "handle", "key", "headers", "tags", "bytes", "note")
KEY_CHARS_MAX, HEADERS_CHARS_MAX = 40, 60


def list_scheduled(
    topic: str,
    partition: int | None,
    limit: int,
    bootstrap: str | None,
    timeout: float,
    *,
    as_json: bool,
) -> int:
    check_topic(topic)

    async def ask(admin: Admin) -> TopicSchedule:
        return await admin.scheduled(topic, partition, limit=limit)

    found = run_admin(ask, bootstrap, timeout)
    if as_json:
        write_json([_object(found)])
        return ExitCode.OK
    now_ms = time.time_ns() // 1_000_000
    write_table(TITLES, (_row(record, now_ms) for record in found.records))
    sys.stderr.write(f"raftmq: {_told(found)}\n")
    return ExitCode.OK


def cancel_scheduled(
    topic: str, texts: Sequence[str], bootstrap: str | None, timeout: float, *, as_json: bool
) -> int:
    """Exit code 1 if some record could not be cancelled; the others are."""
    check_topic(topic)
    handles = list(map(ScheduleHandle.parse, texts))

    async def cancel(admin: Admin) -> dict[ScheduleHandle, RaftmqError]:
        found = await admin.list_topics([topic])
        if not found:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        others = [str(one) for one in handles if one.topic_id != found[0].topic_id]
        if others:
            raise CommandError(
                f"{others[0]}: not of topic {topic}, whose handles begin with"
                f" {found[0].topic_id.hex()}; nothing was cancelled",
                ExitCode.USAGE,
            )
        return await admin.cancel_scheduled(handles)

    failed = run_admin(cancel, bootstrap, timeout)
    if as_json:
        write_json(_outcome(handle, failed.get(handle)) for handle in handles)
    for handle in handles:
        if handle in failed:
            sys.stderr.write(f"raftmq: {handle}: not cancelled: {failed[handle]}\n")
        elif not as_json:
            sys.stdout.write(f"{handle} cancelled\n")
    sys.stdout.flush()
    return max(map(exit_code_of, failed.values()), default=ExitCode.OK)


def _outcome(handle: ScheduleHandle, error: RaftmqError | None) -> Row:
    return {
        "handle": str(handle),
        "cancelled": error is None,
        "reason": getattr(error, "reason", None) or None,
        "error": None if error is None else str(error),
    }


def _object(found: TopicSchedule) -> Row:
    return {
        "name": found.name,
        "batches": found.batch_count,
        "bytes": found.batch_bytes,
        "next_due": found.next_due,
        "is_complete": found.is_complete,
        "partitions": [
            {
                "partition": one.partition,
                "batches": one.batch_count,
                "bytes": one.batch_bytes,
                "next_due": one.next_due,
            }
            for one in found.partitions
        ],
        "records": list(map(_record_object, found.records)),
    }


def _record_object(record: ScheduledRecord) -> Row:
    row: Row = {
        "handle": str(record.handle),
        "partition": record.handle.partition,
        "due": record.due,
        "timestamp": record.timestamp,
    }
    put_bytes(row, "key", record.key)
    row["headers"] = [_header_object(*header) for header in record.headers]
    row["tags"] = list(record.tags)
    row["value_bytes"] = record.value_size
    row["is_undecided"] = record.is_undecided
    return row


def _header_object(name: str, value: bytes | None) -> Row:
    row: Row = {"name": name}
    put_bytes(row, "value", value)
    return row


def _row(record: ScheduledRecord, now_ms: int) -> tuple[object, ...]:
    headers = ",".join(
        f"{name}={shown(value, HEADERS_CHARS_MAX)}" for name, value in record.headers
    )
    note = "in an open transaction" if record.is_undecided else ""
    return (
        show_time(record.due),
        _show_left(record.due - now_ms),
        str(record.handle),
        shown(record.key, KEY_CHARS_MAX),
        shown(headers, HEADERS_CHARS_MAX) if headers else NOTHING,
        shown(",".join(record.tags), HEADERS_CHARS_MAX) if record.tags else NOTHING,
        record.value_size,
        note if record.timestamp is not None else "cannot be read now",
    )


def _show_left(left_ms: int) -> str:
    """`2d3h`, `4h5m`, `6m7s`, `8.9s`: two units are enough for people."""
    if left_ms <= 0:
        return "now"
    seconds = left_ms // 1000
    if seconds < 60:
        return f"{left_ms / 1000:.1f}s"
    for unit, size, smaller, smaller_size in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller_size}{smaller}"
    raise AssertionError("a minute or more has a unit")


def _told(found: TopicSchedule) -> str:
    if found.next_due is None and not found.records:
        return f"nothing is scheduled in {found.name}"
    next_due = NOTHING if found.next_due is None else show_time(found.next_due)
    batches = "1 batch" if found.batch_count == 1 else f"{found.batch_count} batches"
    more = "" if found.is_complete else "; there are more records, -n shows more"
    return f"{batches} of {counted(found.batch_bytes, 'byte')}, next due {next_due}{more}"
