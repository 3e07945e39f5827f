"""Who refuses whom is said once, loudly enough, and to whoever can do something about it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.metadata.raft.net import refusals
from raftmq.metadata.raft.net.messages import Refusal, Role
from raftmq.metadata.raft.net.refusals import Refusals
from raftmq.model import Address
from tests.unit.metadata.raft.voters import ADDRESSES, Stranger, Voter, hello_of, open_network

if TYPE_CHECKING:
    from trio.testing import MockClock

FOUR = {**ADDRESSES, 4: Address("voter4", 9000)}


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.pathname == refusals.__file__ and record.levelno >= logging.WARNING
    ]


def test_each_reason_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """At every attempt the same, from both sides in turn; once more after a connection."""
    told, final = Refusals(1), Refusal("wrong cluster", is_final=True)
    for _ in range(5):
        told.on_refused_by(2, final)
        told.on_refusing(2, hello_of(2), Refusal("wrong name"))
        told.on_refused_by(3, final)
    assert [level for level, _ in said(caplog)] == ["ERROR", "WARNING", "ERROR"]
    told.forget(2)
    told.on_refused_by(2, final)
    told.on_refused_by(3, final)
    assert len(said(caplog)) == 4


@pytest.mark.parametrize(
    ("role", "node_id"), [(Role.VOTER, 9), (Role.OBSERVER, 1), (Role.VISITOR, 1)]
)
def test_what_passes_by_itself_is_no_warning(
    role: Role, node_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A larger voter that asks, a guest that comes too early; a final reason is a warning."""
    told = Refusals(2)
    told.on_refusing(None, hello_of(node_id, role=role), Refusal("later"))
    assert said(caplog) == []
    told.on_refusing(None, hello_of(node_id, role=role), Refusal("never", is_final=True))
    assert [level for level, _ in said(caplog)] == ["WARNING"]


def test_what_strangers_say_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Called by somebody who refuses us before it says who it is."""
    Refusals(2).on_refused_by(None, Refusal("go away", is_final=True))
    assert said(caplog) == []


def test_strangers_fill_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each calls itself something else: what was said is forgotten in the end."""
    monkeypatch.setattr(refusals, "SAID_MAX", 3)
    told = Refusals(2)
    for node_id in (11, 12, 13, 11, 14, 11):
        told.on_refusing(None, hello_of(node_id), Refusal("no voter", is_final=True))
    assert len(said(caplog)) == 6 - 1


# -- between real transports -------------------------------------------------------------------


async def test_the_wrong_cluster_is_told_on_both_sides_and_called_less_and_less(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two clusters whose addresses got mixed up, for a minute: two warnings, a dozen calls."""
    async with open_network() as network:
        await Voter(network, 2).start()
        one = Voter(network, 1)
        one.hello = hello_of(1, cluster_id="theirs")
        await one.start()
        await trio.sleep(60)
        assert len(network.dials[ADDRESSES[2]]) < 20
    lines = said(caplog)
    assert [level for level, _ in lines] == ["WARNING", "WARNING"]
    assert any("cluster 'theirs', this is 'ours'" in line for _, line in lines)
    assert any("cluster 'ours', this is 'theirs'" in line for _, line in lines)


async def test_swapped_addresses_are_told_by_name(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Voter 1 has the addresses of 2 and 3 in the wrong order: all are told whose fault it is."""
    swapped = {1: ADDRESSES[1], 2: ADDRESSES[3], 3: ADDRESSES[2]}
    async with open_network() as network:
        for node_id, addresses in ((2, ADDRESSES), (3, ADDRESSES), (1, swapped)):
            await Voter(network, node_id, addresses=addresses).start()
        await trio.sleep(5)
    for node_id in (1, 2, 3):
        lines = [line for _, line in said(caplog) if f"node={node_id} " in line]
        assert all("correct the addresses in the settings of voter 1" in line for line in lines)
        assert lines, f"voter {node_id} says nothing"


async def test_a_fourth_voter_hears_that_nobody_knows_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Smaller ids dial, and none of these knows of it: it asks, and is refused by name."""
    async with open_network() as network:
        for node_id in (1, 2, 3):
            await Voter(network, node_id).start()
        four = await Voter(network, 4, addresses=FOUR).start()
        await trio.sleep(120)
        assert four.events == []
    errors = [line for level, line in said(caplog) if level == "ERROR"]
    assert [line.split(": ")[0] for line in sorted(errors)] == [
        f"refused by voter-{peer}" for peer in (1, 2, 3)
    ]
    assert all("node 4 is no voter here" in line for line in errors)
    warnings = [line for level, line in said(caplog) if level == "WARNING"]
    assert [line.split(": ")[0] for line in warnings] == ["refusing voter-4"] * 3


async def test_a_voter_whose_address_is_wrong_hears_of_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Voter 1 looks for voter 2 elsewhere: voter 2 asks, and is told where to look."""
    wrong = {**ADDRESSES, 2: Address("elsewhere", 9000)}
    async with open_network() as network:
        await Voter(network, 1, addresses=wrong).start()
        two = await Voter(network, 2).start()
        await trio.sleep(60)
        assert two.events == []
    [(level, line)] = said(caplog)
    assert level == "WARNING"
    assert "the address that its settings have of voter 2: quorum.voters" in line


async def test_whoever_is_called_does_not_ask(autojump_clock: MockClock) -> None:
    """Connected, or refused and called again and again: the larger id dials nobody."""
    refusal = Refusal("an older copy", is_final=True)
    async with open_network() as network:
        await Voter(network, 2, check_hello=lambda hello: refusal).start()
        await Voter(network, 1).start()
        await Voter(network, 3).start()
        await trio.sleep(120)
        assert ADDRESSES[1] not in network.dials


async def test_an_answer_to_a_question_is_no_connection(autojump_clock: MockClock) -> None:
    """A smaller one that accepts instead of refusing: it should have dialled, so it is let go."""
    heard: list[object] = []

    async def welcome(stream: trio.abc.Stream) -> None:
        stranger = Stranger(stream)
        await stranger.be_welcomed(hello_of(1))
        heard.append(await stranger.hear())

    async with open_network() as network:
        network.listeners[ADDRESSES[1]] = welcome
        two = await Voter(network, 2).start()
        await trio.sleep(20)
        assert heard == [None]
        assert two.events == []
