"""Until groups have all their members, as brokers tell it, and who coordinates them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.client.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.broker_parts.cluster import Brokers

LOOK_SECONDS = 0.2
WAIT_SECONDS_MAX = 120.0


async def wait_stable(brokers: Brokers, members: Mapping[str, int]) -> dict[str, int]:
    """Until each group has so many members, and all know their part; its coordinator."""
    async with Client(brokers.addresses()) as client:
        with trio.fail_after(WAIT_SECONDS_MAX):
            while True:
                groups = {one.name: one for one in await client.admin.list_groups()}
                found = [groups[name] for name in members if name in groups]
                if len(found) == len(members) and all(
                    one.state == "Stable" and one.member_count == members[one.name] for one in found
                ):
                    return {one.name: one.coordinator for one in found}
                await trio.sleep(LOOK_SECONDS)
