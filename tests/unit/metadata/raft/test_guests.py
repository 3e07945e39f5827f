"""Observers and visitors: served beside the voters, and never at their expense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.errors import RemoteProtocolError
from raftmq.metadata.raft.net.messages import (
    NodeHello,
    ObserverFetch,
    Refusal,
    Role,
    StatusReply,
    StatusRequest,
    VoteReply,
)
from raftmq.metadata.raft.net.transport import GUESTS_MAX
from tests.unit.metadata.raft.voters import (
    MemoryNetwork,
    Stranger,
    Voter,
    call,
    hello_of,
    open_network,
)

if TYPE_CHECKING:
    from raftmq.metadata.raft.net.connection import QuorumConnection

GUEST = hello_of(900, role=Role.OBSERVER)


async def echo(connection: QuorumConnection, hello: NodeHello) -> None:
    """Answers every request; a vote is none."""
    while (message := await connection.receive()) is not None:
        if isinstance(message, VoteReply):
            raise RemoteProtocolError(f"a vote from {hello.role.name}")
        await connection.send(StatusReply(b"{}"))


async def host_at(network: MemoryNetwork) -> Voter:
    return await Voter(network, 2, serve_guest=echo).start()


async def guest_at(voter: Voter) -> Stranger:
    guest = await call(voter)
    await guest.say(GUEST)
    assert isinstance(await guest.hear(), NodeHello)
    return guest


async def is_served(guest: Stranger) -> bool:
    await guest.say(StatusRequest())
    return await guest.hear() == StatusReply(b"{}")


async def test_guests_are_served_and_do_not_count(autojump_clock: MockClock) -> None:
    """An observer and a visitor are served; for the quorum nobody is connected."""
    async with open_network() as network:
        two = await host_at(network)
        guests = [await guest_at(two) for _ in range(2)]
        assert [await is_served(guest) for guest in guests] == [True, True]
        assert two.events == []
        assert two.transport.connected == frozenset()


@pytest.mark.parametrize("rubbish", [b"\xff" * 64, None], ids=["noise", "vote"])
async def test_a_guest_that_sends_rubbish_harms_itself(
    rubbish: bytes | None, autojump_clock: MockClock
) -> None:
    """Noise, or a message that no guest may send: that guest is out, the others stay."""
    async with open_network() as network:
        two = await host_at(network)
        one = await (await call(two)).be_welcomed(hello_of(1))
        good, bad = await guest_at(two), await guest_at(two)
        if rubbish is None:
            await bad.say(VoteReply(1))
        else:
            await bad.stream.send_all(rubbish)
        assert await bad.hear() is None
        assert await is_served(good)
        await one.say(VoteReply(1))
        assert await two.take() == [(1, VoteReply(1))]


async def test_guests_are_limited(autojump_clock: MockClock) -> None:
    """One guest more than there are places: refused, told why, and welcome when one has left."""
    async with open_network() as network:
        two = await host_at(network)
        guests = [await guest_at(two) for _ in range(GUESTS_MAX)]
        late = await guest_at(two)
        refusal = await late.hear()
        assert isinstance(refusal, Refusal)
        assert "64 guests are here already" in refusal.reason
        assert not refusal.is_final
        await guests[0].stream.aclose()
        await wait_all_tasks_blocked()
        assert await is_served(await guest_at(two))


async def test_a_service_is_cancelled_when_its_guest_leaves(autojump_clock: MockClock) -> None:
    """The service waits for something to send; the guest hangs up: the wait is over."""
    ended = trio.Event()

    async def wait(connection: QuorumConnection, hello: NodeHello) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_network() as network:
        two = await Voter(network, 2, serve_guest=wait).start()
        guest = await guest_at(two)
        await guest.stream.aclose()
        with trio.fail_after(1):
            await ended.wait()


async def test_a_guest_whose_power_fails_is_noticed(autojump_clock: MockClock) -> None:
    """No end of the stream, only silence, while the service waits: cancelled after 5 s."""
    ended_at: list[float] = []

    async def wait(connection: QuorumConnection, hello: NodeHello) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended_at.append(trio.current_time())

    async with open_network() as network:
        two = await Voter(network, 2, serve_guest=wait).start()
        await guest_at(two)
        begin = trio.current_time()
        await trio.sleep(10)
        assert ended_at == [pytest.approx(begin + 5.0)]


async def test_the_last_answer_arrives(autojump_clock: MockClock) -> None:
    """A service answers once and returns: the guest reads the answer, then the end."""

    async def answer(connection: QuorumConnection, hello: NodeHello) -> None:
        assert await connection.receive() == StatusRequest()
        connection.send_soon(StatusReply(b"x" * 100_000))

    async with open_network() as network:
        two = await Voter(network, 2, serve_guest=answer).start()
        guest = await guest_at(two)
        await guest.say(StatusRequest(), ObserverFetch(7))
        assert await guest.hear() == StatusReply(b"x" * 100_000)
        assert await guest.hear() is None


async def test_an_error_of_ours_is_not_swallowed(autojump_clock: MockClock) -> None:
    """The service itself is broken: that stops the node, as every broken invariant does."""

    async def fail(connection: QuorumConnection, hello: NodeHello) -> None:
        raise AssertionError("ours")

    async def visit() -> None:
        async with open_network() as network:
            two = await Voter(network, 2, serve_guest=fail).start()
            await guest_at(two)
            await trio.sleep(10)

    with pytest.raises(ExceptionGroup) as caught:
        await visit()
    assert caught.group_contains(AssertionError, match="ours")
