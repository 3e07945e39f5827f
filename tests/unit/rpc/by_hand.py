"""A conversation without a connection: what it sends is decoded, what it receives is made here.

Owns the clock, which stands still unless a test moves it. No event loop runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.network.outgoing import Outgoing
from raftmq.rpc.conversation import Call, Conversation
from raftmq.rpc.protocol import RpcLimits
from raftmq.wire.envelopes import decode_request, encode_response
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.cluster import Ping, Propose, ProposeReply
from tests.unit.rpc.puppet import HELLO_REPLY

if TYPE_CHECKING:
    from raftmq.errors import RaftmqError
    from raftmq.rpc.reply import Answer
    from raftmq.wire.messages.hello import HelloReply


class Talk:
    """Attributes:
    outcomes: by the command that was proposed.
    wakes, ends: how often the conversation has said so.
    """

    def __init__(self, limits: RpcLimits | None = None, *, hello: HelloReply = HELLO_REPLY) -> None:
        self.now = 0.0
        self.outcomes: dict[bytes, Answer | RaftmqError] = {}
        self.wakes = self.ends = self.pings = 0
        self.outgoing = Outgoing(self._wake)
        self.conversation = Conversation(
            "puppet", limits or RpcLimits(), self.outgoing, now=self.now, on_end=self._end
        )
        self.conversation.on_hello(hello)
        self._frames, self._answers = (
            FrameReader(frame_bytes_max=1 << 30, header_bytes_max=1 << 30) for _ in range(2)
        )

    def ask(self, command: bytes, payload: bytes = b"", *, timeout_seconds: float = 30) -> Call:
        def note(outcome: Answer | RaftmqError) -> None:
            assert command not in self.outcomes, "told twice"
            self.outcomes[command] = outcome

        call = Call(timeout=timeout_seconds, now=self.now, on_outcome=note)
        self.conversation.ask(call, Propose(command), (payload,) if payload else ())
        return call

    def sent(self) -> dict[bytes, int]:
        """The commands that have left since the last call, and their numbers; pings are counted."""
        found = {}
        while not self.outgoing.is_empty:
            for buffer in self.outgoing.take(self.now):
                for frame in self._frames.receive(buffer):
                    request = decode_request(frame.header)
                    if isinstance(request.body, Ping):
                        self.pings += 1
                    else:
                        assert isinstance(request.body, Propose)
                        found[request.body.command] = request.correlation_id
            self.outgoing.on_sent()
            self.conversation.send_next()
        return found

    def answer(self, number: int, result: bytes = b"") -> None:
        self.receive(encode_response(number, ProposeReply(result), metadata_version=42))

    def receive(self, data: bytes) -> None:
        self.conversation.heard_at = self.now
        for frame in self._answers.receive(data):
            self.conversation.on_frame(frame)

    def look_at(self, now: float) -> float:
        """The clock says `now`; when it wants to look next."""
        self.now = now
        return self.conversation.look(now)

    def result(self, command: bytes) -> bytes:
        outcome = self.outcomes[command]
        assert not isinstance(outcome, Exception)
        result: bytes = outcome.body.result
        return result

    def error(self, command: bytes) -> RaftmqError:
        outcome = self.outcomes[command]
        assert isinstance(outcome, Exception)
        return outcome

    def _wake(self) -> None:
        self.wakes += 1

    def _end(self) -> None:
        self.ends += 1
