"""Brokers that ask each other over the simulated network: dialling, and dialling again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.errors import Disconnected, RaftmqError, Unreachable
from raftmq.model import Address
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.rpc.context import ServerIdentity
from raftmq.rpc.peers import Peers
from raftmq.rpc.reply import Reply
from raftmq.rpc.server import RpcServer
from raftmq.wire.messages.cluster import Propose, ProposeReply
from raftmq.wire.messages.hello import Hello
from tests.simulation.network import SimulatedNetwork
from tests.unit.rpc.shells import SHELLS, connector
from tests.unit.rpc.talk import BROKERS, ECHO, allow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.rpc.server import Handler

ADDRESS = Address("b1", 9000)


class World:
    """One node that asks, which is its own network, and brokers that answer with their name."""

    def __init__(self, shell: str) -> None:
        self.network = SimulatedNetwork(Random(0))
        self.dials: list[float] = []
        self.left: list[int] = []
        self.peers = Peers(
            connector(shell, self, partial(Hello, "cluster-a", 0)),
            random=Random(0),
            on_left=self.left.append,
        )

    async def dial(self, address: Address) -> trio.abc.Stream:
        self.dials.append(trio.current_time())
        return await self.network.node("asker").dial(address)

    async def serve(
        self,
        address: Address = ADDRESS,
        *,
        broker_id: int = 1,
        cluster_id: str = "cluster-a",
        handler: Handler | None = None,
        task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        def answer(_context: object, _body: Propose, _payload: object) -> Reply:
            return Reply(ProposeReply(address.host.encode()))

        handlers = {Propose: handler or answer}
        server = RpcServer(ServerIdentity(cluster_id, broker_id), handlers, authorize=allow)
        with trio.CancelScope() as scope:
            serve = partial(server.serve_stream, listener=BROKERS)
            async with trio.open_nursery() as nursery:
                await nursery.start(self.network.node(address.host).serve, serve, address)
                task_status.started(scope)

    async def ask(self, broker_id: int = 1, *, timeout_seconds: float = 30) -> bytes:
        answer = await self.peers.request(broker_id, Propose(b"x"), timeout_seconds=timeout_seconds)
        result: bytes = answer.body.result
        return result

    async def problem(self, broker_id: int = 1, *, timeout_seconds: float = 30) -> RaftmqError:
        with pytest.raises(RaftmqError) as found:
            await self.ask(broker_id, timeout_seconds=timeout_seconds)
        return found.value


@asynccontextmanager
async def world(shell: str) -> AsyncIterator[tuple[World, trio.Nursery]]:
    here = World(shell)
    here.peers.set_addresses({1: ADDRESS})
    async with trio.open_nursery() as nursery:
        await nursery.start(here.peers.run)
        yield here, nursery
        nursery.cancel_scope.cancel()


@SHELLS
async def test_the_first_request_dials(autojump_clock: MockClock, shell: str) -> None:
    """Nobody is called before there is a reason; then one channel serves everybody."""
    async with world(shell) as (here, nursery):
        await nursery.start(here.serve)
        await trio.sleep(10)
        assert not here.dials
        async with trio.open_nursery() as askers:
            for _ in range(20):
                askers.start_soon(here.ask)
        assert await here.ask() == b"b1"
        assert len(here.dials) == 1
        assert here.peers.is_connected(1)


@SHELLS
async def test_a_broker_that_nobody_knows(autojump_clock: MockClock, shell: str) -> None:
    """No address: nothing was sent, for certain."""
    async with world(shell) as (here, _):
        error = await here.problem(9)
        assert type(error) is Unreachable
        assert str(error) == "broker 9: no address is known"
        assert not here.peers.send_one_way(9, Propose(b""))
        assert not here.peers.is_connected(9)


@SHELLS
async def test_who_asks_again_and_again_is_slowed_down(
    autojump_clock: MockClock, shell: str
) -> None:
    """The broker is down: each attempt waits for its pause, from 50 ms to a second."""
    async with world(shell) as (here, _):
        for _ in range(12):
            error = await here.problem()
            assert type(error) is Unreachable
            assert "broker 1 at b1:9000: " in str(error)
            assert "refused" in str(error)
        pauses = [b - a for a, b in zip(here.dials, here.dials[1:], strict=False)]
        assert len(here.dials) == 12
        assert pauses[0] < 0.1
        assert all(0.8 <= pause < 2 for pause in pauses[5:])  # with the way there and back


@SHELLS
async def test_those_who_wait_share_an_attempt(autojump_clock: MockClock, shell: str) -> None:
    """Twenty ask a broker that is down: it is dialled once, and all are told the same."""
    problems: list[str] = []

    async def ask() -> None:
        problems.append(str(await here.problem()))

    async with world(shell) as (here, _):
        async with trio.open_nursery() as askers:
            for _ in range(20):
                askers.start_soon(ask)
        assert len(here.dials) == 1
        assert len(problems) == 20
        assert len(set(problems)) == 1


@SHELLS
async def test_a_broker_that_comes_back_is_dialled_again(
    autojump_clock: MockClock, shell: str
) -> None:
    """It dies in the midst of a request, which may have been carried out; the next succeeds."""

    async def hang() -> Reply:
        await trio.sleep_forever()
        raise AssertionError("woken")

    async with world(shell) as (here, nursery):
        first = await nursery.start(partial(here.serve, handler=lambda _c, _b, _p: hang()))
        nursery.start_soon(_cancel_later, first)
        error = await here.problem()
        assert type(error) is Disconnected
        assert not error.definite
        assert not here.peers.is_connected(1)
        await wait_all_tasks_blocked()
        assert here.left == [1]
        await nursery.start(here.serve)
        assert await here.ask() == b"b1"


@SHELLS
async def test_after_a_success_the_pauses_begin_anew(autojump_clock: MockClock, shell: str) -> None:
    """Down for long, up again, down again: the next attempts follow quickly."""
    async with world(shell) as (here, nursery):
        for _ in range(8):
            await here.problem()
        scope = await nursery.start(here.serve)
        await here.ask()
        scope.cancel()
        await wait_all_tasks_blocked()
        begin = trio.current_time()
        await here.problem()
        await here.problem()
        assert trio.current_time() - begin < 0.6


async def _cancel_later(scope: trio.CancelScope) -> None:
    await trio.sleep(1)
    scope.cancel()


@SHELLS
async def test_no_connection_in_time(autojump_clock: MockClock, shell: str) -> None:
    """The network swallows everything: who asks is told in time, and nothing was sent."""
    async with world(shell) as (here, nursery):
        await nursery.start(here.serve)
        here.network.cut_both("asker", "b1")
        begin = trio.current_time()
        error = await here.problem(timeout_seconds=2)
        assert trio.current_time() - begin == pytest.approx(2)
        assert type(error) is Unreachable
        assert "no connection within 2 s" in str(error)
        here.network.heal()
        assert await here.ask() == b"b1"


@SHELLS
async def test_a_cut_is_noticed(autojump_clock: MockClock, shell: str) -> None:
    """A channel over a link that is cut ends after 8 s of silence, and a new one is dialled."""
    async with world(shell) as (here, nursery):
        await nursery.start(here.serve)
        await here.ask()
        here.network.cut_both("asker", "b1")
        begin = trio.current_time()
        assert type(await here.problem()) is Disconnected
        assert trio.current_time() - begin < 9
        here.network.heal()
        assert await here.ask() == b"b1"
        assert len(here.dials) >= 2


@SHELLS
async def test_a_half_open_connection_is_noticed(autojump_clock: MockClock, shell: str) -> None:
    """What the broker says is lost: the channel ends after 8 s of silence, a new one is dialled."""
    async with world(shell) as (here, nursery):
        await nursery.start(here.serve)
        await here.ask()
        here.network.cut("b1", "asker")
        begin = trio.current_time()
        assert type(await here.problem()) is Disconnected
        assert trio.current_time() - begin < 9
        here.network.heal()
        assert await here.ask() == b"b1"
        assert len(here.dials) >= 2


@SHELLS
async def test_a_broker_that_moved(autojump_clock: MockClock, shell: str) -> None:
    """The next request goes to the new address, also when the old one still answers."""
    async with world(shell) as (here, nursery):
        await nursery.start(here.serve)
        await nursery.start(here.serve, Address("b2", 9000))
        assert await here.ask() == b"b1"
        here.peers.set_addresses({1: Address("b2", 9000)})
        assert not here.peers.is_connected(1)
        assert await here.ask() == b"b2"


@SHELLS
async def test_a_broker_that_left(autojump_clock: MockClock, shell: str) -> None:
    """Who waits for a connection to it is told at once."""
    async with world(shell) as (here, nursery):
        here.network.cut_both("asker", "b1")
        errors: list[RaftmqError] = []

        async def ask() -> None:
            errors.append(await here.problem())

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        here.peers.set_addresses({})
        await wait_all_tasks_blocked()
        assert [str(error) for error in errors] == ["broker 1 at b1:9000: it left the cluster"]


@pytest.mark.parametrize(
    ("broker_id", "cluster_id", "problem"),
    [(2, "cluster-a", "broker 2 answers there"), (1, "cluster-b", "'cluster-a' was asked for")],
)
@SHELLS
async def test_somebody_else_answers(
    autojump_clock: MockClock, shell: str, broker_id: int, cluster_id: str, problem: str
) -> None:
    """An address that was given to another broker, or to another cluster."""
    async with world(shell) as (here, nursery):
        await nursery.start(partial(here.serve, broker_id=broker_id, cluster_id=cluster_id))
        error = await here.problem()
        assert type(error) is Unreachable
        assert problem in str(error)
        assert not here.peers.is_connected(1)


@SHELLS
async def test_one_way_dials_for_the_next_time(autojump_clock: MockClock, shell: str) -> None:
    """The first message is not sent, and says so; soon there is a channel."""
    async with world(shell) as (here, nursery):
        await nursery.start(partial(here.serve, handler=ECHO[Propose]))
        assert not here.peers.send_one_way(1, Propose(b"x"))
        await trio.sleep(1)
        assert here.peers.send_one_way(1, Propose(b"x"))


@SHELLS
async def test_asking_without_waiting_does_not_dial(autojump_clock: MockClock, shell: str) -> None:
    """Without a channel nothing is sent, and nothing is called back."""
    outcomes: list[object] = []
    async with world(shell) as (here, nursery):
        await nursery.start(here.serve)
        assert not here.peers.ask(1, Propose(b"x"), outcomes.append, timeout_seconds=30)
        assert not here.peers.ask(9, Propose(b"x"), outcomes.append, timeout_seconds=30)
        await trio.sleep(1)
        assert not here.dials
        await here.ask()
        assert here.peers.ask(1, Propose(b"x"), outcomes.append, timeout_seconds=30)
        assert not outcomes
        await trio.sleep(1)
        assert [outcome.body for outcome in outcomes] == [ProposeReply(b"b1")]


@SHELLS
async def test_who_is_cancelled_takes_no_one_along(autojump_clock: MockClock, shell: str) -> None:
    """Two wait for the same connection, one gives up: the other is served."""
    async with world(shell) as (here, nursery):
        await nursery.start(here.serve)
        async with trio.open_nursery() as askers:
            askers.start_soon(here.ask)
            with trio.move_on_after(0):
                await here.ask()
        assert here.peers.is_connected(1)


@SHELLS
async def test_who_asks_when_all_is_over(autojump_clock: MockClock, shell: str) -> None:
    """This node stops while somebody waits: unreachable, and not for ever."""
    here = World(shell)
    here.peers.set_addresses({1: ADDRESS})
    errors: list[RaftmqError] = []

    async def ask() -> None:
        errors.append(await here.problem())

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as running:
                await running.start(here.peers.run)
                here.network.cut_both("asker", "b1")
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                scope.cancel()
    errors.append(await here.problem())
    assert [type(error) for error in errors] == [Unreachable] * 2


def test_pauses_grow_and_start_again() -> None:
    """Twice as long each time, up to the longest, a fifth more or less."""
    backoff = Backoff(Random(0), Pauses(1, 8))
    pauses = [backoff.next_seconds() for _ in range(6)]
    for pause, expected in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True):
        assert 0.8 * expected <= pause <= 1.2 * expected
    backoff.reset()
    assert backoff.next_seconds() <= 1.2
