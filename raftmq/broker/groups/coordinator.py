"""Group coordinator: takes over slots of groups, loads them, performs their effects, lets them go.

Owns the composition: slots as the metadata assigns them, a command pipeline for each, the groups in
memory and their timers. `group.py` decides what a group does; what it asks for is done here, at
once and in order. No handler waits in between, so that two requests never interleave.
(Kafka: GroupCoordinator)

Invariant: a group is dropped from memory only once this broker's metadata shows what was saved of
it last, so that it is never loaded in an older state.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NoReturn, TypeAlias, assert_never

import trio

from raftmq.broker.groups.batches import LoneCommand
from raftmq.broker.groups.crashes import crashed_members
from raftmq.broker.groups.group import Group
from raftmq.broker.groups.phases import AnswerRequest, SavePlan
from raftmq.broker.groups.pipeline import Pipeline, SlotOwnership
from raftmq.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupMaxSizeReached,
    NotCoordinator,
    RaftmqError,
)
from raftmq.metadata.apply import limits
from raftmq.metadata.commands import NO_EPOCH
from raftmq.metadata.image import SLOT_COUNT, slot_of
from raftmq.rpc.reply import PendingReply, Reply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from immutables import Map

    from raftmq.broker.controller_link import ControllerLink
    from raftmq.broker.groups.batches import Outcome
    from raftmq.broker.groups.phases import CoordinatorSettings, GroupEffect
    from raftmq.broker.metadata_changes import MetadataChanges
    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import CommittedOffset, MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum


logger = logging.getLogger("raftmq.broker")


# -- Slots ----------------------------------------------------------------------------------------
# Which slots this broker coordinates, and what it keeps about their groups meanwhile.
#
# Owns the ownership of slots: it begins when the metadata assigns a slot to this process, and ends
# when the metadata assigns it to another. A registration gives up all slots of the broker in the
# same command, so that no process takes over what another process of the same broker began.
#
# Invariants: a slot takes requests only after a read barrier that began when it was assigned to
# this broker: its image shows everything the owner before has changed, and that the slot was not
# taken away meanwhile. No two ownerships have the same slot epoch, so a request that names its
# epoch is refused if the slot has been elsewhere since. Late copies within one ownership are found
# by numbers, which live as long as it (decision 0025): those of senders, and for deletions, which
# have no order of their own, that of the changes in line.


# Instead of a slot epoch, or of the last change: an older client, whose requests are all accepted.
NOT_SAID = 0
GroupOffsets: TypeAlias = "Map[PartitionId, CommittedOffset]"
OUTSIDERS_MAX = 1_000  # of one slot, whose last commit numbers are remembered (decision 0025)
CHANGED_MAX = 1_000  # groups of one slot whose last change is remembered (decision 0025)


def is_of_another_tenure(slot_epoch: int, own: int) -> bool:
    """Whether a request was made for an earlier ownership of the slot, or a later one."""
    return slot_epoch not in (NOT_SAID, own)


class CoordinatedGroup:
    """A group in memory, with its timer.

    Attributes:
        look_at: when its timer rings next; infinity if it is not set.
    """

    __slots__ = ("group", "look_at")

    def __init__(self, group: Group) -> None:
        self.group, self.look_at = group, math.inf


class Outsiders:
    """Senders that commit without being members, with the number of the last commit of each.

    The one that was silent for longest is forgotten first. A late copy of its commits would then be
    accepted, although it has committed again since.
    """

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_late(self, group: str, sender: str, number: int) -> bool:
        # 0: an older client, which does not number its commits.
        return 0 < number < self._numbers.get((group, sender), 0)

    def note(self, group: str, sender: str, number: int) -> None:
        if not (number and sender):  # an older client, or a member
            return
        self._numbers[group, sender] = number
        self._numbers.move_to_end((group, sender))
        if len(self._numbers) > OUTSIDERS_MAX:  # bounded memory: forget the one silent for longest
            self._numbers.popitem(last=False)


class ChangeOrder:
    """The order in which groups were changed during this ownership.

    A change has the number of its entry in the slot's pipeline. A client that deletes names the
    number of the last entry that was settled when it read the group: a group that was changed since
    is not what it has read, nor is one with changes in line. The group changed longest ago is
    forgotten first, and then counts as changed with the last forgotten one: a deletion may be
    refused needlessly, never accepted wrongly (decision 0025).
    """

    def __init__(self) -> None:
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._forgotten = NOT_SAID
        # What was read for deletions, with the number of the last entry then. Transactions commit
        # past this line, so only their effect tells of them (decision 0038).
        self._read: OrderedDict[str, tuple[int, GroupOffsets]] = OrderedDict()

    def note_read(self, group: str, seen: int, offsets: GroupOffsets) -> None:
        self._read[group] = (seen, offsets)
        self._read.move_to_end(group)
        if len(self._read) > CHANGED_MAX:
            self._read.popitem(last=False)

    def is_as_read(self, group: str, seen: int, offsets: GroupOffsets) -> bool:
        """Whether these are the group's offsets as they were read then; False, too, where that is
        forgotten."""
        return seen == NOT_SAID or self._read.get(group) == (seen, offsets)

    def note(self, group: str, number: int) -> None:
        """Numbers only rise."""
        self._changed[group] = number
        self._changed.move_to_end(group)
        if len(self._changed) > CHANGED_MAX:  # bounded memory: forget the oldest change
            _, self._forgotten = self._changed.popitem(last=False)

    def is_changed_since(self, group: str, seen: int) -> bool:
        return seen != NOT_SAID and self._changed.get(group, self._forgotten) > seen


class OwnedSlot:
    """One slot while this broker coordinates it.

    Attributes:
        pipeline: of changes of its groups.
        transactions: of changes of its transaction ids: a line of their own, so that they do not
            break up the batches of commits.
        groups: in memory: those with members, or with some about to join.
        outsiders: senders of commits in the other groups.
        order: of the changes that were put in line.
        is_loaded: it takes requests.
    """

    def __init__(
        self, ownership: SlotOwnership, pipeline: Pipeline, transactions: Pipeline
    ) -> None:
        self.ownership, self.pipeline, self.transactions = ownership, pipeline, transactions
        self.slot, self.slot_epoch = ownership.slot, ownership.slot_epoch
        self.groups: dict[str, CoordinatedGroup] = {}
        self.outsiders, self.order = Outsiders(), ChangeOrder()
        self.is_loaded = False

    def is_current(self, image: MetadataImage) -> bool:
        """Whether the slot was not assigned anew since, as far as the image knows."""
        return image.slots[self.slot].epoch == self.slot_epoch


class Slots:
    """The slots of this broker: follows the images; `find` serves requests."""

    def __init__(self, broker_id: int, open_pipeline: Callable[[SlotOwnership], Pipeline]) -> None:
        self._broker_id, self._open_pipeline = broker_id, open_pipeline
        self._owned: dict[int, OwnedSlot] = {}
        # Up to these epochs the slots have certainly gone to others, by answers of the quorum.
        self._lost_epochs = [0] * SLOT_COUNT

    def __iter__(self) -> Iterator[OwnedSlot]:
        return iter(list(self._owned.values()))

    @property
    def group_count(self) -> int:
        return sum(len(slot.groups) for slot in self._owned.values())

    def follow(
        self, image: MetadataImage, broker_epoch: int
    ) -> tuple[list[OwnedSlot], list[OwnedSlot]]:
        """Slots assigned to this process now, not loaded yet, and slots that it lost."""
        wanted = set(self._given(image, broker_epoch))
        gone = [slot for slot in self if (slot.slot, slot.slot_epoch) not in wanted]
        for slot in gone:
            del self._owned[slot.slot]
        ownerships = [
            SlotOwnership(number, epoch, broker_epoch)
            for number, epoch in sorted(wanted)
            if number not in self._owned
        ]
        given = [
            OwnedSlot(each, self._open_pipeline(each), self._open_pipeline(each))
            for each in ownerships
        ]
        self._owned.update((slot.slot, slot) for slot in given)
        return given, gone

    def _given(self, image: MetadataImage, broker_epoch: int) -> Iterable[tuple[int, int]]:
        """Slots with their epochs. An image of another process of this broker gives none."""
        registered = image.brokers.get(self._broker_id)
        # Not registered: no slot can be this process's.
        if broker_epoch == NO_EPOCH or registered is None:
            return
        if registered.broker_epoch != broker_epoch:  # an image of before this registration
            return
        for number, state in enumerate(image.slots):
            is_ours = state.broker_id == self._broker_id
            # Not lost since, by an answer of the quorum.
            if is_ours and state.epoch > self._lost_epochs[number]:
                # The image may be older than the answer that reported the loss.
                yield number, state.epoch

    def lose(self, lost: SlotOwnership) -> OwnedSlot | None:
        """The quorum has refused a command of it; None if the image showed the loss before."""
        self._lost_epochs[lost.slot] = max(self._lost_epochs[lost.slot], lost.slot_epoch)
        slot = self._owned.get(lost.slot)
        if slot is None or slot.ownership != lost:  # let go already
            return None
        return self._owned.pop(lost.slot)

    def find(self, name: str, slot_epoch: int = NOT_SAID, *, what: str = "group") -> OwnedSlot:
        """The slot of a group, or of a transaction id, if this broker owns it under that epoch.

        Raises:
            NotCoordinator: it does not.
            CoordinatorLoadInProgress: it does since a moment ago.
        """
        slot = self._owned.get(slot_of(name))
        # Another broker's, or asked for under another ownership.
        if slot is None or is_of_another_tenure(slot_epoch, slot.slot_epoch):
            raise NotCoordinator(
                f"{what} {name}: broker {self._broker_id} does not coordinate it: look it up again"
            )
        if not slot.is_loaded:  # its groups are incomplete until the barrier has returned
            raise CoordinatorLoadInProgress(
                f"{what} {name}: broker {self._broker_id} has just become its coordinator: ask"
                " again in a moment"
            )
        return slot


# -- Group timers ---------------------------------------------------------------------------------
# Ticks each group at its deadline, or later if the deadline has moved.
#
# Owns one alarm for each group in memory. Heartbeats postpone deadlines all the time without moving
# the alarm: it rings too early then, and is set again.


LATE_SECONDS = 1.0  # woken later than this: the process was suspended or starved
REST_SECONDS_MAX = 3.0  # then read requests that arrived meanwhile before any session expires


class GroupClock:
    """`look` ticks a group of a slot. Nothing is ticked before `run`."""

    def __init__(self, look: Callable[[OwnedSlot, CoordinatedGroup], None]) -> None:
        self._look = look
        self._alarms: list[tuple[float, int, OwnedSlot, CoordinatedGroup]] = []  # a heap
        self._numbers = count()
        self._sleep = trio.CancelScope()

    def set(self, slot: OwnedSlot, hosted: CoordinatedGroup) -> None:
        """After an input that may have brought the group's deadline forward."""
        deadline = hosted.group.deadline
        # After the slot was lost the groups are not ticked any more: the deadline of one that was
        # dropped before, and so not abandoned, would stay due and keep this task awake.
        if deadline >= hosted.look_at or slot.pipeline.is_lost:
            return
        hosted.look_at = deadline
        heappush(self._alarms, (deadline, next(self._numbers), slot, hosted))
        if deadline < self._sleep.deadline:  # the sleep would end too late
            self._sleep.deadline = deadline

    async def run(self) -> NoReturn:
        while True:
            due = self._alarms[0][0] if self._alarms else math.inf
            # Until the earliest alarm; `set` may bring it forward.
            with trio.CancelScope(deadline=due) as self._sleep:
                await trio.sleep_forever()
            late_seconds = trio.current_time() - self._sleep.deadline
            # Members' heartbeats are waiting in sockets: their sessions must not end before these
            # are read.
            if late_seconds > LATE_SECONDS:
                # Lets the tasks that read requests run first.
                await trio.sleep(min(late_seconds, REST_SECONDS_MAX))
            self._look_at_due(trio.current_time())

    def _look_at_due(self, now: float) -> None:
        due = []
        while self._alarms and self._alarms[0][0] <= now:
            due.append(heappop(self._alarms))
        for look_at, _, slot, hosted in due:
            if hosted.look_at != look_at:  # replaced by an earlier alarm
                continue  # it was set anew, for an earlier time
            hosted.look_at = math.inf
            if hosted.group.deadline <= now:  # heartbeats may have postponed it
                self._look(slot, hosted)
            self.set(slot, hosted)


# -- Read barrier batching ------------------------------------------------------------------------
# One read barrier for all requests that come in the meantime.
#
# Owns the barriers: one is in flight, and later requests wait for the next one, as the one in
# flight may not show what was acknowledged before they came.


class _Round:
    """One barrier, and all requests that wait for it."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.image: MetadataImage | None = None
        self.problem = ""


class ReadBarrierBatching:
    """
    Args:
        catch_up: returns once this image shows all that was acknowledged before the call.
        image: that image.
    """

    def __init__(
        self, catch_up: Callable[[], Awaitable[None]], image: Callable[[], MetadataImage]
    ) -> None:
        self._catch_up, self._image = catch_up, image
        self._next = _Round()
        self._wanted = trio.Event()

    async def look(self) -> MetadataImage:
        """An image with everything that was acknowledged, by any broker, before this call.

        Raises:
            CoordinatorNotAvailable: the quorum did not confirm it in time; definite.
        """
        # Always the next barrier: the one in flight began before this call.
        waited_for = self._next
        self._wanted.set()
        # Ends with that barrier, or its timeout.
        await waited_for.is_over.wait()
        if waited_for.image is None:  # definite: a barrier changes nothing
            raise CoordinatorNotAvailable(waited_for.problem)
        return waited_for.image

    async def run(self) -> NoReturn:
        while True:
            await self._wanted.wait()  # until a request wants a barrier
            await trio.lowlevel.checkpoint()  # requests of this turn share the barrier
            current, self._next, self._wanted = self._next, _Round(), trio.Event()
            try:
                await self._catch_up()  # until this image has caught up, or LOOK_MS_MAX is over
                current.image = self._image()
            except RaftmqError as error:  # every request of this round gets the error
                current.problem = f"the quorum does not answer: {error}: ask again"
            current.is_over.set()


# -- Coordinator ----------------------------------------------------------------------------------


NEVER_SAVED = 0  # generation of a group that the metadata does not know
GROUPS_MAX = 10_000  # in memory of one broker: with members, or with some about to join
# Saved groups, above which new ones are refused; those in memory that are not saved yet still fit.
GROUPS_SAVED_MAX = limits.GROUPS_MAX - GROUPS_MAX
LOOK_MS_MAX = 5_000  # for a read barrier; an election of the quorum takes up to two seconds
LOAD_PAUSE_SECONDS = 0.2  # before another attempt to load a slot: its groups stand still
SLICE_GROUPS = 500  # without members, or of other slots, passed over in one step of the loop


class GroupCoordinator:
    """
    Args:
        broker_epoch: of this process's registration; -1 while there is none.
        sequences: of all command ids of this broker.
        now_ms: the wall clock, for timestamps in the metadata.
    """

    def __init__(
        self,
        broker_id: int,
        quorum: MetadataQuorum,
        proposer: ControllerLink,
        changes: MetadataChanges,
        settings: CoordinatorSettings,
        *,
        broker_epoch: Callable[[], int],
        sequences: Iterator[int],
        now_ms: Callable[[], int],
    ) -> None:
        self._broker_id, self._quorum, self._proposer = broker_id, quorum, proposer
        self.settings, self.now_ms = settings, now_ms
        self._broker_epoch, self._sequences = broker_epoch, sequences
        self.looks = ReadBarrierBatching(
            partial(changes.catch_up, timeout_ms=LOOK_MS_MAX), lambda: quorum.image
        )
        self.slots = Slots(broker_id, self._pipeline)
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
                await self._follow()  # slots and registrations of each new image
        finally:
            self._nursery = None
        raise AssertionError("follows for ever")

    async def _follow(self) -> NoReturn:
        image = self._quorum.image
        while True:
            self.follow()
            before = image
            # Most versions of the metadata change neither slots nor registrations.
            while image.slots is before.slots and image.brokers is before.brokers:
                image = await self._quorum.wait_changed(image.version)

    def follow(self) -> None:
        """After any change that may assign slots to this process: images, registrations."""
        # A registration before `run`, which follows the image itself.
        if self._nursery is None:
            return
        given, gone = self.slots.follow(self._quorum.image, self._broker_epoch())
        for slot in gone:
            self._let_go(slot)
        for slot in given:
            self._nursery.start_soon(slot.pipeline.run)
            self._nursery.start_soon(slot.transactions.run)
        if given:  # one read barrier for all new slots
            self._nursery.start_soon(self._load, given)

    def _pipeline(self, ownership: SlotOwnership) -> Pipeline:
        return Pipeline(
            self._broker_id,
            ownership,
            self._proposer,
            sequences=self._sequences,
            look=self.looks.look,
            on_lost=self._on_lost,
        )

    def _on_lost(self, ownership: SlotOwnership) -> None:
        slot = self.slots.lose(ownership)
        if slot is not None:  # else the image has shown it already
            self._let_go(slot)

    def _let_go(self, slot: OwnedSlot) -> None:
        """Members that wait get an error at once, and look up the new coordinator."""
        logger.debug("slot let go: slot=%d epoch=%d", slot.slot, slot.slot_epoch)
        slot.pipeline.abandon()
        slot.transactions.abandon()
        error = NotCoordinator(f"slot {slot.slot} belongs to another broker now: look it up again")
        for hosted in slot.groups.values():
            self._answer(hosted.group.abandon(error))
        slot.groups.clear()

    # Loading

    async def _load(self, slots: list[OwnedSlot]) -> None:
        """Load all groups with members: their sessions must be able to expire, even if no member
        asks again.
        """
        while True:
            try:
                # A read barrier: shows what the coordinator before has saved.
                image = await self.looks.look()
                # The slots' requests are refused with CoordinatorLoadInProgress until this
                # succeeds.
                break
            except RaftmqError as error:  # no quorum for the moment; the slots stay unloaded
                logger.info("slots not loaded yet: slots=%d reason=%s", len(slots), error)
                # A quorum without a leader needs one or two seconds.
                await trio.sleep(LOAD_PAUSE_SECONDS)
        self.follow()  # slots that the new image has taken away are let go
        # Slicing is safe: no other broker changes these groups while the slots are this broker's.
        wanted = {slot.slot: slot for slot in slots}
        for at, (name, state) in enumerate(image.groups.items(), 1):
            slot = wanted.get(slot_of(name))
            is_wanted = slot is not None and bool(state.members)
            # Creating a group costs more than passing one over, so each is a slice of its own.
            if is_wanted or not at % SLICE_GROUPS:
                await trio.lowlevel.checkpoint()  # heartbeats of other groups are read in between
            # Lost while this loop gave up its turn.
            if slot and state.members and not slot.pipeline.is_lost:
                self._host(slot, self._group(slot, name, image))
        for slot in slots:
            slot.is_loaded = True
        # `ClusterEventLog` logs the number of slots, in one line.
        logger.debug("slots loaded: slots=%d groups=%d", len(slots), self.slots.group_count)

    def _group(self, slot: OwnedSlot, name: str, image: MetadataImage) -> Group:
        """As it was saved last, or new."""
        state, rules, epoch = image.groups.get(name), self.settings.rules, slot.slot_epoch
        if state is None:  # never saved
            return Group(name, rules, slot_epoch=epoch)
        return Group.loaded(name, state, rules, now=trio.current_time(), slot_epoch=epoch)

    def _host(self, slot: OwnedSlot, group: Group) -> CoordinatedGroup:
        hosted = slot.groups[group.name] = CoordinatedGroup(group)
        self._clock.set(slot, hosted)
        return hosted

    async def confirm(self, slot: OwnedSlot, group: str, *, seconds: float) -> MetadataImage:
        """An image with all changes made before this call, under which this broker still owns the
        slot.

        Raises:
            NotCoordinator: the slot was lost before that was known.
            CoordinatorNotAvailable: the quorum did not confirm it in time.
        """
        with trio.move_on_after(seconds):
            # Until the quorum has confirmed this image, within `seconds`.
            image = await self.looks.look()
            # Lost before, or during the barrier.
            if slot.pipeline.is_lost or not slot.is_current(image):
                raise NotCoordinator(f"group {group}: another broker coordinates it now")
            return image
        raise CoordinatorNotAvailable(f"group {group}: the quorum has not answered in time")

    # Groups

    def joined_group(self, slot: OwnedSlot, name: str) -> CoordinatedGroup:
        """The group that a member joins: in memory, as it was saved, or new.

        Raises:
            CoordinatorNotAvailable: this broker has too many groups in memory.
            GroupMaxSizeReached: it is new, and there are too many saved groups.
        """
        hosted = slot.groups.get(name)
        if hosted is not None:  # in memory, which is newer than the metadata
            return hosted
        count = len(self.image.groups)
        # The metadata of every node holds all saved groups.
        if name not in self.image.groups and count >= GROUPS_SAVED_MAX:
            raise GroupMaxSizeReached(
                f"group {name} is new, and there are {count} groups already: delete groups that"
                " are not needed any more"
            )
        if self.slots.group_count >= GROUPS_MAX:  # bounded memory of one broker
            raise CoordinatorNotAvailable(
                f"group {name}: broker {self._broker_id} coordinates {GROUPS_MAX} groups with"
                " members already: stop some of them, or add brokers"
            )
        return self._host(slot, self._group(slot, name, self.image))

    def perform(
        self, slot: OwnedSlot, hosted: CoordinatedGroup, effects: Iterable[GroupEffect]
    ) -> None:
        """Perform a group's effects; then set its timer, and drop it from memory if possible."""
        for effect in effects:
            match effect:
                case AnswerRequest():
                    self._answer((effect,))
                case SavePlan():
                    self._save(slot, hosted, effect)
                case never:
                    assert_never(never)
        self._clock.set(slot, hosted)
        self._maybe_drop(slot, hosted)

    def _answer(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            assert isinstance(effect, AnswerRequest), f"{effect} of a group that was given up"
            assert isinstance(effect.token, PendingReply), f"{effect.token}"
            effect.token.settle(Reply(effect.body))

    def _save(self, slot: OwnedSlot, hosted: CoordinatedGroup, save: SavePlan) -> None:
        command = save.command(
            slot_epoch=slot.slot_epoch,
            changed_at_ms=self.now_ms(),
            crashed=crashed_members(save.group, save.crashes, self.image),
        )
        # Nothing is saved any more: the next coordinator loads what was saved before.
        if not slot.pipeline.is_lost:
            entry = LoneCommand(command, partial(self._on_saved, slot, hosted, save))
            # `is_owed`: members wait for it, so a full pipeline must not refuse it.
            slot.pipeline.put(entry, is_owed=True)
            slot.order.note(save.group, slot.pipeline.newest)

    def _on_saved(
        self, slot: OwnedSlot, hosted: CoordinatedGroup, save: SavePlan, outcome: Outcome
    ) -> None:
        # The group was abandoned, and its members answered.
        if slot.pipeline.is_lost:
            return
        now = trio.current_time()
        if isinstance(outcome, RaftmqError):  # refused, and certainly never applied
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

    def _tick(self, slot: OwnedSlot, hosted: CoordinatedGroup) -> None:
        if not slot.pipeline.is_lost:  # lost: the new coordinator keeps the timers
            self.perform(slot, hosted, hosted.group.on_tick(trio.current_time()))

    def _maybe_drop(self, slot: OwnedSlot, hosted: CoordinatedGroup) -> None:
        group = hosted.group
        # The object may be the group's next one.
        if group.is_idle and slot.groups.get(group.name) is hosted and self._is_shown(group):
            del slot.groups[group.name]

    def _is_shown(self, group: Group) -> bool:
        """Whether this broker's metadata shows what was saved of the group last."""
        state = self.image.groups.get(group.name)
        if state is None:  # deleted, or never saved
            return group.generation == NEVER_SAVED
        return state.generation == group.generation and not state.members

    def drop_idle(self, slot: OwnedSlot) -> None:
        """Groups that stayed in memory when they became idle, as the metadata was behind."""
        for hosted in list(slot.groups.values()):
            self._maybe_drop(slot, hosted)

    async def wait_gone(self, slot: OwnedSlot, name: str, deadline: float) -> None:
        """Until a deleted group is gone from this broker's metadata, or the time is up."""
        image = self.image
        with trio.move_on_at(deadline):
            while name in image.groups or name in image.offsets:
                # The next version of the metadata, until the deadline.
                image = await self._quorum.wait_changed(image.version)
        hosted = slot.groups.get(name)
        # A member may have joined again meanwhile.
        if hosted is not None and hosted.group.is_idle and name not in image.groups:
            del slot.groups[name]
