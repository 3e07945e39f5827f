"""One connection on virtual time: order, limits, signs of life, and every way in which it ends."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from raftmq.metadata.raft.net.connection import QuorumConnection, StreamLimits, open_connection
from raftmq.metadata.raft.net.messages import (
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    KeepAlive,
    MessageReader,
    Refusal,
    StatusReply,
    StatusRequest,
    VoteReply,
    encode_frame,
)


def votes(count: int) -> list[VoteReply]:
    return [VoteReply(term) for term in range(count)]


async def all_from(connection: QuorumConnection) -> list[object]:
    received = []
    while (message := await connection.receive()) is not None:
        received.append(message)
    return received


async def test_messages_arrive_in_order(autojump_clock: MockClock) -> None:
    """Two connections face each other; a thousand messages go each way and none is missing."""
    left, right = memory_stream_pair()
    async with open_connection(left) as a, open_connection(right) as b:
        for message in votes(1000):
            assert a.send_soon(message)
            assert b.send_soon(encode_frame(message))
        assert [await b.receive() for _ in range(1000)] == votes(1000)
        assert [await a.receive() for _ in range(1000)] == votes(1000)


async def test_what_is_queued_leaves_in_one_piece(autojump_clock: MockClock) -> None:
    """Ten messages queued in one go are one write of the stream."""
    left, right = memory_stream_pair()
    async with open_connection(left) as connection:
        for message in votes(10):
            connection.send_soon(message)
        await wait_all_tasks_blocked()
        assert MessageReader().receive(await right.receive_some()) == votes(10)


async def test_an_idle_connection_keeps_alive(autojump_clock: MockClock) -> None:
    """Nobody sends anything for a minute: both sides see a living peer and no message."""
    left, right = memory_stream_pair()
    async with open_connection(left) as a, open_connection(right) as b:
        with trio.move_on_after(60):
            await a.receive()
        assert not a.is_closed
        assert not b.is_closed


async def test_a_keep_alive_goes_out_after_a_second(autojump_clock: MockClock) -> None:
    """Nothing was sent for 1 s: exactly then there is a KeepAlive."""
    left, right = memory_stream_pair()
    async with open_connection(left):
        begin = trio.current_time()
        assert MessageReader().receive(await right.receive_some()) == [KeepAlive()]
        assert trio.current_time() - begin == pytest.approx(1.0)


async def test_silence_is_death(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The other end takes everything and says nothing (half-open): after 5 s it is over."""
    left, _right = memory_stream_pair()
    begin = trio.current_time()
    async with open_connection(left, name="voter-2") as connection:
        assert await connection.receive() is None
        assert trio.current_time() - begin == pytest.approx(5.0)
        assert not connection.send_soon(StatusRequest())
    ends = [record for record in caplog.records if "connection ended" in record.message]
    assert [r.getMessage() for r in ends] == [
        "connection ended: with=voter-2 reason=silent for 5 s"
    ]


async def test_a_trickle_is_no_silence(autojump_clock: MockClock) -> None:
    """One byte of a frame every four seconds: slow, but alive."""
    left, right = memory_stream_pair()
    async with open_connection(left) as connection:
        for byte in encode_frame(Refusal("slow")):
            await trio.sleep(4)
            await right.send_all(bytes([byte]))
        assert await connection.receive() == Refusal("slow")


async def test_a_reader_that_stops_hits_the_outbox_limit(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The other side takes nothing: the queue grows to its limit, then the connection is closed."""
    left, _right = memory_stream_pair()
    left.send_stream.send_all_hook = trio.sleep_forever
    message = StatusReply(b"x" * 1000)
    async with open_connection(left, limits=StreamLimits(outbox_bytes_max=10_000)) as connection:
        sent = 0
        while connection.send_soon(message):
            sent += 1
            await trio.lowlevel.checkpoint()
        assert sent == 9
        assert connection.is_closed
        assert await connection.receive() is None
    assert "reads too slowly" in caplog.text
    assert [r.levelno for r in caplog.records if "ended" in r.message] == [logging.WARNING]


async def test_a_peer_that_takes_nothing_is_dead_although_it_talks(
    autojump_clock: MockClock,
) -> None:
    """KeepAlives come in, but our bytes have not been taken for 30 s: closed."""
    left, right = memory_stream_pair()
    left.send_stream.send_all_hook = trio.sleep_forever

    async def talk() -> None:
        while True:
            await right.send_all(encode_frame(KeepAlive()))
            await trio.sleep(1)

    async with trio.open_nursery() as nursery, open_connection(left) as connection:
        nursery.start_soon(talk)
        begin = trio.current_time()
        await connection.wait_closed()
        assert trio.current_time() - begin == pytest.approx(31.0)  # the first KeepAlive went at 1 s
        nursery.cancel_scope.cancel()


async def test_send_waits_for_the_outbox(autojump_clock: MockClock) -> None:
    """Each write takes a second: `send` never queues more than one message above the mark."""
    left, right = memory_stream_pair()
    pump = left.send_stream.send_all_hook
    assert pump is not None

    async def slowly() -> None:
        await trio.sleep(1)
        await pump()

    left.send_stream.send_all_hook = slowly
    message = StatusReply(b"x" * 1000)
    limits = StreamLimits(outbox_bytes_low=1500, outbox_bytes_max=4000)
    async with (
        open_connection(left, limits=limits) as a,
        open_connection(right) as b,
        trio.open_nursery() as nursery,
    ):
        for _ in range(5):
            nursery.start_soon(a.send, message)
        assert [await b.receive() for _ in range(5)] == [message] * 5


async def test_send_ends_with_the_connection(autojump_clock: MockClock) -> None:
    """`send` waits for room when the connection dies: False, not for ever."""
    left, _right = memory_stream_pair()
    left.send_stream.send_all_hook = trio.sleep_forever
    async with open_connection(left, limits=StreamLimits(outbox_bytes_low=0)) as connection:
        connection.send_soon(StatusRequest())
        assert await connection.send(StatusRequest()) is False


async def test_what_arrived_before_the_end_is_read(autojump_clock: MockClock) -> None:
    """The other side says three things and hangs up; all three are read, then the end."""
    left, right = memory_stream_pair()
    async with open_connection(left) as connection:
        await right.send_all(b"".join(map(encode_frame, votes(3))))
        await right.aclose()
        await connection.wait_closed()
        assert await all_from(connection) == votes(3)


async def test_nothing_is_read_after_close(autojump_clock: MockClock) -> None:
    """Closed by us while messages wait and more arrive: none of them comes out any more."""
    left, right = memory_stream_pair()
    async with open_connection(left) as connection:
        await right.send_all(b"".join(map(encode_frame, votes(3))))
        assert await connection.receive() == VoteReply(0)
        await right.send_all(encode_frame(VoteReply(3)))
        connection.close("enough")
        assert await connection.receive() is None
        assert await connection.receive_many() is None


async def test_bytes_read_at_the_moment_of_closing_are_dropped(autojump_clock: MockClock) -> None:
    """The reader has its bytes but has not run yet when `close` is called: nothing comes out."""
    left, right = memory_stream_pair()
    async with open_connection(left) as connection:
        await wait_all_tasks_blocked()
        left.receive_stream.put_data(encode_frame(VoteReply(1)))
        connection.close("at the same moment")
        await wait_all_tasks_blocked()
        assert await connection.receive() is None
    with pytest.raises(trio.BrokenResourceError):
        await right.send_all(b"x")


@pytest.mark.parametrize(
    "rubbish",
    [b"GET / HTTP/1.1\r\n\r\n", FRAME_HEADER.pack(FRAME_BYTES_MAX + 1, 0), b"\0" * 64],
    ids=["http", "oversize", "zeros"],
)
async def test_rubbish_ends_the_connection(
    rubbish: bytes, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that are no frames: closed, one warning, and the other end sees it."""
    left, right = memory_stream_pair()
    async with open_connection(left) as connection:
        await right.send_all(rubbish)
        assert await connection.receive() is None
        await wait_all_tasks_blocked()
        assert await right.receive_some() == b""
    assert [r.levelno for r in caplog.records if "ended" in r.message] == [logging.WARNING]


async def test_a_broken_stream_ends_the_connection(autojump_clock: MockClock) -> None:
    """The other end vanishes while we write: no exception, only the end."""
    left, right = memory_stream_pair()
    async with open_connection(left) as connection:
        right.receive_stream.close()
        connection.send_soon(StatusRequest())
        assert await connection.receive() is None


async def test_reading_ahead_is_bounded(autojump_clock: MockClock) -> None:
    """Nobody takes what arrives: one read more than the bound is kept, the rest stays outside."""
    left, right = memory_stream_pair()
    message = StatusReply(b"x" * (1 << 20))
    async with open_connection(left) as connection:
        for _ in range(8):
            await right.send_all(encode_frame(message))
        with trio.move_on_after(60):
            await connection.wait_closed()
        assert not connection.is_closed, "a full buffer is no silence"
        assert len(left.receive_stream._incoming._data) > 6 << 20
        assert [await connection.receive() for _ in range(8)] == [message] * 8


async def test_finish_delivers_the_last_words(autojump_clock: MockClock) -> None:
    """Something is queued, then `finish`: it arrives, and the peer's hanging up ends the wait."""
    left, right = memory_stream_pair()
    async with open_connection(left) as a, open_connection(right) as b:

        async def hang_up() -> None:
            assert await b.receive() == Refusal("go")
            await trio.sleep(0.5)
            b.close("refused")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang_up)
            begin = trio.current_time()
            a.send_soon(Refusal("go"))
            await a.finish("done")
            assert trio.current_time() - begin == pytest.approx(0.5)
        assert a.is_closed


async def test_finish_does_not_wait_for_ever(autojump_clock: MockClock) -> None:
    """The other side neither reads nor hangs up: closed after a second."""
    left, _right = memory_stream_pair()
    left.send_stream.send_all_hook = trio.sleep_forever
    async with open_connection(left) as connection:
        begin = trio.current_time()
        connection.send_soon(StatusRequest())
        await connection.finish("done")
        assert trio.current_time() - begin == pytest.approx(1.0)
        assert connection.is_closed


async def test_cancelling_closes_the_stream(autojump_clock: MockClock) -> None:
    """The owner is cancelled in the middle: the stream is closed, and nothing is left running."""
    left, right = memory_stream_pair()
    with trio.move_on_after(2):
        async with open_connection(left) as connection:
            await connection.receive()
    assert connection.is_closed
    with pytest.raises(trio.BrokenResourceError):
        await right.send_all(b"x")


async def test_an_error_of_the_body_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    """The body raises: no group around it, and the stream is closed."""
    left, right = memory_stream_pair()
    with pytest.raises(KeyError):
        async with open_connection(left):
            raise KeyError("mine")
    with pytest.raises(trio.BrokenResourceError):
        await right.send_all(b"x")


async def test_closing_when_a_keep_alive_is_due(autojump_clock: MockClock) -> None:
    """`close` hits the very moment at which the writer wakes up for a KeepAlive."""
    for _ in range(20):  # orders of the scheduler
        left, _right = memory_stream_pair()
        async with open_connection(left) as connection:
            await trio.sleep(1.0)
            connection.close("now")
        assert connection.is_closed
