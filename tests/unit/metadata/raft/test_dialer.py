"""How a voter is called until it answers: pauses, attempts that hang, addresses that change."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import trio

from raftmq.metadata.raft.net.messages import Refusal
from raftmq.model import Address
from tests.unit.metadata.raft.voters import ADDRESSES, Voter, open_network

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


async def test_pauses_grow_to_half_a_second(autojump_clock: MockClock) -> None:
    """Nobody answers for a minute: 0.1 s, then up to 0.5 s between attempts, never in step."""
    async with open_network() as network:
        await Voter(network, 1).start()
        await trio.sleep(60)
        pauses = [after - before for before, after in pairwise(network.dials[ADDRESSES[2]])]
        assert 0.08 <= pauses[0] <= 0.12
        assert all(0.4 <= pause <= 0.6 for pause in pauses[5:])
        assert len(set(pauses)) == len(pauses)
        assert pauses != [b - a for a, b in pairwise(network.dials[ADDRESSES[3]])]


async def test_a_dial_that_hangs_is_given_up(autojump_clock: MockClock) -> None:
    """The network never answers: the next attempt comes after 3 s and a pause."""
    async with open_network() as network:
        one = Voter(network, 1)
        times: list[float] = []

        async def hang(address: Address) -> trio.abc.Stream:
            if address == ADDRESSES[2]:
                times.append(trio.current_time())
                await trio.sleep_forever()
            raise OSError("unreachable")

        network.dial = hang  # type: ignore[method-assign]
        await one.start()
        await trio.sleep(10)
        assert 3.0 <= times[1] - times[0] <= 3.6


async def test_an_address_may_change(autojump_clock: MockClock) -> None:
    """Voter 2 moved: after `set_address` it is found at its new place."""
    moved = Address("elsewhere", 9000)
    async with open_network() as network:
        one = await Voter(network, 1).start()
        await trio.sleep(10)
        await Voter(network, 2, addresses={**ADDRESSES, 2: moved}).start()
        one.transport.set_address(2, moved)
        begin = trio.current_time()
        await one.until_connected(2)
        assert trio.current_time() - begin < 0.2


async def test_whoever_refuses_is_called_less_often(autojump_clock: MockClock) -> None:
    """Refused for a minute: up to 5 s between calls; gone for a moment: up to 0.5 s again."""
    refusal = Refusal("an older copy", is_final=True)
    async with open_network() as network:
        two = await Voter(network, 2, check_hello=lambda hello: refusal).start()
        await Voter(network, 1).start()
        await trio.sleep(60)
        pauses = [after - before for before, after in pairwise(network.dials[ADDRESSES[2]])]
        assert all(4.0 <= pause <= 6.0 for pause in pauses[7:])
        two.scope.cancel()
        await trio.sleep(20)
        pauses = [after - before for before, after in pairwise(network.dials[ADDRESSES[2]])]
        assert all(0.4 <= pause <= 0.6 for pause in pauses[-10:])


async def test_a_voter_that_is_not_there_is_told_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With its address as people write it; the larger one tells it, too, when it asks."""
    caplog.set_level("INFO")
    async with open_network() as network:
        await Voter(network, 2).start()
        await trio.sleep(60)
    lines = [r.getMessage() for r in caplog.records if "unreachable" in r.getMessage()]
    assert [line.split(" reason=")[0] for line in lines] == [
        "voter unreachable: peer=3 address=voter3:9000",
        "voter unreachable: peer=1 address=voter1:9000",
    ]
