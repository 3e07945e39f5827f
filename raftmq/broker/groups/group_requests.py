"""Group requests: FindCoordinator, list, describe and delete; join, sync, heartbeat and leave.

Owns these requests. Any broker answers which one coordinates a group, as far as its metadata goes;
everything else is answered by the coordinator.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.broker.groups.batches import Decision
from raftmq.broker.groups.checks import (
    NO_OFFSETS,
    SEEN_MAX,
    check_as_read,
    check_memberless,
    check_name,
    check_unchanged,
    seen_offsets,
    told,
)
from raftmq.broker.groups.pipeline import PendingEntry
from raftmq.broker.requests.levels import check_level
from raftmq.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    RaftmqError,
    UnknownMemberId,
)
from raftmq.metadata.commands import NO_BROKER, DeleteGroup, FeatureLevel
from raftmq.metadata.image import slot_of
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.messages.groups import (
    GROUPS_LISTED_MAX,
    DeleteGroups,
    DeleteGroupsReply,
    DescribedGroup,
    DescribeGroups,
    DescribeGroupsReply,
    FindCoordinator,
    FindCoordinatorReply,
    GroupOutcome,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
    SyncGroup,
    SyncGroupReply,
)
from raftmq.wire.messages.groups import (
    CoordinatorRow as CoordinatorFound,
)
from raftmq.wire.tag_clauses import read_filter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterable, Iterator
    from random import Random

    from raftmq.broker.groups.coordinator import CoordinatedGroup, GroupCoordinator, OwnedSlot
    from raftmq.broker.groups.phases import GroupEffect
    from raftmq.metadata.image import MetadataImage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer


EMPTY = "Empty"  # the state of a group that has only offsets
SLICE_GROUPS = 1_000  # names passed over in one step of the loop
PAGE_BYTES_MAX = 1 << 20  # of a list, estimated: half of `header_bytes_max`
LISTED_BYTES = 50  # of one group, at most, without its names
CONFIRM_SECONDS_MAX = 10.0  # for the read barrier in flight and the next one


class GroupRequests:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handlers(self) -> Handlers:
        return {
            FindCoordinator: self.find,
            ListGroups: self.list,
            DescribeGroups: self.describe,
            DeleteGroups: self.delete,
        }

    def find(self, _context: RequestContext, request: FindCoordinator, _payload: Buffer) -> Reply:
        image = self._coordinator.image
        found = [_coordinator_of(image, group) for group in request.groups]
        return Reply(FindCoordinatorReply(tuple(found)))

    # List

    async def list(self, _context: RequestContext, request: ListGroups, _payload: Buffer) -> Reply:
        slots = {slot.slot: slot for slot in self._coordinator.slots}
        # A partial list would look like groups that are gone.
        if not all(slot.is_loaded for slot in slots.values()):
            error = CoordinatorLoadInProgress("this broker is taking over groups: ask again")
            return Reply(ListGroupsReply(**told(error)))
        image, after = self._coordinator.image, request.after
        found = {name for slot in slots.values() for name in slot.groups if name > after}
        for at, name in enumerate(_known(image), 1):
            # Of a slot of this broker, behind the last page.
            if name > after and slot_of(name) in slots:
                found.add(name)
            # Tens of thousands of names: other tasks need turns.
            if not at % SLICE_GROUPS:
                await trio.lowlevel.checkpoint()
        listed = (_listed(slots[slot_of(name)], image, name) for name in sorted(found))
        page = _page(listed)
        has_more = len(page) < len(found)
        return Reply(ListGroupsReply(groups=page, has_more=has_more, slots=tuple(sorted(slots))))

    # Describe

    async def describe(
        self, _context: RequestContext, request: DescribeGroups, _payload: Buffer
    ) -> Reply:
        deadline = trio.current_time() + CONFIRM_SECONDS_MAX  # for all: there may be a hundred
        described = [await self._described(name, deadline) for name in request.groups]
        return Reply(DescribeGroupsReply(tuple(described)))

    async def _described(self, name: str, deadline: float) -> DescribedGroup:
        try:
            check_name(name)
            slot = self._coordinator.slots.find(name)
            hosted = slot.groups.get(name)
            if hosted is not None:
                return hosted.group.describe()
            image = self._coordinator.image
            # Its first commit may have been answered before this image shows it.
            if name not in image.groups and name not in image.offsets:
                # A read barrier shows every answered commit.
                seconds = max(deadline - trio.current_time(), 0)
                image = await self._coordinator.confirm(slot, name, seconds=seconds)
            return _described(image, name)
        except RaftmqError as error:  # each group has its own error
            return DescribedGroup(name, **told(error))

    # Delete

    async def delete(
        self, _context: RequestContext, request: DeleteGroups, _payload: Buffer
    ) -> Reply:
        """All of them at once; each has its own outcome."""
        deadline = trio.current_time() + request.timeout_ms / 1000
        begun = {name: self._begin_deletion(name, request) for name in request.groups}
        outcomes = []
        for name, deletion in begun.items():
            # They were put in line together, so the waits overlap.
            error = await self._end_deletion(name, deletion, deadline)
            outcomes.append(GroupOutcome(name, **told(error) if error else {}))
        return Reply(DeleteGroupsReply(tuple(outcomes)))

    def _begin_deletion(self, name: str, request: DeleteGroups) -> _Deletion | RaftmqError:
        try:
            check_name(name)
            slot = self._coordinator.slots.find(name, request.slot_epoch)
            check_memberless(slot, name)
            check_unchanged(slot, name, request.last_change)
            decide = partial(_deletion, slot, name, request.last_change)
            waiting = PendingEntry(partial(Decision, decide))
            slot.pipeline.put(waiting.entry)
        except RaftmqError as error:  # each group has its own error
            return error
        return _Deletion(slot, waiting)

    async def _end_deletion(
        self, name: str, deletion: _Deletion | RaftmqError, deadline: float
    ) -> RaftmqError | None:
        """Returns once the group is gone from this image as well, if there is time for that."""
        if isinstance(deletion, RaftmqError):
            return deletion
        slot, waiting = deletion
        # Until it is applied, or the deadline.
        outcome = await waiting.wait(slot.pipeline, deadline)
        if isinstance(outcome, RaftmqError):  # refused, or unknown at the deadline
            return outcome
        # So that a client that lists next on this broker does not see it.
        await self._coordinator.wait_gone(slot, name, deadline)
        return None


def _deletion(slot: OwnedSlot, name: str, last_change: int, image: MetadataImage) -> DeleteGroup:
    """Raises InvalidUpdateVersion: what was read for this deletion is there no more."""
    check_as_read(slot, name, last_change, image)
    offsets = image.offsets.get(name, NO_OFFSETS)
    # More would not fit into a command.
    is_few = len(offsets) <= SEEN_MAX
    return DeleteGroup(
        slot.slot_epoch, name, seen_offsets(image, name, offsets) if is_few else None
    )


class _Deletion(NamedTuple):
    slot: OwnedSlot
    waiting: PendingEntry


def _coordinator_of(image: MetadataImage, group: str) -> CoordinatorFound:
    try:
        check_name(group)
        number = slot_of(group)
        slot = image.slots[number]
        # Between a broker's end and the new assignment of its slots.
        if slot.broker_id == NO_BROKER or not image.is_unfenced(slot.broker_id):
            raise CoordinatorNotAvailable(
                f"group {group}: no broker coordinates slot {number} for the moment: ask again"
            )
    except RaftmqError as error:  # each group has its own error
        return CoordinatorFound(group, **told(error))
    return CoordinatorFound(group, broker_id=slot.broker_id, slot_epoch=slot.epoch)


def _known(image: MetadataImage) -> Iterator[str]:
    """Groups that were saved or have offsets; some twice."""
    yield from image.groups
    yield from image.offsets


def _page(listed: Iterable[ListedGroup]) -> tuple[ListedGroup, ...]:
    """As many as fit into one answer; at least one."""
    page: list[ListedGroup] = []
    size = 0
    for one in listed:
        size += LISTED_BYTES + len(one.group.encode()) + len(one.protocol_type.encode())
        # The first one always fits, or paging would not proceed.
        if page and (size > PAGE_BYTES_MAX or len(page) == GROUPS_LISTED_MAX):
            break
        page.append(one)
    return tuple(page)


def _listed(slot: OwnedSlot, image: MetadataImage, name: str) -> ListedGroup:
    # In memory its state is newer than in the image.
    hosted = slot.groups.get(name)
    if hosted is not None:
        return hosted.group.listed()
    state = image.groups.get(name)
    return ListedGroup(name, state.protocol_type if state else "", EMPTY)


def _described(image: MetadataImage, name: str) -> DescribedGroup:
    """Of a group without members. Raises GroupIdNotFound."""
    state = image.groups.get(name)
    if state is not None:  # saved, without members in memory: empty
        return DescribedGroup(
            name,
            state=EMPTY,
            generation=state.generation,
            protocol_type=state.protocol_type,
            protocol=state.protocol,
        )
    # Offsets alone make a group: programs commit without joining.
    if name not in image.offsets:
        raise GroupIdNotFound(f"group {name} does not exist: it has no members and no offsets")
    return DescribedGroup(name, state=EMPTY)


# -- Member requests ------------------------------------------------------------------------------
# JoinGroup, SyncGroup, Heartbeat and LeaveGroup, from the connection to the rules of the group.
#
# Owns these requests. They are handled in the order of arrival, without waiting; an answer comes
# when the rules say so.


MEMBER_ID_BYTES = 16  # random, so that ids are unique; the client's name precedes them for people
CLIENT_CHARS_MAX = 150  # of that name; epoch and time are put in front, and ids are limited


class MemberRequests:
    """
    Args:
        chance: draws the ids of members.
        voters: of the quorum; groups have filters once all of them know how to keep them.
    """

    def __init__(
        self, coordinator: GroupCoordinator, chance: Random, *, voters: Collection[int]
    ) -> None:
        self._coordinator, self._chance, self._voters = coordinator, chance, voters

    def handlers(self) -> Handlers:
        return {
            JoinGroup: self.join,
            SyncGroup: self.sync,
            Heartbeat: self.heartbeat,
            LeaveGroup: self.leave,
        }

    def join(
        self, context: RequestContext, request: JoinGroup, _payload: Buffer
    ) -> Reply | PendingReply | Awaitable[Reply]:
        # A static member's first step, in which it gets its id.
        if request.instance_id is not None and not request.member_id:
            return self._join_confirmed(context, request)
        return self._join(context, request)

    async def _join_confirmed(self, context: RequestContext, request: JoinGroup) -> Reply:
        """Of two processes of a static member the one with the earlier id is fenced. So an id is
        given out only behind a read barrier: a coordinator that was deposed without knowing it
        would give one that looks older than that of an ended process, and the only living process
        would be fenced (decision 0025).
        """
        try:
            check_name(request.group)
            slot = self._coordinator.slots.find(request.group, request.slot_epoch)
            timeout_ms, rules = request.session_timeout_ms, self._coordinator.settings.rules
            # Checked before the wait, as `on_join` would do after it.
            rules.check_session_timeout(request.group, timeout_ms)
            seconds = min(timeout_ms / 1000, CONFIRM_SECONDS_MAX)
            # A read barrier, see above.
            await self._coordinator.confirm(slot, request.group, seconds=seconds)
        # Not the coordinator, or no quorum: certainly nothing was given out.
        except RaftmqError as error:
            return Reply(JoinGroupReply(**told(error)))
        answer = self._join(context, request)
        # The slot may have been lost during the wait.
        if isinstance(answer, Reply):
            return answer
        assert isinstance(answer.outcome, Reply), "a request without an id is answered at once"
        return answer.outcome

    def _join(self, context: RequestContext, request: JoinGroup) -> Reply | PendingReply:
        try:
            check_name(request.group)
            slot = self._coordinator.slots.find(request.group, request.slot_epoch)
            self._check_filter(request)
            hosted = self._coordinator.joined_group(slot, request.group)
        except RaftmqError as error:
            return Reply(JoinGroupReply(**told(error), member_id=request.member_id))
        pending = self._parked(hosted)
        effects = hosted.group.on_join(
            request,
            pending,
            client_id=context.client_id,
            host=context.peer,
            new_member_id=self._new_member_id(context.client_id),
            now=trio.current_time(),
        )
        self._coordinator.perform(slot, hosted, effects)
        return pending

    def _check_filter(self, request: JoinGroup) -> None:
        """
        Raises:
            InvalidRequest: it is not in its normal form.
            UnsupportedVersion, NotController: some node would lose it.
        """
        if read_filter(request.tags) is None:
            return
        image, what = self._coordinator.image, f"group {request.group}: a filter of tags"
        check_level(image, FeatureLevel.TAGS, voters=self._voters, what=what)

    def sync(
        self, _context: RequestContext, request: SyncGroup, _payload: Buffer
    ) -> Reply | PendingReply:
        try:
            slot, hosted = self._find(request.group, request.slot_epoch)
        except RaftmqError as error:
            return Reply(SyncGroupReply(**told(error)))
        pending = self._parked(hosted)
        effects = hosted.group.on_sync(request, pending, now=trio.current_time())
        return self._performed(slot, hosted, effects, pending)

    def heartbeat(
        self, _context: RequestContext, request: Heartbeat, _payload: Buffer
    ) -> Reply | PendingReply:
        try:
            slot, hosted = self._find(request.group, request.slot_epoch)
        except RaftmqError as error:
            return Reply(HeartbeatReply(**told(error)))
        pending = PendingReply()
        effects = hosted.group.on_heartbeat(request, pending, now=trio.current_time())
        return self._performed(slot, hosted, effects, pending)

    def leave(
        self, _context: RequestContext, request: LeaveGroup, _payload: Buffer
    ) -> Reply | PendingReply:
        try:
            slot, hosted = self._find(request.group, request.slot_epoch)
        except RaftmqError as error:
            return Reply(LeaveGroupReply(**told(error)))
        pending = PendingReply()
        effects = hosted.group.on_leave(request, pending, now=trio.current_time())
        return self._performed(slot, hosted, effects, pending)

    def _find(self, name: str, slot_epoch: int) -> tuple[OwnedSlot, CoordinatedGroup]:
        """
        Raises:
            NotCoordinator, CoordinatorLoadInProgress: see `Slots.find`.
            UnknownMemberId: the group has no members.
        """
        check_name(name)
        slot = self._coordinator.slots.find(name, slot_epoch)
        hosted = slot.groups.get(name)
        if hosted is None:  # its last member has left, or none ever joined
            raise UnknownMemberId(f"group {name} has no members: join it")
        return slot, hosted

    def _performed(
        self,
        slot: OwnedSlot,
        hosted: CoordinatedGroup,
        effects: list[GroupEffect],
        pending: PendingReply,
    ) -> PendingReply:
        self._coordinator.perform(slot, hosted, effects)
        return pending

    def _parked(self, hosted: CoordinatedGroup) -> PendingReply:
        """An answer that may take minutes; the group is notified if the connection ends."""
        pending = PendingReply()
        # Not an argument: the group knows the request by its very reply.
        pending.on_dropped = partial(self._forget, hosted, pending)
        return pending

    def _forget(self, hosted: CoordinatedGroup, pending: PendingReply) -> None:
        hosted.group.forget(pending, now=trio.current_time())

    def _new_member_id(self, client_id: str) -> str:
        drawn = self._chance.randbytes(MEMBER_ID_BYTES).hex()
        return f"{client_id[:CLIENT_CHARS_MAX]}-{drawn}" if client_id else drawn
