"""The owners of one transaction id, one after the other, some beside the one before.

Owns who follows whom, and when, and what the id is for: a third of the ids copy as members of the
group, a third has versions.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.workloads.bench import Pace, wait_stop
from jepsen_like.workloads.transaction_owner import Owner

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Stop
    from jepsen_like.workloads.transaction_bench import TransactionBench

BLOCKS_MAX = 200  # of one owner: then another producer opens the id in order
COPYING, VERSIONS = 0, 1  # of three places, what the first and the second do
# Each life of one is another member: with more of them, the group does nothing but rebalance.
COPYING_MAX = 3
PAUSE_SECONDS = 0.2  # until the next owner begins


def is_copying(place: int) -> bool:
    return place % 3 == COPYING and place < 3 * COPYING_MAX


def name_of(place: int) -> str:
    """The id."""
    return f"{'copy' if is_copying(place) else 'block'}-{place}"


async def run_owners(shared: TransactionBench, place: int, stop: Stop) -> None:
    """Until `stop` is set. One that wants to be overtaken goes on beside its successor."""
    settings = shared.bench.settings
    chance = Random(shared.bench.random.getrandbits(64))
    pace = Pace(chance, settings.processes / settings.rate)
    before: Owner | None = None
    async with trio.open_nursery() as lives:
        while not stop.is_set():
            owner = Owner(
                shared,
                name_of(place),
                pace,
                is_copying=is_copying(place),
                has_versions=place % 3 == VERSIONS,
                blocks_max=BLOCKS_MAX,
            )
            lives.start_soon(owner.live, stop)
            await owner.has_opened.wait()
            if before is not None:
                before.successor_opened.set()
            before = owner
            await owner.wants_next.wait()
            await wait_stop(stop, PAUSE_SECONDS)
        if before is not None:
            before.successor_opened.set()
