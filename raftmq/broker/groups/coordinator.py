"""The groups that this broker coordinates: taken over, carried along, and let go.

Owns the composition: slots as the metadata gives them, a line of changes for each, the groups in
memory and their clock. What a group does, `group.py` decides; what it asks for is done here, at
once and in order. No handler waits in between, so that two requests never meet half-way.

Invariant: a group is dropped from memory only once this broker's metadata shows what was saved of
it last, so that it is never loaded again as it was before.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NoReturn, assert_never

import trio

from raftmq.broker.groups.clock import GroupClock
from raftmq.broker.groups.effects import Answer, Save
from raftmq.broker.groups.entries import Change
from raftmq.broker.groups.group import Group
from raftmq.broker.groups.pipeline import Pipeline
from raftmq.broker.groups.shared_look import SharedLook
from raftmq.broker.groups.slots import Hosted, OwnedSlot, Slots
from raftmq.errors import (
    CoordinatorNotAvailable,
    GroupMaxSizeReached,
    NotCoordinator,
    RaftmqError,
)
from raftmq.metadata.apply import limits
from raftmq.metadata.image import slot_of
from raftmq.rpc.reply import PendingReply, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from raftmq.broker.changes import Changes
    from raftmq.broker.groups.effects import GroupEffect
    from raftmq.broker.groups.entries import Outcome
    from raftmq.broker.groups.pipeline import Proposer
    from raftmq.broker.groups.settings import CoordinatorSettings
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

NEVER_SAVED = 0  # the generation of a group of which the metadata knows nothing
GROUPS_MAX = 10_000  # in the memory of one broker: with members, or with some on the way
# That are saved, before a new one is turned away: whoever is on the way still fits in.
GROUPS_SAVED_MAX = limits.GROUPS_MAX - GROUPS_MAX
LOOK_MS_MAX = 5_000
LOAD_PAUSE_SECONDS = 0.2  # before a slot that could not be loaded is tried again
SLICE_GROUPS = 500  # without members, or others', looked at in one go

logger = logging.getLogger(__name__)


class Coordinator:
    """
    Args:
        broker_epoch: under which this process is registered; -1 while it is not.
        sequences: of the ids of all commands of this broker.
        now_ms: the wall clock, for what the metadata remembers.
    """

    def __init__(
        self,
        broker_id: int,
        quorum: MetadataQuorum,
        proposer: Proposer,
        changes: Changes,
        settings: CoordinatorSettings,
        *,
        broker_epoch: Callable[[], int],
        sequences: Iterator[int],
        now_ms: Callable[[], int],
    ) -> None:
        self._broker_id, self._quorum, self._proposer = broker_id, quorum, proposer
        self.settings, self.now_ms = settings, now_ms
        self._broker_epoch, self._sequences = broker_epoch, sequences
        self.slots = Slots(broker_id)
        self.looks = SharedLook(
            partial(changes.catch_up, timeout_ms=LOOK_MS_MAX), lambda: self._quorum.image
        )
        self._clock = GroupClock(self._tick)
        self._nursery: trio.Nursery | None = None

    @property
    def image(self) -> MetadataImage:
        return self._quorum.image

    # Slots

    async def run(self) -> NoReturn:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self.looks.run)
                self._nursery.start_soon(self._clock.run)
                await self._follow()
        finally:
            self._nursery = None
        raise AssertionError("follows for ever")

    async def _follow(self) -> NoReturn:
        image = self._quorum.image
        while True:
            self.follow()
            before = image
            while image.slots is before.slots and image.brokers is before.brokers:
                image = await self._quorum.wait_changed(image.version)

    def follow(self) -> None:
        """After anything that says which slots are this process's: images, registrations."""
        if self._nursery is None:
            return
        given, gone = self.slots.follow(self._quorum.image, self._broker_epoch())
        for slot in gone:
            self._let_go(slot)
        for slot in given:
            slot.pipeline = self._pipeline(slot)
            self._nursery.start_soon(slot.pipeline.run)
        if given:
            self._nursery.start_soon(self._load, given)

    def _pipeline(self, slot: OwnedSlot) -> Pipeline:
        return Pipeline(
            self._broker_id,
            slot,
            self._proposer,
            sequences=self._sequences,
            look=self.looks.look,
            on_lost=partial(self._on_lost, slot),
        )

    def _on_lost(self, slot: OwnedSlot) -> None:
        if self.slots.lose(slot):
            self._let_go(slot)

    def _let_go(self, slot: OwnedSlot) -> None:
        """Whoever waits for others looks for the new coordinator at once."""
        logger.info("slot let go: slot=%d epoch=%d", slot.slot, slot.slot_epoch)
        slot.pipeline.abandon()
        error = NotCoordinator(f"slot {slot.slot} belongs to another broker now: look it up again")
        for hosted in slot.groups.values():
            self._answer(hosted.group.abandon(error))
        slot.groups.clear()

    # Loading

    async def _load(self, slots: list[OwnedSlot]) -> None:
        """All groups with members: somebody has to notice it when none of them asks any more."""
        while True:
            try:
                image = await self.looks.look()
                break
            except RaftmqError as error:
                logger.info("slots not loaded yet: slots=%d reason=%s", len(slots), error)
                await trio.sleep(LOAD_PAUSE_SECONDS)
        self.follow()  # what was taken away meanwhile is let go
        # Nobody else changes these groups while the slots are this broker's: slices do no harm.
        wanted = {slot.slot: slot for slot in slots}
        for at, (name, state) in enumerate(image.groups.items(), 1):
            slot = wanted.get(slot_of(name))
            is_wanted = slot is not None and bool(state.members)
            if is_wanted or not at % SLICE_GROUPS:
                await trio.lowlevel.checkpoint()
            if slot and state.members and not slot.pipeline.is_lost:
                self._host(slot, self._group(slot, name, image))
        for slot in slots:
            slot.is_loaded = True
        logger.info("slots taken: slots=%d groups=%d", len(slots), self.slots.group_count)

    def _group(self, slot: OwnedSlot, name: str, image: MetadataImage) -> Group:
        """As it was saved last, or new."""
        state, rules, epoch = image.groups.get(name), self.settings.rules, slot.slot_epoch
        if state is None:
            return Group(name, rules, slot_epoch=epoch)
        return Group.loaded(name, state, rules, now=trio.current_time(), slot_epoch=epoch)

    def _host(self, slot: OwnedSlot, group: Group) -> Hosted:
        hosted = slot.groups[group.name] = Hosted(group)
        self._clock.set(slot, hosted)
        return hosted

    async def confirm(self, slot: OwnedSlot, group: str, *, seconds: float) -> MetadataImage:
        """An image that shows all that was changed before this was called, under which the slot is
        this broker's still.

        Raises:
            NotCoordinator: the slot was lost before that was known.
            CoordinatorNotAvailable: it was not known in time.
        """
        with trio.move_on_after(seconds):
            image = await self.looks.look()
            if slot.pipeline.is_lost or not slot.is_current(image):
                raise NotCoordinator(f"group {group}: another broker coordinates it now")
            return image
        raise CoordinatorNotAvailable(f"group {group}: the quorum has not answered in time")

    # Groups

    def joined_group(self, slot: OwnedSlot, name: str) -> Hosted:
        """The group, whoever has been in it before.

        Raises:
            CoordinatorNotAvailable: this broker has too many.
            GroupMaxSizeReached: it is new, and the metadata has too many.
        """
        hosted = slot.groups.get(name)
        if hosted is not None:
            return hosted
        count = len(self.image.groups)
        if name not in self.image.groups and count >= GROUPS_SAVED_MAX:
            raise GroupMaxSizeReached(
                f"group {name} is new, and there are {count} groups already: delete groups that"
                " nobody needs"
            )
        if self.slots.group_count >= GROUPS_MAX:
            raise CoordinatorNotAvailable(
                f"group {name}: broker {self._broker_id} coordinates {GROUPS_MAX} groups with"
                " members already: stop some of them, or add brokers"
            )
        return self._host(slot, self._group(slot, name, self.image))

    def perform(self, slot: OwnedSlot, hosted: Hosted, effects: Iterable[GroupEffect]) -> None:
        """What a group has asked for; then the clock is told, and the group forgotten if it can."""
        for effect in effects:
            match effect:
                case Answer():
                    self._answer((effect,))
                case Save():
                    self._save(slot, hosted, effect)
                case never:
                    assert_never(never)
        self._clock.set(slot, hosted)
        self._maybe_drop(slot, hosted)

    def _answer(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            assert isinstance(effect, Answer), f"{effect} of a group that was given up"
            assert isinstance(effect.token, PendingReply), f"{effect.token}"
            effect.token.settle(Reply(effect.body))

    def _save(self, slot: OwnedSlot, hosted: Hosted, save: Save) -> None:
        command = save.command(slot_epoch=slot.slot_epoch, changed_at_ms=self.now_ms())
        if not slot.pipeline.is_lost:
            entry = Change(command, partial(self._on_saved, slot, hosted, save))
            slot.pipeline.put(entry, is_owed=True)
            slot.order.note(save.group, slot.pipeline.newest)

    def _on_saved(self, slot: OwnedSlot, hosted: Hosted, save: Save, outcome: Outcome) -> None:
        if slot.pipeline.is_lost:
            return
        now = trio.current_time()
        if isinstance(outcome, RaftmqError):
            logger.warning(
                "group not saved: group=%s generation=%d reason=%s",
                save.group,
                save.generation,
                outcome,
            )
            effects = hosted.group.on_save_failed(save, outcome, now=now)
        else:
            effects = hosted.group.on_saved(save, now=now)
        self.perform(slot, hosted, effects)

    def _tick(self, slot: OwnedSlot, hosted: Hosted) -> None:
        if not slot.pipeline.is_lost:
            self.perform(slot, hosted, hosted.group.on_tick(trio.current_time()))

    def _maybe_drop(self, slot: OwnedSlot, hosted: Hosted) -> None:
        group = hosted.group
        if group.is_idle and slot.groups.get(group.name) is hosted and self._is_shown(group):
            del slot.groups[group.name]

    def _is_shown(self, group: Group) -> bool:
        """Whether this broker's metadata has what was saved of it last."""
        state = self.image.groups.get(group.name)
        if state is None:
            return group.generation == NEVER_SAVED
        return state.generation == group.generation and not state.members

    def drop_idle(self, slot: OwnedSlot) -> None:
        """Those that could not be dropped when they became idle, as the metadata was behind."""
        for hosted in list(slot.groups.values()):
            self._maybe_drop(slot, hosted)

    async def wait_gone(self, slot: OwnedSlot, name: str, deadline: float) -> None:
        """Until a group that was deleted is gone from the metadata here, or the time is over."""
        image = self.image
        with trio.move_on_at(deadline):
            while name in image.groups or name in image.offsets:
                image = await self._quorum.wait_changed(image.version)
        hosted = slot.groups.get(name)
        if hosted is not None and hosted.group.is_idle and name not in image.groups:
            del slot.groups[name]
