"""Clients that leave large requests half sent, against a real process and its memory (G11)."""

from __future__ import annotations

import socket
import time
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
SENT_BYTES = 60 << 20  # of each frame
SLACK_BYTES = 64 << 20  # what a broker needs besides, and a read of each connection


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) << 10


def test_half_frames_are_bounded_together(tmp_path: Path) -> None:
    """Twenty connections with 60 MiB of a frame each; others are served meanwhile."""
    with LocalCluster.open(tmp_path / "cluster", brokers=1, port=0) as cluster, ExitStack() as held:
        cluster.start()
        cluster.wait_ready()
        [node] = cluster.status()
        assert node.pid is not None
        before = resident_bytes(node.pid)
        host, port = cluster.bootstrap.split(",")[0].rsplit(":", 1)
        for _ in range(CONNECTIONS):
            caller = held.enter_context(socket.create_connection((host, int(port))))
            caller.sendall(encode_request(1, Hello()))
            caller.recv(4096)
            caller.settimeout(0.5)
            with suppress(OSError):  # nobody reads more of it: that is what is wanted
                caller.sendall(PREFIX.pack(FRAME_BYTES, 100) + bytes(100))
                caller.sendall(bytes(SENT_BYTES))
        time.sleep(1)
        grown = resident_bytes(node.pid) - before
        assert grown <= RpcLimits().unhandled_bytes_max + SLACK_BYTES
        with sync.connect(cluster.bootstrap) as mq:
            mq.admin.create_topic("t", partitions=1, replication_factor=1)
            with mq.producer() as producer:
                assert producer.send("t", b"meanwhile").offset == 0
