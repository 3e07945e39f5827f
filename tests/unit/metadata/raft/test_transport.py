"""Connections between voters on virtual time: who is connected, and what is delivered when.

The handshake has its own file, and so have guests.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.metadata.raft.net import transport
from raftmq.metadata.raft.net.connection import StreamLimits
from raftmq.metadata.raft.net.messages import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    SMALL_FRAME_BYTES_MAX,
    NodeHello,
    Refusal,
    StatusReply,
    VoteReply,
    Welcome,
)
from raftmq.model import Address
from tests.unit.metadata.raft.voters import ADDRESSES, Stranger, Voter, call, hello_of, open_network

FOUR_ADDRESSES = {**ADDRESSES, 4: Address("voter4", 9000)}


async def test_three_voters_find_each_other(autojump_clock: MockClock) -> None:
    """Three start in any order; each pair has one connection, dialled by the smaller id."""
    async with open_network() as network:
        voters = [await Voter(network, node_id).start() for node_id in (3, 1, 2)]
        for voter in voters:
            await voter.until_connected(*({1, 2, 3} - {voter.node_id}))
            assert sorted(voter.events) == [
                ("connected", peer) for peer in sorted({1, 2, 3} - {voter.node_id})
            ]
        assert ADDRESSES[1] not in network.dials
        assert len(network.streams) == 3


async def test_messages_wait_for_flush(autojump_clock: MockClock) -> None:
    """`send` keeps them back; `flush` lets them go, in order, while KeepAlives flow."""
    async with open_network() as network:
        one, two = await Voter(network, 1).start(), await Voter(network, 2).start()
        await one.until_connected(2)
        assert one.links.send(2, VoteReply(1))
        assert one.links.send(2, VoteReply(2))
        await trio.sleep(60)
        assert two.transport.take_inbox() == []
        assert two.transport.is_connected(1)
        one.transport.flush()
        assert await two.take() == [(1, VoteReply(1)), (1, VoteReply(2))]
        two.say(1, VoteReply(3))
        assert await one.take() == [(2, VoteReply(3))]
        one.say(2, VoteReply(4))
        assert await two.take() == [(1, VoteReply(4))]


async def test_nothing_is_sent_without_a_connection(autojump_clock: MockClock) -> None:
    """A peer is not there: `send` says so, and the message is not kept for later."""
    async with open_network() as network:
        one = await Voter(network, 1).start()
        assert not one.links.send(2, VoteReply(1))
        two = await Voter(network, 2).start()
        await one.until_connected(2)
        one.say(2, VoteReply(2))
        assert await two.take() == [(1, VoteReply(2))]


async def test_what_was_meant_for_a_lost_connection_is_dropped(autojump_clock: MockClock) -> None:
    """Sent, not flushed; the connection is replaced; the flush lets nothing old through."""
    async with open_network() as network:
        one, two = await Voter(network, 1).start(), await Voter(network, 2).start()
        await one.until_connected(2)
        assert one.links.send(2, VoteReply(1))
        one.transport.disconnect(2, "test")
        await one.until_connected(2)
        one.transport.flush()
        one.say(2, VoteReply(2))
        assert await two.take() == [(1, VoteReply(2))]


async def test_disconnect_reports_at_once_and_redials(autojump_clock: MockClock) -> None:
    """Dropped by us: told before `disconnect` returns; the same pair is connected again soon."""
    async with open_network() as network:
        one, two = await Voter(network, 1).start(), await Voter(network, 2).start()
        await one.until_connected(2)
        two.transport.disconnect(1, "test")
        assert two.events == [("connected", 1), ("disconnected", 1)]
        assert not two.transport.is_connected(1)
        assert not two.links.send(1, VoteReply(1))
        begin = trio.current_time()
        await two.until_connected(1)
        assert trio.current_time() - begin < 0.2
        assert one.events == [("connected", 2), ("disconnected", 2), ("connected", 2)]


async def test_a_newer_connection_fences_the_older(autojump_clock: MockClock) -> None:
    """Voter 1 comes back while its old connection still delivers late bytes: none gets through.

    old   m1 m2 ----- taken by nobody yet ------ m3 (late) -- m4 (late)
    new             Hello Welcome -> connected            n1
    """
    async with open_network() as network:
        two = await Voter(network, 2).start()
        old = await (await call(two)).be_welcomed(hello_of(1))
        await two.until_connected(1)
        await old.say(VoteReply(1), VoteReply(2))
        await wait_all_tasks_blocked()
        new = await call(two)
        await new.say(hello_of(1, start_count=1))
        assert isinstance(await new.hear(), NodeHello)
        assert await new.hear() == Welcome()
        await old.say(VoteReply(3))
        await new.say(Welcome(), VoteReply(10))
        await two.until(lambda: len(two.events) == 3)
        assert await two.take() == [(1, VoteReply(10))]
        with suppress(trio.BrokenResourceError):
            await old.say(VoteReply(4))
        await wait_all_tasks_blocked()
        assert await old.hear() is None
        assert two.transport.take_inbox() == []
        assert two.events == [("connected", 1), ("disconnected", 1), ("connected", 1)]


async def test_bytes_read_before_the_fence_are_dropped_with_it(autojump_clock: MockClock) -> None:
    """In the very moment of the fence the old connection's bytes are in our hands: dropped."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        for attempt in range(20):  # of the scheduler's orders
            old = await (await call(two)).be_welcomed(hello_of(1, term=2 * attempt))
            await two.until_connected(1)
            two.transport.take_inbox()
            new = await call(two)
            await new.say(hello_of(1, term=2 * attempt + 1))
            await wait_all_tasks_blocked()
            two.terms.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(new.say, Welcome())
                nursery.start_soon(old.say, VoteReply(attempt))
            await wait_all_tasks_blocked()
            assert two.terms == [2 * attempt + 1]
            assert two.transport.take_inbox() == []


async def test_a_handshake_that_ends_late_fences_nobody(autojump_clock: MockClock) -> None:
    """The Welcome of an older stream arrives after a newer one is served: the older is closed."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        old = await call(two)
        await old.say(hello_of(1))
        assert isinstance(await old.hear(), NodeHello)
        assert await old.hear() == Welcome()
        new = await (await call(two)).be_welcomed(hello_of(1))
        await two.until_connected(1)
        await old.say(Welcome(), VoteReply(1))
        assert await old.hear() is None
        await new.say(VoteReply(2))
        assert await two.take() == [(1, VoteReply(2))]
        assert two.events == [("connected", 1)]


async def test_a_disconnect_drops_what_nobody_took(autojump_clock: MockClock) -> None:
    """Messages arrived, the peer hung up: after `on_disconnected` they are gone."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        one = await (await call(two)).be_welcomed(hello_of(1))
        await one.say(VoteReply(1))
        await wait_all_tasks_blocked()
        await one.stream.aclose()
        await two.until(lambda: ("disconnected", 1) in two.events)
        assert two.transport.take_inbox() == []


async def test_the_other_voters_messages_stay(autojump_clock: MockClock) -> None:
    """Voter 1 is dropped; what voter 2 had sent to voter 3 before is still delivered."""
    async with open_network() as network:
        three = await Voter(network, 3).start()
        one = await (await call(three)).be_welcomed(hello_of(1))
        two = await (await call(three)).be_welcomed(hello_of(2))
        await one.say(VoteReply(1))
        await two.say(VoteReply(2))
        await wait_all_tasks_blocked()
        three.transport.disconnect(1, "test")
        assert three.transport.take_inbox() == [(2, VoteReply(2))]


async def test_a_full_share_stops_the_reading(autojump_clock: MockClock) -> None:
    """Nobody takes voter 1's messages: reading stops, others are served, then all arrive."""
    sent = [(1, StatusReply(bytes([number]) * (1 << 20))) for number in range(16)]
    async with open_network() as network:
        options = {"share_bytes_max": 2 << 20, "limits": StreamLimits(read_ahead_bytes=1 << 20)}
        three = await Voter(network, 3, **options).start()
        one = await (await call(three)).be_welcomed(hello_of(1))
        two = await (await call(three)).be_welcomed(hello_of(2))
        network.nursery.start_soon(two.keep_alive)
        await one.say(*(message for _, message in sent))
        await trio.sleep(60)
        first = three.transport.take_inbox()
        assert 2 <= len(first) <= 4
        await two.say(VoteReply(1))
        rest = [*first]
        while len(rest) < len(sent) + 1:
            rest += await three.take()
        assert [item for item in rest if item[0] == 1] == sent
        assert three.events == [("connected", 1), ("connected", 2)]


async def test_a_connection_that_ends_with_a_full_share_is_let_go(
    autojump_clock: MockClock,
) -> None:
    """The reading has stopped when a newer connection comes: it takes over."""
    async with open_network() as network:
        two = await Voter(network, 2, share_bytes_max=1).start()
        old = await (await call(two)).be_welcomed(hello_of(1))
        await old.say(VoteReply(1))
        await wait_all_tasks_blocked()
        new = await (await call(two)).be_welcomed(hello_of(1, start_count=1))
        await new.say(VoteReply(2))
        await wait_all_tasks_blocked()
        assert two.transport.take_inbox() == [(1, VoteReply(2))]


async def test_a_peer_that_reads_too_slowly_is_dropped(autojump_clock: MockClock) -> None:
    """Its outbox is full: told at the flush, nothing half sent goes on, and it is dialled anew."""
    async with open_network() as network:
        one = await Voter(network, 1, limits=StreamLimits(outbox_bytes_max=1000)).start()
        await Voter(network, 2).start()
        await one.until_connected(2)
        for _ in range(4):
            assert one.links.send(2, StatusReply(b"x" * 300))
        one.transport.flush()
        assert one.events == [("connected", 2), ("disconnected", 2)]
        await one.until_connected(2)


async def test_a_half_open_peer_is_lost_after_five_seconds(autojump_clock: MockClock) -> None:
    """The machine of voter 1 loses its power: no bytes, no end of the stream."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        await (await call(two)).be_welcomed(hello_of(1))
        begin = trio.current_time()
        await two.until(lambda: ("disconnected", 1) in two.events)
        assert trio.current_time() - begin == pytest.approx(5.0)


@pytest.mark.parametrize(
    "rubbish", [b"\xff" * 100, FRAME_HEADER.pack(FRAME_BYTES_MAX + 1, 0)], ids=["noise", "oversize"]
)
async def test_rubbish_costs_one_connection(rubbish: bytes, autojump_clock: MockClock) -> None:
    """A connected voter sends bytes that are no frame: it is dropped, the others are not."""
    async with open_network() as network:
        three = await Voter(network, 3).start()
        one = await (await call(three)).be_welcomed(hello_of(1))
        two = await (await call(three)).be_welcomed(hello_of(2))
        await one.stream.send_all(rubbish)
        await three.until_connected(2)
        await two.say(VoteReply(1))
        assert await three.take() == [(2, VoteReply(1))]


@pytest.mark.parametrize("message", [hello_of(1), Welcome()], ids=["hello", "welcome"])
async def test_a_second_handshake_is_no_message(
    message: NodeHello | Welcome, autojump_clock: MockClock
) -> None:
    """Hello or Welcome on a connection that stands: dropped, not delivered."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        one = await (await call(two)).be_welcomed(hello_of(1))
        await one.say(VoteReply(1), message)
        assert await one.hear() is None
        assert two.transport.take_inbox() == []
        assert two.events[-1] == ("disconnected", 1)


async def test_a_refusal_may_come_later(autojump_clock: MockClock) -> None:
    """A connected peer learns something and refuses us: told after the disconnect."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        one = await (await call(two)).be_welcomed(hello_of(1))
        refusal = Refusal("your directory is an older copy", is_final=True, must_stop=True)
        await one.say(refusal)
        await two.until(lambda: len(two.events) == 3)
        assert two.events[1:] == [("disconnected", 1), ("refused", 1, refusal)]


async def test_stopping_closes_everything(autojump_clock: MockClock) -> None:
    """One transport is cancelled: its peers see the end at once, and nobody listens any more."""
    async with open_network() as network:
        one, two = await Voter(network, 1).start(), await Voter(network, 2).start()
        await two.until_connected(1)
        begin = trio.current_time()
        one.scope.cancel()
        await two.until_connected()
        assert trio.current_time() == begin
        await wait_all_tasks_blocked()
        assert one.events == [("connected", 2), ("disconnected", 2)]
        assert list(network.listeners) == [ADDRESSES[2]]
        assert [await is_closed(stream) for stream, _ in network.streams] == [True]


async def is_closed(stream: trio.abc.Stream) -> bool:
    try:
        await stream.send_all(b"")
    except (trio.ClosedResourceError, trio.BrokenResourceError):
        return True
    return False


async def test_a_silent_stream_stays_a_stranger_only_so_long(autojump_clock: MockClock) -> None:
    """Connects and says nothing: closed after 3 s, nobody is told."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        begin = trio.current_time()
        assert isinstance(await stranger.hear(), NodeHello)
        assert await stranger.hear() is None
        assert trio.current_time() - begin == pytest.approx(3.0)
        assert two.events == []


async def test_who_only_asks_sends_no_large_frames(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger that announces one is gone at once; a voter may send as much as ever."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        await stranger.stream.send_all(FRAME_HEADER.pack(SMALL_FRAME_BYTES_MAX + 1, 0))
        assert isinstance(await stranger.hear(), NodeHello)
        assert await stranger.hear() is None
        assert f"at most {SMALL_FRAME_BYTES_MAX}" in caplog.text
        one = await Voter(network, 1).start()
        await two.until_connected(1)
        assert one.links.send(2, StatusReply(bytes(3 << 20)))
        one.transport.flush()
        await trio.sleep(1)
        assert two.transport.take_inbox() == [(1, StatusReply(bytes(3 << 20)))]


async def test_strangers_are_limited(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of streams that say nothing: some are kept waiting, the rest is closed at once."""
    monkeypatch.setattr(transport, "STRANGERS_MAX", 2)
    async with open_network() as network:
        two = await Voter(network, 2).start()
        waiting = [await call(two) for _ in range(2)]
        assert [type(await stranger.hear()) for stranger in waiting] == [NodeHello, NodeHello]
        assert await (await call(two)).hear() is None
        assert [await stranger.hear() for stranger in waiting] == [None, None]
        await (await call(two)).be_welcomed(hello_of(1))
        await two.until_connected(1)


async def test_a_health_check_by_http_does_not_flood_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It asks this port each second: one warning a minute, and the other protocol has one of its
    own; the warning names who asked."""
    caplog.set_level(logging.DEBUG)
    async with open_network() as network:
        two = await Voter(network, 2).start()
        http, tls = b"GET /health HTTP/1.1\r\n\r\n", bytes.fromhex("16 03 01 02 00")
        for first in [http] * 3 + [tls] * 3 + [http] * 60:
            stranger = await call(two)
            await stranger.stream.send_all(first)
            assert isinstance(await stranger.hear(), NodeHello)
            assert await stranger.hear() is None
            await trio.sleep(1)
    ends = [one for one in caplog.records if "this port" in one.message]
    levels = ["WARNING", "DEBUG", "DEBUG"] * 2 + ["DEBUG"] * 54 + ["WARNING"] + ["DEBUG"] * 5
    assert [one.levelname for one in ends] == levels
    assert "with=10.0.0.9:4711 " in ends[0].message


async def test_who_is_introduced_is_no_stranger(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stranger at a time is allowed: three peers, one after the other, are all served."""
    monkeypatch.setattr(transport, "STRANGERS_MAX", 1)
    async with open_network() as network:
        voter = await Voter(network, 4, addresses=FOUR_ADDRESSES).start()
        for peer in (1, 2, 3):
            stranger = Stranger(await network.dial(FOUR_ADDRESSES[4]))
            await stranger.be_welcomed(hello_of(peer))
            await voter.until(lambda peer=peer: voter.transport.is_connected(peer))
        assert voter.transport.connected == {1, 2, 3}


async def test_a_full_share_does_not_hinder_redialling(autojump_clock: MockClock) -> None:
    """The reading has stopped when we drop the peer: dialled again, though nobody takes."""
    async with open_network() as network:
        one = await Voter(network, 1, share_bytes_max=1).start()
        two = await Voter(network, 2).start()
        await two.until_connected(1)
        two.say(1, VoteReply(1))
        await wait_all_tasks_blocked()
        one.transport.disconnect(2, "test")
        await one.until_connected(2)
        assert one.transport.take_inbox() == []
