"""`broker()` and `cluster()`: context managers for tests, and `Server`, the handle that they give.

Owns the names that people type. All calls may come from any thread and block until they are done;
asynchronous code that must go on meanwhile makes them in a worker thread.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from raftmq.errors import InvalidConfig
from raftmq.rpc.protocol import format_address
from raftmq.sync.client import connect
from raftmq.sync.loop import LoopThread
from raftmq.testing.nodes import Nodes, open_nodes
from raftmq.wire.messages.cluster import VOTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.model import Address


class Server:
    """Brokers that run in the background. Made by `broker` and `cluster`.

    An error in the background is raised by the next call, or when the block is left.

    Attributes:
        addresses: where clients connect, one address for each node, in the order of `nodes`.
        nodes: their ids, from 1 on: those that the metadata has for brokers.
    """

    def __init__(
        self, thread: LoopThread[Nodes], nodes: tuple[int, ...], addresses: tuple[Address, ...]
    ) -> None:
        self._thread, self.nodes, self.addresses = thread, nodes, addresses

    @property
    def bootstrap(self) -> str:
        """All addresses as clients take them: "127.0.0.1:port,127.0.0.1:port"."""
        return ",".join(map(format_address, self.addresses))

    @property
    def running(self) -> tuple[int, ...]:
        """The ids of the nodes that run."""

        async def find(nodes: Nodes) -> tuple[int, ...]:
            return tuple(sorted(nodes.running))

        return self._thread.ask(find)

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """The id of the node that leads a partition, None if there is none just now.

        Raises:
            UnknownTopicOrPartition: no running node knows it.
        """

        async def find(nodes: Nodes) -> int | None:
            return nodes.leader_of(topic, partition)

        return self._thread.ask(find)

    def start_node(self, node_id: int, *, wait: bool = True) -> None:
        """Start a node that was stopped or killed: same address, same files.

        Args:
            wait: until it is ready. Without, return at once: for a node that has to wait for others
                that are started next.

        Raises:
            InvalidRequest: it runs, there is none with this id, or too few others run to wait.
        """

        async def start(nodes: Nodes) -> None:
            if wait:
                nodes.check_majority(node_id)
            nodes.begin(node_id)
            if wait:
                await nodes.wait_ready()

        self._thread.ask(start)

    def stop_node(self, node_id: int) -> None:
        """Stop a node in order: what it leads moves to others, its files are complete.

        Raises:
            InvalidRequest: it does not run, or there is none with this id.
        """
        self._thread.ask(lambda nodes: nodes.stop(node_id))

    def kill_node(self, node_id: int) -> None:
        """Stop a node in the middle of its work: its connections break, nothing is handed over.

        What it had written to its files is still there when it starts again, as after a SIGKILL.

        Raises:
            InvalidRequest: it does not run, or there is none with this id.
        """
        self._thread.ask(lambda nodes: nodes.kill(node_id))

    def abort_transaction(self, transaction_id: str) -> None:
        """Abort what is open under the id, as operators do: its producer gets TransactionAborted
        where it sends next, or at the end of the transaction.

        Raises:
            UnknownTransaction: no producer has opened the id.
        """
        with connect(self.bootstrap) as client:
            client.admin.abort_transaction(transaction_id)

    def fence_transaction(self, transaction_id: str) -> None:
        """Open the id as another process does: what is open under it is aborted, and its producer
        gets ProducerFenced for good.
        """
        with connect(self.bootstrap) as client, client.producer(transaction_id=transaction_id):
            pass  # opening it is enough

    def wait_ready(self) -> None:
        """Wait until every node that runs knows that all nodes that run are active.

        Raises:
            InvalidRequest: less than a majority of all nodes run.
            RequestTimedOut: that has taken 30 s.
        """
        self._thread.ask(lambda nodes: nodes.wait_ready())


@contextmanager
def broker() -> Iterator[Server]:
    """One broker in this process, for as long as the block runs; ready when it begins.

    Topics that are made without a replication factor have one replica.

    Raises:
        RaftmqError: it could not be started; or, when the block is left, what has ended it.
    """
    with cluster(1) as server:
        yield server


@contextmanager
def cluster(count: int = 3) -> Iterator[Server]:
    """The same for `count` brokers, all of which vote in the quorum.

    Raises:
        InvalidConfig: no cluster has so many voters.
        RaftmqError: see `broker`.
    """
    if not 1 <= count <= VOTERS_MAX:
        raise InvalidConfig([f"count = {count}: expected 1 to {VOTERS_MAX} brokers"])
    with LoopThread("raftmq-testing", partial(open_nodes, count)) as thread:

        async def find(nodes: Nodes) -> tuple[tuple[int, ...], tuple[Address, ...]]:
            return nodes.node_ids, nodes.addresses

        yield Server(thread, *thread.ask(find))
