"""Which slots this broker coordinates, and what it keeps of their groups while it does.

Owns the way from images to tenures: one begins when the metadata gives the slot to this process,
and ends when it gives it to anybody else. Whoever registers gives up all slots with the same
command, so that no process takes over what another one of the same broker had in hand.

Invariants: a slot takes requests only after a look that began when it was given to this broker: it
shows all that whoever had it before has changed, and that it was not taken away meanwhile. Two
tenures never have the same slot epoch: so a request that says under which epoch it was made, and
comes when the slot has been elsewhere since, is refused. What comes late within one tenure, numbers
tell, which live as long as the tenure (decision 0025): those of senders, and for deletions, which
have no order of their own, that of the changes in line.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

from raftmq.errors import CoordinatorLoadInProgress, NotCoordinator
from raftmq.metadata.commands import NO_EPOCH
from raftmq.metadata.image import SLOT_COUNT, slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.broker.groups.group import Group
    from raftmq.broker.groups.pipeline import Pipeline
    from raftmq.metadata.image import MetadataImage

# In place of a slot epoch, or of the last change: an older client, whose requests are all taken.
NOT_SAID = 0
OUTSIDERS_MAX = 1_000  # of one slot, whose numbers are known
CHANGED_MAX = 1_000  # groups of one slot of which it is known when they changed last


def is_of_another_tenure(slot_epoch: int, own: int) -> bool:
    """Whether a request was made for a coordinator that is none any more, or none yet."""
    return slot_epoch not in (NOT_SAID, own)


class Hosted:
    """A group in memory.

    Attributes:
        look_at: when the clock looks at it next; infinity if it does not.
    """

    __slots__ = ("group", "look_at")

    def __init__(self, group: Group) -> None:
        self.group, self.look_at = group, math.inf


class Outsiders:
    """Who commits in groups without members, and the number of the last commit of each.

    Whoever has been silent for longest is forgotten first. Of his commits one that comes later than
    those of so many others would be taken, though he has committed again since.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_late(self, group: str, sender: str, number: int) -> bool:
        return 0 < number < self._numbers.get((group, sender), 0)

    def note(self, group: str, sender: str, number: int) -> None:
        if not (number and sender):
            return
        self._numbers[group, sender] = number
        self._numbers.move_to_end((group, sender))
        if len(self._numbers) > OUTSIDERS_MAX:
            self._numbers.popitem(last=False)


class ChangeOrder:
    """Which groups were changed in which order, since the tenure began.

    A change has the number of its entry in the line of the slot. Whoever deletes has looked before,
    and says the number of the last entry that was settled then: a group that was changed since is
    not what he has seen, nor is what was in line. The group that was changed longest ago is
    forgotten first, and counts as changed together with the last one that was forgotten: rather one
    deletion too many is refused than one too few.
    """

    def __init__(self) -> None:
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._forgotten = NOT_SAID

    def note(self, group: str, number: int) -> None:
        """Numbers rise."""
        self._changed[group] = number
        self._changed.move_to_end(group)
        if len(self._changed) > CHANGED_MAX:
            _, self._forgotten = self._changed.popitem(last=False)

    def is_changed_since(self, group: str, seen: int) -> bool:
        return seen != NOT_SAID and self._changed.get(group, self._forgotten) > seen


class OwnedSlot:
    """Attributes:
    groups: those in memory: whoever has members, or may have some soon.
    outsiders: who commits in the others.
    order: of the changes that were put in line.
    is_loaded: it takes requests.
    """

    pipeline: Pipeline

    def __init__(self, *, slot: int, slot_epoch: int, broker_epoch: int) -> None:
        self.slot, self.slot_epoch, self.broker_epoch = slot, slot_epoch, broker_epoch
        self.groups: dict[str, Hosted] = {}
        self.outsiders, self.order = Outsiders(), ChangeOrder()
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

    def find(self, group: str, slot_epoch: int = NOT_SAID) -> OwnedSlot:
        """The slot of a group, if it is this broker's under that epoch.

        Raises:
            NotCoordinator: it is not.
            CoordinatorLoadInProgress: it is, and has just become so.
        """
        slot = self._owned.get(slot_of(group))
        if slot is None or is_of_another_tenure(slot_epoch, slot.slot_epoch):
            raise NotCoordinator(
                f"group {group}: broker {self._broker_id} does not coordinate it: look it up again"
            )
        if not slot.is_loaded:
            raise CoordinatorLoadInProgress(
                f"group {group}: broker {self._broker_id} has just become its coordinator: ask"
                " again in a moment"
            )
        return slot
