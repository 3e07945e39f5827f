"""What coordinators do about groups, on top of a `Bureau`: kept in dicts, compared as told.

What goes wrong is scripted: `errors` holds one for each of the next changes, and `LOST` is one that
is carried out before the connection ends; `before` is called as the next commit arrives.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.client.administration.admin import Admin
from raftmq.client.group.planning import encode_assignment, encode_subscription
from raftmq.errors import ErrorCode
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import PartitionOutcome
from raftmq.wire.messages import group_offsets, groups
from tests.unit.client.administration.bureau import LOST, Bureau
from tests.unit.client.world import World, never, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from raftmq.wire.bodies import Request
    from tests.unit.client.world import Broker

Key = tuple[str, int]
COMMITTED_AT_MS = 1000


def member(name: str, *partitions: Key, client: str = "app", host: str = "h") -> Any:
    """Of a group, reading these partitions."""
    topics = {topic for topic, _ in partitions}
    return groups.DescribedMember(
        name,
        None,
        client,
        host,
        encode_subscription(topics),
        encode_assignment(partitions),
    )


class Registry:
    """Attributes:
    groups: that have ever had members.
    offsets: what is committed, by the name of the group.
    coordinators: broker ids, by the name of the group; else 1.
    errors: of the next changes. finds: of the next searches for a coordinator.
    lists: of the next lists, by broker.
    fetched_max: partitions in one answer.
    listed_max: groups in one answer.
    before: called as the next commit arrives.
    slots: those that the next answers of a broker cover; without, it does not say.
    seen: slot epoch and last change, as each look at offsets is told next.
    """

    def __init__(self, bureau: Bureau) -> None:
        self.bureau, self.world = bureau, bureau.world
        self.groups: dict[str, groups.DescribedGroup] = {}
        self.offsets: dict[str, dict[tuple[bytes, int], group_offsets.FetchedOffset]] = {}
        self.coordinators: dict[str, int] = {}
        self.errors: list[Any] = []
        self.finds: list[Any] = []
        self.lists: dict[int, list[ErrorCode]] = {}
        self.fetched_max = self.listed_max = 1000
        self.slots: dict[int, list[tuple[int, ...]]] = {}
        self.before: Callable[[], None] = lambda: None
        self.seen: Iterator[tuple[int, int]] = repeat((0, 0))  # an older broker
        for broker in self.world.brokers.values():
            self._employ(broker)

    # -- for tests -------------------------------------------------------------------------

    def add(self, name: str, *members: Any, generation: int = 3, tags: str = "") -> None:
        """A group, empty without members."""
        self.groups[name] = groups.DescribedGroup(
            name,
            state="Stable" if members else "Empty",
            generation=generation,
            protocol_type="consumer",
            protocol="range" if members else "",
            leader=members[0].member_id if members else "",
            members=members,
            tags=tags,
        )

    def commit(self, name: str, offsets: Mapping[Key, int], metadata: str = "") -> None:
        for (topic, partition), offset in offsets.items():
            key = (self.world.topics[topic].topic_id, partition)
            told = group_offsets.FetchedOffset(*key, offset, 0, metadata, COMMITTED_AT_MS)
            self.offsets.setdefault(name, {})[key] = told

    def committed(self, name: str) -> dict[Key, int]:
        names = {topic.topic_id: name for name, topic in self.world.topics.items()}
        found = self.offsets.get(name, {})
        return {(names[key[0]], key[1]): one.offset for key, one in sorted(found.items())}

    def refused(self, key: tuple[bytes, int], error: ErrorCode) -> Any:
        return group_offsets.CommitOutcome(*key, error)

    # -- at work ---------------------------------------------------------------------------

    def _employ(self, broker: Broker) -> None:
        reads: dict[type[Request], Callable[[Any], Any]] = {
            groups.FindCoordinator: partial(self._find, broker),
            groups.ListGroups: partial(self._list, broker.broker_id),
            groups.DescribeGroups: partial(self._describe, broker.broker_id),
            group_offsets.OffsetFetch: partial(self._fetch, broker.broker_id),
        }
        changes: dict[type[Request], Callable[[Any, ErrorCode], Reply]] = {
            groups.DeleteGroups: self._delete,
            group_offsets.OffsetCommit: self._commit,
            group_offsets.OffsetDelete: self._delete_offsets,
        }
        for key, change in changes.items():
            reads[key] = partial(self._turn, broker, change)
        for key, answer in reads.items():
            broker.handlers[key] = partial(self._answer, (broker.broker_id, key), answer)

    def _answer(
        self,
        place: tuple[int, type[Request]],
        answer: Callable[[Any], Any],
        _c: Any,
        body: Any,
        _p: Any,
    ) -> Any:
        instead = self.bureau.instead
        return Reply(instead[place]) if place in instead else answer(body)

    def _turn(self, broker: Broker, change: Callable[[Any, ErrorCode], Reply], body: Any) -> Any:
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        name = body.groups[0] if isinstance(body, groups.DeleteGroups) else body.group
        if not error and self._coordinator(name) != broker.broker_id:
            error = ErrorCode.NOT_COORDINATOR
        reply = change(body, ErrorCode.NONE if error is LOST else error)
        if error is not LOST:
            return reply
        broker.hang_up()
        return never()

    def _coordinator(self, name: str) -> int:
        return self.coordinators.get(name, 1)

    def _find(self, broker: Broker, body: groups.FindCoordinator) -> Any:
        (name,) = body.groups
        error = self.finds.pop(0) if self.finds else ErrorCode.NONE
        if error is LOST:
            broker.hang_up()
            return never()
        told = groups.CoordinatorRow(name, error, broker_id=self._coordinator(name))
        return Reply(groups.FindCoordinatorReply((told,)))

    def _list(self, broker_id: int, body: groups.ListGroups) -> Reply:
        errors = self.lists.get(broker_id)
        error = errors.pop(0) if errors else ErrorCode.NONE
        names = [name for name in self._names() if self._coordinator(name) == broker_id]
        mine = [self._known(name) for name in names]
        told = tuple(
            groups.ListedGroup(one.group, one.protocol_type, one.state, len(one.members))
            for one in mine
            if one.group > body.after
        )
        page = told[: self.listed_max]
        has_more = len(page) < len(told)
        listed = groups.ListGroupsReply(error, error.name if error else "", page, has_more)
        if left := self.slots.get(broker_id):
            listed = replace(listed, slots=left.pop(0))
        return Reply(listed)

    def _describe(self, broker_id: int, body: groups.DescribeGroups) -> Reply:
        (name,) = body.groups
        found = groups.DescribedGroup(name, ErrorCode.NOT_COORDINATOR)
        if self._coordinator(name) == broker_id:
            found = self._known(name)
        return Reply(groups.DescribeGroupsReply((found,)))

    def _names(self) -> list[str]:
        return sorted({*self.groups, *(name for name, found in self.offsets.items() if found)})

    def _known(self, name: str) -> groups.DescribedGroup:
        """Offsets alone make a group."""
        if name in self.groups:
            return self.groups[name]
        if name in self._names():
            return groups.DescribedGroup(name, state="Empty")
        return groups.DescribedGroup(name, ErrorCode.GROUP_ID_NOT_FOUND)

    def _delete(self, body: groups.DeleteGroups, error: ErrorCode) -> Reply:
        (name,) = body.groups
        error = error or ErrorCode(self._known(name).error)
        if not error:
            self.groups.pop(name, None)
            self.offsets.pop(name, None)
        told = groups.GroupOutcome(name, error, error.name if error else "")
        return Reply(groups.DeleteGroupsReply((told,)))

    def _fetch(self, broker_id: int, body: group_offsets.OffsetFetch) -> Reply:
        if self._coordinator(body.group) != broker_id:
            return Reply(group_offsets.OffsetFetchReply(ErrorCode.NOT_COORDINATOR))
        known = self.offsets.get(body.group, {})
        if body.partitions is None and len(known) > self.fetched_max:
            return Reply(group_offsets.OffsetFetchReply(ErrorCode.INVALID_REQUEST, "too many"))
        asked = body.partitions
        keys = [(one.topic_id, one.partition) for one in asked] if asked is not None else known
        assert len(keys) <= self.fetched_max, "more than an answer holds"
        found = tuple(known.get(key, group_offsets.FetchedOffset(*key)) for key in keys)
        epoch, change = next(self.seen)
        reply = group_offsets.OffsetFetchReply(
            partitions=found, slot_epoch=epoch, last_change=change
        )
        return Reply(reply)

    def _commit(self, body: group_offsets.OffsetCommit, error: ErrorCode) -> Reply:
        before, self.before = self.before, lambda: None
        before()
        group = self.groups.get(body.group)
        if not error and group is not None and group.members:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error:
            return Reply(group_offsets.OffsetCommitReply(error, error.name))
        told = tuple(self._commit_one(body.group, one) for one in body.partitions)
        return Reply(group_offsets.OffsetCommitReply(partitions=told))

    def _commit_one(self, name: str, one: group_offsets.OffsetToCommit) -> Any:
        key, offsets = (one.topic_id, one.partition), self.offsets.setdefault(name, {})
        there = offsets[key].offset if key in offsets else -1
        if one.expected not in (None, there):
            code = ErrorCode.INVALID_UPDATE_VERSION
            return group_offsets.CommitOutcome(*key, code, there)
        told = group_offsets.FetchedOffset(
            *key, one.offset, one.leader_epoch, one.metadata, COMMITTED_AT_MS
        )
        offsets[key] = told
        return group_offsets.CommitOutcome(*key)

    def _delete_offsets(self, body: group_offsets.OffsetDelete, error: ErrorCode) -> Reply:
        """The errors are those of the partitions, one after the other, but where it is refused."""
        if error in (ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_UPDATE_VERSION):
            return Reply(group_offsets.OffsetDeleteReply(error, error.name))
        errors = [error, *self.errors][: len(body.partitions)]
        self.errors = self.errors[len(body.partitions) - 1 :]
        errors += [ErrorCode.NONE] * (len(body.partitions) - len(errors))
        told = []
        for one, code in zip(body.partitions, errors, strict=True):
            if not code:
                self.offsets.get(body.group, {}).pop((one.topic_id, one.partition), None)
            told.append(PartitionOutcome(one.topic_id, one.partition, code))
        return Reply(group_offsets.OffsetDeleteReply(partitions=tuple(told)))


@asynccontextmanager
async def open_registry() -> AsyncIterator[tuple[Registry, Admin]]:
    """Two brokers, with the topics of `prepared`."""
    world = World(2)
    registry = prepared(Bureau(world))
    async with open_world(world), world.client() as cluster:
        yield registry, Admin(cluster, timeout_seconds=10)


def prepared(bureau: Bureau) -> Registry:
    """Topic "u" has two partitions, with the offsets 2 to 10 and 0 to 5; "t" comes by itself."""
    first, second = bureau.world.add_topic("u", 1, 1).partitions
    first.log_start_offset, first.end_offset, second.end_offset = 2, 10, 5
    return Registry(bureau)
