"""`raftmq topic restart-empty`: partitions whose brokers are lost for good start again, empty.

Shows what would be given up, asks, does it. What has a leader is left alone; what has none, but a
replica on an active broker, is refused by the cluster.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.output import Row, check_can_ask, confirm, write_json, write_table
from raftmq.client.administration.checks import check_topic
from raftmq.errors import UnknownTopicOrPartition
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import Election, PartitionDetails


def restart_topic(
    name: str,
    partitions: Sequence[int],
    bootstrap: str | None,
    timeout: float,
    *,
    is_sure: bool,
    as_json: bool,
) -> int:
    check_topic(name)
    check_can_ask(f"restart-empty {name}", is_sure=is_sure)

    async def look(admin: Admin) -> list[PartitionDetails]:
        details = await admin.describe_topic(name)
        count = len(details.partitions)
        if partitions and max(partitions) >= count:  # or all would seem to be well
            raise UnknownTopicOrPartition(
                f"topic {name} has partitions 0 to {count - 1}, not {max(partitions)}"
            )
        return [
            one
            for one in details.partitions
            if one.leader is None and (not partitions or one.partition in partitions)
        ]

    async def restart(admin: Admin) -> tuple[Election, ...]:
        return await admin.restart_empty(name, [one.partition for one in found])

    # A connection of its own: the person may take minutes to answer.
    found = run_admin(look, bootstrap, timeout)
    if not found:
        if not as_json:
            sys.stdout.write(f"topic {name}: no such partition lacks a leader, nothing to do\n")
        return ExitCode.OK
    if not is_sure:
        for one in found:
            brokers = ", ".join(map(str, one.replicas))
            sys.stderr.write(f"partition {one.partition}: its replicas are on brokers {brokers}\n")
    count = counted(len(found), "partition")
    confirm(f"Give up all records of these {count} of topic {name}, for good?", is_sure=is_sure)
    outcomes = run_admin(restart, bootstrap, timeout)
    if as_json:
        write_json(_object(name, one) for one in outcomes)
    else:
        write_table(("partition", "outcome"), [(one.partition, _told(one)) for one in outcomes])
    return ExitCode.FAILED if any(one.error for one in outcomes) else ExitCode.OK


def _object(name: str, one: Election) -> Row:
    error = str(one.error) if one.error else None
    return {"name": name, "partition": one.partition, "outcome": one.outcome, "error": error}


def _told(one: Election) -> str:
    if one.outcome == "led already":
        return "led already: its broker is back, or an earlier try has started it empty"
    return "starts empty" if one.error is None else f"{one.outcome}: {one.error}"
