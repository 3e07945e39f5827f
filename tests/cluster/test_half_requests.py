"""Clients that leave large requests half sent, against a real process and its memory (G11).

A10.6.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from raftmq import sync
from raftmq.local.cluster import LocalCluster
from raftmq.rpc.protocol import RpcLimits
from raftmq.wire.envelopes import encode_request
from raftmq.wire.frames import PREFIX
from raftmq.wire.messages.hello import Hello

CONNECTIONS = 20
FRAME_BYTES = RpcLimits().frame_bytes_max - 100
HALF = bytes(60 << 20)  # of each frame
GIVEN_UP_SECONDS = 2.0  # time to read all of them, if nobody stopped that
SLACK_BYTES = 64 << 20  # what a broker needs besides, and a read of each connection


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def send_half(caller: socket.socket) -> None:
    caller.sendall(encode_request(1, Hello()))
    caller.recv(4096)
    caller.settimeout(GIVEN_UP_SECONDS)
    with suppress(OSError):  # nobody reads more of it: that is what is wanted
        caller.sendall(PREFIX.pack(FRAME_BYTES, 100) + bytes(100))
        caller.sendall(HALF)


def test_half_frames_are_bounded_together(tmp_path: Path) -> None:
    """Twenty connections with 60 MiB of a frame each; others are served meanwhile."""
    with LocalCluster.open(tmp_path / "cluster", brokers=1, port=0) as cluster, ExitStack() as held:
        cluster.start()
        cluster.wait_ready()
        [node] = cluster.status()
        assert node.pid is not None
        before = resident_bytes(node.pid)
        host, port = cluster.bootstrap.split(",")[0].rsplit(":", 1)
        callers = [
            held.enter_context(socket.create_connection((host, int(port))))
            for _ in range(CONNECTIONS)
        ]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(send_half, callers))
        time.sleep(1)
        grown = resident_bytes(node.pid) - before
        assert grown <= RpcLimits().unhandled_bytes_max + SLACK_BYTES
        with sync.connect(cluster.bootstrap) as mq:
            mq.admin.create_topic("t", partitions=1, replication_factor=1)
            with mq.producer() as producer:
                assert producer.send("t", b"meanwhile").offset == 0
