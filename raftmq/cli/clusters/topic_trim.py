"""`raftmq topic trim`: delete the oldest records (DeleteRecords): what it would delete, ask, do it.

A time means each partition's first record at or after it. Where all records are older, the end of
the log when the command began is meant, so that records that come meanwhile are kept.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import check_can_ask, confirm, write_json, write_table
from raftmq.cli.terminal.times import parse_time
from raftmq.client.administration.checks import check_topic
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin

_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)  # digits that fit int32 and int64


class Cut(NamedTuple):
    """Offsets [start, end) of a partition, which are to be deleted."""

    partition: int
    start: int
    end: int


def trim_topic(
    name: str,
    offsets: Sequence[str],
    time: str | None,
    bootstrap: str | None,
    timeout: float,
    *,
    is_sure: bool,
    as_json: bool,
) -> int:
    check_topic(name)
    before = _parse_offsets(offsets)
    timestamp = _parse_time(time)
    if bool(before) == (timestamp is not None):
        raise CommandError("give --before-offset P:OFFSET, or --before-time TIME", ExitCode.USAGE)
    check_can_ask(f"trim {name}", is_sure=is_sure)

    async def look(admin: Admin) -> list[Cut]:
        wanted = before if timestamp is None else await _offsets_of(admin, name, timestamp)
        starts = await admin.offsets(name, "earliest", partitions=list(wanted))
        cuts = [Cut(number, starts[number] or 0, end) for number, end in sorted(wanted.items())]
        # Partitions that begin later already are left alone.
        return [cut for cut in cuts if cut.start < cut.end]

    async def trim(admin: Admin) -> dict[int, int]:
        return await admin.delete_records(name, {cut.partition: cut.end for cut in cuts})

    # A connection of its own: the person may take minutes to answer.
    cuts = run_admin(look, bootstrap, timeout)
    if not cuts:
        if not as_json:
            sys.stdout.write(f"topic {name}: there are no such records, nothing to delete\n")
        return ExitCode.OK
    _ask(name, cuts, is_sure=is_sure)
    starts = run_admin(trim, bootstrap, timeout)
    if as_json:
        write_json(
            {"name": name, "partition": partition, "start_offset": start}
            for partition, start in sorted(starts.items())
        )
    else:
        write_table(("partition", "begins with"), sorted(starts.items()))
    return ExitCode.OK


def _ask(name: str, cuts: Sequence[Cut], *, is_sure: bool) -> None:
    if is_sure:
        return
    for cut in cuts:
        sys.stderr.write(f"partition {cut.partition}: offsets {cut.start} to {cut.end - 1}\n")
    count = counted(sum(cut.end - cut.start for cut in cuts), "offset")
    confirm(f"Delete these {count} of topic {name}, for good?", is_sure=is_sure)


async def _offsets_of(admin: Admin, name: str, timestamp: int) -> dict[int, int]:
    """The ends are asked for first: records that are appended afterwards are not meant."""
    ends = await admin.offsets(name, "latest")
    found = await admin.offsets(name, timestamp)
    wanted = {number: ends.get(number) if at is None else at for number, at in found.items()}
    return {number: at for number, at in wanted.items() if at is not None}


def _parse_offsets(texts: Sequence[str]) -> dict[int, int]:
    before: dict[int, int] = {}
    for text in texts:
        match = _PLACE.fullmatch(text.strip())
        if match is None:
            raise CommandError(
                f"--before-offset {text}: expected PARTITION:OFFSET, like 0:1200", ExitCode.USAGE
            )
        before[int(match[1])] = int(match[2])
    return before


def _parse_time(text: str | None) -> int | None:
    try:
        # Other commands write times with an @, to tell them from offsets.
        return None if text is None else parse_time(text.removeprefix("@"))
    except ValueError as error:
        raise CommandError(f"--before-time: {error}", ExitCode.USAGE) from error
