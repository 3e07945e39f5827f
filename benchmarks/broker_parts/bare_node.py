"""A node that takes, writes and passes on bytes: what a broker is compared with.

    python -m benchmarks.broker_parts.bare_node '{"listener": FD, "others": [PORT, PORT], ...}'

It leads what a client sends: writes it, sends it to both other nodes, and says a word to the client
for each frame that all three have. It follows the other two: writes what they send, and says a word
for each frame. Frames all have one size, of which it is told, so it only counts bytes. One thread,
one `select`. With `sync` words wait for an `fdatasync` of all that came since the last one.

Whoever connects says first, with one byte, whether it is a client or a leader.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
from contextlib import suppress
from typing import Any

CLIENT, LEADER = b"C", b"L"
WORD = b"done"
READ_BYTES = 256 << 10


class Link:
    """A connection, and what waits for it to take more.

    Attributes:
        received: bytes so far.
        said: words.
    """

    def __init__(self, stream: socket.socket, selector: selectors.BaseSelector) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setblocking(False)
        self.stream, self._selector = stream, selector
        self.received = self.said = 0
        self._waiting = bytearray()
        selector.register(stream, selectors.EVENT_READ, self)

    def send(self, data: bytes | memoryview) -> None:
        if not self._waiting:
            with suppress(BlockingIOError):
                data = data[self.stream.send(data) :]
            if data:
                both = selectors.EVENT_READ | selectors.EVENT_WRITE
                self._selector.modify(self.stream, both, self)
        self._waiting += data

    def flush(self) -> None:
        del self._waiting[: self.stream.send(self._waiting)]
        if not self._waiting:
            self._selector.modify(self.stream, selectors.EVENT_READ, self)

    def say_up_to(self, words: int) -> None:
        if words > self.said:
            self.send(WORD * (words - self.said))
            self.said = words


class BareNode:
    def __init__(self, *, path: str, frame_bytes: int, sync: bool) -> None:
        self._frame_bytes, self._sync = frame_bytes, sync
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._selector = selectors.DefaultSelector()
        self._client: Link | None = None
        self._leaders: list[Link] = []
        self._followers: list[Link] = []
        self._buffer = memoryview(bytearray(READ_BYTES))

    def connect(self, listener: socket.socket, other_ports: list[int]) -> None:
        """All that there will be."""
        for port in other_ports:
            stream = socket.create_connection(("127.0.0.1", port))
            stream.sendall(LEADER)
            self._followers.append(Link(stream, self._selector))
        while self._client is None or len(self._leaders) < len(other_ports):
            stream, _ = listener.accept()
            is_client = stream.recv(1) == CLIENT
            link = Link(stream, self._selector)
            if is_client:
                self._client = link
            else:
                self._leaders.append(link)

    def run(self) -> None:
        """Until somebody hangs up."""
        while True:
            is_dirty = False
            for key, events in self._selector.select():
                link: Link = key.data
                if events & selectors.EVENT_WRITE:
                    link.flush()
                if events & selectors.EVENT_READ:
                    count = link.stream.recv_into(self._buffer)
                    if not count:
                        return
                    link.received += count
                    is_dirty |= self._take(link, self._buffer[:count])
            if self._sync and is_dirty:
                os.fdatasync(self._file)
            self._say_what_is_done()

    def _take(self, link: Link, data: memoryview) -> bool:
        """Whether it was written."""
        if link in self._followers:
            return False
        os.write(self._file, data)
        if link is self._client:
            for follower in self._followers:
                follower.send(data)
        return True

    def _say_what_is_done(self) -> None:
        for leader in self._leaders:
            leader.say_up_to(leader.received // self._frame_bytes)
        assert self._client is not None
        words = min(follower.received for follower in self._followers) // len(WORD)
        self._client.say_up_to(min(words, self._client.received // self._frame_bytes))


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    node = BareNode(path=told["path"], frame_bytes=told["frame_bytes"], sync=told["sync"])
    with socket.socket(fileno=told["listener"]) as listener:
        node.connect(listener, told["others"])
    with suppress(ConnectionError):
        node.run()


if __name__ == "__main__":
    main()
