"""Requests that wait for others: a thousand members on one connection do not block each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.rpc.window import RequestWindow
from raftmq.wire.messages.groups import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    Protocol,
)
from tests.unit.rpc.talk import CLIENTS, channel_to, connected, greeted, new_server

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.rpc.server import Handler
    from raftmq.wire.bodies import Request

JOIN = JoinGroup("billing", "m", (Protocol("range"),), 10_000, 60_000)
FEW = RpcLimits(requests_in_flight_max=5, patient_requests_max=50)


class Waiting:
    """Joins wait until all are let go; heartbeats are answered."""

    def __init__(self) -> None:
        self.parked: list[PendingReply] = []
        self.beats = 0

    def handlers(self) -> dict[type[Request], Handler]:
        return {JoinGroup: self._join, Heartbeat: self._beat}

    def _join(self, *_: object) -> PendingReply:
        self.parked.append(PendingReply())
        return self.parked[-1]

    def _beat(self, *_: object) -> Reply:
        self.beats += 1
        return Reply(HeartbeatReply())

    def let_go(self) -> None:
        for one in self.parked:
            one.settle(Reply(JoinGroupReply(generation=1)))


async def test_members_on_one_connection(autojump_clock: MockClock) -> None:
    """A thousand wait for each other, and heartbeats go past them, on both sides of the wire."""
    waiting, joined = Waiting(), 0

    async def join() -> None:
        nonlocal joined
        answer = await channel.request(JOIN, timeout_seconds=60.0)
        joined += answer.body.generation

    async with channel_to(waiting.handlers(), CLIENTS) as channel, trio.open_nursery() as nursery:
        for _ in range(1_000):
            nursery.start_soon(join)
        await trio.sleep(1.0)
        assert len(waiting.parked) == 1_000
        await channel.request(Heartbeat("billing", 1, "m"), timeout_seconds=1.0)
        waiting.let_go()
    assert (joined, waiting.beats) == (1_000, 1)


async def test_they_are_bounded_all_the_same(autojump_clock: MockClock) -> None:
    """More than the limit are requests like others; once they are answered, all goes on."""
    waiting = Waiting()
    async with connected(new_server(waiting.handlers(), limits=FEW), CLIENTS) as stream:
        stranger = await greeted(stream)
        await stranger.send(*([JOIN] * 100), Heartbeat("billing", 1, "m"))
        await trio.sleep(1.0)
        assert (len(waiting.parked), waiting.beats) == (55, 0)
        waiting.let_go()
        await trio.sleep(1.0)
        assert (len(waiting.parked), waiting.beats) == (100, 1)


async def test_a_connection_that_only_waits_is_not_idle(autojump_clock: MockClock) -> None:
    """A join that takes longer than a connection may be silent: it is answered."""
    waiting = Waiting()
    limits = RpcLimits(idle_seconds_max=10.0)
    async with connected(new_server(waiting.handlers(), limits=limits), CLIENTS) as stream:
        stranger = await greeted(stream)
        await stranger.send(JOIN)
        await trio.sleep(100.0)
        waiting.let_go()
        answer = await stranger.receive()
        assert answer.correlation_id > 0


async def test_who_waits_for_room_gets_it(autojump_clock: MockClock) -> None:
    """A request that is set aside makes room at once; bytes count wherever it is."""
    window = RequestWindow(requests_max=1, bytes_max=100, aside_max=1)
    window.enter(10)
    assert window.is_full
    async with trio.open_nursery() as nursery:
        nursery.start_soon(window.wait_room)
        await trio.sleep(1.0)
        window.set_aside()
    window.enter(90)
    assert window.is_full
    window.take_back()
    window.release(2, 100)
    assert not window.is_full
