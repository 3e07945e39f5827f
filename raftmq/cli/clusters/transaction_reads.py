"""`raftmq transaction list`, `describe`, `open`, `abort` and `forget`.

Owns the rows and the confirmation before something is ended. Invariant: `abort` aborts nothing
unless all ids that were named exist.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.clusters.group_reads import show_age
from raftmq.cli.clusters.topic_reads import check_none_missing, each_there
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import (
    NOTHING,
    Row,
    check_can_ask,
    confirm,
    show_partitions,
    show_time,
    shown,
    write_json,
    write_table,
)
from raftmq.client.administration.transactions import check_transaction_id
from raftmq.words import DURATION_FORM, counted, parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import OpenInTopic, TransactionDetails

LIST_TITLES = ("transaction", "last", "version", "unsettled", "ended")
OPEN_TITLES = ("partition", "transaction", "open", "first", "stable", "end")
TEXT_CHARS_MAX = 200  # programs choose ids freely: a long one must not break the table


def idle_seconds_of(text: str | None) -> float:
    if text is None:
        return 0.0
    milliseconds = parse_duration(text)
    if milliseconds is None:
        raise CommandError(f"--idle {text}: expected a duration, {DURATION_FORM}", ExitCode.USAGE)
    return milliseconds / 1000


def list_transactions(
    bootstrap: str | None, timeout: float, *, unsettled: bool, idle_seconds: float, as_json: bool
) -> int:
    async def ask(admin: Admin) -> tuple[TransactionDetails, ...]:
        return await admin.list_transactions(unsettled=unsettled, idle_seconds=idle_seconds)

    found = run_admin(ask, bootstrap, timeout)
    if as_json:
        write_json(map(_object, found))
        return ExitCode.OK
    write_table(LIST_TITLES, map(_row, found))
    if not found and not unsettled and not idle_seconds:
        sys.stderr.write(
            "raftmq: no transactions yet: a producer with a transaction id opens one\n"
        )
    return ExitCode.OK


def describe_transactions(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, as_json: bool
) -> int:
    for name in names:
        check_transaction_id(name)

    async def ask(admin: Admin) -> tuple[list[TransactionDetails], list[str]]:
        return await each_there(names, admin.describe_transaction)

    found, missing = run_admin(ask, bootstrap, timeout)
    if as_json:
        write_json(map(_object, found))
    else:
        for number, one in enumerate(found):
            sys.stdout.write("\n" if number else "")
            _write_details(one)
    check_none_missing(missing)
    return ExitCode.OK


def list_open(
    topic: str,
    partitions: Sequence[int],
    bootstrap: str | None,
    timeout: float,
    *,
    as_json: bool,
) -> int:
    async def ask(admin: Admin) -> tuple[OpenInTopic, ...]:
        return await admin.open_transactions(topic, partitions or None)

    found = run_admin(ask, bootstrap, timeout)
    if as_json:
        write_json(map(_open_object, found))
    else:
        write_table(OPEN_TITLES, map(_open_row, found))
        if not found:
            sys.stderr.write(f"raftmq: nothing is open in {topic}\n")
    return ExitCode.OK


def _object(one: TransactionDetails) -> Row:
    return {
        "transaction_id": one.transaction_id,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_ms": one.timeout_ms,
        "ephemeral": one.is_ephemeral,
        "last_outcome": one.last_outcome,
        "last_reason": one.last_reason,
        "last_version": one.last_version,
        "last_count": one.last_count,
        "unsettled": one.unsettled,
        "unsettled_partitions": [
            {"topic": topic, "partition": number} for topic, number in one.unsettled_partitions
        ],
        "changed_at_ms": one.changed_at_ms,
        "lineage": one.lineage,
        "open_version": one.open_version,
        "members": one.members,
    }


def _row(one: TransactionDetails) -> tuple[object, ...]:
    ended = _ended(one)
    name = shown(one.transaction_id, TEXT_CHARS_MAX)
    return name, _outcome(one), one.last_version, one.unsettled, ended


def _outcome(one: TransactionDetails) -> str:
    if one.last_outcome is None:
        return NOTHING
    return one.last_outcome + (f" ({one.last_reason})" if one.last_reason else "")


def _ended(one: TransactionDetails) -> str | None:
    """None: none has ended; then `changed_at_ms` tells when the id was opened."""
    if one.last_outcome is None or one.changed_at_ms is None:
        return None
    return show_time(one.changed_at_ms)


def _write_details(one: TransactionDetails) -> None:
    lines = [
        f"transaction {shown(one.transaction_id, TEXT_CHARS_MAX)}",
        f"  {_next(one)}, timeout {one.timeout_ms} ms{', ephemeral' if one.is_ephemeral else ''}",
        f"  last: {_outcome(one)}",
    ]
    if one.last_version is not None:
        rows = "" if one.last_count is None else f", {counted(one.last_count, 'row')}"
        lines.append(f"  version: {one.last_version}{rows}")
    if one.unsettled:
        where = show_partitions(one.unsettled_partitions)
        lines.append(f"  not settled: {counted(one.unsettled, 'commit')}, in {where}")
    if (ended := _ended(one)) is not None:
        lines.append(f"  ended: {ended}")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _next(one: TransactionDetails) -> str:
    if one.lineage is None:
        return f"next: epoch {one.producer_epoch} of producer {one.producer_id}"
    lineage = f"shared: lineage {shown(one.lineage, TEXT_CHARS_MAX) or '(empty)'}"
    if one.open_version is None:
        return f"{lineage}, no version is open"
    members = f"{counted(one.members, 'member')} from producer {one.producer_id} on"
    return f"{lineage}, version {one.open_version} is open, {members}"


def _open_object(one: OpenInTopic) -> Row:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "transaction_id": one.transaction_id,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "first_offset": one.first_offset,
        "open_seconds": round(one.open_seconds, 3),
        "last_stable_offset": one.last_stable_offset,
        "high_watermark": one.high_watermark,
    }


def _open_row(one: OpenInTopic) -> tuple[object, ...]:
    name = shown(one.transaction_id, TEXT_CHARS_MAX) if one.transaction_id else "not known"
    age = show_age(one.open_seconds)
    return (
        one.partition, name, age, one.first_offset, one.last_stable_offset, one.high_watermark,
    )  # fmt: skip


# -- Ending by hand -------------------------------------------------------------------------------


def abort_transactions(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, is_sure: bool, as_json: bool
) -> int:
    """All ids must exist before the first one is aborted."""
    names = list(dict.fromkeys(names))
    for name in names:
        check_transaction_id(name)
    check_can_ask(f"abort {', '.join(names)}", is_sure=is_sure)

    async def look(admin: Admin) -> None:
        found, missing = await each_there(names, admin.describe_transaction)
        check_none_missing([*missing, "nothing was aborted"] if missing and found else missing)

    async def abort(admin: Admin) -> None:
        for name in names:
            await admin.abort_transaction(name)
            _tell(name, "aborted", as_json=as_json)

    run_admin(look, bootstrap, timeout)
    confirm(f"Abort what is open under {', '.join(names)}?", is_sure=is_sure)
    run_admin(abort, bootstrap, timeout)
    return ExitCode.OK


def forget_transaction(
    name: str,
    bootstrap: str | None,
    timeout: float,
    *,
    unsettled: bool,
    is_sure: bool,
    as_json: bool,
) -> int:
    check_transaction_id(name)
    check_can_ask(f"forget {name}", is_sure=is_sure)
    found = run_admin(lambda admin: admin.describe_transaction(name), bootstrap, timeout)
    confirm(f"{_warning(found, unsettled=unsettled)}Forget {name}?", is_sure=is_sure)
    forget = partial(_forget, name, unsettled=unsettled)
    run_admin(forget, bootstrap, timeout)
    _tell(name, "forgotten", as_json=as_json)
    return ExitCode.OK


async def _forget(name: str, admin: Admin, *, unsettled: bool) -> None:
    await admin.forget_transaction(name, with_unsettled=unsettled)


def _warning(found: TransactionDetails, *, unsettled: bool) -> str:
    parts = []
    if found.last_version is not None:
        parts.append(f"Versions up to {found.last_version} can be committed again afterwards. ")
    if unsettled and found.unsettled_partitions:
        where = show_partitions(found.unsettled_partitions)
        parts.append(f"Committed transactions may be torn in {where}. ")
    return "".join(parts)


def _tell(name: str, done: str, *, as_json: bool) -> None:
    if as_json:
        write_json([{"transaction_id": name, done: True}])
        return
    sys.stdout.write(f"transaction {shown(name, TEXT_CHARS_MAX)}: {done}\n")
    sys.stdout.flush()
