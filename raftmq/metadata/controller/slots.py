"""Coordinator slots: which broker coordinates which consumer groups.

Owns the choice. A slot whose broker is not active moves at once; among active brokers slots move
only while one has two more than another, a few at a time, because each move makes the clients of
its groups look for their coordinator anew.

Invariant: slots under way count for where they go, so that no slot is moved twice for one reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.commands import AssignSlot

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from raftmq.metadata.image import SlotState

BALANCING_MOVES_MAX = 4  # under way at once


def assign_slots(
    slots: Sequence[SlotState], active: Collection[int], under_way: Sequence[AssignSlot]
) -> list[AssignSlot]:
    """What to propose beside the moves that are under way."""
    if not active:
        return []
    owners = [slot.broker_id for slot in slots]
    for move in under_way:
        owners[move.slot] = move.broker_id
    counts = dict.fromkeys(sorted(active), 0)
    for owner in owners:
        if owner in counts:
            counts[owner] += 1
    moving = {move.slot for move in under_way}
    moves = _adopt(slots, owners, counts, moving)
    if not moves:
        moves = _balance(slots, owners, counts, moving)
    return moves


def _adopt(
    slots: Sequence[SlotState], owners: list[int], counts: dict[int, int], moving: set[int]
) -> list[AssignSlot]:
    """Slots of brokers that are not active, each to whoever has the fewest."""
    moves = []
    for number, owner in enumerate(owners):
        if owner not in counts and number not in moving:
            fewest = min(counts, key=counts.__getitem__)
            counts[fewest] += 1
            moves.append(AssignSlot(number, slots[number].epoch, fewest))
    return moves


def _balance(
    slots: Sequence[SlotState], owners: list[int], counts: dict[int, int], moving: set[int]
) -> list[AssignSlot]:
    moves: list[AssignSlot] = []
    while len(moving) + len(moves) < BALANCING_MOVES_MAX:
        most = max(counts, key=counts.__getitem__)
        fewest = min(counts, key=counts.__getitem__)
        if counts[most] - counts[fewest] < 2:
            break
        settled = [n for n, owner in enumerate(owners) if owner == most and n not in moving]
        if not settled:
            break
        owners[settled[0]] = fewest
        counts[most] -= 1
        counts[fewest] += 1
        moves.append(AssignSlot(settled[0], slots[settled[0]].epoch, fewest))
    return moves
