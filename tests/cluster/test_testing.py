"""Brokers inside the test process: for every kind of program, whatever is done to them."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest
import trio

from raftmq.client.administration.topics import create_topic, delete_topic, wait_leaders
from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.cluster import Cluster
from raftmq.errors import Closed, InvalidConfig, InvalidRequest, Unreachable
from raftmq.testing import broker, cluster
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import RecordBatch, encode_batch
from tests.cluster.quorum_words import HOST
from tests.fetching import fetch
from tests.producing import produce

if TYPE_CHECKING:
    from raftmq.testing import Server

pytestmark = pytest.mark.cluster

PROGRAM_SECONDS_MAX = 60
# Never leaves the block; told where its files are, and ends.
FORGETFUL = """
from raftmq.testing import broker
begun = broker()
begun.__enter__()
print("begun")
"""
# Interrupted while it waits for a node that cannot get ready in time.
INTERRUPTED = """
import signal, threading
from raftmq.testing import cluster
main = threading.main_thread().ident
with cluster(3) as server:
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
    while True:
        server.kill_node(2)
        server.start_node(2)
"""


def client_of(server: Server) -> Cluster:
    return Cluster(server.addresses, AnyioTcpNetwork(), random=Random())


def batch(value: bytes) -> bytes:
    return bytes(encode_batch(values=[value], timestamp=1000))


async def write(server: Server, topic: str, value: bytes = b"hello") -> None:
    """A topic as the cluster has it unless told otherwise, and one record on all its replicas."""
    async with client_of(server) as client:
        deadline = anyio.current_time() + 30.0
        await create_topic(client, topic, deadline=deadline)
        await wait_leaders(client, topic, deadline=deadline)
        await produce(client, topic, 0, batch(value))


async def read(server: Server, topic: str) -> list[bytes | None]:
    async with client_of(server) as client:
        found = await fetch(client, topic, 0, 0)
    places = [position for position, _ in iter_batches(found.data)]
    return [value for at in places for value in RecordBatch.decode(found.data, at).values]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the brokers of this test have theirs, and nobody else."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def is_refused(server: Server, node_id: int) -> bool:
    address = server.addresses[server.nodes.index(node_id)]
    try:
        socket.create_connection((address.host, address.port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_broker_for_a_program_without_a_loop(files: Path) -> None:
    """It is ready when the block begins, takes a topic as it comes, and is gone afterwards."""
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    with broker() as server:
        assert server.nodes == server.running == (1,)
        [address] = server.addresses
        assert server.bootstrap == f"{HOST}:{address.port}"
        trio.run(write, server, "orders")
        assert trio.run(read, server, "orders") == [b"hello"]
        assert server.leader_of("orders") == 1
        assert len(list(files.iterdir())) == 1
        assert (gc.get_threshold(), gc.get_freeze_count()) == (threshold, frozen)
    assert is_refused(server, 1)
    assert not list(files.iterdir())
    assert all(thread.name != "raftmq-testing" for thread in threading.enumerate())


async def test_a_broker_for_a_program_on_trio() -> None:
    """The block stands in the middle of a task."""
    with broker() as server:
        await write(server, "orders")
        assert await read(server, "orders") == [b"hello"]


def test_a_broker_for_a_program_on_asyncio() -> None:
    """The broker's loop is another one than the program's."""

    async def main() -> None:
        with broker() as server:
            await write(server, "orders")
            assert await read(server, "orders") == [b"hello"]

    asyncio.run(main())


def test_a_node_that_is_stopped_in_order() -> None:
    """What it led, another one leads; it is refused to callers, and comes back to its address."""
    with cluster(3) as server:
        trio.run(write, server, "orders")
        leader = server.leader_of("orders")
        assert leader in server.nodes
        server.stop_node(leader)
        assert leader not in server.running
        assert server.leader_of("orders") not in {leader, None}
        assert is_refused(server, leader)
        assert trio.run(read, server, "orders") == [b"hello"]
        server.start_node(leader)
        assert not is_refused(server, leader)


def test_a_node_that_is_killed() -> None:
    """Acknowledged records survive the leader, and all three nodes at once."""
    with cluster(3) as server:
        trio.run(write, server, "orders")
        leader = server.leader_of("orders")
        assert leader is not None
        server.kill_node(leader)
        assert trio.run(read, server, "orders") == [b"hello"]
        server.start_node(leader)
        for node_id in server.nodes:
            server.kill_node(node_id)
        for node_id in server.nodes:
            server.start_node(node_id, wait=False)
        server.wait_ready()
        assert trio.run(read, server, "orders") == [b"hello"]


def test_one_broker_starts_again() -> None:
    """Stopped in order or killed: its records are there."""
    with broker() as server:
        trio.run(write, server, "orders")
        for end in (server.stop_node, server.kill_node):
            end(1)
            assert server.running == ()
            server.start_node(1)
            assert trio.run(read, server, "orders") == [b"hello"]


def test_deleted_topics_give_their_place_back(files: Path) -> None:
    """Without the garbage collector, which a program may have disabled, or frozen what it made."""

    async def use_and_delete(server: Server) -> None:
        topics = [f"topic-{number}" for number in range(5)]
        for topic in topics:
            await write(server, topic)
            assert await read(server, topic) == [b"hello"]
        async with client_of(server) as client:
            for topic in topics:
                await delete_topic(client, topic, deadline=anyio.current_time() + 30.0)
        with trio.fail_after(PROGRAM_SECONDS_MAX):
            while not is_given_back(files):  # noqa: ASYNC110  # files have no event
                await trio.sleep(0.05)

    with cluster(3) as server:
        gc.disable()
        try:
            trio.run(use_and_delete, server)
        finally:
            gc.enable()


def is_given_back(files: Path) -> bool:
    """No partition has a folder, and this process keeps no file open that has no name."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            links.append(str(descriptor.readlink()))
    removed = [it for it in links if it.startswith(str(files)) and it.endswith(" (deleted)")]
    folders = [it for _, names, _ in os.walk(files) for it in names if "Partition-" in it]
    return not removed and not folders


def test_a_node_that_waits_for_others_can_be_stopped() -> None:
    """It is alone, so that it does not get ready; that ends at once."""
    with cluster(3) as server:
        for node_id in server.nodes:
            server.kill_node(node_id)
        with pytest.raises(InvalidRequest, match=r"1 of 3 nodes would run, 2 are needed"):
            server.start_node(2)
        server.start_node(2, wait=False)
        with pytest.raises(InvalidRequest, match=r"1 of 3 nodes would run, 2 are needed"):
            server.wait_ready()
        server.stop_node(2)
        assert server.running == ()


def test_what_cannot_be_done() -> None:
    """Wrong ids and states are told, and change nothing."""
    with broker() as server:
        with pytest.raises(InvalidRequest, match=r"node 7: there is none, only \[1\]"):
            server.kill_node(7)
        with pytest.raises(InvalidRequest, match="node 1 runs already"):
            server.start_node(1)
        server.kill_node(1)
        for end in (server.stop_node, server.kill_node):
            with pytest.raises(InvalidRequest, match=r"node 1 does not run, \[\] do"):
                end(1)
        with pytest.raises(InvalidRequest, match="no node runs"):
            server.leader_of("orders")
    with pytest.raises(Closed):
        server.start_node(1)


@pytest.mark.parametrize("count", [-1, 0, 100])
def test_no_cluster_of_that_size(count: int, files: Path) -> None:
    """There is no block, and nothing is left."""
    with pytest.raises(InvalidConfig), cluster(count):
        pytest.fail("it was opened")
    assert not list(files.iterdir())


def test_an_exception_in_the_block(files: Path) -> None:
    """It comes out as it is; the brokers have ended."""
    with pytest.raises(KeyError, match="of the block"), broker() as server:
        raise KeyError("of the block")
    assert not list(files.iterdir())
    assert is_refused(server, 1)


def test_an_address_that_somebody_has_taken() -> None:
    """The node cannot listen: whoever starts it is told why, and leaving the block is quiet."""
    with broker() as server:
        server.kill_node(1)
        [address] = server.addresses
        with (
            socket.create_server((address.host, address.port)),
            pytest.raises(Unreachable, match="Address already in use"),
        ):
            server.start_node(1)
        with pytest.raises(Unreachable):
            assert server.running


def test_two_clusters_at_once() -> None:
    """They know nothing of each other, in one thread or in two."""
    with cluster(3) as large, broker() as small:
        trio.run(write, large, "orders", b"large")
        trio.run(write, small, "orders", b"small")
        assert trio.run(read, large, "orders") == [b"large"]
        assert trio.run(read, small, "orders") == [b"small"]
        small.kill_node(1)
        assert large.running == (1, 2, 3)


def test_calls_of_a_program_on_trio_beside_its_other_tasks() -> None:
    """A node is stopped in a worker thread while a task goes on reading."""

    async def main() -> None:
        with cluster(3) as server:
            await write(server, "orders")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(trio.to_thread.run_sync, server.stop_node, 1))
                assert await read(server, "orders") == [b"hello"]
            assert server.running == (2, 3)

    trio.run(main)


def run_program(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        env={"TMPDIR": str(folder)},
        check=False,
    )


def test_a_program_that_never_leaves_the_block(files: Path) -> None:
    """It ends nevertheless, and its files are removed."""
    ended = run_program(FORGETFUL, files)
    assert (ended.returncode, ended.stdout) == (0, "begun\n"), ended.stderr
    assert ended.stderr == ""
    assert not list(files.iterdir())


def test_a_program_that_is_interrupted(files: Path) -> None:
    """Ctrl-C ends whatever call it waits in, and leaving the block ends the rest."""
    ended = run_program(INTERRUPTED, files)
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert not list(files.iterdir())
