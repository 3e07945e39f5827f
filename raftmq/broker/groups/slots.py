"""Which slots this broker coordinates, and what it keeps of their groups while it does.

Owns the way from images to tenures: one begins when the metadata gives the slot to this process,
and ends when it gives it to anybody else. Whoever registers gives up all slots with the same
command, so that no process takes over what another one of the same broker had in hand.

Invariants: a slot takes requests only after a look that began when it was given to this broker: it
shows all that whoever had it before has changed, and that it was not taken away meanwhile. Two
tenures never have the same slot epoch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raftmq.errors import CoordinatorLoadInProgress, NotCoordinator
from raftmq.metadata.commands import NO_EPOCH
from raftmq.metadata.image import SLOT_COUNT, slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.broker.groups.group import Group
    from raftmq.broker.groups.pipeline import Pipeline
    from raftmq.metadata.image import MetadataImage

NUMBERS_SPARE = 100  # of members that have left: forgotten together


class Hosted:
    """A group in memory.

    Attributes:
        look_at: when the clock looks at it next; infinity if it does not.
    """

    __slots__ = ("_numbers", "group", "look_at")

    def __init__(self, group: Group) -> None:
        self.group, self.look_at = group, math.inf
        self._numbers: dict[str, int] = {}  # of the last commit of each member

    def is_late(self, member_id: str, number: int) -> bool:
        """Whether a later commit of that member is in line already; the same one may come again.

        Whoever is no member counts for himself: nobody can tell one such process from another.
        """
        return bool(member_id) and 0 < number < self._numbers.get(member_id, 0)

    def note_commit(self, member_id: str, number: int) -> None:
        if not (number and member_id):
            return
        if len(self._numbers) > 2 * self.group.listed().member_count + NUMBERS_SPARE:
            members = {member.member_id for member in self.group.describe().members}
            self._numbers = {one: n for one, n in self._numbers.items() if one in members}
        self._numbers[member_id] = number


class OwnedSlot:
    """Attributes:
    groups: those in memory: whoever has members, or may have some soon.
    is_loaded: it takes requests.
    """

    pipeline: Pipeline

    def __init__(self, *, slot: int, slot_epoch: int, broker_epoch: int) -> None:
        self.slot, self.slot_epoch, self.broker_epoch = slot, slot_epoch, broker_epoch
        self.groups: dict[str, Hosted] = {}
        self.is_loaded = False

    def is_current(self, image: MetadataImage) -> bool:
        """Whether nobody else has had it since, as far as the image knows."""
        return image.slots[self.slot].epoch == self.slot_epoch


class Slots:
    """Takes and lets go what the images say; `find` is for requests."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._owned: dict[int, OwnedSlot] = {}
        self._lost_epochs = [0] * SLOT_COUNT  # up to these others have had them since, for certain

    def __iter__(self) -> Iterator[OwnedSlot]:
        return iter(list(self._owned.values()))

    @property
    def group_count(self) -> int:
        return sum(len(slot.groups) for slot in self._owned.values())

    def follow(
        self, image: MetadataImage, broker_epoch: int
    ) -> tuple[list[OwnedSlot], list[OwnedSlot]]:
        """What this process gets now, not loaded yet, and what it loses."""
        wanted = set(self._given(image, broker_epoch))
        gone = [slot for slot in self if (slot.slot, slot.slot_epoch) not in wanted]
        for slot in gone:
            del self._owned[slot.slot]
        given = [
            OwnedSlot(slot=number, slot_epoch=epoch, broker_epoch=broker_epoch)
            for number, epoch in sorted(wanted)
            if number not in self._owned
        ]
        self._owned.update((slot.slot, slot) for slot in given)
        return given, gone

    def _given(self, image: MetadataImage, broker_epoch: int) -> Iterable[tuple[int, int]]:
        """An image that knows another process of this broker says nothing of this one."""
        registered = image.brokers.get(self._broker_id)
        if broker_epoch == NO_EPOCH or registered is None:
            return
        if registered.broker_epoch != broker_epoch:
            return
        for number, state in enumerate(image.slots):
            is_ours = state.broker_id == self._broker_id
            if is_ours and state.epoch > self._lost_epochs[number]:
                yield number, state.epoch

    def lose(self, slot: OwnedSlot) -> bool:
        """The quorum said so, before the image here does; False if that is known already."""
        self._lost_epochs[slot.slot] = max(self._lost_epochs[slot.slot], slot.slot_epoch)
        if self._owned.get(slot.slot) is not slot:
            return False
        del self._owned[slot.slot]
        return True

    def find(self, group: str) -> OwnedSlot:
        """The slot of a group, if it is this broker's.

        Raises:
            NotCoordinator: it is not.
            CoordinatorLoadInProgress: it is, and has just become so.
        """
        slot = self._owned.get(slot_of(group))
        if slot is None:
            raise NotCoordinator(
                f"group {group}: broker {self._broker_id} does not coordinate it: look it up again"
            )
        if not slot.is_loaded:
            raise CoordinatorLoadInProgress(
                f"group {group}: broker {self._broker_id} has just become its coordinator: ask"
                " again in a moment"
            )
        return slot
