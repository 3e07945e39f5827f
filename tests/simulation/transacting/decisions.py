"""What the metadata of brokers say of transactions, watched all the time: X1 and X7.

Owns the decisions that were seen: each stays so, on all brokers; a decided transaction is never
open again; the highest committed version of an id only rises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.metadata.transactions import outcome_of
from raftmq.model import TransactionOutcome
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage
    from tests.simulation.transacting.world import TransactionWorld

LOOK_SECONDS = 0.05
OVER = (TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED)


class Decisions:
    """Attributes:
    known: whether it was committed, by producer id and epoch.
    """

    def __init__(self, world: TransactionWorld) -> None:
        self._world = world
        self.known: dict[tuple[int, int], bool] = {}
        self._versions: dict[str, tuple[int, int]] = {}  # of the metadata, and the committed one
        self._seen: dict[str, int] = {}  # by broker

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            for host in self._world.hosts:
                if host.quorum is not None and not host.end:
                    self._look(host.name, host.quorum.image)
            await trio.sleep(LOOK_SECONDS)

    def _look(self, who: str, image: MetadataImage) -> None:
        if self._seen.get(who) == image.version:
            return
        self._seen[who] = image.version
        for name, row in image.transactions.items():
            seen, version = self._versions.get(name, (0, -1))
            if image.version >= seen:
                fell = row.last_version < version
                demand(
                    not fell, f"X7: {who}: {name} was at {version}, and is at {row.last_version}"
                )
                self._versions[name] = image.version, row.last_version
            if row.last is None:
                continue
            key = row.last.producer_id, row.last.producer_epoch
            known = self.known.setdefault(key, row.last.is_committed)
            demand(
                known == row.last.is_committed,
                f"X1: {who}: {name} {key} is committed={row.last.is_committed}, it was {known}",
            )
            now = outcome_of(image, *key)
            demand(now in OVER, f"X1: {who}: {name} {key} was decided, and is {now}")
