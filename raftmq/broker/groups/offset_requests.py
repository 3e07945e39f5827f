"""Offset requests of groups (OffsetCommit, OffsetFetch, OffsetDelete), and offset expiry.

Owns these requests. A commit is put in line when it arrives, so that commits of one connection keep
their order, and is answered once it is applied. A fetch shows every commit that was answered before
it came. A client whose wait ends without an outcome learns whether the change may still happen.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.broker.groups import commit
from raftmq.broker.groups.batches import Commits, Decision
from raftmq.broker.groups.checks import (
    NO_OFFSETS,
    SEEN_MAX,
    check_as_read,
    check_name,
    check_room,
    check_unchanged,
    seen_offsets,
    told,
)
from raftmq.broker.groups.crashes import counts_crashes
from raftmq.broker.groups.pipeline import PendingEntry
from raftmq.errors import (
    GroupSubscribedToTopic,
    InvalidRequest,
    InvalidUpdateVersion,
    NonEmptyGroup,
    RaftmqError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raftmq.metadata.commands import (
    NO_OFFSET,
    DeleteGroup,
    DeleteOffsets,
    PartitionId,
)
from raftmq.metadata.image import slot_of
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX, PartitionOutcome
from raftmq.wire.messages.group_offsets import (
    FetchedOffset,
    OffsetCommit,
    OffsetCommitReply,
    OffsetDelete,
    OffsetDeleteReply,
    OffsetFetch,
    OffsetFetchReply,
)
from raftmq.wire.messages.groups import interest_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from raftmq.broker.groups.batches import Outcome
    from raftmq.broker.groups.coordinator import GroupCoordinator, OwnedSlot
    from raftmq.metadata.image import CommittedOffset, MetadataImage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer


logger = logging.getLogger("raftmq.broker")


class OffsetRequests:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handlers(self) -> Handlers:
        return {
            OffsetCommit: self.commit,
            OffsetFetch: self.fetch,
            OffsetDelete: self.delete,
        }

    # Commit

    def commit(
        self, _context: RequestContext, request: OffsetCommit, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        """Put in line before this returns."""
        deadline = trio.current_time() + request.timeout_ms / 1000
        try:
            slot = self._admitted(request)
            parts = commit.plan(
                request,
                now_ms=self._coordinator.now_ms(),
                counts_crashes=counts_crashes(self._coordinator.image),
            )
            waiting = [PendingEntry(partial(Commits, request.group, part)) for part in parts]
            # A commit without partitions waits for all that is in line before it (decision 0025).
            if not request.partitions and not slot.pipeline.is_idle:
                waiting.append(
                    PendingEntry(partial(Decision, _nothing))
                )  # behind all that is in line
            _put_all(slot, waiting)
            _note_number(slot, request)  # also of a commit without partitions: it voids late ones
            if parts:  # a deletion that was prepared before is void now
                slot.order.note(request.group, slot.pipeline.newest)
        except RaftmqError as error:  # certainly nothing was put in line
            return Reply(OffsetCommitReply(**told(error)))
        return self._committed(request, slot, waiting, deadline)

    async def _committed(
        self, request: OffsetCommit, slot: OwnedSlot, waiting: list[PendingEntry], deadline: float
    ) -> Reply:
        parts = []
        # In order; each wait ends with its outcome or at the common deadline.
        for one in waiting:
            # Committed, refused, or unknown at the deadline.
            outcome = await one.wait(slot.pipeline, deadline)
            if isinstance(one.entry, Commits):
                parts.append((one.entry.commits, outcome))
            elif isinstance(outcome, RaftmqError):
                # The entry of a commit without partitions (decision 0025) only waits for those
                # before it. There are no parts then: its error is the whole answer.
                return Reply(OffsetCommitReply(**told(outcome)))
        return Reply(commit.answer(request, parts))

    def _admitted(self, request: OffsetCommit) -> OwnedSlot:
        """The slot of the group, if this sender may commit now. Raises RaftmqError."""
        check_name(request.group)
        slot = self._coordinator.slots.find(request.group, request.slot_epoch)
        hosted = slot.groups.get(request.group)
        # Not in memory means no members: only senders that claim no membership may commit.
        if hosted is not None:
            refusal = hosted.group.commit_refusal(
                request.member_id, request.generation, request.instance_id, request.number
            )
            if refusal is not None:  # not a member, fenced, or rebalancing
                raise refusal
        # Claims membership in a group without members.
        elif request.member_id or request.generation != ABSENT:
            raise _unknown(request.group, request.member_id)
        # A late copy, see `Outsiders`.
        if slot.outsiders.is_late(request.group, request.sender, request.number):
            raise InvalidUpdateVersion(
                f"group {request.group}: the sender of commit {request.number} has committed again"
                " since; nothing was changed"
            )
        keys = [PartitionId(one.topic_id, one.partition) for one in request.partitions]
        check_room(self._coordinator.image, request.group, keys)
        return slot

    # Fetch

    async def fetch(
        self, _context: RequestContext, request: OffsetFetch, _payload: Buffer
    ) -> Reply:
        deadline = trio.current_time() + request.timeout_ms / 1000
        try:
            check_name(request.group)
            slot = self._coordinator.slots.find(request.group)
            # All partitions: as an administrator asks before deleting (decision 0025).
            if request.partitions == ():
                # Or the deletion that follows is refused for changes of before.
                await _settle(slot, deadline)
            # Changes in line may be in the image or not, so they do not count as seen.
            last_change = slot.pipeline.settled
            # A read barrier, within the deadline.
            image = await self._newest(slot, request, deadline)
            found = tuple(_fetched(image, request))
            if request.partitions == ():
                offsets = image.offsets.get(request.group, NO_OFFSETS)
                slot.order.note_read(request.group, last_change, offsets)
        except RaftmqError as error:
            return Reply(OffsetFetchReply(**told(error)))
        return Reply(
            OffsetFetchReply(partitions=found, slot_epoch=slot.slot_epoch, last_change=last_change)
        )

    async def _newest(
        self, slot: OwnedSlot, request: OffsetFetch, deadline: float
    ) -> MetadataImage:
        """An image with every commit that was answered before the request came.

        Raises:
            NotCoordinator, CoordinatorNotAvailable: see `GroupCoordinator.confirm`.
            UnknownMemberId, IllegalGeneration: of the sender.
        """
        seconds = max(0.0, deadline - trio.current_time())
        # A read barrier: this broker's image alone may be behind.
        image = await self._coordinator.confirm(slot, request.group, seconds=seconds)
        _check_member(slot, request)
        return image

    # Delete

    async def delete(
        self, _context: RequestContext, request: OffsetDelete, _payload: Buffer
    ) -> Reply:
        deadline = trio.current_time() + request.timeout_ms / 1000
        keys = [PartitionId(one.topic_id, one.partition) for one in request.partitions]
        try:
            check_name(request.group)
            slot = self._coordinator.slots.find(request.group, request.slot_epoch)
            check_unchanged(slot, request.group, request.last_change)
            read = self._topics_read(slot, request.group)
            wanted = tuple(key for key in keys if key.topic_id not in read)
            decide = partial(_deletion, slot, request, wanted)
            waiting = PendingEntry(partial(Decision, decide))
            # Put in line at once: a check after a wait could be overtaken by a commit.
            slot.pipeline.put(waiting.entry)
        except RaftmqError as error:
            return Reply(OffsetDeleteReply(**told(error)))
        # Applied, refused, or unknown at the deadline.
        outcome = await waiting.wait(slot.pipeline, deadline)
        if isinstance(outcome, RaftmqError):
            return Reply(OffsetDeleteReply(**told(outcome)))
        # Partitions of topics that members read are kept, and refused one by one.
        kept = told(GroupSubscribedToTopic(f"members of group {request.group} read the topic"))
        outcomes = [
            PartitionOutcome(*key, **(kept if key.topic_id in read else {})) for key in keys
        ]
        return Reply(OffsetDeleteReply(partitions=tuple(outcomes)))

    def _topics_read(self, slot: OwnedSlot, group: str) -> set[bytes]:
        """The ids of topics that members subscribe to.

        Raises:
            NonEmptyGroup: members use an assignor whose subscriptions only they can read.
        """
        hosted = slot.groups.get(group)
        members = () if hosted is None else hosted.group.describe().members
        topic_ids, read = self._coordinator.image.topic_ids, set[bytes]()
        for member in members:
            interest = interest_in(member.subscription)
            # Not our encoding of subscriptions.
            if interest is None:
                raise NonEmptyGroup(
                    f"group {group} has {len(members)} members, and only they know what they read:"
                    " have them leave first"
                )
            read.update(topic_ids[name] for name in interest.topics if name in topic_ids)
        return read


async def _settle(slot: OwnedSlot, deadline: float) -> None:
    """Wait until everything in line has its outcome: a client that reads in order to delete should
    not be refused for changes that were asked for before, such as the last member's leaving.

    Raises:
        NotCoordinator, CoordinatorNotAvailable, QuorumBusy: not known in time.
    """
    if slot.pipeline.is_idle:
        return
    waiting = PendingEntry(partial(Decision, _nothing))
    slot.pipeline.put(waiting.entry)
    outcome = await waiting.wait(slot.pipeline, deadline)  # until all before it has its outcome
    if isinstance(outcome, RaftmqError):  # the slot was lost, or time is up
        raise outcome


def _nothing(_image: MetadataImage) -> None:
    """The decision of an entry that only waits for those before it."""


def _note_number(slot: OwnedSlot, request: OffsetCommit) -> None:
    hosted = slot.groups.get(request.group)
    # Members' numbers are kept with the member, those of other senders with the slot.
    if request.member_id and hosted is not None:
        hosted.group.note_commit(request.member_id, request.number)
    else:
        slot.outsiders.note(request.group, request.sender, request.number)


def _put_all(slot: OwnedSlot, waiting: Iterable[PendingEntry]) -> None:
    """All or none: nothing is sent before this task waits."""
    put: list[PendingEntry] = []
    try:
        for one in waiting:
            slot.pipeline.put(one.entry)
            put.append(one)
    except RaftmqError:  # the line is full: take back what was put in
        for one in put:
            slot.pipeline.withdraw(one.entry)
        raise


def _deletion(
    slot: OwnedSlot, request: OffsetDelete, wanted: tuple[PartitionId, ...], image: MetadataImage
) -> DeleteOffsets:
    """The image shows all that was in line before. What a transaction commits from here on stays.

    Raises:
        InvalidUpdateVersion: what was read for this deletion is there no more.
    """
    check_as_read(slot, request.group, request.last_change, image)
    there = image.offsets.get(request.group, NO_OFFSETS)
    seen = seen_offsets(image, request.group, [key for key in wanted if key in there])
    if seen is None:
        return DeleteOffsets(slot.slot_epoch, request.group, wanted)
    return DeleteOffsets(slot.slot_epoch, request.group, (), seen)


def _check_member(slot: OwnedSlot, request: OffsetFetch) -> None:
    """A member may fetch offsets while the group rebalances: it is how it prepares to read."""
    if not request.member_id and request.generation == ABSENT:
        return
    hosted = slot.groups.get(request.group)
    if hosted is None:  # claims membership in a group without members
        raise _unknown(request.group, request.member_id)
    refusal = hosted.group.commit_refusal(
        request.member_id, request.generation, request.instance_id
    )
    if refusal is not None and not isinstance(refusal, RebalanceInProgress):
        raise refusal


def _fetched(image: MetadataImage, request: OffsetFetch) -> Iterable[FetchedOffset]:
    """
    Raises:
        InvalidRequest: too many for one answer.
    """
    known = image.offsets.get(request.group, NO_OFFSETS)
    if request.partitions is not None:  # named by the client: unknown ones are answered as absent
        asked = [PartitionId(one.topic_id, one.partition) for one in request.partitions]
        return [_offset(key, known.get(key)) for key in asked]
    # Where nothing is committed, crashes alone may be counted.
    there = sorted(key for key, one in known.items() if one.offset != NO_OFFSET)
    # Only where no partitions are named can the answer exceed the limit of the wire.
    if len(there) > PARTITIONS_MAX:
        raise InvalidRequest(
            f"group {request.group} has offsets of {len(there)} partitions: name those that you"
            f" want, at most {PARTITIONS_MAX} at once"
        )
    return [_offset(key, known[key]) for key in there]


def _offset(key: PartitionId, found: CommittedOffset | None) -> FetchedOffset:
    if found is None:  # nothing was committed for it
        return FetchedOffset(*key)
    crashes = 0 if found.crashes is None else found.crashes.count
    if found.offset == NO_OFFSET:
        return FetchedOffset(*key, crashes=crashes)
    return FetchedOffset(
        *key, found.offset, found.leader_epoch, found.metadata, found.committed_at_ms, crashes
    )


def _unknown(group: str, member_id: str) -> UnknownMemberId:
    return UnknownMemberId(f"group {group} has no member {member_id!r}: join it")


# -- Offset expiry --------------------------------------------------------------------------------
# Deletes offsets of groups that have had no members for the retention time, and of deleted topics.
#
# Owns what expires and when that is checked. The decision itself is an entry of the slot's
# pipeline, with an image that shows every commit before it: an offset that was committed since
# stays. Commits of transactions take another line, so the command says what it saw.
# (Kafka: offsets.retention.minutes)


LOOK_SECONDS = 600.0  # between checks; retention is counted in days
SLICE = 5_000  # offsets, or names of other brokers' groups, checked in one step of the loop
DELETED_MAX = SEEN_MAX  # offsets in one command; the rest goes with the next check
# A topic that is unknown here may have been created a moment ago, and be known to the sender.
GONE_MS = 600_000


class OffsetExpiry:
    """`confirmed_ms`: the wall clock; None while it is not confirmed, and nothing expires."""

    def __init__(
        self, coordinator: GroupCoordinator, confirmed_ms: Callable[[], int | None]
    ) -> None:
        self._coordinator, self._confirmed_ms = coordinator, confirmed_ms

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Check all groups of this broker, once."""
        coordinator = self._coordinator
        slots = {slot.slot: slot for slot in coordinator.slots if slot.is_loaded}
        for slot in slots.values():
            coordinator.drop_idle(slot)
        image, found, seen = coordinator.image, 0, 0
        for name in _names(image):
            owner = slots.get(slot_of(name))
            # Weights: passing over another broker's group costs a tenth of checking one's own.
            seen += 1 if owner is None else 10 + len(image.offsets.get(name, ()))
            if owner is not None and self._command(owner, name, image) is not None:
                self._forget(owner, name)
                found += 1
            if seen >= SLICE:  # a long list must not hold up the loop
                seen = 0
                await trio.lowlevel.checkpoint()
        if found:
            logger.info("offsets to be forgotten: groups=%d", found)

    def _forget(self, slot: OwnedSlot, name: str) -> None:
        """If the line is full the next check finds it again."""
        try:
            decide = partial(self._command, slot, name)
            slot.pipeline.put(Decision(decide, partial(_note, name)))
        except RaftmqError as error:  # the line is full: the next check tries again
            _note(name, error)

    def _command(
        self, slot: OwnedSlot, name: str, image: MetadataImage
    ) -> DeleteGroup | DeleteOffsets | None:
        """The command that deletes what has expired by now; None if nothing has."""
        if name not in image.groups and name not in image.offsets:
            return None
        now_ms = self._confirmed_ms()
        # Clock not confirmed: too early a deletion cannot be undone (decision 0026).
        if now_ms is None:
            return None
        count = len(image.offsets.get(name, ()))
        gone = set(_of_gone_topics(image, name, now_ms=now_ms))
        # Groups in memory have members, or had until a moment ago.
        if name not in slot.groups:
            gone.update(self._expired(image, name, now_ms=now_ms))
            # Nothing is left: the group goes as a whole, once it fits into one command.
            is_last = len(gone) == count <= DELETED_MAX
            if is_last and self._is_old(image, name, now_ms=now_ms):
                return DeleteGroup(slot.slot_epoch, name, seen_offsets(image, name, gone))
        if not gone:  # everything is still wanted
            return None
        found = sorted(gone)[:DELETED_MAX]
        seen = seen_offsets(image, name, found)
        if seen is None:
            return DeleteOffsets(slot.slot_epoch, name, tuple(found))
        return DeleteOffsets(slot.slot_epoch, name, (), seen)

    def _expired(self, image: MetadataImage, name: str, *, now_ms: int) -> Iterator[PartitionId]:
        # No members for long, so no member goes on from these.
        if self._is_old(image, name, now_ms=now_ms):
            before_ms = now_ms - self._coordinator.settings.offsets_retention_ms
            for key, offset in image.offsets.get(name, {}).items():
                # A program without membership may still commit.
                if offset.committed_at_ms <= before_ms:
                    yield key

    def _is_old(self, image: MetadataImage, name: str, *, now_ms: int) -> bool:
        """Whether it has had no members for the retention time. One never saved never had any."""
        state = image.groups.get(name)
        if state is None:  # programs that only store offsets
            return True
        age_ms = now_ms - state.changed_at_ms
        return not state.members and age_ms >= self._coordinator.settings.offsets_retention_ms


def _of_gone_topics(image: MetadataImage, name: str, *, now_ms: int) -> Iterator[PartitionId]:
    for key, offset in image.offsets.get(name, {}).items():
        # Deleted for certain, not just unknown here yet.
        if key.topic_id not in image.topics and offset.committed_at_ms <= now_ms - GONE_MS:
            yield key


def _names(image: MetadataImage) -> list[str]:
    """All groups that were saved or have offsets."""
    return [*image.groups, *(name for name in image.offsets if name not in image.groups)]


def _note(name: str, outcome: Outcome) -> None:
    if isinstance(outcome, RaftmqError):  # the next check finds it again
        logger.info("offsets not forgotten yet: group=%s reason=%s", name, outcome)
