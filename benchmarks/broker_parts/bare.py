"""The bare pipeline: three nodes that pass bytes on, and a client that keeps some in flight.

Owns their processes. The client runs in a thread of this process, with plain sockets; each node
leads a third of what it sends.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from benchmarks.broker_parts.bare_node import CLIENT, WORD
from benchmarks.broker_parts.process import start_child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 3
LENGTH_BYTES = 4
STALL_SECONDS_MAX = 30.0


def bare_megabytes_per_second(
    root: Path, data: bytes, *, in_flight: int, warm_up: float, seconds: float, sync: bool
) -> float:
    """Of batches like `data` that all three have written."""
    frame = len(data).to_bytes(LENGTH_BYTES, "big") + data
    with ExitStack() as closing, _nodes(root, len(frame), sync=sync) as ports:
        streams = [
            closing.enter_context(socket.create_connection(("127.0.0.1", port))) for port in ports
        ]
        done = _keep_in_flight(streams, frame, in_flight // COUNT, warm_up=warm_up, seconds=seconds)
    return done * len(data) / seconds / 1e6


def _keep_in_flight(
    streams: list[socket.socket], frame: bytes, per_stream: int, *, warm_up: float, seconds: float
) -> int:
    """How many frames were done between the warming up and the end."""
    selector, done = selectors.DefaultSelector(), 0
    for stream in streams:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(CLIENT + frame * per_stream)
        selector.register(stream, selectors.EVENT_READ, stream)
    for stream in streams:
        stream.recv(1, socket.MSG_PEEK)  # until the nodes have started
    begin = time.perf_counter() + warm_up
    end = begin + seconds
    rests = dict.fromkeys(streams, 0)  # bytes of a word that has not come whole
    while (now := time.perf_counter()) < end:
        ready = selector.select(STALL_SECONDS_MAX)
        assert ready, "the bare pipeline stands still"
        for key, _ in ready:
            stream = key.data
            said = stream.recv(4096)
            assert said, "a bare node has ended"
            words, rests[stream] = divmod(rests[stream] + len(said), len(WORD))
            done += words if now >= begin else 0
            if words:
                stream.sendall(frame * words)
    return done


@contextmanager
def _nodes(root: Path, frame_bytes: int, *, sync: bool) -> Iterator[list[int]]:
    """Their ports; they listen before they run."""
    paths = [root / f"bare-{number}" for number in range(COUNT)]
    with ExitStack() as closing:
        listeners = [closing.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in paths]
        ports = [listener.getsockname()[1] for listener in listeners]
        processes = []
        try:
            for path, listener, port in zip(paths, listeners, ports, strict=True):
                told = {
                    "listener": listener.fileno(),
                    "others": [other for other in ports if other != port],
                    "path": str(path),
                    "frame_bytes": frame_bytes,
                    "sync": sync,
                }
                command = ["-m", "benchmarks.broker_parts.bare_node", json.dumps(told)]
                processes.append(start_child(command, descriptors=[listener.fileno()]))
            yield ports
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.communicate()
            for path in paths:
                path.unlink(missing_ok=True)
