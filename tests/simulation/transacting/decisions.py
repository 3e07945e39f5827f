"""What the metadata of brokers say of transactions, watched all the time: X1 and X7.

Owns the decisions that were seen: each stays so, on all brokers; a decided transaction is never
open again; the highest committed version of an id only rises; a commit of a version counts the same
members everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.metadata.transactions import MEMBER_EPOCH, block_of, is_listed, outcome_of
from raftmq.model import TransactionOutcome
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage, TransactionState
    from tests.simulation.transacting.world import TransactionWorld

LOOK_SECONDS = 0.05
OVER = (TransactionOutcome.COMMITTED, TransactionOutcome.ABORTED)


class Decisions:
    """Attributes:
    known: whether it was committed, by producer id and epoch; without members of versions.
    listed: the members that count, by their block; of one that was given up, none.
    """

    def __init__(self, world: TransactionWorld) -> None:
        self._world = world
        self.known: dict[tuple[int, int], bool] = {}
        self.listed: dict[int, bytes] = {}
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
            if row.shared is not None:
                self._look_at_versions(f"{who}: {name}", image, row)
                continue
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

    def _look_at_versions(self, what: str, image: MetadataImage, row: TransactionState) -> None:
        """The newest decisions, of each member that has joined."""
        decided = {commit.producer_id: commit.numbers for commit in row.settling}
        if row.last is not None and not row.last.is_committed:
            decided[row.last.producer_id] = b""
        for block, numbers in decided.items():
            known = self.listed.setdefault(block, numbers)
            demand(known == numbers, f"X1: {what} {block}: {known!r} counted, now {numbers!r}")
        if row.last is not None:
            now = outcome_of(image, row.last.producer_id, MEMBER_EPOCH)
            demand(now in OVER, f"X1: {what} {row.last} was decided, and is {now}")

    def is_committed(self, producer_id: int, producer_epoch: int) -> bool | None:
        """None: not seen here."""
        block = block_of(producer_id)
        if block in self.listed and producer_epoch == MEMBER_EPOCH:
            return is_listed(self.listed[block], producer_id - block)
        return self.known.get((producer_id, producer_epoch))
