"""Planted bugs of transactions: decisions, settling, offsets of groups.

Each is a function that patches the code through a `Patch`. A bug takes away one rule, or one step;
never a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.metadata import transactions as outcomes
from raftmq.metadata.apply import transactions as rules
from raftmq.partition.replica import Replica
from raftmq.partition.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jepsen_like.planted.patch import Patch
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.image import TransactionState

NEVER_REACHED = 1 << 62  # as a high watermark: above every offset


def late_batch_joins_next(patch: Patch) -> None:
    """An end does not raise the epoch."""
    decided = rules._decided

    def same_epoch(draft: Draft, state: TransactionState, **how: Any) -> TransactionState:
        return replace(decided(draft, state, **how), producer_epoch=state.producer_epoch)

    patch.setattr(rules, "_decided", same_epoch)


def forgets_before_marker_is_committed(patch: Patch) -> None:
    """A leader says settled of a marker that only it may have."""
    is_ended = Transactions.is_ended

    def ended(self: Transactions, producer_ids: Sequence[int], producer_epoch: int, _: int) -> bool:
        return is_ended(self, producer_ids, producer_epoch, NEVER_REACHED)

    patch.setattr(Transactions, "is_ended", ended)


def settled_by_deposed_leader(patch: Patch) -> None:
    """Any replica's word counts: it need not lead, nor in the epoch that was asked."""

    def settled(self: Replica, _: int, producer_ids: Sequence[int], producer_epoch: int) -> bool:
        return self.log.transactions.is_ended(producer_ids, producer_epoch, self.high_watermark)

    patch.setattr(Replica, "is_settled", settled)


def offsets_by_old_generation(patch: Patch) -> None:
    """When a commit is decided, nobody compares the generation of its member any more."""
    patch.setattr(rules, "_member_refusal", lambda *_: None)


def unlisted_member_commits(patch: Patch) -> None:
    """A commit is one of all members that have joined."""
    patch.setattr(outcomes, "is_listed", lambda _numbers, _number: True)
