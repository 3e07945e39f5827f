"""What every request about a transaction id begins with: its slot here, its timeout, its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.node_config_keys import TRANSACTION_TIMEOUT_MS_MIN
from raftmq.broker.requests.levels import check_level
from raftmq.errors import InvalidTransactionTimeout, TooManyProducers
from raftmq.metadata.apply.transaction_checks import TRANSACTIONS_MAX
from raftmq.metadata.commands import FeatureLevel

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.broker.groups.coordinator import GroupCoordinator, OwnedSlot

# New ids are refused above; those that are open already, and their coordinators' clean-up, go on.
NEW_IDS_MAX = TRANSACTIONS_MAX * 9 // 10


class TransactionSlots:
    """
    Args:
        timeout_ms_max: the longest timeout of a transaction.
        voters: of the quorum; transactions begin once all of them know how.
    """

    def __init__(
        self, coordinator: GroupCoordinator, *, timeout_ms_max: int, voters: Collection[int]
    ) -> None:
        self.coordinator = coordinator
        self._timeout_ms_max, self._voters = timeout_ms_max, voters

    def find(self, transaction_id: str) -> OwnedSlot:
        """Raises NotCoordinator, CoordinatorLoadInProgress, UnsupportedVersion, NotController."""
        slot = self.coordinator.slots.find(transaction_id, what="transaction")
        check_level(
            self.coordinator.image,
            FeatureLevel.TRANSACTIONS,
            voters=self._voters,
            what="a transaction",
        )
        return slot

    def check_open(self, name: str, timeout_ms: int) -> None:
        """Raises InvalidTransactionTimeout; TooManyProducers: it would be a new id."""
        if not TRANSACTION_TIMEOUT_MS_MIN <= timeout_ms <= self._timeout_ms_max:
            raise InvalidTransactionTimeout(
                f"transaction {name}: timeout {timeout_ms} ms, allowed are"
                f" {TRANSACTION_TIMEOUT_MS_MIN} to"
                f" {self._timeout_ms_max} (transactions.timeout_ms_max of the brokers)"
            )
        transactions = self.coordinator.image.transactions
        if name not in transactions and len(transactions) >= NEW_IDS_MAX:
            raise TooManyProducers(
                f"transaction {name} is new, and there are {len(transactions)} ids already: forget"
                " ids that nobody needs, or let fewer programs have an id of their own"
            )
