"""Groups as a whole: who coordinates them, which there are, what they are, and their end.

Owns these requests. Who coordinates, any broker says as far as its metadata goes; all else is for
the coordinator.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.broker.groups.awaited import Awaited
from raftmq.broker.groups.checks import check_memberless, check_name, check_unchanged, told
from raftmq.broker.groups.entries import Change
from raftmq.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    RaftmqError,
)
from raftmq.metadata.commands import NO_BROKER, DeleteGroup
from raftmq.metadata.image import slot_of
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.messages.groups import (
    GROUPS_LISTED_MAX,
    DeleteGroupsReply,
    DescribedGroup,
    DescribeGroupsReply,
    FindCoordinatorReply,
    GroupOutcome,
    ListedGroup,
    ListGroupsReply,
)
from raftmq.wire.messages.groups import (
    Coordinator as CoordinatorFound,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.broker.groups.coordinator import Coordinator
    from raftmq.broker.groups.slots import OwnedSlot
    from raftmq.metadata.image import MetadataImage
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.groups import (
        DeleteGroups,
        DescribeGroups,
        FindCoordinator,
        ListGroups,
    )

EMPTY = "Empty"
SLICE_GROUPS = 1_000  # looked at in one go
PAGE_BYTES_MAX = 1 << 20  # of a list, of which an answer holds 2 MiB
LISTED_BYTES = 50  # of one group, at most, beside names


class GroupRequests:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.LIST_GROUPS: self.list,
            ApiKey.DESCRIBE_GROUPS: self.describe,
            ApiKey.DELETE_GROUPS: self.delete,
        }

    def find(self, _context: RequestContext, request: FindCoordinator, _payload: Buffer) -> Reply:
        image = self._coordinator.image
        found = [_coordinator_of(image, group) for group in request.groups]
        return Reply(FindCoordinatorReply(tuple(found)))

    # Which there are

    async def list(self, _context: RequestContext, request: ListGroups, _payload: Buffer) -> Reply:
        slots = {slot.slot: slot for slot in self._coordinator.slots}
        if not all(slot.is_loaded for slot in slots.values()):
            error = CoordinatorLoadInProgress("this broker is taking over groups: ask again")
            return Reply(ListGroupsReply(**told(error)))
        image, after = self._coordinator.image, request.after
        found = {name for slot in slots.values() for name in slot.groups if name > after}
        for at, name in enumerate(_known(image), 1):
            if name > after and slot_of(name) in slots:
                found.add(name)
            if not at % SLICE_GROUPS:
                await trio.lowlevel.checkpoint()
        listed = (_listed(slots[slot_of(name)], image, name) for name in sorted(found))
        page = _page(listed)
        return Reply(ListGroupsReply(groups=page, has_more=len(page) < len(found)))

    # What they are

    def describe(
        self, _context: RequestContext, request: DescribeGroups, _payload: Buffer
    ) -> Reply:
        described = [self._described(name) for name in request.groups]
        return Reply(DescribeGroupsReply(tuple(described)))

    def _described(self, name: str) -> DescribedGroup:
        try:
            check_name(name)
            slot = self._coordinator.slots.find(name)
            hosted = slot.groups.get(name)
            if hosted is not None:
                return hosted.group.describe()
            return _described(self._coordinator.image, name)
        except RaftmqError as error:
            return DescribedGroup(name, **told(error))

    # Their end

    async def delete(
        self, _context: RequestContext, request: DeleteGroups, _payload: Buffer
    ) -> Reply:
        """All at once; each stands for itself."""
        deadline = trio.current_time() + request.timeout_ms / 1000
        begun = {name: self._begin_deletion(name, request) for name in request.groups}
        outcomes = []
        for name, deletion in begun.items():
            error = await self._end_deletion(name, deletion, deadline)
            outcomes.append(GroupOutcome(name, **told(error) if error else {}))
        return Reply(DeleteGroupsReply(tuple(outcomes)))

    def _begin_deletion(self, name: str, request: DeleteGroups) -> _Deletion | RaftmqError:
        try:
            check_name(name)
            slot = self._coordinator.slots.find(name, request.slot_epoch)
            check_memberless(slot, name)
            check_unchanged(slot, name, request.last_change)
            waiting = Awaited(partial(Change, DeleteGroup(slot.slot_epoch, name)))
            slot.pipeline.put(waiting.entry)
        except RaftmqError as error:
            return error
        return _Deletion(slot, waiting)

    async def _end_deletion(
        self, name: str, deletion: _Deletion | RaftmqError, deadline: float
    ) -> RaftmqError | None:
        """Once it is gone here as well, as far as there is time for that."""
        if isinstance(deletion, RaftmqError):
            return deletion
        slot, waiting = deletion
        outcome = await waiting.wait(slot.pipeline, deadline)
        if isinstance(outcome, RaftmqError):
            return outcome
        await self._coordinator.wait_gone(slot, name, deadline)
        return None


class _Deletion(NamedTuple):
    slot: OwnedSlot
    waiting: Awaited


def _coordinator_of(image: MetadataImage, group: str) -> CoordinatorFound:
    try:
        check_name(group)
        number = slot_of(group)
        slot = image.slots[number]
        if slot.broker_id == NO_BROKER or not image.is_unfenced(slot.broker_id):
            raise CoordinatorNotAvailable(
                f"group {group}: nobody coordinates slot {number} for the moment: ask again"
            )
    except RaftmqError as error:
        return CoordinatorFound(group, **told(error))
    return CoordinatorFound(group, broker_id=slot.broker_id, slot_epoch=slot.epoch)


def _known(image: MetadataImage) -> Iterator[str]:
    """Saved, or with offsets; some of them twice."""
    yield from image.groups
    yield from image.offsets


def _page(listed: Iterable[ListedGroup]) -> tuple[ListedGroup, ...]:
    """As many as fit into one answer; at least one."""
    page: list[ListedGroup] = []
    size = 0
    for one in listed:
        size += LISTED_BYTES + len(one.group.encode()) + len(one.protocol_type.encode())
        if page and (size > PAGE_BYTES_MAX or len(page) == GROUPS_LISTED_MAX):
            break
        page.append(one)
    return tuple(page)


def _listed(slot: OwnedSlot, image: MetadataImage, name: str) -> ListedGroup:
    hosted = slot.groups.get(name)
    if hosted is not None:
        return hosted.group.listed()
    state = image.groups.get(name)
    return ListedGroup(name, state.protocol_type if state else "", EMPTY)


def _described(image: MetadataImage, name: str) -> DescribedGroup:
    """Of a group without members. Raises GroupIdNotFound."""
    state = image.groups.get(name)
    if state is not None:
        return DescribedGroup(
            name,
            state=EMPTY,
            generation=state.generation,
            protocol_type=state.protocol_type,
            protocol=state.protocol,
        )
    if name not in image.offsets:
        raise GroupIdNotFound(f"group {name} does not exist: nobody joined it or committed for it")
    return DescribedGroup(name, state=EMPTY)
