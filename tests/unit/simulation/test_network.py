"""The simulated network's faults: what is held up, what is lost, and who learns of it when.

What it does while nothing fails is tested in tests/unit/rpc/test_network.py.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from raftmq.errors import Unreachable
from raftmq.model import Address
from tests.simulation.disk_faults import PowerCut
from tests.simulation.network import FIRST_FREE_PORT, WINDOW_BYTES, SimulatedNetwork
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from trio.abc import Stream
    from trio.testing import MockClock

QUICK = Latency(0.001, 0.002, tail_probability=0.0)
AT_B = Address("b", FIRST_FREE_PORT)


def quick_network(**settings: float) -> SimulatedNetwork:
    return SimulatedNetwork(Random(1), latency=QUICK, **settings)  # type: ignore[arg-type]


class Pair:
    """Nodes a and b; every connection that a dials is handed out, both ends of it."""

    def __init__(self, network: SimulatedNetwork, nursery: trio.Nursery) -> None:
        self.network, self._nursery = network, nursery
        self._accepted: list[Stream] = []

    async def serve(self) -> None:
        await self._nursery.start(self._serve)

    async def connect(self) -> tuple[Stream, Stream]:
        """The ends at a and at b."""
        stream = await self.network.node("a").dial(AT_B)
        return stream, self._accepted.pop()

    async def _serve(self, task_status: trio.TaskStatus[Address]) -> None:
        try:
            await self.network.node("b").serve(self._accept, AT_B, task_status=task_status)
        except* PowerCut:
            pass

    async def _accept(self, stream: Stream) -> None:
        self._accepted.append(stream)
        await trio.sleep_forever()


@pytest.fixture
async def pair(autojump_clock: MockClock, nursery: trio.Nursery) -> Pair:
    made = Pair(quick_network(), nursery)
    await made.serve()
    return made


async def receives_within(stream: Stream, seconds: float) -> bytes | None:
    """All that comes until nothing has come for so long; None where that is nothing."""
    received = []
    while True:
        with trio.move_on_after(seconds) as waiting:
            received.append(await stream.receive_some())
        if waiting.cancelled_caught:
            return b"".join(received) if received else None


async def breaks_after(stream: Stream) -> float:
    """How long it takes until receiving raises."""
    before = trio.current_time()
    with pytest.raises(trio.BrokenResourceError):
        await receive_all(stream)
    return trio.current_time() - before


async def receive_all(stream: Stream) -> bytes:
    """Everything up to the end. A stream that breaks raises."""
    return b"".join([data async for data in stream])


async def fill(stream: Stream) -> None:
    """Send until nothing more goes."""
    with trio.move_on_after(60):
        while True:
            await stream.send_all(bytes(5000))


async def test_a_stream_is_a_stream_as_trio_understands_it(
    autojump_clock: MockClock, pair: Pair
) -> None:
    """trio's own suite for two-way streams, with empty and with full windows."""

    async def connect_clogged() -> tuple[Stream, Stream]:
        ends = await pair.connect()
        for end in ends:
            await fill(end)
        return ends

    await trio.testing.check_two_way_stream(pair.connect, connect_clogged)


async def test_bytes_take_their_time_and_come_in_pieces(
    autojump_clock: MockClock, pair: Pair
) -> None:
    """Latency is drawn within its limits; boundaries of messages mean nothing."""
    sender, receiver = await pair.connect()
    before, pieces = trio.current_time(), []
    for _ in range(20):
        await sender.send_all(bytes(100))
    while sum(map(len, pieces)) < 2000:
        pieces.append(await receiver.receive_some(150))
    assert QUICK.least <= trio.current_time() - before <= QUICK.most
    assert len({len(piece) for piece in pieces}) > 3


async def test_a_cut_holds_bytes_up_and_loses_none(autojump_clock: MockClock, pair: Pair) -> None:
    """Sent before and during a cut of minutes, all of it arrives, in order, after the healing."""
    sender, receiver = await pair.connect()
    await sender.send_all(b"before ")
    pair.network.cut("a", "b")
    await sender.send_all(b"during ")
    assert await receives_within(receiver, 300) is None
    pair.network.heal()
    await sender.send_all(b"after")
    await sender.aclose()
    assert await receive_all(receiver) == b"before during after"


async def test_a_one_way_cut_leaves_the_other_way_open_for_a_window(
    autojump_clock: MockClock, pair: Pair
) -> None:
    """Bytes still arrive, but as no acknowledgement comes back, only so many."""
    first, second = await pair.connect()
    pair.network.cut("b", "a")
    await second.send_all(b"held up")
    await fill(first)
    assert await receives_within(second, 1) == bytes(WINDOW_BYTES)
    pair.network.heal("b", "a")
    assert await receives_within(first, 1) == b"held up"
    with trio.fail_after(1):
        await first.send_all(bytes(5000))


async def test_dialling_over_a_cut_waits_for_its_end(autojump_clock: MockClock, pair: Pair) -> None:
    """Healed in time, the connection comes about; else there is no answer."""
    pair.network.cut("b", "a")
    with pytest.raises(Unreachable, match="no answer in time"):
        await pair.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.connect)
        await trio.sleep(1)
        pair.network.heal()


async def test_a_cut_may_refuse(autojump_clock: MockClock, pair: Pair) -> None:
    """A firewall that rejects says so at once."""
    pair.network.cut_both("a", "b", refuses=True)
    with trio.fail_after(0.1), pytest.raises(Unreachable, match="refused"):
        await pair.connect()


async def test_a_partition_cuts_between_groups_only(autojump_clock: MockClock, pair: Pair) -> None:
    """Within a group all goes on; `isolate` is the partition of one against the rest."""
    network = pair.network
    for name in ("c", "d"):
        network.node(name)
    network.partition(["a", "b"], ["c", "d"])
    await pair.connect()
    assert not network.link("a", "c").is_open
    assert not network.link("d", "b").is_open
    assert network.link("c", "d").is_open
    network.heal()
    network.isolate("d")
    assert network.link("a", "c").is_open
    assert not network.link("c", "d").is_open


async def test_a_cut_that_lasts_breaks_connections_where_that_is_asked_for(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """As keep-alives do: both ends give up after the same silence, and not when it ended before."""
    pair = Pair(quick_network(silence_seconds_max=8.0), nursery)
    await pair.serve()
    first, second = await pair.connect()
    pair.network.cut("a", "b")
    assert await receives_within(second, 7) is None
    pair.network.heal()
    assert await receives_within(second, 60) is None
    pair.network.cut("a", "b")
    assert await breaks_after(first) == pytest.approx(8)
    assert await breaks_after(second) == 0


async def test_a_reset_is_noticed_by_both_ends_soon(autojump_clock: MockClock, pair: Pair) -> None:
    """Unless told otherwise, both learn of it at once or a little later, and can connect again."""
    for end in await pair.connect():
        pair.network.reset("b", "a")
        assert await breaks_after(end) <= 0.05
    await pair.connect()


async def test_one_end_may_live_on_with_half_a_connection(
    autojump_clock: MockClock, pair: Pair
) -> None:
    """It sends into the void until its window is full, or until it learns of the reset."""
    first, second = await pair.connect()
    pair.network.reset("a", "b", first_seconds=0, second_seconds=30)
    assert await breaks_after(first) == 0
    await second.send_all(b"nobody hears")
    assert await breaks_after(second) == pytest.approx(30)


async def test_a_half_open_connection_may_stay(autojump_clock: MockClock, pair: Pair) -> None:
    """A peer that never learns of it needs timeouts of its own."""
    _, second = await pair.connect()
    pair.network.reset("a", "b", second_seconds=math.inf)
    assert await receives_within(second, 3600) is None


async def test_bytes_of_a_lost_connection_come_late(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Some arrive on the old stream while there is a new one: in order, and a prefix of them."""
    found = set()
    for seed in range(10):
        pair = Pair(SimulatedNetwork(Random(seed), latency=QUICK), nursery)
        await pair.serve()
        old, old_receiver = await pair.connect()
        for number in range(10):
            await old.send_all(bytes([number]))
        pair.network.reset("a", "b", second_seconds=10, late_seconds=3)
        new, new_receiver = await pair.connect()
        await new.send_all(b"new")
        assert await receives_within(new_receiver, 1)
        late = await receives_within(old_receiver, 4) or b""
        assert late == bytes(range(len(late)))
        found.add(len(late))
    assert 0 in found
    assert len(found) > 4


async def test_bytes_held_up_by_a_cut_may_outlive_the_connection(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Cut, reset, healed: what was sent before the cut may arrive long after."""
    arrived = set()
    for seed in range(10):
        pair = Pair(SimulatedNetwork(Random(seed), latency=QUICK), nursery)
        await pair.serve()
        sender, receiver = await pair.connect()
        pair.network.cut("a", "b")
        await sender.send_all(b"x")
        pair.network.reset("a", "b", second_seconds=100)
        await trio.sleep(50)
        pair.network.heal()
        arrived.add(await receives_within(receiver, 10))
    assert arrived == {b"x", None}


async def test_after_a_kill_peers_learn_of_it_soon(autojump_clock: MockClock, pair: Pair) -> None:
    """The kernel ends the connection, or resets it where bytes were left unread."""
    idle, _ = await pair.connect()
    unread, _ = await pair.connect()
    await unread.send_all(b"never read")
    pair.network.crash("b")
    with trio.fail_after(1):
        assert await receive_all(idle) == b""
    with pytest.raises(Unreachable, match="refused"):
        await pair.connect()
    with trio.fail_after(1), pytest.raises(trio.BrokenResourceError):
        await fill(unread)


async def test_a_machine_without_power_says_nothing(autojump_clock: MockClock, pair: Pair) -> None:
    """Peers wait for ever, dials too; after the restart their bytes are answered by a reset."""
    idle, _ = await pair.connect()
    active, sending = await pair.connect()
    await sending.send_all(b"on the wire")
    pair.network.crash("b", power_lost=True)
    assert await receives_within(active, 1) == b"on the wire"
    assert await receives_within(idle, 3600) is None
    await active.send_all(b"hello?")
    with pytest.raises(Unreachable, match="no answer"):
        await pair.connect()
    pair.network.node("b")
    assert await breaks_after(active) < 1
    assert await receives_within(idle, 3600) is None
    with pytest.raises(Unreachable, match="refused"):
        await pair.connect()


async def test_without_power_nothing_is_sent_again(autojump_clock: MockClock, pair: Pair) -> None:
    """What a cut held up was in the memory of the machine, and is gone with it."""
    receiver, sender = await pair.connect()
    pair.network.cut("b", "a")
    await sender.send_all(b"held up")
    pair.network.crash("b", power_lost=True)
    pair.network.heal()
    pair.network.node("b")
    assert await receives_within(receiver, 3600) is None


@pytest.mark.parametrize("power_lost", [False, True])
async def test_a_dead_incarnation_does_nothing_more(
    autojump_clock: MockClock, *, power_lost: bool
) -> None:
    """Whatever it waits for or tries raises PowerCut; only cleaning up is quiet."""
    network = quick_network()
    server, dead = network.node("b"), network.node("a")
    raised = []

    async def hear(stream: Stream) -> None:
        await trio.sleep_forever()

    async def receive(stream: Stream) -> None:
        with pytest.raises(PowerCut):
            await stream.receive_some()
        raised.append("receive")

    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, hear, AT_B)
        stream = await dead.dial(AT_B)
        nursery.start_soon(receive, stream)
        await trio.sleep(1)
        network.crash("a", power_lost=power_lost)
        with pytest.raises(PowerCut):
            await dead.dial(AT_B)
        with pytest.raises(PowerCut):
            await dead.serve(hear, Address("a", 1))
        with pytest.raises(PowerCut):
            await stream.send_all(b"x")
        await stream.aclose()
        assert network.node("a") is not dead
        await trio.testing.wait_all_tasks_blocked()
        assert raised == ["receive"]
        nursery.cancel_scope.cancel()


async def test_a_paused_node_stands_still_at_its_border(
    autojump_clock: MockClock, pair: Pair
) -> None:
    """Its kernel accepts connections and bytes; nobody reads them until it goes on."""
    first, second = await pair.connect()
    pair.network.pause("b")
    await first.send_all(b"hello")
    stream = await pair.network.node("a").dial(AT_B)
    assert await receives_within(second, 100) is None
    with trio.move_on_after(100) as sending:
        await second.send_all(b"not yet")
    assert sending.cancelled_caught
    pair.network.resume("b")
    assert await receives_within(second, 1) == b"hello"
    await stream.aclose()


async def test_links_can_be_slow_one_way(autojump_clock: MockClock, pair: Pair) -> None:
    """The way there takes a second, the way back does not."""
    first, second = await pair.connect()
    pair.network.slow("a", "b", Latency(1.0, 1.0, tail_probability=0.0))
    before = trio.current_time()
    await first.send_all(b"x")
    assert await second.receive_some() == b"x"
    assert trio.current_time() - before == pytest.approx(1)
    await second.send_all(b"x")
    assert await first.receive_some() == b"x"
    assert trio.current_time() - before < 1.1
