"""The metadata of a walk with members: what single producers' have, and versions of shared ids."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.commands import (
    DeleteTransactions,
    EndTransactions,
    JoinTransactions,
    TransactionJoin,
    TransactionSeen,
    TransactionsEnded,
    TransactionsJoined,
)
from raftmq.metadata.delta import MetadataDelta
from raftmq.metadata.image import slot_of
from tests.metadata_invariants import check_step
from tests.simulation.transactions.quorum import TIMEOUT_MS, Quorum

if TYPE_CHECKING:
    from raftmq.metadata.commands import (
        AnyCommand,
        AnyResult,
        EndOutcome,
        JoinOutcome,
        TransactionEnd,
    )
    from raftmq.metadata.image import SharedVersions


class Version(NamedTuple):
    """A version of a transaction id, which is a new one each time that it was forgotten."""

    transaction_id: str
    life: int
    number: int


class MembersQuorum(Quorum):
    """Attributes:
    lives: how often each shared transaction id was forgotten.
    given: of each block how many producer ids were given out.
    """

    def __init__(self) -> None:
        self.lives: Counter[str] = Counter()
        self.given: dict[int, int] = {}
        super().__init__()

    def do(self, command: AnyCommand) -> AnyResult:
        before = self.newest
        result = super().do(command)
        if isinstance(command, JoinTransactions | EndTransactions | DeleteTransactions):
            check_step(before, self.newest)
        return result

    def shared(self, name: str) -> SharedVersions | None:
        state = self.newest.transactions.get(name)
        return None if state is None else state.shared

    def version_of(self, name: str, number: int) -> Version:
        return Version(name, self.lives[name], number)

    def join(self, name: str, lineage: str, version: int, count: int = 1) -> JoinOutcome:
        """So many members; the outcome is the first one's."""
        join = TransactionJoin(name, lineage, version, TIMEOUT_MS, count=count)
        result = self.do(JoinTransactions(slot_of(name), self._slot_epoch(name), (join,)))
        assert isinstance(result, TransactionsJoined)
        (outcome,) = result.outcomes
        if outcome.block >= 0:
            assert outcome.number == self.given.get(outcome.block, 0), f"given twice: {outcome}"
            self.given[outcome.block] = outcome.number + count
        return outcome

    def end_version(self, end: TransactionEnd) -> EndOutcome:
        name = end.transaction_id
        result = self.do(EndTransactions(slot_of(name), self._slot_epoch(name), (end,)))
        assert isinstance(result, TransactionsEnded)
        (outcome,) = result.outcomes
        return outcome

    def delete(self, name: str) -> bool:
        """An operator forgets the id, unless it has commits that are not settled."""
        state = self.newest.transactions[name]
        seen = TransactionSeen(name, state.changed_at_ms)
        self.do(DeleteTransactions(slot_of(name), self._slot_epoch(name), (seen,)))
        is_gone = name not in self.newest.transactions
        self.lives[name] += is_gone
        return is_gone

    def decided(self, after: int, version: int) -> tuple[list[int], list[int]]:
        """Of which producer ids, and blocks of members, something may have been decided by the
        commands of (after, version]."""
        images = self.images[after + 1 : version + 1]
        changes = frozenset(each for image in images for each in image.changes)
        return MetadataDelta(after, images[-1], changes, is_complete=True).transactions()
