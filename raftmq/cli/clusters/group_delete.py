"""`raftmq group delete`: which groups, whether to, and a line about each one that is gone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from raftmq.cli.clusters.group_names import hinting
from raftmq.cli.clusters.topic_reads import counted
from raftmq.cli.confirm import check_can_ask, confirm
from raftmq.cli.connected import run_connected
from raftmq.cli.exits import ExitCode
from raftmq.client.administration.groups.checks import check_group
from raftmq.client.administration.groups.descriptions import check_empty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.client import Client


def delete_groups(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, is_sure: bool
) -> int:
    """All of them must be there, without members, before the first one is deleted."""
    names = list(dict.fromkeys(names))
    for name in names:
        check_group(name)
    check_can_ask(f"delete {', '.join(names)}", is_sure=is_sure)

    async def look(client: Client) -> dict[str, int]:
        """How many offsets each of them has."""
        admin, found = client.admin.with_timeout(timeout), {}
        for name in names:
            async with hinting(admin, name):
                check_empty(await admin.describe_group(name), "delete it")
                found[name] = len(await admin.group_offsets(name))
        return found

    async def delete(client: Client) -> None:
        admin = client.admin.with_timeout(timeout)
        for name in names:
            await admin.delete_group(name)
            sys.stdout.write(f"group {name}: deleted\n")
            sys.stdout.flush()

    found = run_connected(look, bootstrap, timeout_seconds=timeout)
    told = [f"{name} (offsets of {counted(count, 'partition')})" for name, count in found.items()]
    confirm(f"Delete {', '.join(told)}, for good?", is_sure=is_sure)
    run_connected(delete, bootstrap, timeout_seconds=timeout)
    return ExitCode.OK
