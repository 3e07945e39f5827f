"""One broker that coordinates groups, on a fake quorum: its handlers, asked as clients ask them.

Broker 2 is the coordinator and broker 1 leads the quorum, so that what the broker knows and what is
committed are two things. Time is virtual: tests take `autojump_clock`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import asynccontextmanager
from itertools import chain, count
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.broker.broker import table_of
from raftmq.broker.groups.coordinator import GroupCoordinator
from raftmq.broker.groups.group_requests import GroupRequests, MemberRequests
from raftmq.broker.groups.offset_requests import OffsetExpiry, OffsetRequests
from raftmq.broker.groups.phases import CoordinatorSettings, GroupSettings
from raftmq.broker.metadata_changes import MetadataChanges
from raftmq.errors import ErrorCode, NotController
from raftmq.metadata.commands import (
    AssignSlot,
    CommitOffsets,
    FeatureLevel,
    SaveGroup,
    decode_command,
)
from raftmq.metadata.image import slot_of
from raftmq.rpc.context import Listener, RequestContext
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.messages.group_offsets import (
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetToCommit,
)
from raftmq.wire.messages.groups import (
    JoinGroup,
    JoinGroupReply,
    MemberAssignment,
    Protocol,
    SyncGroup,
    SyncGroupReply,
)
from tests.bodies import decode_body, encode_body
from tests.unit.broker.asking import cluster_of, said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.image import SlotState
    from raftmq.wire.bodies import Request
    from tests.simulation.quorum_fake import FakeCluster

HERE, ELSEWHERE = 2, 1
GROUP, TOPIC = "billing", b"t" * 16
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
QUICK = CoordinatorSettings(GroupSettings(initial_rebalance_delay_ms=100))


class GroupLink:
    """The way to the leader.

    Attributes:
        sent: the commands that took it, with their ids.
        is_cut: nobody takes anything.
        barriers: how many were asked for.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.sent: list[tuple[AnyCommand, CommandId | None]] = []
        self.is_cut, self.barriers = False, 0

    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float,  # noqa: ASYNC109  # as in the protocol
        command_id: CommandId | None = None,
    ) -> AnyResult:
        self.sent.append((command, command_id))
        if self.is_cut or self._cluster.leader_id is None:
            await trio.sleep(timeout)
            raise NotController("nobody leads")
        leader = self._cluster.leader
        return await leader.propose(command, timeout=timeout, command_id=command_id)

    async def read_barrier(self, *, timeout: float) -> int:  # noqa: ASYNC109  # as in the protocol
        self.barriers += 1
        if self.is_cut or self._cluster.leader_id is None:
            await trio.sleep(timeout)
            raise NotController("nobody leads")
        return (await self._cluster.leader.read_barrier()).version


class Coordinating:
    """Attributes:
    now_ms: the wall clock of the broker.
    is_clock_confirmed: whether other brokers' clocks agree.
    sequences: of the ids of its commands.
    """

    def __init__(self, cluster: FakeCluster, settings: CoordinatorSettings) -> None:
        self.cluster, self.now_ms = cluster, NOW_MS
        self.quorum = cluster.nodes[HERE]
        self.link, self.sequences = GroupLink(cluster), chain(count(1))
        self.broker_epoch = cluster.leader.image.brokers[HERE].broker_epoch
        self.coordinator = GroupCoordinator(
            HERE,
            self.quorum,
            self.link,
            MetadataChanges(self.quorum, self.link),
            settings,
            broker_epoch=lambda: self.broker_epoch,
            sequences=iter(lambda: next(self.sequences), None),
            now_ms=lambda: self.now_ms,
        )
        self.is_clock_confirmed = True
        self.expiry = OffsetExpiry(
            self.coordinator, lambda: self.now_ms if self.is_clock_confirmed else None
        )
        self.handlers = table_of(
            [
                MemberRequests(self.coordinator, Random(1), voters=cluster.nodes),
                OffsetRequests(self.coordinator),
                GroupRequests(self.coordinator),
            ]
        )

    # The metadata

    def slot_state(self, group: str = GROUP) -> SlotState:
        return self.cluster.leader.image.slots[slot_of(group)]

    async def give(self, broker_id: int, *groups: str) -> None:
        """The slots of these groups to a broker, as the controller does."""
        for group in groups or (GROUP,):
            await said(
                self.cluster,
                AssignSlot(slot_of(group), self.slot_state(group).epoch, broker_id),
            )

    def committed(self, partition: int = 0, group: str = GROUP) -> int | None:
        found = self.cluster.leader.image.offsets.get(group, {}).get((TOPIC, partition))
        return None if found is None else found.offset

    def log(self, kind: type[Any]) -> list[Any]:
        """The commands of that kind that were committed, repetitions included."""
        commands = [decode_command(entry.data).command for entry in self.cluster.log]
        return [command for command in commands if isinstance(command, kind)]

    def commits(self) -> list[CommitOffsets]:
        return self.log(CommitOffsets)

    def saves(self) -> list[SaveGroup]:
        return self.log(SaveGroup)

    # Requests

    def begin(self, request: Request, *, client: str = "test") -> Asked:
        """In line before this returns."""
        context = RequestContext("anonymous", Listener("clients"), client, 1, "peer")
        return Asked(request, self.handlers[type(request)](context, request, b""))

    async def ask(self, request: Request, *, client: str = "test") -> Any:
        return await self.begin(request, client=client).answer()

    async def commit(self, offset: int, partition: int = 0, **more: Any) -> OffsetCommitReply:
        reply: OffsetCommitReply = await self.ask(commit_of(offset, partition, **more))
        return reply

    async def fetched(self, partition: int = 0, group: str = GROUP) -> int:
        """The offset, -1 if there is none."""
        reply = await self.ask(OffsetFetch(group))
        assert reply.error == ErrorCode.NONE, reply.message
        return {it.partition: it.offset for it in reply.partitions}.get(partition, -1)


class Asked:
    """A request that was handled, and the answer to it once there is one."""

    def __init__(self, request: Request, result: Any) -> None:
        self._request, self._result = request, result
        self.reply: Reply | None = None
        self._told = trio.Event()
        if isinstance(result, Reply):
            self._tell(result)
        elif isinstance(result, PendingReply):
            result.attach(self._tell)

    def _tell(self, reply: Reply | Exception) -> None:
        assert isinstance(reply, Reply), f"{reply}"
        self.reply = reply
        self._told.set()

    @property
    def is_answered(self) -> bool:
        return self._told.is_set()

    @property
    def body(self) -> Any:
        assert self.reply is not None, "not answered yet"
        assert self.reply.error == ErrorCode.NONE, self.reply.message
        assert self.reply.body is not None
        return decode_body(self._request.reply, encode_body(self.reply.body))

    async def answer(self) -> Any:
        if isinstance(self._result, Awaitable):
            self._tell(await self._result)
        await self._told.wait()
        return self.body

    def drop(self) -> None:
        """Its connection ends."""
        assert isinstance(self._result, PendingReply)
        self._result.drop()


@asynccontextmanager
async def coordinating(
    settings: CoordinatorSettings = QUICK, *groups: str, level: int = FeatureLevel.FIRST
) -> AsyncIterator[Coordinating]:
    """The slots of `groups`, or of GROUP, are this broker's, and loaded."""
    cluster = await cluster_of(None, None, None, level=level)
    here = Coordinating(cluster, settings)
    await here.give(HERE, *groups)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.coordinator.run)
        await settle()
        yield here
        nursery.cancel_scope.cancel()


async def settle(seconds: float = 0.05) -> None:
    """A moment for tasks that have something to do."""
    await trio.sleep(seconds)


def commit_of(offset: int, partition: int = 0, **more: Any) -> OffsetCommit:
    """By nobody, unless `generation` and `member_id` say otherwise."""
    expected, group = more.pop("expected", None), more.pop("group", GROUP)
    metadata = more.pop("metadata", "")
    one = OffsetToCommit(TOPIC, partition, offset, metadata=metadata, expected=expected)
    who = {"generation": -1, "member_id": "", **more}
    return OffsetCommit(group, partitions=(one,), **who)


def join_of(member_id: str = "", *, group: str = GROUP, **more: Any) -> JoinGroup:
    protocols = (Protocol("range", more.pop("subscription", b"topics")),)
    facts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, **more}
    return JoinGroup(group, member_id, protocols, **facts)


async def joined(here: Coordinating, count: int, **more: Any) -> list[JoinGroupReply]:
    """So many members, who have joined together; the first one leads."""
    asked = []
    for number in range(count):
        refused = await here.ask(join_of(**more), client=f"c{number}")
        assert refused.error == ErrorCode.MEMBER_ID_REQUIRED, refused.message
        asked.append(here.begin(join_of(refused.member_id, **more), client=f"c{number}"))
    replies = [await one.answer() for one in asked]
    assert all(reply.error == ErrorCode.NONE for reply in replies), replies
    return replies


async def synced(
    here: Coordinating, members: list[JoinGroupReply], *, group: str = GROUP
) -> list[SyncGroupReply]:
    """The plan gives every member its own id."""
    plan = tuple(MemberAssignment(one.member_id, one.member_id.encode()) for one in members)
    asked = []
    for one in members:
        given = plan if one.member_id == one.leader else ()
        request = SyncGroup(group, one.generation, one.member_id, assignments=given)
        asked.append(here.begin(request))
    return [await one.answer() for one in asked]


async def stable(here: Coordinating, count: int, **more: Any) -> list[JoinGroupReply]:
    members = await joined(here, count, **more)
    replies = await synced(here, members, group=more.get("group", GROUP))
    for member, reply in zip(members, replies, strict=True):
        assert (reply.error, reply.assignment) == (ErrorCode.NONE, member.member_id.encode())
    return members
