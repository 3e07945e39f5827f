"""Bugs that transactions are known to have, to be planted into ours one at a time.

Each takes away one rule of the quorum, of a partition, or of those around them. How many walks
find one says `python -m tests.simulation.transactions --bug NAME --seeds 600`; where a change of
the code has shifted the walks, it finds another seed.

One is not here: a leader that acts on older metadata than it has. What was decided stays so, and
older metadata only know less of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from jepsen_like.planted.transactions import (
    forgets_before_marker_is_committed,
    late_batch_joins_next,
)
from raftmq.metadata.apply import transactions as rules
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.image import ChangeKind
from raftmq.model import TransactionOutcome
from raftmq.partition.admission import Admission
from raftmq.partition.transactions import Transactions
from tests.simulation.planting import Patch, demand_called, planted
from tests.simulation.transactions.replica import Replica
from tests.simulation.transactions.walk import Client, Walk, failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.image import TransactionState


def epoch_wraps_without_new_id(patch: Patch) -> None:
    """Behind the last epoch comes the first again, of the same producer id."""
    original = rules._decided

    def wrapped(draft: Draft, state: TransactionState, **how: Any) -> TransactionState:
        return replace(original(draft, state, **how), producer_id=state.producer_id)

    patch.setattr(rules, "_decided", wrapped)


def retry_of_end_is_refused(patch: Patch) -> None:
    """The newest decision is not remembered for retries."""
    patch.setattr(rules, "_known_outcome", lambda *_arguments: None)


def delta_of_new_id_only(patch: Patch) -> None:
    """A producer id that its transaction id has left is not told as changed."""

    def touched(self: Draft, transaction_id: str, state: TransactionState | None) -> Any:
        known = self.transaction(transaction_id)
        before = frozenset() if known is None else known.producer_ids()
        after = frozenset() if state is None else state.producer_ids()
        ids = self._image.transaction_ids
        for producer_id in before - after:
            ids = ids.delete(producer_id)
        for producer_id in after - before:
            ids = ids.set(producer_id, transaction_id)
        for producer_id in sorted(after):
            self._touch(ChangeKind.TRANSACTION, producer_id)
        return ids

    patch.setattr(Draft, "_transaction_ids", touched)


def stable_offset_by_log_end(patch: Patch) -> None:
    """A marker above the high watermark ends its transaction for readers."""

    def stable(self: Transactions, high_watermark: int) -> int:
        return min(self._first_open(high_watermark), high_watermark)

    patch.setattr(Transactions, "last_stable_offset", stable)


def admits_decided(patch: Patch) -> None:
    """A batch of a transaction that is over, as the metadata say, is let in."""
    patch.setattr(Admission, "_check_outcome", lambda *_arguments: None)


def snapshot_drops_open_offset(patch: Patch) -> None:
    """What was open is not open any more after a restart."""

    def restored(self: Transactions, states: Any) -> None:
        self.known.update((number, state._replace(open_offset=-1)) for number, state in states)

    patch.setattr(Transactions, "restore", restored)


def idle_shelf_forgets_open(patch: Patch) -> None:
    """Limits of time and number reach producers with something open."""

    def forget(self: Replica) -> None:
        self.producers.transactions.known.clear()
        self.producers.transactions.open.clear()

    patch.setattr(Replica, "forget_plain", forget)


def unknown_is_committed(patch: Patch) -> None:
    """A later batch of the producer is taken for the word that the earlier transaction is over."""
    original = Walk._outcomes

    def believed(self: Walk, broker: int) -> Any:
        known = original(self, broker)

        def outcome(producer_id: int, epoch: int) -> TransactionOutcome:
            found = known(producer_id, epoch)
            is_open = found is TransactionOutcome.AHEAD
            return TransactionOutcome.COMMITTED if is_open else found

        return outcome

    patch.setattr(Walk, "_outcomes", believed)


def settled_by_deposed_leader(patch: Patch) -> None:
    """Any leader's word counts, of whichever epoch."""

    def settled(self: Walk, partition: int, _version: int, producer_id: int, epoch: int) -> bool:
        leaders = [each for each in self._leaders() if each.partition == partition]
        return bool(leaders) and self.random.choice(leaders).is_settled(producer_id, epoch)

    patch.setattr(Walk, "_is_settled", settled)


def forgets_by_time(patch: Patch) -> None:
    """Nobody asks whether a commit is settled."""
    patch.setattr(Walk, "_is_settled", lambda *_arguments: True)


def snapshot_wakes_nobody(patch: Patch) -> None:
    """After a snapshot of the metadata nobody looks at what is open."""
    original = Walk._look

    def look(self: Walk, broker: int, touched: set[int] | None) -> None:
        original(self, broker, set() if touched is None else touched)

    patch.setattr(Walk, "_look", look)


def commit_despite_failed_send(patch: Patch) -> None:
    """A producer commits before all that it has sent is acknowledged."""
    patch.setattr(Client, "may_commit", lambda client: bool(client.sent))


class Case(NamedTuple):
    """A bug, and a walk that finds it."""

    plant: Callable[[Patch], None]
    seed: int


BUGS: dict[str, Case] = {
    case.plant.__name__: case
    for case in (
        Case(late_batch_joins_next, 0),
        Case(epoch_wraps_without_new_id, 2),
        Case(retry_of_end_is_refused, 3),
        Case(delta_of_new_id_only, 2),
        Case(forgets_before_marker_is_committed, 64),
        Case(stable_offset_by_log_end, 7929),  # 1 of 8,000
        Case(admits_decided, 30),
        Case(snapshot_drops_open_offset, 1),
        Case(idle_shelf_forgets_open, 0),
        Case(unknown_is_committed, 188),
        Case(settled_by_deposed_leader, 147),  # 1 of 800
        Case(forgets_by_time, 0),
        Case(snapshot_wakes_nobody, 4),
        Case(commit_despite_failed_send, 0),
    )
}


def is_caught(name: str) -> bool:
    case = BUGS[name]
    with planted(case.plant) as calls:
        found = failure(case.seed)
    demand_called(name, calls)
    return bool(found)
