"""The asking side: what every answer, every silence and every end becomes for whoever asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.errors import (
    ClusterAuthorizationFailed,
    Disconnected,
    ErrorCode,
    InconsistentClusterId,
    MessageTooLarge,
    NotController,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaftmqError,
    RequestTimedOut,
    ServerError,
    StorageError,
    Unreachable,
    UnsupportedVersion,
)
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Reply
from raftmq.wire.envelopes import encode_response
from raftmq.wire.frames import encode_frame
from raftmq.wire.messages.cluster import Propose, ProposeReply
from raftmq.wire.messages.hello import Hello, HelloReply
from tests.unit.rpc.puppet import (
    VERSIONS,
    propose_with,
    puppet_channel,
    raised,
    stream_pair,
)
from tests.unit.rpc.shells import SHELLS, open_channel
from tests.unit.rpc.talk import (
    BEATEN,
    BROKERS,
    CLIENTS,
    ECHO,
    beat,
    channel_to,
    connected,
    new_server,
    propose,
    proposing,
)

if TYPE_CHECKING:
    from raftmq.rpc.channel import Channel
    from raftmq.rpc.context import RequestContext

# Answers


@SHELLS
async def test_a_question_and_its_answer(autojump_clock: MockClock, shell: str) -> None:
    """Body, payload and the version of the metadata come back; the channel knows its server."""

    def handle(_context: RequestContext, body: Propose, payload: bytes) -> Reply:
        return Reply(ProposeReply(body.command), (payload, b"!"), throttle_ms=3)

    async with channel_to({Propose: handle}, shell=shell) as channel:
        pieces = (b"records, ", bytearray(b"more "), memoryview(b"records"))
        answer = await channel.request(Propose(b"x"), pieces, timeout_seconds=1)
        assert answer.body == ProposeReply(b"x")
        assert bytes(answer.payload) == b"records, more records!"
        assert (answer.metadata_version, answer.throttle_ms) == (42, 3)
        assert channel.server.node_id == 7


@SHELLS
async def test_many_requests_in_flight(autojump_clock: MockClock, shell: str) -> None:
    """Two hundred at once, answered in any order: each gets its own answer."""

    async def handle(command: bytes) -> Reply:
        await trio.sleep(int(command) * 7 % 11)
        return Reply(ProposeReply(command))

    async def ask(channel: Channel, number: int) -> None:
        assert await propose(channel, b"%d" % number) == b"%d" % number
        answered.append(number)

    answered: list[int] = []
    async with (
        channel_to(proposing(handle), shell=shell) as channel,
        trio.open_nursery() as nursery,
    ):
        for number in range(200):
            nursery.start_soon(ask, channel, number)
    assert sorted(answered) == list(range(200))
    assert answered != sorted(answered)


@SHELLS
async def test_a_trace_travels_with_its_request(autojump_clock: MockClock, shell: str) -> None:
    """The handler sees it, and the next request has none."""
    traces = []

    def handle(context: RequestContext, _body: Propose, _payload: bytes) -> Reply:
        traces.append(dict(context.trace))
        return Reply(ProposeReply(b""))

    async with channel_to({Propose: handle}, shell=shell) as channel:
        await channel.request(Propose(b""), timeout_seconds=1, trace={"traceparent": "00-1"})
        await propose(channel)
    assert traces == [{"traceparent": "00-1"}, {}]


# Errors


@SHELLS
@pytest.mark.parametrize(
    ("number", "cls", "definite"),
    [
        (ErrorCode.NOT_CONTROLLER, NotController, True),
        (ErrorCode.OFFSET_OUT_OF_RANGE, OffsetOutOfRange, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NotLeaderOrFollower, False),
        (ErrorCode.KAFKA_STORAGE_ERROR, StorageError, False),
        (ErrorCode.REQUEST_TIMED_OUT, RequestTimedOut, False),
        (ErrorCode.NETWORK_EXCEPTION, Disconnected, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ServerError, False),
        (31_000, ServerError, False),
    ],
)
async def test_an_error_is_raised_as_what_it_is(
    autojump_clock: MockClock, shell: str, number: int, cls: type[RaftmqError], definite: bool
) -> None:
    """Its class, its text, and whether the request certainly was not carried out."""
    async with puppet_channel(shell) as (channel, puppet), trio.open_nursery() as nursery:

        async def refuse() -> None:
            request = await puppet.receive()
            await puppet.answer(request.correlation_id, None, number)

        nursery.start_soon(refuse)
        error = await raised(channel)
    assert type(error) is cls
    assert error.definite is definite
    assert "told" in str(error)


@SHELLS
async def test_a_handler_s_error_arrives(autojump_clock: MockClock, shell: str) -> None:
    """From one process to the other: the same class and text."""

    def refuse(_command: bytes) -> Reply:
        raise NotController("ask broker 3")

    async with channel_to(proposing(refuse), shell=shell) as channel:
        with pytest.raises(NotController, match="ask broker 3"):
            await propose(channel)


@SHELLS
async def test_what_the_server_does_not_serve_is_not_sent(
    autojump_clock: MockClock, shell: str
) -> None:
    """The server told which requests it knows: others are refused here, for certain."""
    async with channel_to(ECHO, shell=shell) as channel:
        with pytest.raises(UnsupportedVersion, match="BrokerHeartbeat in version 0: server does"):
            await channel.request(beat(1), timeout_seconds=1)
        assert await propose(channel) == b"x"


@SHELLS
async def test_what_is_for_brokers_is_not_sent_by_clients(
    autojump_clock: MockClock, shell: str
) -> None:
    """Hello did not offer it on this listener."""
    async with channel_to(ECHO, CLIENTS, shell=shell) as channel:
        with pytest.raises((UnsupportedVersion, ClusterAuthorizationFailed)):
            await propose(channel)


@SHELLS
async def test_what_is_too_large_is_not_sent(autojump_clock: MockClock, shell: str) -> None:
    """The server takes frames of 10,000 bytes: the longest passes, one more byte does not."""
    reply = HelloReply("cluster-a", 7, VERSIONS, frame_bytes_max=10_000)
    async with (
        puppet_channel(shell, reply=reply) as (channel, puppet),
        trio.open_nursery() as nursery,
    ):
        room = 10_000 - (len(encode_frame(b"")) - 4) - len(decode_free(channel))
        with pytest.raises(MessageTooLarge, match="10005 bytes, at most 10000"):
            await channel.request(Propose(b""), (bytes(room + 1),), timeout_seconds=1)
        nursery.start_soon(propose_with, channel, bytes(room))
        number = (await puppet.receive()).correlation_id
        await puppet.answer(number, ProposeReply(b""))


def decode_free(channel: Channel) -> bytes:
    """The header of Propose(b"") with a number of one byte."""
    return channel._conversation._offer.encode(5, Propose(b""))[8:]


@SHELLS
async def test_the_wrong_cluster(autojump_clock: MockClock, shell: str) -> None:
    """There is no channel, but the reason."""
    async with connected(new_server(ECHO)) as stream:
        with pytest.raises(InconsistentClusterId, match="'cluster-b' was asked for"):
            async with open_channel(shell, stream, Hello(cluster_id="cluster-b")):
                raise AssertionError("opened")


@SHELLS
async def test_a_client_on_the_listener_of_brokers(autojump_clock: MockClock, shell: str) -> None:
    """It is told where clients are served, if they are; a broker of the cluster is let in."""
    listener = BROKERS._replace(clients_at="listener 'clients' at b7:9292")
    async with connected(new_server(ECHO), listener) as stream:
        with pytest.raises(ClusterAuthorizationFailed, match="served on listener 'clients' at b7:"):
            async with open_channel(shell, stream, Hello(cluster_id="cluster-a")):
                raise AssertionError("opened")
    broker = Hello(cluster_id="cluster-a", node_id=1)
    async with channel_to(ECHO, listener, hello=broker, shell=shell) as channel:
        assert await propose(channel) == b"x"
    async with channel_to(ECHO, shell=shell) as channel:
        assert await propose(channel) == b"x"


@SHELLS
async def test_a_server_that_never_says_hello(autojump_clock: MockClock, shell: str) -> None:
    """After 8 s of silence there is no channel, and the stream is closed."""
    left, right = stream_pair()
    with pytest.raises(Disconnected, match="silent for 8 s"):
        async with open_channel(shell, left, Hello()):
            raise AssertionError("opened")
    assert left.is_closed
    await right.aclose()


# The end


@SHELLS
async def test_the_end_of_the_connection_is_told_to_all(
    autojump_clock: MockClock, shell: str
) -> None:
    """Three wait when the server hangs up: indefinite. Who asks later: nothing was sent."""
    errors: list[RaftmqError] = []

    async def ask(channel: Channel) -> None:
        errors.append(await raised(channel))

    async with puppet_channel(shell) as (channel, puppet):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, channel)
            await wait_all_tasks_blocked()
            await puppet.stream.aclose()
        assert [type(error) for error in errors] == [Disconnected] * 3
        assert not errors[0].definite
        assert str(errors[0]) == "puppet: no answer to Propose: the other side hung up"
        late = await raised(channel)
        assert type(late) is Unreachable
        assert late.definite
        assert not channel.send_one_way(Propose(b""))


@SHELLS
async def test_who_asked_without_waiting_hears_of_the_end_at_once(
    autojump_clock: MockClock, shell: str
) -> None:
    """In the very step that ends the channel; nothing can be asked after it."""
    outcomes: list[object] = []
    async with puppet_channel(shell) as (channel, _):
        channel.ask(Propose(b""), outcomes.append, timeout_seconds=30)
        channel.end("enough")
        assert [type(outcome) for outcome in outcomes] == [Disconnected]
        with pytest.raises(Unreachable, match="had ended before: enough"):
            channel.ask(Propose(b""), outcomes.append, timeout_seconds=30)
    assert len(outcomes) == 1


@SHELLS
async def test_who_was_still_in_line_was_not_sent(autojump_clock: MockClock, shell: str) -> None:
    """One may be in flight, two ask: the end is indefinite for the first only."""
    errors: dict[int, RaftmqError] = {}

    async def ask(channel: Channel, number: int) -> None:
        errors[number] = await raised(channel)

    limits = RpcLimits(requests_in_flight_max=1)
    async with puppet_channel(shell, limits) as (channel, puppet):
        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(ask, channel, number)
                await wait_all_tasks_blocked()
            await puppet.stream.aclose()
        assert [errors[number].definite for number in range(2)] == [False, True]


@SHELLS
@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        encode_frame(b"\xc1"),
        encode_response(1_000_000, ProposeReply(b"never asked")),
        encode_response(2, BEATEN),
    ],
)
async def test_garbage_from_the_server_ends_the_channel(
    autojump_clock: MockClock, shell: str, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    """Lengths, headers, numbers and bodies that cannot be: whoever waits hears of it."""
    async with puppet_channel(shell) as (channel, puppet), trio.open_nursery() as nursery:

        async def talk_nonsense() -> None:
            await puppet.receive()
            await puppet.stream.send(garbage)

        nursery.start_soon(talk_nonsense)
        assert type(await raised(channel)) is Disconnected
    assert "connection ended: with=puppet" in caplog.text
