"""A conversation by hand: what every answer, every silence and every end becomes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from raftmq.client.network.outgoing import STEP_BYTES
from raftmq.errors import (
    Disconnected,
    ErrorCode,
    MessageTooLarge,
    NotController,
    RaftmqError,
    RemoteProtocolError,
    RequestTimedOut,
    ServerError,
    StorageError,
    Unreachable,
    UnsupportedVersion,
)
from raftmq.rpc.conversation import Call
from raftmq.rpc.protocol import RpcLimits
from raftmq.wire.envelopes import encode_response
from raftmq.wire.frames import encode_frame
from raftmq.wire.messages.cluster import BrokerHeartbeat, BrokerHeartbeatReply, Propose
from raftmq.wire.messages.hello import HelloReply
from tests.unit.rpc.by_hand import Talk
from tests.unit.rpc.puppet import VERSIONS

if TYPE_CHECKING:
    from raftmq.rpc.reply import Answer

ONE = RpcLimits(requests_in_flight_max=1)


def test_a_question_and_its_answer() -> None:
    """It is told once, with what the broker said of its metadata."""
    talk = Talk()
    talk.ask(b"x")
    assert (talk.wakes, talk.outcomes) == (1, {})
    talk.answer(talk.sent()[b"x"], b"done")
    assert talk.result(b"x") == b"done"
    answer = talk.outcomes[b"x"]
    assert not isinstance(answer, Exception)
    assert answer.metadata_version == 42


def test_answers_in_any_order() -> None:
    """Fifty questions, answered from the last to the first: each gets its own (A2.8)."""
    talk = Talk()
    for number in range(50):
        talk.ask(b"%d" % number)
    for command, number in reversed(talk.sent().items()):
        talk.answer(number, command)
    assert [talk.result(b"%d" % number) for number in range(50)] == [
        b"%d" % number for number in range(50)
    ]


def test_an_answer_byte_by_byte() -> None:
    """However the network cuts it, it is one answer."""
    talk = Talk()
    talk.ask(b"x")
    number = talk.sent()[b"x"]
    for byte in encode_response(number, Propose(b"whole")):
        assert not talk.outcomes
        talk.receive(bytes([byte]))
    assert talk.result(b"x") == b"whole"


@pytest.mark.parametrize(
    ("number", "cls", "definite"),
    [
        (ErrorCode.NOT_CONTROLLER, NotController, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, StorageError, False),
        (ErrorCode.REQUEST_TIMED_OUT, RequestTimedOut, False),
        (31_000, ServerError, False),
    ],
)
def test_an_error_is_told_as_what_it_is(
    number: int, cls: type[RaftmqError], definite: bool
) -> None:
    """Its class, its text, and whether the question certainly was not acted on."""
    talk = Talk()
    talk.ask(b"x")
    talk.receive(encode_response(talk.sent()[b"x"], error=number, message="told"))
    error = talk.error(b"x")
    assert type(error) is cls
    assert error.definite is definite
    assert "told" in str(error)


# What is not sent


def test_what_the_broker_does_not_serve() -> None:
    """It told which requests it knows: others are refused here, for certain."""
    talk = Talk()
    with pytest.raises(UnsupportedVersion, match="BrokerHeartbeat in version 0: puppet does not"):
        talk.conversation.send_one_way(BrokerHeartbeat(1, 0, 0))
    assert not talk.sent()


def test_what_is_too_large() -> None:
    """The broker takes frames of 2,000 bytes; what is longer is refused, for certain."""
    talk = Talk(hello=HelloReply("cluster-a", 7, VERSIONS, frame_bytes_max=2000))
    with pytest.raises(MessageTooLarge, match="at most 2000"):
        talk.ask(b"x", bytes(2000))
    talk.ask(b"y", bytes(1900))
    assert [*talk.sent()] == [b"y"]


def test_one_may_be_in_flight() -> None:
    """The second leaves when the first is answered, the third when the second is forgotten."""
    talk = Talk(ONE)
    talk.ask(b"1")
    second = talk.ask(b"2")
    talk.ask(b"3")
    [(_, number)] = talk.sent().items()
    talk.answer(number)
    assert [*talk.sent()] == [b"2"]
    talk.conversation.forget(second)
    assert [*talk.sent()] == [b"3"]


def test_who_is_forgotten_in_line_is_never_sent() -> None:
    """And whoever stood behind is."""
    talk = Talk(ONE)
    talk.ask(b"1")
    talk.conversation.forget(talk.ask(b"2"))
    talk.ask(b"3")
    talk.answer(talk.sent()[b"1"])
    assert [*talk.sent()] == [b"3"]


def test_a_late_answer_is_dropped() -> None:
    """Nobody waits for it any more; the conversation goes on."""
    talk = Talk()
    call = talk.ask(b"1")
    number = talk.sent()[b"1"]
    talk.conversation.forget(call)
    talk.answer(number)
    assert not talk.outcomes
    assert not talk.conversation.is_over


def test_bytes_in_flight_are_limited() -> None:
    """While 1,000 bytes wait to leave, nothing is added; once they have left, the next one is."""
    talk = Talk(RpcLimits(bytes_in_flight_max=1000))
    talk.ask(b"1", bytes(1000))
    talk.ask(b"2")
    outgoing = talk.outgoing
    assert not talk.conversation.send_one_way(Propose(b"one way"))
    assert outgoing.queued_bytes < 1100
    assert [*talk.sent()] == [b"1", b"2"]
    assert talk.conversation.send_one_way(Propose(b"one way"))
    assert talk.sent() == {b"one way": 0}
    assert not outgoing.queued_bytes


# The end


def test_the_end_is_told_to_all() -> None:
    """In flight: it may have happened. In line, or later: nothing was sent."""
    talk = Talk(ONE)
    talk.ask(b"1")
    talk.ask(b"2")
    talk.sent()
    talk.conversation.end("the other side hung up")
    assert type(talk.error(b"1")) is Disconnected
    assert str(talk.error(b"1")) == "puppet: no answer to Propose: the other side hung up"
    assert type(talk.error(b"2")) is Unreachable
    assert [talk.error(command).definite for command in (b"1", b"2")] == [False, True]
    with pytest.raises(Unreachable, match="had ended before: the other side hung up"):
        talk.ask(b"3")
    assert not talk.conversation.send_one_way(Propose(b""))


def test_it_ends_once() -> None:
    """The first reason is the reason."""
    talk = Talk()
    talk.conversation.end("enough")
    talk.conversation.end("the other side hung up")
    assert (talk.ends, talk.conversation.reason) == (1, "enough")
    assert not talk.conversation.is_fault


@pytest.mark.parametrize(
    ("end", "told"), [("", []), ("enough", [Disconnected])], ids=["forgets", "ends"]
)
def test_an_expiry_that_takes_others_along(end: str, told: list[type[RaftmqError]]) -> None:
    """Two are late at once, and the first forgets the second, or ends the conversation: the second
    is not told that it is late as well."""
    talk = Talk()

    def act(_outcome: Answer | RaftmqError) -> None:
        talk.conversation.end(end) if end else talk.conversation.forget(second)

    first = Call(timeout=1, now=talk.now, on_outcome=act)
    talk.conversation.ask(first, Propose(b"1"))
    second = talk.ask(b"2", timeout_seconds=1)
    talk.look_at(1.0)
    assert type(first.outcome) is RequestTimedOut
    assert [type(error) for error in talk.outcomes.values()] == told


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        encode_frame(b"\xc1"),
        encode_response(1_000_000, Propose(b"never asked")),
        encode_response(1, BrokerHeartbeatReply(is_fenced=False, may_shut_down=False)),
    ],
)
def test_garbage_ends_it(garbage: bytes) -> None:
    """Lengths, headers, numbers and bodies that cannot be; the shell ends the connection."""
    talk = Talk()
    talk.ask(b"x")
    talk.sent()
    with pytest.raises(RemoteProtocolError):
        talk.receive(garbage)
    assert not talk.outcomes


def test_an_answer_to_what_still_stands_in_line() -> None:
    """It was not sent, so this is no answer."""
    talk = Talk(ONE)
    talk.ask(b"1")
    second = talk.ask(b"2")
    talk.sent()
    with pytest.raises(RemoteProtocolError, match="which was not sent"):
        talk.answer(second.number)


# Time


def test_each_question_has_its_own_time() -> None:
    """One for a second, one for an hour, one for ever: the first is told, and it is indefinite."""
    talk = Talk()
    for command, seconds in ((b"1", 1.0), (b"hour", 3600.0), (b"ever", math.inf)):
        talk.ask(command, timeout_seconds=seconds)
    number = talk.sent()[b"1"]
    assert talk.look_at(0.5) == 1.0
    assert talk.look_at(1.0) == 2.0
    assert [*talk.outcomes] == [b"1"]
    assert type(talk.error(b"1")) is RequestTimedOut
    assert "Propose: no answer within 1 s" in str(talk.error(b"1"))
    talk.answer(number)
    assert not talk.conversation.is_over


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(4.9434, "4.9 s"), (29.9997, "30 s"), (119.97, "120 s"), (0.0123, "0.012 s"), (2.0, "2 s")],
)
def test_what_was_left_of_a_time(seconds: float, told: str) -> None:
    """A call often has what others have left of a deadline: two places of it say enough."""
    talk = Talk()
    talk.ask(b"1", timeout_seconds=seconds)
    talk.look_at(seconds)
    assert str(talk.error(b"1")).endswith(f"no answer within {told}")


def test_time_in_line_counts() -> None:
    """The one place is taken for ever: who waits for it is told in time."""
    talk = Talk(ONE)
    talk.ask(b"ever", timeout_seconds=math.inf)
    talk.ask(b"1", timeout_seconds=1)
    talk.look_at(1.0)
    assert type(talk.error(b"1")) is RequestTimedOut


def test_who_is_late_in_line_is_not_sent() -> None:
    """The one in flight is late at the same time: its place goes to the one behind."""
    talk = Talk(ONE)
    talk.ask(b"1", timeout_seconds=1)
    talk.ask(b"2", timeout_seconds=1)
    talk.ask(b"3")
    assert [*talk.sent()] == [b"1"]
    talk.look_at(1.0)
    assert [*talk.sent()] == [b"3"]
    assert sorted(talk.outcomes) == [b"1", b"2"]


def test_silence_is_death() -> None:
    """A ping every 2 s, none of which is answered: after 8 s whoever waits hears of it."""
    talk = Talk()
    talk.ask(b"x")
    talk.sent()
    for now in (2.0, 4.0, 6.0):
        assert talk.look_at(now) == now + 2
    talk.sent()
    assert talk.pings == 3
    assert talk.look_at(8.0) == math.inf
    assert str(talk.error(b"x")) == "puppet: no answer to Propose: silent for 8 s"


def test_whoever_is_heard_is_alive() -> None:
    """An answer to a ping every 2 s, for a minute; nobody asks anything else."""
    talk = Talk()
    for now in range(2, 60, 2):
        assert talk.look_at(float(now)) == now + 2
        talk.receive(encode_response(0))
    assert not talk.conversation.is_over


def test_a_long_request_is_no_silence() -> None:
    """A MiB every 6 s: the broker takes it and has nothing to say, and is alive for 8 s more."""
    talk = Talk()
    talk.ask(b"long", bytes(4 * STEP_BYTES), timeout_seconds=1000)
    outgoing = talk.outgoing
    outgoing.take(0.0)
    for now in (6.0, 12.0, 18.0):
        talk.look_at(now)
        outgoing.on_write(now)
    talk.look_at(25.0)
    assert not talk.conversation.is_over
    talk.look_at(26.0)
    assert talk.conversation.reason == "silent for 8 s"


def test_who_takes_nothing_is_given_up() -> None:
    """The broker is heard every second, but a write lasts for 30 s."""
    talk = Talk()
    talk.ask(b"x", timeout_seconds=1000)
    talk.outgoing.take(0.0)
    for now in range(1, 30):
        talk.now = float(now)
        talk.receive(encode_response(0))
        assert talk.look_at(talk.now) <= 31
    talk.look_at(30.0)
    assert talk.conversation.reason == "took nothing for 30 s"
