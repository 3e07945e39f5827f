"""Expiry of transaction ids: which are forgotten for their age, or as there are too many.

Owns what expires and when that is checked. The command names the time of the last change that was
seen, so that an id that has changed since stays, whatever is in line before it. Nothing expires
while the clock is not confirmed. (Kafka: transactional.id.expiration.ms)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.broker.groups.batches import LoneCommand
from raftmq.broker.transactions.ends import EndEntry
from raftmq.errors import RaftmqError
from raftmq.metadata.apply.transaction_checks import TRANSACTIONS_MAX
from raftmq.metadata.commands import (
    NO_VERSION,
    DeleteTransactions,
    TransactionEnd,
    TransactionSeen,
)
from raftmq.metadata.image import slot_of
from raftmq.metadata.transactions import present_of
from raftmq.model import AbortReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.broker.groups.batches import Outcome
    from raftmq.broker.groups.coordinator import GroupCoordinator, OwnedSlot
    from raftmq.metadata.image import TransactionState

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
EPHEMERAL_MS = HOUR_MS  # nobody opens these again
NAMED_MS = 7 * DAY_MS  # as in Kafka; its owner opens it anew, and has nothing to lose
# An id that has committed versions: who commits an old one again after that commits it twice.
VERSIONS_MS = 90 * DAY_MS
CROWDED = TRANSACTIONS_MAX * 8 // 10  # from here on idle ids make room for new ones
# Beyond its timeout an id is idle: what was open has been aborted, which changes its row.
IDLE_MS = 60_000
LOOK_SECONDS = 600.0  # between checks of age
CROWDED_SECONDS = 10.0  # between checks of number: 20,000 new ids take longer than that
SLICE = 5_000  # rows passed over in one step of the loop
DELETED_MAX = 1_000  # ids of one command; the rest goes with the next check

logger = logging.getLogger("raftmq.broker")


def is_old(state: TransactionState, now_ms: int) -> bool:
    """Whether it is forgotten for its age. One with commits that are not settled never is."""
    if state.settling or _has_open_version(state):
        return False
    age_ms = now_ms - state.changed_at_ms
    # The driver of a shared one that nobody opens again has its answer by then.
    has_versions = state.last_version != NO_VERSION
    if has_versions and not (state.is_ephemeral and state.shared is not None):
        return age_ms >= VERSIONS_MS
    return age_ms >= (EPHEMERAL_MS if state.is_ephemeral else NAMED_MS)


def makes_room(state: TransactionState, now_ms: int) -> bool:
    """Whether it may be forgotten where there are too many ids."""
    is_idle = now_ms - state.changed_at_ms >= state.timeout_ms + IDLE_MS
    is_idle = is_idle and not _has_open_version(state)
    return is_idle and not state.settling and state.last_version == NO_VERSION


def first_to_go(state: TransactionState) -> tuple[bool, int]:
    """The order in which ids make room: ephemeral ones before others, the oldest first."""
    return (not state.is_ephemeral, state.changed_at_ms)


def is_left_open(state: TransactionState, now_ms: int) -> bool:
    """Whether it is a version that is open for longer than any of its members could write. Leaders
    that it holds up have it aborted long before; of members that never wrote anything nobody is
    held up, and lower versions are refused while it is open.
    """
    age_ms = now_ms - state.changed_at_ms
    return _has_open_version(state) and age_ms >= state.timeout_ms + HOUR_MS


def _has_open_version(state: TransactionState) -> bool:
    """Its members may write for as long as its timeout after the first batch, which the metadata do
    not know: such an id is aborted first, see `is_left_open`, and forgotten later.
    """
    return state.shared is not None and state.shared.block >= 0


class TransactionExpiry:
    """`confirmed_ms`: the wall clock; None while it is not confirmed, and nothing expires."""

    def __init__(
        self, coordinator: GroupCoordinator, confirmed_ms: Callable[[], int | None]
    ) -> None:
        self._coordinator, self._confirmed_ms = coordinator, confirmed_ms

    async def run(self) -> NoReturn:
        looked_at = trio.current_time()
        while True:
            await trio.sleep(CROWDED_SECONDS)
            is_crowded = len(self._coordinator.image.transactions) > CROWDED
            if is_crowded or trio.current_time() >= looked_at + LOOK_SECONDS:
                looked_at = trio.current_time()
                await self.look()

    async def look(self) -> None:
        """Check all transaction ids of this broker, once."""
        now_ms = self._confirmed_ms()
        if now_ms is None:  # too early a deletion cannot be undone (decision 0026)
            return
        slots = {slot.slot: slot for slot in self._coordinator.slots if slot.is_loaded}
        rows = self._coordinator.image.transactions
        own = 0
        left_open: list[str] = []
        old: list[str] = []
        idle: list[str] = []
        for at, (name, state) in enumerate(rows.items(), 1):
            if slot_of(name) in slots:
                own += 1
                if is_left_open(state, now_ms):
                    left_open.append(name)
                elif is_old(state, now_ms):
                    old.append(name)
                elif makes_room(state, now_ms):
                    idle.append(name)
            if not at % SLICE:  # a long list must not hold up the loop
                await trio.lowlevel.checkpoint()
        idle.sort(key=lambda name: first_to_go(rows[name]))
        idle = idle[: max(0, _share(len(rows), own) - len(old))]
        for name in left_open:
            self._abort(slots[slot_of(name)], name, rows[name], now_ms)
        self._forget(slots, [TransactionSeen(one, rows[one].changed_at_ms) for one in old + idle])
        if old or idle:
            logger.info("transaction ids to be forgotten: old=%d idle=%d", len(old), len(idle))

    def _abort(self, slot: OwnedSlot, name: str, state: TransactionState, now_ms: int) -> None:
        logger.info("version is open, and nobody writes it: transaction=%s", name)
        producer_id, epoch = present_of(state)
        end = TransactionEnd(name, producer_id, epoch, is_commit=False, reason=AbortReason.TIMEOUT)
        try:
            slot.transactions.put(EndEntry(end, now_ms, _note))
        except RaftmqError as error:  # the line is full: the next check finds it again
            _note(error)

    def _forget(self, slots: dict[int, OwnedSlot], going: Iterable[TransactionSeen]) -> None:
        by_slot: dict[int, list[TransactionSeen]] = {}
        for seen in going:
            by_slot.setdefault(slot_of(seen.transaction_id), []).append(seen)
        for number, ids in by_slot.items():
            slot = slots[number]
            command = DeleteTransactions(number, slot.slot_epoch, tuple(ids[:DELETED_MAX]))
            try:
                slot.transactions.put(LoneCommand(command, _note))
            except RaftmqError as error:  # the line is full: the next check finds them again
                _note(error)


def _share(count: int, own: int) -> int:
    """How many of the ids beyond the limit a coordinator of `own` ones has to forget."""
    excess = max(0, count - CROWDED)
    return -(-excess * own // count) if excess else 0


def _note(outcome: Outcome) -> None:
    if isinstance(outcome, RaftmqError):  # the next check finds them again
        logger.info("transaction ids not forgotten yet: reason=%s", outcome)
