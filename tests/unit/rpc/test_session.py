"""A server's side of a connection, byte for byte: order, limits, and what is not put up with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.errors import ErrorCode, StorageError, TopicAuthorizationFailed
from raftmq.metadata.raft.net.messages import NodeHello, Role
from raftmq.metadata.raft.net.messages import encode_frame as encode_frame_of_quorum
from raftmq.rpc.protocol import RpcLimits
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import Nothing
from raftmq.wire.envelopes import decode_reply, encode_request
from raftmq.wire.frames import encode_frame
from raftmq.wire.messages.cluster import Ping, Propose, ProposeReply
from raftmq.wire.messages.hello import Hello, HelloReply
from raftmq.wire.messages.replicate import ReplicaProgress
from tests.unit.rpc.talk import (
    BEATEN,
    BROKERS,
    CLIENTS,
    ECHO,
    Stranger,
    beat,
    beating,
    calling,
    connected,
    greeted,
    never,
    new_server,
    proposing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.rpc.context import Listener, RequestContext
    from raftmq.rpc.server import Handler
    from raftmq.wire.bodies import Request

PROGRESS = ReplicaProgress(1, 0, ())


# Hello


async def test_hello_tells_who_answers(autojump_clock: MockClock) -> None:
    """The first answer names cluster, broker, features, limits, listener and known requests."""
    async with connected(new_server(ECHO)) as stream:
        reply = decode_reply(HelloReply, (await Stranger(stream).greet()).body)
        assert (reply.cluster_id, reply.node_id, reply.listener) == ("cluster-a", 7, "brokers")
        assert reply.features == {"transactions": 2}
        assert reply.frame_bytes_max == RpcLimits().frame_bytes_max
        known = [version.api_key for version in reply.api_versions]
        assert known == [Hello.api_key, Ping.api_key, Propose.api_key]


async def test_clients_are_not_told_of_what_only_brokers_may_ask(
    autojump_clock: MockClock,
) -> None:
    """On a listener of clients the list has no Propose."""
    async with connected(new_server(ECHO), CLIENTS) as stream:
        reply = decode_reply(HelloReply, (await Stranger(stream).greet()).body)
        known = [version.api_key for version in reply.api_versions]
        assert known == [Hello.api_key, Ping.api_key]


async def test_half_a_hello_is_none(autojump_clock: MockClock) -> None:
    """A byte of it every second, and then no more: the server hangs up after 10 s."""
    async with connected(new_server(ECHO)) as stream:
        begin = trio.current_time()
        for byte in encode_request(1, Hello())[:8]:
            await stream.send_all(bytes([byte]))
            await trio.sleep(1)
        assert await Stranger(stream).receive_end() == []
        assert trio.current_time() - begin == pytest.approx(10)


async def test_silence_instead_of_hello(autojump_clock: MockClock) -> None:
    """Nothing at all comes: the server hangs up after exactly 10 s."""
    async with connected(new_server(ECHO)) as stream:
        begin = trio.current_time()
        assert await Stranger(stream).receive_end() == []
        assert trio.current_time() - begin == pytest.approx(10)


@pytest.mark.parametrize("bodies", [[Ping()], [Propose(b"x")], [Hello(), Hello()]])
async def test_hello_comes_first_and_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, bodies: list[Request]
) -> None:
    """Anything else breaks the protocol; no handler is called."""
    calls: list[bytes] = []
    handlers = proposing(lambda command: calls.append(command) or never())  # type: ignore[func-returns-value]
    async with connected(new_server(handlers)) as stream:
        stranger = Stranger(stream)
        await stranger.send(*bodies)
        await stranger.receive_end()
    assert not calls
    assert "before Hello" in caplog.text or "a second Hello" in caplog.text


async def test_a_browser_is_answered_in_its_own_words(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP comes to a port of raftmq: it gets an answer that it can show, and a line in the log."""
    async with connected(new_server(ECHO), CLIENTS) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        answer = b""
        while data := await stream.receive_some():
            answer += data
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"raftmq's own protocol" in answer
    assert "WARNING" in caplog.text
    assert "an HTTP request came" in caplog.text


@pytest.mark.parametrize("listener", [CLIENTS, BROKERS], ids=["clients", "brokers"])
async def test_a_health_check_by_http_does_not_flood_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, listener: Listener
) -> None:
    """An HTTP health check asks this port each second: a warning once a minute."""
    caplog.set_level(logging.DEBUG)
    server = new_server(ECHO)
    for _ in range(90):
        async with connected(server, listener) as stream:
            await stream.send_all(b"GET /health HTTP/1.1\r\n\r\n")
            while await stream.receive_some():
                pass
        await trio.sleep(1)
    levels = [one.levelno for one in caplog.records if "an HTTP request came" in one.message]
    assert levels.count(logging.WARNING) in (2, 3)
    assert logging.INFO not in levels


@pytest.mark.parametrize(
    ("first", "level", "what"),
    [
        (b"\x16\3\1\2\0\1\0\1\xfc\3\3", "WARNING", "a TLS handshake came"),
        # `raftmq quorum status` asks the addresses of brokers, too: nothing to warn of.
        (encode_frame_of_quorum(NodeHello(1, "a", Role.VISITOR, -1)), "DEBUG", "voters listen on"),
    ],
)
async def test_another_protocol_is_called_by_its_name(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    first: bytes,
    level: str,
    what: str,
) -> None:
    """It is no frame of an absurd length."""
    caplog.set_level(logging.DEBUG)
    async with connected(new_server(ECHO), CLIENTS) as stream:
        await stream.send_all(first)
        assert not await Stranger(stream).receive_end()
    (line,) = (one for one in caplog.records if "connection ended" in one.message)
    assert line.levelname == level
    assert what in line.message


@pytest.mark.parametrize(
    ("node_id", "advice"), [(-1, "check the address"), (2, "check the address, or node.cluster_id")]
)
async def test_the_wrong_cluster_is_refused_and_told_so(
    node_id: int, advice: str, autojump_clock: MockClock
) -> None:
    """Hello asks for cluster-b: the answer names both, then the server hangs up; a broker has a
    setting that may be wrong."""
    async with connected(new_server(ECHO)) as stream:
        stranger = Stranger(stream)
        await stranger.send(Hello(cluster_id="cluster-b", node_id=node_id))
        (answer,) = await stranger.receive_end()
        assert answer.error == ErrorCode.INCONSISTENT_CLUSTER_ID
        assert "'cluster-b'" in answer.message
        assert answer.message.endswith(f"'cluster-a': {advice}")


async def test_a_hello_of_a_later_version_may_be_said_again(autojump_clock: MockClock) -> None:
    """A newer client hears that its Hello is not known, and falls back."""
    newer = encode_frame(encode_request(5, Hello())[8:].replace(b"\x12\x00", b"\x12\x09", 1))
    async with connected(new_server(ECHO)) as stream:
        stranger = Stranger(stream)
        await stream.send_all(newer)
        answer = await stranger.receive()
        assert (answer.correlation_id, answer.error) == (5, ErrorCode.UNSUPPORTED_VERSION)
        assert (await stranger.greet()).error == ErrorCode.NONE


# Order


async def test_handlers_are_called_in_order_of_arrival(autojump_clock: MockClock) -> None:
    """A hundred requests in one piece, half of them answered later: all are begun in order."""
    begun: list[int] = []

    async def later() -> Reply:
        await trio.sleep(1)
        return Reply(BEATEN)

    def handle(number: int) -> Reply | object:
        begun.append(number)
        return Reply(BEATEN) if number % 2 else later()

    async with calling(new_server(beating(handle))) as stranger:  # type: ignore[arg-type]
        await stranger.send(*(beat(number) for number in range(100)))
        answered = [(await stranger.receive()).correlation_id for _ in range(100)]
    assert begun == list(range(100))
    assert answered[:50] == list(range(2, 101, 2))  # those that did not have to wait, in order
    assert sorted(answered) == list(range(1, 101))


async def test_answers_leave_as_soon_as_they_are_ready(autojump_clock: MockClock) -> None:
    """The first takes 3 s, the second 2 s, the third 1 s: the last is answered first."""

    async def later(number: int) -> Reply:
        await trio.sleep(3 - number)
        return Reply(BEATEN)

    async with calling(new_server(beating(later))) as stranger:
        await stranger.send(beat(0), beat(1), beat(2))
        assert [(await stranger.receive()).correlation_id for _ in range(3)] == [3, 2, 1]


async def test_answers_that_are_ready_leave_together(autojump_clock: MockClock) -> None:
    """Ten requests that arrive in one piece are answered in one piece."""
    async with connected(new_server(ECHO)) as stream:
        stranger = await greeted(stream)
        await stranger.send(*(Propose(b"x") for _ in range(10)))
        await wait_all_tasks_blocked()
        data = bytes(await stream.receive_some())
        assert data.count(b"\xc4\x01x") == 10


# What nobody may do


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x03\x00\x00\x00\x00",
        encode_frame(b"\xc1"),
        encode_frame(b"\x93\x00\x00\x01"),
        encode_frame(b"\x94\xcd\x03\xeb\x00\x01\x91\x01"),  # Propose of a number
    ],
)
async def test_malformed_bytes_end_one_connection_and_no_other(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    """Two clients, one of which sends garbage: it is closed with one line, the other is served."""
    server = new_server(ECHO)
    async with connected(server) as bad_stream, connected(server) as good_stream:
        bad, good = await greeted(bad_stream), await greeted(good_stream)
        caplog.set_level(logging.WARNING)
        caplog.clear()
        await bad_stream.send_all(garbage)
        await bad.receive_end()
        await good.send(Propose(b"x"))
        assert (await good.receive()).error == ErrorCode.NONE
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("connection ended: with=connection-")


async def test_what_is_not_known_is_answered(autojump_clock: MockClock) -> None:
    """Request 999 and a request without a handler: both are refused, and the connection goes on."""
    unknown = encode_frame(b"\x94\xcd\x03\xe7\x00\x2a\x90")
    async with connected(new_server(ECHO)) as stream:
        stranger = await greeted(stream)
        await stream.send_all(unknown)
        await stranger.send(beat(1), Propose(b"x"))
        answers = [await stranger.receive() for _ in range(3)]
    assert [answer.correlation_id for answer in answers] == [42, 1, 2]
    refused = ErrorCode.UNSUPPORTED_VERSION
    assert [answer.error for answer in answers] == [refused, refused, ErrorCode.NONE]


async def test_brokers_requests_are_refused_to_clients(autojump_clock: MockClock) -> None:
    """Propose on a listener of clients: refused before anybody is asked whether it is allowed."""
    asked: list[object] = []
    server = new_server(ECHO, authorize=lambda _context, body: asked.append(body))
    async with calling(server, CLIENTS) as stranger:
        await stranger.send(Propose(b"x"))
        answer = await stranger.receive()
    assert answer.error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "'clients'" in answer.message
    assert not asked


async def test_every_request_is_authorized_once(autojump_clock: MockClock) -> None:
    """Whoever authorises sees who asks and what, before the handler, and may refuse."""
    asked: list[tuple[str, str, str, bytes]] = []

    def authorize(context: RequestContext, body: Request) -> None:
        assert isinstance(body, Propose)
        asked.append((context.principal, context.client_id, context.peer, body.command))
        if body.command == b"no":
            raise TopicAuthorizationFailed("not you")

    async with calling(new_server(ECHO, authorize=authorize)) as stranger:
        await stranger.send(Propose(b"yes"), Propose(b"no"), Ping())
        answers = [await stranger.receive() for _ in range(3)]
    assert asked == [("alice", "stranger", "here", b"yes"), ("alice", "stranger", "here", b"no")]
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [answer.error for answer in answers] == [ErrorCode.NONE, refused, ErrorCode.NONE]


# Answers


@pytest.mark.parametrize("is_later", [False, True])
async def test_errors_are_answered(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, is_later: bool
) -> None:
    """What is foreseen travels with its number; what is not is logged with the request."""

    def handle(command: bytes) -> Reply:
        if command == b"disk":
            raise StorageError("write /data/x: no space left")
        raise ZeroDivisionError(command)

    async def handle_later(command: bytes) -> Reply:
        return handle(command)

    handlers = proposing(handle_later if is_later else handle)
    async with calling(new_server(handlers)) as stranger:
        await stranger.send(Propose(b"disk"))
        foreseen = await stranger.receive()
        await stranger.send(Propose(b"bug"), Ping())
        answers = [await stranger.receive() for _ in range(2)]
    told = foreseen.error, foreseen.message
    assert told == (ErrorCode.KAFKA_STORAGE_ERROR, "write /data/x: no space left")
    by_number = {answer.correlation_id: answer for answer in answers}
    assert by_number[2].error == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "bug" not in by_number[2].message
    assert by_number[3].error == ErrorCode.NONE
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "Propose(command=b'bug'" in record.getMessage()


@pytest.mark.parametrize("is_later", [False, True])
async def test_a_broken_invariant_ends_the_server(
    autojump_clock: MockClock, is_later: bool
) -> None:
    """An assertion that fails is not answered: the broker stops."""

    def handle(command: bytes) -> Reply:
        raise AssertionError("impossible")

    async def handle_later(command: bytes) -> Reply:
        return handle(command)

    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        async with calling(new_server(proposing(handle_later if is_later else handle))) as stranger:
            await stranger.send(Propose(b"x"))
            await trio.sleep_forever()


async def test_an_answer_that_cannot_be_encoded_is_a_bug_like_another(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A body with a field that msgpack does not know: logged, answered, and life goes on."""
    bodies = [Reply(ProposeReply(object())), Reply(ProposeReply(b"x"))]  # type: ignore[arg-type]
    async with calling(new_server(proposing(lambda _command: bodies.pop(0)))) as stranger:
        await stranger.send(Propose(b"x"), Propose(b"x"))
        errors = [(await stranger.receive()).error for _ in range(2)]
    assert errors == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
    assert "request failed" in caplog.text


async def test_who_waits_for_no_answer_gets_none(autojump_clock: MockClock) -> None:
    """One-way requests, requests of nobody, and handlers that return None: only Ping answers."""

    def handle_progress(_context: RequestContext, body: Request, _payload: bytes) -> Reply:
        begun.append(body)
        raise StorageError("nobody hears this")

    begun: list[Request] = []
    handlers: Mapping[type[Request], Handler] = {
        **ECHO,
        **beating(lambda _number: None),
        ReplicaProgress: handle_progress,
    }
    limits = RpcLimits(requests_in_flight_max=1)  # and none stays in flight
    async with calling(new_server(handlers, limits=limits)) as stranger:
        await stranger.send(PROGRESS, beat(1), PROGRESS)
        await stranger.send(Propose(b"x"), number=0)
        await stranger.send(Ping(), number=99)
        assert (await stranger.receive()).correlation_id == 99
    assert begun == [PROGRESS, PROGRESS]


async def test_answers_carry_the_version_of_the_metadata(autojump_clock: MockClock) -> None:
    """Errors and pings, too: whoever is behind finds out."""
    async with calling(new_server(ECHO)) as stranger:
        await stranger.send(Ping(), beat(1), Propose(b"x"))
        assert [(await stranger.receive()).metadata_version for _ in range(3)] == [42] * 3


async def test_a_ping_is_answered_with_nothing(autojump_clock: MockClock) -> None:
    """There is no handler for it, and nobody is asked for permission."""
    async with calling(new_server({})) as stranger:
        await stranger.send(Ping())
        assert decode_reply(Nothing, (await stranger.receive()).body) == Nothing()


# The end


async def test_what_is_being_worked_on_is_cancelled_when_the_client_leaves(
    autojump_clock: MockClock,
) -> None:
    """A long poll of a client that hangs up does not go on for ever."""
    ended = trio.Event()

    async def handle(_number: int) -> Reply:
        try:
            return await never()
        finally:
            ended.set()

    server = new_server(beating(handle))
    async with connected(server) as stream:
        stranger = await greeted(stream)
        await stranger.send(beat(1))
        await wait_all_tasks_blocked()
        await stream.aclose()
        await ended.wait()
        await wait_all_tasks_blocked()
        assert server.connections == 0


async def test_a_cancelled_server_closes_its_streams(autojump_clock: MockClock) -> None:
    """In the midst of everything: the client finds the end of the stream."""
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def serve(task_status: trio.TaskStatus[trio.abc.Stream]) -> None:
            with scope:
                async with connected(new_server(beating(lambda _number: never()))) as stream:
                    task_status.started(stream)
                    await trio.sleep_forever()

        stranger = await greeted(await nursery.start(serve))
        await stranger.send(beat(1))
        await wait_all_tasks_blocked()
        scope.cancel()
        assert await stranger.receive_end() == []
