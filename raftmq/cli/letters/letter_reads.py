"""`raftmq dlq list` and `show`: which groups have dead letters, and what is in them."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

from raftmq.cli.clusters.connected import run_connected
from raftmq.cli.letters.letter_source import (
    LetterFilter,
    Span,
    all_boxes,
    find_box,
    letter_object,
    read_letters,
)
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import (
    NOTHING,
    Row,
    Table,
    row_blocks,
    show_time,
    shown,
    write_json,
    write_table,
)
from raftmq.client.dead_letters.letters import most_frequent, read_letter

if TYPE_CHECKING:
    from raftmq.cli.letters.letter_source import Box
    from raftmq.client.client import Client
    from raftmq.client.consumer.record import ConsumerRecord

LIST_TITLES = ("group", "letters", "oldest", "newest", "errors")
SHOW_TITLES = ("offset", "time", "origin", "attempts", "error", "key", "value")
ERRORS_MAX = 3  # of a group, in a list
ERROR_CHARS_MAX, TEXT_CHARS_MAX = 60, 200  # in tables: JSON has all of them
# So many letters of each partition are read for a list, the newest ones; older ones only count.
READ_MAX = 100_000


def list_groups(group: str | None, bootstrap: str | None, timeout: float, *, as_json: bool) -> int:
    async def ask(client: Client) -> list[Row]:
        admin = client.admin.with_timeout(timeout)
        boxes = [await find_box(admin, group)] if group is not None else await all_boxes(admin)
        rows = [await _summary(client, box) for box in boxes]
        return [row for row in rows if row["letters"]]

    rows = run_connected(ask, bootstrap, timeout_seconds=timeout)
    if as_json:
        write_json(rows)
        return ExitCode.OK
    write_table(LIST_TITLES, map(_summary_row, rows))
    if not rows:
        sys.stderr.write("raftmq: no dead letters\n")
    return ExitCode.OK


def show_letters(
    group: str,
    wanted: LetterFilter,
    count: int,
    bootstrap: str | None,
    timeout: float,
    *,
    as_json: bool,
) -> int:
    shown_count, is_cut = 0, False
    table = Table(SHOW_TITLES)

    def write(rows: list[Row]) -> None:
        if as_json:
            write_json(rows)
        else:
            table.write(map(_letter_row, rows))

    async def ask(client: Client) -> None:
        box = await find_box(client.admin.with_timeout(timeout), group)

        def take(record: ConsumerRecord) -> bool:
            nonlocal shown_count, is_cut
            letter = read_letter(record.headers)
            if wanted.passes(record, letter):
                is_cut = shown_count == count
                if not is_cut:
                    shown_count += 1
                    add(letter_object(record, letter))
            return not is_cut

        with row_blocks(write) as add:
            await read_letters(client, box.topic, box.spans, take)

    # A person may take minutes to read them: nothing but silence ends it.
    run_connected(ask, bootstrap)
    if is_cut:
        sys.stderr.write(f"raftmq: group {group}: there are more than these {count}: see -n\n")
    if not (shown_count or as_json):
        what = "no dead letters" if wanted == LetterFilter() else "no such dead letters"
        sys.stderr.write(f"raftmq: group {group}: {what}\n")
    return ExitCode.OK


async def _summary(client: Client, box: Box) -> Row:
    times: list[int] = []
    errors = Counter[str]()
    name = box.name
    spans = [Span(one.partition, max(one.start, one.end - READ_MAX), one.end) for one in box.spans]
    unread = box.offset_count - sum(one.end - one.start for one in spans)

    def take(record: ConsumerRecord) -> bool:
        nonlocal name
        letter = read_letter(record.headers)
        name = letter.group or name
        times.append(record.timestamp)
        errors[letter.error] += 1
        return True

    def take_time(record: ConsumerRecord) -> bool:
        times.append(record.timestamp)
        return False

    await read_letters(client, box.topic, spans, take)
    for one in box.spans:
        if one.end - one.start > READ_MAX:  # of those that only count the first one
            await read_letters(client, box.topic, [one], take_time)
    found = most_frequent(errors, ERRORS_MAX)
    return {
        "group": name,
        "topic": box.topic,
        "letters": errors.total() + unread,
        "oldest": min(times, default=None),
        "newest": max(times, default=None),
        "errors": [{"error": error or None, "count": count} for error, count in found],
    }


def _summary_row(row: Row) -> tuple[object, ...]:
    errors = row["errors"]
    assert isinstance(errors, list)
    told = [f"{shown(one['error'], ERROR_CHARS_MAX)} ({one['count']})" for one in errors]
    times = [
        show_time(one) if isinstance(one, int) else NOTHING
        for one in (row["oldest"], row["newest"])
    ]
    return shown(str(row["group"]), TEXT_CHARS_MAX), row["letters"], *times, "; ".join(told)


def _letter_row(row: Row) -> tuple[object, ...]:
    origin, time = row["origin"], row["timestamp"]
    assert isinstance(time, int)
    place = NOTHING
    if isinstance(origin, dict):
        place = f"{origin['topic']}-{origin['partition']}@{origin['offset']}"
    return (
        row["offset"],
        show_time(time),
        place,
        row["attempts"],
        shown(_text(row, "error"), ERROR_CHARS_MAX),
        shown(_text(row, "key"), ERROR_CHARS_MAX),
        shown(_text(row, "value"), TEXT_CHARS_MAX),
    )


def _text(row: Row, name: str) -> str | None:
    """Bytes that are no text stand in base64, as in JSON."""
    found = row.get(name, row.get(f"{name}_base64"))
    return None if found is None else str(found)
