"""What a visitor asks, and what it makes of voters that answer badly or not at all."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import memory_stream_pair

from raftmq.errors import RemoteProtocolError, Unreachable
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    KeepAlive,
    NodeHello,
    Refusal,
    Role,
    StatusReply,
    StatusRequest,
)
from raftmq.metadata.raft.net.observer_service import ANSWER_SECONDS_MAX, ask_status
from raftmq.metadata.raft.opening import QuorumSettings, open_quorum
from raftmq.metadata.raft.status import QuorumStatus, VoterStatus, encode_status
from tests.simulation.disk import SimulatedFiles
from tests.unit.metadata.raft.voters import ADDRESSES, Stranger, hello_of, open_network

if TYPE_CHECKING:
    from trio.testing import MockClock

Behaviour = Callable[[Stranger], Awaitable[None]]

STATUS = QuorumStatus(
    "ours", 1, "leader", 1, term=4, commit_index=9, applied_index=9, last_index=9,
    journal_bytes=500, snapshot=None, voters=[VoterStatus(1, True, "established", 0)], observers=[],
)  # fmt: skip


async def ask(behave: Behaviour) -> QuorumStatus:
    """The visitor's result, with `behave` at the other end."""
    ours, theirs = memory_stream_pair()
    stranger = Stranger(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(behave, stranger)
        try:
            return await ask_status(ours)
        except (Unreachable, RemoteProtocolError) as error:
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    raise failure


async def greet(stranger: Stranger, **changes: Any) -> None:
    hello = await stranger.hear()
    assert hello == NodeHello(PROTOCOL_VERSION, "", Role.VISITOR, -1)
    await stranger.say(hello_of(1, **changes))


async def run_inline(action: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return action()


async def test_a_real_voter_tells_its_status(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The only voter of its quorum: it leads, and a stranger to its cluster may know that; a visit
    is no news to those who read its log."""
    caplog.set_level(logging.DEBUG)
    files = SimulatedFiles(Random(0))
    settings = QuorumSettings(Path("/q"), "ours", 1, {1: ADDRESSES[1]})
    async with (
        open_network() as network,
        open_quorum(settings, network, files=files, random=Random(1), run_sync=run_inline) as voter,
    ):
        while not voter.leadership.is_leader:
            await voter.wait_leadership_changed(voter.leadership)
        status = await ask_status(await network.dial(ADDRESSES[1]))
        await trio.sleep(1)
    assert (status.cluster_id, status.node_id, status.state) == ("ours", 1, "leader")
    ends = [one for one in caplog.records if "with=visitor" in one.getMessage()]
    assert [one.levelno for one in ends] == [logging.DEBUG]
    assert status.voters == [VoterStatus(1, True, "established", status.voters[0].lag)]


async def test_keep_alives_do_not_pass_for_answers(autojump_clock: MockClock) -> None:
    """Signs of life come between question and answer."""

    async def answer(stranger: Stranger) -> None:
        await greet(stranger)
        assert await stranger.hear() == StatusRequest()
        await stranger.say(KeepAlive(), StatusReply(encode_status(STATUS)))
        await trio.sleep_forever()

    assert await ask(answer) == STATUS


async def test_a_refusal_is_told(autojump_clock: MockClock) -> None:
    """Before the greeting or after it, as a full house is noticed late."""

    async def refuse_at_once(stranger: Stranger) -> None:
        await stranger.say(Refusal("go away"))
        await trio.sleep_forever()

    async def refuse_late(stranger: Stranger) -> None:
        await greet(stranger)
        await refuse_at_once(stranger)

    for behave in (refuse_at_once, refuse_late):
        with pytest.raises(Unreachable, match="refused: go away"):
            await ask(behave)


async def test_a_voter_that_hangs_up(autojump_clock: MockClock) -> None:
    """It may be stopping just now."""

    async def hang_up(stranger: Stranger) -> None:
        await greet(stranger)
        await stranger.stream.aclose()

    with pytest.raises(Unreachable, match="it hung up instead of answering"):
        await ask(hang_up)


async def test_a_voter_that_is_paused(autojump_clock: MockClock) -> None:
    """The kernel takes the connection, the process says nothing at all: it is not blamed."""

    async def be_paused(stranger: Stranger) -> None:
        await trio.sleep_forever()

    with pytest.raises(Unreachable, match="no answer within 3 s"):
        await ask(be_paused)


async def test_a_voter_that_is_silent(autojump_clock: MockClock) -> None:
    """Alive, as its signs of life say, but stuck: nobody waits for ever."""

    async def be_silent(stranger: Stranger) -> None:
        await greet(stranger)
        await stranger.keep_alive()

    began = trio.current_time()
    with pytest.raises(Unreachable, match="no answer within 5 s"):
        await ask(be_silent)
    assert trio.current_time() - began == pytest.approx(ANSWER_SECONDS_MAX)


@pytest.mark.parametrize(
    ("changes", "who"),
    [({"protocol_version": 2}, "(voter) of version 2"), ({"role": Role.OBSERVER}, "(observer)")],
    ids=["version", "role"],
)
async def test_whoever_is_no_voter_of_this_version(
    changes: dict[str, Any], who: str, autojump_clock: MockClock
) -> None:
    """It is not asked at all."""

    async def introduce(stranger: Stranger) -> None:
        await greet(stranger, **changes)
        await trio.sleep_forever()

    with pytest.raises(
        RemoteProtocolError, match=f"{re.escape(who)}.* answers there, no voter of version 1"
    ):
        await ask(introduce)


async def test_another_program_answers(autojump_clock: MockClock) -> None:
    """A web server, say."""

    async def be_a_web_server(stranger: Stranger) -> None:
        await stranger.stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await trio.sleep_forever()

    with pytest.raises(RemoteProtocolError, match="no voter of this version"):
        await ask(be_a_web_server)


@pytest.mark.parametrize("answer", [StatusReply(b"{"), StatusRequest()])
async def test_an_answer_that_is_none(
    answer: StatusReply | StatusRequest, autojump_clock: MockClock
) -> None:
    """It does not decode, or is something else."""

    async def mistake(stranger: Stranger) -> None:
        await greet(stranger)
        await stranger.say(answer)
        await trio.sleep_forever()

    with pytest.raises(RemoteProtocolError, match="status"):
        await ask(mistake)
