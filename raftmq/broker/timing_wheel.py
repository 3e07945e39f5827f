"""Timing wheel: the next due time of each key, for any number of keys at a cost that does not grow.

Pure: the caller says what time it is. Hierarchical (Kafka: TimingWheel, SystemTimer), but the clock
may jump: a level holds up to 64 slots by their position on the time line, and one step takes all
that the clock has passed, however far. So a task sleeps until `next_due` and never turns the wheel
for nothing in between.

Invariants, with times in ticks, rounded up:
1. No key is returned before its due time by the `now_ms` of that call, and each is returned once.
2. Advanced at each moment that `next_due` names, a key is less than one tick late.
3. A key that is not due is in the lowest level that reaches it; so a level has at most 64 slots,
   and a key moves down once for each level.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from raftmq.model import DELAY_TICK_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOT_BITS = 6
SLOTS = 1 << SLOT_BITS  # of a level
LEVELS = 5  # 3.4 years at 100 ms; what is further off waits in the last slot, and moves on from it

Key = TypeVar("Key", bound=Hashable)


class WheelSlot(Generic[Key]):
    """Attributes:
    keys: the due tick of each, and a number that says which was set first.
    earliest: no key has a lower due tick; that of a key that was discarded may remain.
    """

    __slots__ = ("earliest", "keys")

    def __init__(self, earliest: int) -> None:
        self.keys: dict[Key, tuple[int, int]] = {}
        self.earliest = earliest


class TimingWheel(Generic[Key]):
    """Keys with one due time each."""

    def __init__(self, now_ms: int, tick_ms: int = DELAY_TICK_MS) -> None:
        self._tick_ms = tick_ms
        self._cursor = now_ms // tick_ms  # what is due up to this tick is in `_due`
        self._due: WheelSlot[Key] = WheelSlot(self._cursor)
        self._levels: tuple[dict[int, WheelSlot[Key]], ...] = tuple({} for _ in range(LEVELS))
        self._slots: dict[Key, WheelSlot[Key]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._slots)

    def set(self, key: Key, due_ms: int) -> None:
        """The key is due then, and no more when it was before."""
        self.discard(key)
        self._last_number += 1
        self._place(key, -(-due_ms // self._tick_ms), self._last_number)

    def discard(self, key: Key) -> None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            del slot.keys[key]

    def advance(self, now_ms: int) -> list[Key]:
        """Takes out the keys that are due, by due tick, those of one tick in the order in which
        they were set."""
        tick = now_ms // self._tick_ms
        if tick < self._cursor:  # the clock went back: what seemed due may not be
            self._go_to(tick, [self._due, *self._take_slots(None)])
        elif tick > self._cursor:
            self._go_to(tick, self._take_slots(tick))
        due = sorted(self._due.keys.items(), key=_due_and_number)
        self._due.keys.clear()
        for key, _ in due:
            del self._slots[key]
        return [key for key, _ in due]

    def next_due(self) -> int | None:
        """The moment before which `advance` returns nothing; None: there are no keys.

        It is exact but where the first key of a slot was discarded: then one call may return
        nothing, and the moment after it is a later one.
        """
        slots = (slot for level in self._levels for slot in level.values())
        earliest = min(
            (slot.earliest for slot in (self._due, *slots) if slot.keys),
            default=None,
        )
        return None if earliest is None else earliest * self._tick_ms

    def _place(self, key: Key, tick: int, number: int) -> None:
        slot = self._due if tick <= self._cursor else self._slot_of(tick)
        slot.earliest = min(slot.earliest, tick) if slot.keys else tick
        slot.keys[key] = (tick, number)
        self._slots[key] = slot

    def _slot_of(self, tick: int) -> WheelSlot[Key]:
        """In the lowest level that reaches the tick."""
        level = 0
        while level < LEVELS - 1 and self._distance(tick, level) >= SLOTS:
            level += 1
        here = self._cursor >> (level * SLOT_BITS)
        position = here + min(self._distance(tick, level), SLOTS - 1)
        slots = self._levels[level]
        slot = slots.get(position)
        if slot is None:
            slot = slots[position] = WheelSlot(tick)
        return slot

    def _distance(self, tick: int, level: int) -> int:
        """In slots of the level."""
        shift = level * SLOT_BITS
        return (tick >> shift) - (self._cursor >> shift)

    def _take_slots(self, tick: int | None) -> list[WheelSlot[Key]]:
        """Out of the levels: those that begin at or before the tick (None: all)."""
        taken = []
        for level, slots in enumerate(self._levels):
            positions = sorted(slots)
            if tick is not None:
                positions = [each for each in positions if each <= tick >> (level * SLOT_BITS)]
            taken += [slots.pop(position) for position in positions]
        return taken

    def _go_to(self, tick: int, slots: Iterable[WheelSlot[Key]]) -> None:
        """Place the keys of these slots as seen from the tick."""
        moving = [item for slot in slots for item in slot.keys.items()]
        if tick < self._cursor:
            self._due = WheelSlot(tick)
        self._cursor = tick
        for key, (due, number) in moving:
            self._place(key, due, number)


def _due_and_number(item: tuple[Hashable, tuple[int, int]]) -> tuple[int, int]:
    return item[1]
