# ruff: noqa: T201
"""The smallest whole program with a metadata quorum: three voters and an observer, on 127.0.0.1.

    python examples/quorum_program.py demo-data/quorum

In earnest each voter is a process of its own, on a machine of its own. It may be started again on
what it left behind: every command in it may be repeated. docs/OPERATING-QUORUM.md explains it.
"""

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from raftmq.errors import RaftmqError
from raftmq.metadata.commands import (
    AnyCommand,
    AnyResult,
    BrokerRegistered,
    CreateTopic,
    RegisterBroker,
    UnfenceBroker,
)
from raftmq.metadata.raft.observer import open_observer
from raftmq.metadata.raft.opening import QuorumSettings, open_quorum
from raftmq.metadata.raft.quorum import RaftQuorum
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork

HOST = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
VOTERS = {1: Address(HOST, 9301), 2: Address(HOST, 9302), 3: Address(HOST, 9303)}
BROKER, OBSERVER = 11, 12  # an observer has an id of its own
TOPIC_ID = b"orders, 16 bytes"


def settings(root: Path, node_id: int) -> QuorumSettings[Address]:
    return QuorumSettings(root / f"node-{node_id}", "my-cluster", node_id, VOTERS)


async def leader_of(quorums: dict[int, RaftQuorum]) -> RaftQuorum:
    """The voter that leads, as far as voter 1 knows."""
    seen = quorums[1].leadership
    while seen.leader_id is None:
        seen = await quorums[1].wait_leadership_changed(seen)
    return quorums[seen.leader_id]


async def propose(quorums: dict[int, RaftQuorum], command: AnyCommand) -> AnyResult:
    """Until it is committed: a leader may fall at any time."""
    while True:
        try:
            return await (await leader_of(quorums)).propose(command)
        except RaftmqError as error:
            if not error.retriable:
                raise
            await trio.sleep(0.1)


async def create_topic(quorums: dict[int, RaftQuorum]) -> None:
    """A topic wants a broker for its replicas, one that is registered and not fenced."""
    broker = RegisterBroker(BROKER, incarnation=bytes(16), directory_id=bytes(16))
    registered = await propose(quorums, broker)
    assert isinstance(registered, BrokerRegistered), registered
    await propose(quorums, UnfenceBroker(BROKER, registered.broker_epoch))
    topic = CreateTopic(TOPIC_ID, "orders", assignments=((BROKER,),))
    print("committed:", await propose(quorums, topic))


async def main(root: Path) -> None:
    async with AsyncExitStack() as stack:
        quorums = {}
        for voter in VOTERS:
            voting = open_quorum(settings(root, voter), TcpNetwork())
            quorums[voter] = await stack.enter_async_context(voting)
        await create_topic(quorums)
        async with open_observer(settings(root, OBSERVER), TcpNetwork()) as observer:
            image = observer.image
            while image.topic_named("orders") is None:
                image = await observer.wait_changed(image.version)
            print("seen by the observer:", *image.topic_ids)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
