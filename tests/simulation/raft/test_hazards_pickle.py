"""H13: pickle on the wire, in the log and on the disk (docs/decisions/0011)."""

from __future__ import annotations

import pickle
import socket
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pysyncobj.pickle as stock_pickle
import pytest
from pysyncobj.poller import createPoller
from pysyncobj.tcp_connection import TcpConnection

from raftmq.errors import InvalidCommand
from raftmq.metadata.commands import Endpoint, RegisterBroker, encode_command
from raftmq.wire.messages.cluster import COMMAND_BYTES_MAX
from tests.simulation.raft.lockstep import quorum
from tests.simulation.raft.stock import append

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.raft.stock import StockNode


class Payload:
    """Makes a directory where it is unpickled: a stand-in for worse."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.mkdir, (self._path,))


def test_stock_runs_what_a_connection_sends(tmp_path: Path) -> None:
    """H13: one frame from anybody who can reach the port is code that runs."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    poller = createPoller("select")
    connection = TcpConnection(
        poller, socket=ours, timeout=1e9, sendBufferSize=1 << 16, recvBufferSize=1 << 16
    )
    frame = zlib.compress(pickle.dumps(Payload(tmp_path / "owned"), 2))
    theirs.sendall(struct.pack("i", len(frame)) + frame)
    poller.poll(0.0)
    connection.disconnect()
    theirs.close()
    assert (tmp_path / "owned").is_dir()


def test_stock_runs_what_a_leader_sends(
    make_stock: Callable[..., StockNode], tmp_path: Path
) -> None:
    """H13: entries of 64 KiB and more come pickled, and every command is a pickle."""
    follower = make_stock()
    large = {
        **append([], term=1, previous=(1, 0)),
        "transmission": "start",
        "data": b"",
    }
    follower.receive("B", large)
    end = pickle.dumps((b"\x01", 2, 1, Payload(tmp_path / "wire"))[3:], 2)
    with pytest.raises(TypeError):  # it is no entry, but it has been loaded
        follower.receive("B", {**large, "transmission": "finish", "data": end})
    command = b"\x00" + pickle.dumps(Payload(tmp_path / "log"), 2)
    follower.receive("B", append([(command, 2, 1)], term=1, previous=(1, 0), commit_index=2))
    with pytest.raises(KeyError):
        follower.tick()
    assert (tmp_path / "wire").is_dir()
    assert (tmp_path / "log").is_dir()


@pytest.fixture
def poisoned_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way into pickle that PySyncObj has fails the test."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("pickle was called")

    for name in ("load", "loads", "dump", "dumps", "_load", "_loads"):
        for module in (pickle, stock_pickle):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refuse)
    for name in ("loads", "dumps"):
        monkeypatch.setattr(f"pysyncobj.journal.{name}", refuse)


@pytest.mark.usefixtures("poisoned_pickle")
def test_ours_pickles_nothing() -> None:
    """H13: elections, small and large commands, repair, snapshots, restarts: no pickle at all."""
    world = quorum(1)
    for size in (10, 65_535, 65_536, 100_000, COMMAND_BYTES_MAX):
        world[1].submit(b"x" * size)
    world.settle()
    world.isolate(1)
    world[1].submit(b"lost" * 50_000)
    world[1].turn()
    world.elect(2)
    world[2].submit(b"y" * 70_000)
    world.run(0.1)
    world[2].take_snapshot()
    world[2].journal.compact(world[2].node.last_applied, 0)
    world.connect_all()
    world.settle()
    world.restart(3)
    world.connect_all()
    world.settle()
    assert world[1].items == world[2].items == world[3].items
    assert [len(item) for item in world[1].items[-2:]] == [COMMAND_BYTES_MAX, 70_000]


def test_ours_refuses_a_command_over_a_mebibyte() -> None:
    """H13: what is too large is refused before it is proposed, so no other way must exist."""
    endpoint = Endpoint("client", "h" * COMMAND_BYTES_MAX, 1)
    command = RegisterBroker(1, b"process", b"directory", endpoints=(endpoint,))
    with pytest.raises(InvalidCommand, match=str(COMMAND_BYTES_MAX)):
        encode_command(command)
