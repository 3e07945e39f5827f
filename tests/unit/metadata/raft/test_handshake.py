"""Who is let in: every rule for refusing, from both sides, and certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.errors import RemoteProtocolError
from raftmq.metadata.raft.net.connection import Caller, judge_hello, open_connection, shake_hands
from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    NodeHello,
    Refusal,
    Role,
    Standing,
    VoteReply,
    Welcome,
)
from tests.unit.metadata.raft.voters import (
    ADDRESSES,
    Stranger,
    Voter,
    call,
    hello_of,
    open_network,
    refusal_of,
)

NOTHING_KNOWN = Caller()


@dataclass(frozen=True)
class Case:
    name: str
    hello: NodeHello
    says: str
    is_final: bool
    caller: Caller = NOTHING_KNOWN


CASES = [
    Case("version", hello_of(1, protocol_version=PROTOCOL_VERSION + 1), "version 2, here 1", False),
    Case(
        "cluster",
        hello_of(1, cluster_id="theirs"),
        "cluster 'theirs', this is 'ours': correct node.cluster_id",
        True,
    ),
    Case("own id", hello_of(2), "node id 2 is taken", True),
    Case("no voter", hello_of(7), "node 7 is no voter here", True),
    Case("own address", hello_of(2), "the address of voter 3 leads to", True, Caller(3)),
    Case("other dialled", hello_of(1), "dialled voter 3 and voter 1 answered", False, Caller(3)),
    Case(
        "wrong way round",
        hello_of(3),
        "settings have of voter 3: quorum.voters is to be the same",
        False,
    ),
    Case("guest dialled", hello_of(9, role=Role.OBSERVER), "a guest answered", False, Caller(3)),
    Case(
        "no certificate",
        hello_of(1),
        "a certificate of none",
        True,
        Caller(needs_certificate=True),
    ),
    Case(
        "other certificate",
        hello_of(1),
        "a certificate of node 3",
        True,
        Caller(certificate=3, needs_certificate=True),
    ),
    Case(
        "guest of another cluster",
        hello_of(9, cluster_id="theirs", role=Role.OBSERVER),
        "cluster 'theirs'",
        True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_rule_refuses(case: Case) -> None:
    """One thing is wrong with a Hello: the refusal names it, and says whether to come back."""
    refusal = judge_hello(case.hello, own=hello_of(2), voters=ADDRESSES, caller=case.caller)
    assert refusal is not None
    assert case.says in refusal.reason
    assert refusal.is_final is case.is_final


@pytest.mark.parametrize(
    ("hello", "caller"),
    [
        (hello_of(1), Caller()),
        (hello_of(3), Caller(dialled=3)),
        (hello_of(1), Caller(certificate=1, needs_certificate=True)),
        (hello_of(1, role=Role.OBSERVER), Caller(certificate=3, needs_certificate=True)),
        (hello_of(77, role=Role.VISITOR, cluster_id=""), Caller()),
    ],
    ids=["accepted", "dialled", "certified", "observer with our voter's id", "visitor"],
)
def test_who_is_right_is_let_in(hello: NodeHello, caller: Caller) -> None:
    """Nothing is wrong with it; a guest's id does not matter, nor does a visitor's cluster."""
    assert judge_hello(hello, own=hello_of(2), voters=ADDRESSES, caller=caller) is None


async def test_a_refused_caller_hears_why(autojump_clock: MockClock) -> None:
    """The wrong cluster calls: Hello, Refusal, end; nobody here is told."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        refusal = await refusal_of(two, hello_of(1, cluster_id="theirs"))
        assert refusal.is_final
        assert two.events == []


async def test_an_older_directory_is_refused_by_the_driver(autojump_clock: MockClock) -> None:
    """`check_hello` refuses voter 1: it hears why, and neither side was ever connected."""
    refusal = Refusal("an older copy", is_final=True, must_stop=True)
    async with open_network() as network:
        two = await Voter(network, 2, check_hello=lambda hello: refusal).start()
        one = await Voter(network, 1).start()
        await one.until(lambda: len(one.events) >= 3)
        assert set(one.events) == {("refused", 2, refusal)}
        assert two.events == []


async def test_the_dialling_side_refuses_as_well(autojump_clock: MockClock) -> None:
    """Voter 1 dials and does not like voter 2: voter 2 is told, and was never connected."""
    refusal = Refusal("an older copy", is_final=True, must_stop=True)
    async with open_network() as network:
        two = await Voter(network, 2).start()
        one = await Voter(network, 1, check_hello=lambda hello: refusal).start()
        await two.until(lambda: len(two.events) >= 2)
        assert set(two.events) == {("refused", 1, refusal)}
        assert one.events == []


async def test_both_refuse_each_other(autojump_clock: MockClock) -> None:
    """Two clusters whose addresses got mixed up: nobody believes a word, nobody stops."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        one = Voter(network, 1)
        one.hello = hello_of(1, cluster_id="theirs")
        await one.start()
        await trio.sleep(10)
        assert one.events == two.events == []


async def test_an_address_that_leads_to_ourselves(autojump_clock: MockClock) -> None:
    """Voter 1 finds itself where voter 2 should be: no connection, no refusal to act on."""
    async with open_network() as network:
        one = await Voter(network, 1, addresses={**ADDRESSES, 2: ADDRESSES[1]}).start()
        await trio.sleep(10)
        assert one.events == []


async def test_a_stranger_refuses_before_it_says_who_it_is(autojump_clock: MockClock) -> None:
    """Called by somebody who only says Refusal: nobody is told, any fool can do that."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        await stranger.say(Refusal("go away", is_final=True))
        assert isinstance(await stranger.hear(), NodeHello)
        assert await stranger.hear() is None
        assert two.events == []


@pytest.mark.parametrize("message", [VoteReply(1), Welcome()], ids=["vote", "welcome"])
async def test_nothing_comes_before_hello(
    message: VoteReply | Welcome, autojump_clock: MockClock
) -> None:
    """The first message is no Hello: closed."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        await stranger.say(message, hello_of(1), Welcome())
        assert isinstance(await stranger.hear(), NodeHello)
        assert await stranger.hear() is None
        assert two.events == []


async def test_nothing_comes_between_hello_and_welcome(autojump_clock: MockClock) -> None:
    """A vote in the place of the Welcome: closed, not delivered."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        await stranger.say(hello_of(1), VoteReply(1), Welcome())
        await wait_all_tasks_blocked()
        assert two.events == []
        assert two.transport.take_inbox() == []


async def test_what_follows_the_welcome_at_once_is_delivered(autojump_clock: MockClock) -> None:
    """Hello, Welcome and a vote in one write: the vote is not lost between the layers."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        await stranger.say(hello_of(1), Welcome(), VoteReply(1))
        assert await two.take() == [(1, VoteReply(1))]


async def test_a_half_shaken_hand_is_let_go(autojump_clock: MockClock) -> None:
    """Hello, but never Welcome, and KeepAlives all the time: over after 3 s."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        begin = trio.current_time()
        await stranger.say(hello_of(1))
        assert isinstance(await stranger.hear(), NodeHello)
        assert await stranger.hear() == Welcome()
        assert await stranger.hear() is None
        assert trio.current_time() - begin == pytest.approx(3.0)
        assert two.events == []


async def test_what_we_said_of_ourselves_must_still_hold(autojump_clock: MockClock) -> None:
    """We become established during a handshake: the peer would never learn it, so once again."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        stranger = await call(two)
        await stranger.say(hello_of(1))
        assert await stranger.hear() == hello_of(2)
        two.hello = hello_of(2, standing=Standing.ESTABLISHED)
        assert await stranger.hear() == Welcome()
        await stranger.say(Welcome())
        assert await stranger.hear() is None
        again = await call(two)
        await again.say(hello_of(1))
        assert await again.hear() == two.hello
        assert two.events == []


async def test_tls_wraps_and_identifies(autojump_clock: MockClock) -> None:
    """Each side wraps its stream before the first byte, and reads the certificate of the other."""
    sides: list[bool] = []

    async def wrap(stream: trio.abc.Stream, server_side: bool) -> trio.abc.Stream:
        sides.append(server_side)
        await stream.send_all(b"TLS")
        assert await stream.receive_some(3) == b"TLS"
        return stream

    async with open_network() as network:
        two = await Voter(network, 2, wrap=wrap, identify=lambda stream: 1).start()
        one = await Voter(network, 1, wrap=wrap, identify=lambda stream: 2).start()
        await one.until_connected(2)
        await two.until_connected(1)
        assert sorted(sides) == [False, True]


async def test_a_certificate_of_somebody_else_is_refused(autojump_clock: MockClock) -> None:
    """Voter 1 says so, its certificate says 3: refused, and told."""
    async with open_network() as network:
        two = await Voter(network, 2, identify=lambda stream: 3).start()
        refusal = await refusal_of(two, hello_of(1))
        assert "node 1 shows a certificate of node 3" in refusal.reason


@pytest.mark.parametrize(
    "error",
    [OSError("bad certificate"), RemoteProtocolError("no TLS"), trio.BrokenResourceError("gone")],
    ids=lambda error: type(error).__name__,
)
async def test_failing_tls_closes_the_stream(error: Exception, autojump_clock: MockClock) -> None:
    """Whatever `wrap` raises about the other side costs that stream and nothing else."""
    calls: list[bool] = []

    async def wrap(stream: trio.abc.Stream, server_side: bool) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        calls.append(server_side)
        if len(calls) == 1:
            raise error
        return stream

    async with open_network() as network:
        two = await Voter(network, 2, wrap=wrap).start()
        assert await (await call(two)).hear() is None
        await (await call(two)).be_welcomed(hello_of(1))
        await two.until_connected(1)


async def test_tls_that_never_ends_is_given_up(autojump_clock: MockClock) -> None:
    """A stream connects and never shakes hands: closed after 3 s."""

    async def wrap(stream: trio.abc.Stream, server_side: bool) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    async with open_network() as network:
        two = await Voter(network, 2, wrap=wrap).start()
        begin = trio.current_time()
        assert await (await call(two)).hear() is None
        assert trio.current_time() - begin == pytest.approx(3.0)


@pytest.mark.parametrize("role", [Role.OBSERVER, Role.VISITOR])
async def test_a_guest_introduces_itself_with_the_same_function(
    role: Role, autojump_clock: MockClock
) -> None:
    """A guest's side of the handshake: Hello against Hello, no Welcome on either side."""
    hellos: list[Any] = []

    async def serve_guest(connection: Any, hello: NodeHello) -> None:
        hellos.append(hello)
        await connection.send(VoteReply(5))

    async with open_network() as network:
        two = await Voter(network, 2, serve_guest=serve_guest).start()
        own = hello_of(50, role=role)
        async with open_connection(await network.dial(ADDRESSES[2])) as connection:
            met = await shake_hands(connection, own=own, judge=lambda hello: None)
            assert met.hello == two.hello
            assert await connection.receive() == VoteReply(5)
        assert hellos == [own]


async def test_a_guest_that_is_refused_learns_why(autojump_clock: MockClock) -> None:
    """An observer of another cluster: its handshake ends with our Refusal."""
    async with open_network() as network:
        two = await Voter(network, 2).start()
        own = hello_of(50, role=Role.OBSERVER, cluster_id="theirs")
        stranger: Stranger = await call(two)
        async with open_connection(stranger.stream) as connection:
            met = await shake_hands(connection, own=own, judge=lambda hello: None)
            assert met.hello is not None
            last = await connection.receive()
            assert isinstance(last, Refusal)
