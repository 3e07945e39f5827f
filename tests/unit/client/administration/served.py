"""A bureau that real clients reach over TCP: its brokers in a thread of their own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from raftmq.model import Address
from raftmq.rpc.context import ServerIdentity
from raftmq.rpc.network import TcpNetwork
from raftmq.rpc.server import RpcServer
from tests.unit.client.administration.bureau import Bureau
from tests.unit.client.world import CLIENTS, CLUSTER, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS_MAX = 10.0


@contextmanager
def serve_bureau(
    prepare: Callable[[Bureau], object] = lambda _bureau: None, *, brokers: int = 1
) -> Iterator[tuple[Bureau, Address]]:
    """Topic "t" is there, with one partition. `prepare` is called before anybody listens."""
    world = World(brokers)
    world.add_topic("t", 1)
    bureau = Bureau(world)
    prepare(bureau)
    ready, scope = threading.Event(), trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                for broker in world.brokers.values():
                    server = RpcServer(
                        ServerIdentity(CLUSTER, broker.broker_id),
                        broker.handlers,
                        authorize=broker._note,
                        metadata_version=lambda: world.version,
                    )
                    handle = partial(server.serve_stream, listener=CLIENTS)
                    network, anywhere = TcpNetwork(), Address("127.0.0.1", 0)
                    broker.address = await nursery.start(network.serve, handle, anywhere)
                tokens.append(trio.lowlevel.current_trio_token())
                ready.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert ready.wait(SECONDS_MAX)
        yield bureau, world.brokers[1].address
    finally:
        tokens[0].run_sync_soon(scope.cancel)
        thread.join(SECONDS_MAX)
