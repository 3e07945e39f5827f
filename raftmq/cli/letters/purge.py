"""`raftmq dlq purge`: delete dead letters for good: what would be deleted, ask, do it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raftmq.cli.clusters.connected import run_admin, run_connected
from raftmq.cli.letters.letter_source import find_box, read_letters, time_of
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import check_can_ask, confirm, write_json
from raftmq.words import counted

if TYPE_CHECKING:
    from raftmq.cli.letters.letter_source import Box
    from raftmq.client.administration.admin import Admin
    from raftmq.client.client import Client
    from raftmq.client.consumer.record import ConsumerRecord


def purge(
    group: str,
    before: str | None,
    bootstrap: str | None,
    timeout: float,
    *,
    is_dry: bool,
    is_sure: bool,
    as_json: bool,
) -> int:
    time = time_of("--before", before)
    check_can_ask(f"purge {group}", is_sure=is_sure or is_dry)

    async def look(client: Client) -> tuple[Box, int]:
        admin = client.admin.with_timeout(timeout)
        box = await find_box(admin, group)
        if time is not None:
            firsts = await admin.offsets(box.topic, time)
            # None: all of them are older.
            ends = {one.partition: firsts.get(one.partition) for one in box.spans}
            spans = [
                one._replace(end=one.end if at is None else min(one.end, at))
                for one in box.spans
                if (at := ends[one.partition]) is None or at > one.start
            ]
            box = box._replace(spans=tuple(spans))
        count = 0

        def take(_record: ConsumerRecord) -> bool:
            nonlocal count
            count += 1
            return True

        await read_letters(client, box.topic, box.spans, take)
        return box, count

    # A connection of its own: the person may take minutes to answer.
    box, count = run_connected(look, bootstrap, timeout_seconds=timeout)
    told = counted(count, "dead letter")
    # What a redrive has sent back, and was killed before it could delete it, is no dead letter.
    ends = {**box.sent, **{one.partition: one.end for one in box.spans}}
    if ends and not is_dry:
        if count:
            confirm(f"Delete {told} of group {group}, for good?", is_sure=is_sure)

        async def delete(admin: Admin) -> None:
            await admin.delete_records(box.topic, ends)

        run_admin(delete, bootstrap, timeout)
    if as_json:
        write_json([{"group": group, "topic": box.topic, "letters": count, "deleted": not is_dry}])
    else:
        done = "would be deleted" if is_dry else "deleted"
        sys.stdout.write(f"group {group}: {told} {done}\n")
    return ExitCode.OK
