"""Offsets of groups: committed, fetched, forgotten.

Owns these requests. A commit is put in line where it arrives, so that commits of one connection
keep their order, and is answered once it is applied. A fetch shows every commit that was answered
before it. Who gives up waiting for a change is told whether it may still happen.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio
from immutables import Map

from raftmq.broker.groups import commit
from raftmq.broker.groups.batches import Commits, Decision, GroupChange
from raftmq.broker.groups.checks import check_name, check_unchanged, told
from raftmq.broker.groups.pipeline import PendingEntry
from raftmq.errors import (
    GroupSubscribedToTopic,
    InvalidRequest,
    InvalidUpdateVersion,
    NonEmptyGroup,
    QuorumBusy,
    RaftmqError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raftmq.metadata.commands import DeleteGroup, DeleteOffsets, PartitionId
from raftmq.metadata.image import slot_of
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import ABSENT, PARTITIONS_MAX, PartitionOutcome
from raftmq.wire.messages.group_offsets import (
    FetchedOffset,
    OffsetCommitReply,
    OffsetDeleteReply,
    OffsetFetchReply,
)
from raftmq.wire.messages.groups import interest_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from raftmq.broker.groups.batches import Outcome
    from raftmq.broker.groups.coordinator import GroupCoordinator, OwnedSlot
    from raftmq.metadata.image import CommittedOffset, MetadataImage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handler
    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetDelete, OffsetFetch


logger = logging.getLogger("raftmq.broker")


# What groups have committed is in the memory of every node of the cluster.
GROUPS_WITH_OFFSETS_MAX = 100_000
OFFSETS_OF_GROUP_MAX = 100_000
NO_OFFSETS: Map[PartitionId, CommittedOffset] = Map()


class OffsetRequests:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_DELETE: self.delete,
        }

    # Commit

    def commit(
        self, _context: RequestContext, request: OffsetCommit, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        """In line before this returns."""
        deadline = trio.current_time() + request.timeout_ms / 1000
        try:
            slot = self._admitted(request)
            parts = commit.plan(request, now_ms=self._coordinator.now_ms())
            waiting = [PendingEntry(partial(Commits, request.group, part)) for part in parts]
            if not request.partitions and not slot.pipeline.is_idle:
                waiting.append(
                    PendingEntry(partial(Decision, _nothing))
                )  # behind all that is in line
            _put_all(slot, waiting)
            _note_number(slot, request)  # one without partitions settles what is on its way
            if parts:
                slot.order.note(request.group, slot.pipeline.newest)
        except RaftmqError as error:
            return Reply(OffsetCommitReply(**told(error)))
        return self._committed(request, slot, waiting, deadline)

    async def _committed(
        self, request: OffsetCommit, slot: OwnedSlot, waiting: list[PendingEntry], deadline: float
    ) -> Reply:
        parts = []
        for one in waiting:
            outcome = await one.wait(slot.pipeline, deadline)
            if isinstance(one.entry, Commits):
                parts.append((one.entry.commits, outcome))
            elif isinstance(outcome, RaftmqError):
                return Reply(OffsetCommitReply(**told(outcome)))
        return Reply(commit.answer(request, parts))

    def _admitted(self, request: OffsetCommit) -> OwnedSlot:
        """The slot of the group, if this member may commit now. Raises RaftmqError."""
        check_name(request.group)
        slot = self._coordinator.slots.find(request.group, request.slot_epoch)
        hosted = slot.groups.get(request.group)
        if hosted is not None:
            refusal = hosted.group.commit_refusal(
                request.member_id, request.generation, request.instance_id, request.number
            )
            if refusal is not None:
                raise refusal
        elif request.member_id or request.generation != ABSENT:
            raise _unknown(request.group, request.member_id)
        if slot.outsiders.is_late(request.group, request.sender, request.number):
            raise InvalidUpdateVersion(
                f"group {request.group}: whoever sent commit {request.number} has committed again"
                " since; nothing was changed"
            )
        _check_room(self._coordinator.image, request)
        return slot

    # Fetch

    async def fetch(
        self, _context: RequestContext, request: OffsetFetch, _payload: Buffer
    ) -> Reply:
        deadline = trio.current_time() + request.timeout_ms / 1000
        try:
            check_name(request.group)
            slot = self._coordinator.slots.find(request.group)
            if request.partitions == ():
                await _settle(slot, deadline)
            # What is in line may be shown or not, so it does not count as seen.
            last_change = slot.pipeline.settled
            image = await self._newest(slot, request, deadline)
            found = tuple(_fetched(image, request))
        except RaftmqError as error:
            return Reply(OffsetFetchReply(**told(error)))
        return Reply(
            OffsetFetchReply(partitions=found, slot_epoch=slot.slot_epoch, last_change=last_change)
        )

    async def _newest(
        self, slot: OwnedSlot, request: OffsetFetch, deadline: float
    ) -> MetadataImage:
        """An image that shows every commit that was answered before the request came.

        Raises:
            NotCoordinator, CoordinatorNotAvailable: see `GroupCoordinator.confirm`.
            UnknownMemberId, IllegalGeneration: of whoever asks.
        """
        seconds = max(0.0, deadline - trio.current_time())
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
            command = DeleteOffsets(slot.slot_epoch, request.group, wanted)
            waiting = PendingEntry(partial(GroupChange, command))
            slot.pipeline.put(waiting.entry)
        except RaftmqError as error:
            return Reply(OffsetDeleteReply(**told(error)))
        outcome = await waiting.wait(slot.pipeline, deadline)
        if isinstance(outcome, RaftmqError):
            return Reply(OffsetDeleteReply(**told(outcome)))
        kept = told(GroupSubscribedToTopic(f"members of group {request.group} read the topic"))
        outcomes = [
            PartitionOutcome(*key, **(kept if key.topic_id in read else {})) for key in keys
        ]
        return Reply(OffsetDeleteReply(partitions=tuple(outcomes)))

    def _topics_read(self, slot: OwnedSlot, group: str) -> set[bytes]:
        """The ids of topics that members subscribe to.

        Raises:
            NonEmptyGroup: it has members, and what they subscribe to only they know.
        """
        hosted = slot.groups.get(group)
        members = () if hosted is None else hosted.group.describe().members
        topic_ids, read = self._coordinator.image.topic_ids, set[bytes]()
        for member in members:
            interest = interest_in(member.subscription)
            if interest is None:
                raise NonEmptyGroup(
                    f"group {group} has {len(members)} members, and only they know what they read:"
                    " have them leave first"
                )
            read.update(topic_ids[name] for name in interest.topics if name in topic_ids)
        return read


async def _settle(slot: OwnedSlot, deadline: float) -> None:
    """Return when all that is in line has its outcome: whoever looks in order to delete is not to
    be refused for what had been asked before, like the leaving of the last member.

    Raises:
        NotCoordinator, CoordinatorNotAvailable, QuorumBusy: that is not known in time.
    """
    if slot.pipeline.is_idle:
        return
    waiting = PendingEntry(partial(Decision, _nothing))
    slot.pipeline.put(waiting.entry)
    outcome = await waiting.wait(slot.pipeline, deadline)
    if isinstance(outcome, RaftmqError):
        raise outcome


def _nothing(_image: MetadataImage) -> None:
    """To be decided by whoever only waits for what is in line before it."""


def _note_number(slot: OwnedSlot, request: OffsetCommit) -> None:
    hosted = slot.groups.get(request.group)
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
    except RaftmqError:
        for one in put:
            slot.pipeline.withdraw(one.entry)
        raise


def _check_room(image: MetadataImage, request: OffsetCommit) -> None:
    """What is there already may be committed anew, however much there is. Raises QuorumBusy."""
    known = image.offsets.get(request.group)
    if known is None:
        if len(image.offsets) >= GROUPS_WITH_OFFSETS_MAX:
            raise QuorumBusy(
                f"group {request.group} is new, and {len(image.offsets)} groups have committed"
                " offsets: delete groups that nobody needs"
            )
    elif len(known) >= OFFSETS_OF_GROUP_MAX and any(
        PartitionId(wanted.topic_id, wanted.partition) not in known for wanted in request.partitions
    ):
        raise QuorumBusy(
            f"group {request.group} has committed offsets of {len(known)} partitions: delete those"
            " that nobody needs"
        )


def _check_member(slot: OwnedSlot, request: OffsetFetch) -> None:
    """Whoever is a member may fetch while partitions are dealt out."""
    if not request.member_id and request.generation == ABSENT:
        return
    hosted = slot.groups.get(request.group)
    if hosted is None:
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
    if request.partitions is not None:
        asked = [PartitionId(one.topic_id, one.partition) for one in request.partitions]
        return [_offset(key, known.get(key)) for key in asked]
    if len(known) > PARTITIONS_MAX:
        raise InvalidRequest(
            f"group {request.group} has offsets of {len(known)} partitions: name those that you"
            f" want, at most {PARTITIONS_MAX} at once"
        )
    return [_offset(key, known[key]) for key in sorted(known)]


def _offset(key: PartitionId, found: CommittedOffset | None) -> FetchedOffset:
    if found is None:
        return FetchedOffset(*key)
    return FetchedOffset(
        *key, found.offset, found.leader_epoch, found.metadata, found.committed_at_ms
    )


def _unknown(group: str, member_id: str) -> UnknownMemberId:
    return UnknownMemberId(f"group {group} has no member {member_id!r}: join it")


# -- Expiry ---------------------------------------------------------------------------------------
# Offsets that nobody needs any more: those of groups that have been without members for long, and
# those of topics that are gone.
#
# Owns what is forgotten, and when it is looked for. Whether it is still so is decided in the line
# of the slot, by an image that shows every commit that came before: an offset that was committed
# since stays.


LOOK_SECONDS = 600.0
SLICE = 5_000  # offsets, or names of others' groups, looked at in one go
DELETED_MAX = 10_000  # offsets of one command
# A topic that was made a moment ago may be known to whoever commits, and not to this broker yet.
GONE_MS = 600_000


class OffsetExpiry:
    """`confirmed_ms`: the wall clock; None while it cannot be believed, and nothing expires."""

    def __init__(
        self, coordinator: GroupCoordinator, confirmed_ms: Callable[[], int | None]
    ) -> None:
        self._coordinator, self._confirmed_ms = coordinator, confirmed_ms

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """At all groups of this broker, once."""
        coordinator = self._coordinator
        slots = {slot.slot: slot for slot in coordinator.slots if slot.is_loaded}
        for slot in slots.values():
            coordinator.drop_idle(slot)
        image, found, seen = coordinator.image, 0, 0
        for name in _names(image):
            owner = slots.get(slot_of(name))
            seen += 1 if owner is None else 10 + len(image.offsets.get(name, ()))
            if owner is not None and self._command(owner, name, image) is not None:
                self._forget(owner, name)
                found += 1
            if seen >= SLICE:
                seen = 0
                await trio.lowlevel.checkpoint()
        if found:
            logger.info("offsets to be forgotten: groups=%d", found)

    def _forget(self, slot: OwnedSlot, name: str) -> None:
        """If it is not taken now, it is found again the next time."""
        try:
            decide = partial(self._command, slot, name)
            slot.pipeline.put(Decision(decide, partial(_note, name)))
        except RaftmqError as error:
            _note(name, error)

    def _command(
        self, slot: OwnedSlot, name: str, image: MetadataImage
    ) -> DeleteGroup | DeleteOffsets | None:
        """What of the group is to be forgotten now."""
        if name not in image.groups and name not in image.offsets:
            return None
        now_ms = self._confirmed_ms()
        if now_ms is None:
            return None
        count = len(image.offsets.get(name, ()))
        gone = set(_of_gone_topics(image, name, now_ms=now_ms))
        if name not in slot.groups:
            gone.update(self._expired(image, name, now_ms=now_ms))
            if len(gone) == count and self._is_old(image, name, now_ms=now_ms):
                return DeleteGroup(slot.slot_epoch, name)
        if not gone:
            return None
        return DeleteOffsets(slot.slot_epoch, name, tuple(sorted(gone))[:DELETED_MAX])

    def _expired(self, image: MetadataImage, name: str, *, now_ms: int) -> Iterator[PartitionId]:
        if self._is_old(image, name, now_ms=now_ms):
            before_ms = now_ms - self._coordinator.settings.offsets_retention_ms
            for key, offset in image.offsets.get(name, {}).items():
                if offset.committed_at_ms <= before_ms:
                    yield key

    def _is_old(self, image: MetadataImage, name: str, *, now_ms: int) -> bool:
        """Whether it has had no members for so long. One that was never saved never had any."""
        state = image.groups.get(name)
        if state is None:
            return True
        age_ms = now_ms - state.changed_at_ms
        return not state.members and age_ms >= self._coordinator.settings.offsets_retention_ms


def _of_gone_topics(image: MetadataImage, name: str, *, now_ms: int) -> Iterator[PartitionId]:
    for key, offset in image.offsets.get(name, {}).items():
        if key.topic_id not in image.topics and offset.committed_at_ms <= now_ms - GONE_MS:
            yield key


def _names(image: MetadataImage) -> list[str]:
    """All that were saved, or have offsets."""
    return [*image.groups, *(name for name in image.offsets if name not in image.groups)]


def _note(name: str, outcome: Outcome) -> None:
    if isinstance(outcome, RaftmqError):
        logger.info("offsets not forgotten yet: group=%s reason=%s", name, outcome)
