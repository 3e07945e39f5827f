"""The process that is killed: one voter on real files and sockets, with clients while it leads.

    python -m tests.cluster.quorum_node --directory D --node-id 1 --ports 20001,20002,20003

Owns the process: what it obeys on stdin, how it says that it cannot go on (a line on stderr and
its exit status), and that it never outlives its parent. All else is production code.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
from typing import TYPE_CHECKING

import trio

from raftmq.errors import CorruptJournal, StorageError
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.opening import QuorumSettings, open_quorum
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork
from tests.cluster.quorum_holding import holding_of
from tests.cluster.quorum_load import Load, tell
from tests.cluster.quorum_words import (
    CORRUPT_JOURNAL,
    HOLD,
    HOST,
    REST,
    STOP,
    STOPPED,
    STORAGE_ERROR,
    WORK,
    Leads,
    Opened,
    Order,
    parse_order,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.metadata.quorum import MetadataQuorum

_PR_SET_PDEATHSIG = 1


async def run(order: Order) -> None:
    settings = QuorumSettings(
        directory=order.directory,
        cluster_id=order.cluster_id,
        node_id=order.node_id,
        voters={voter: Address(HOST, port) for voter, port in order.voters().items()},
        limits=QuorumLimits(
            snapshot_entries=order.snapshot_entries, trailing_entries=order.trailing_entries
        ),
        is_replacement=bool(order.is_replacement),
        sync=bool(order.sync),
    )
    async with open_quorum(settings, TcpNetwork()) as quorum, trio.open_nursery() as nursery:
        tell(Opened())
        load = Load(quorum, life=order.life, clients=order.clients)
        nursery.start_soon(load.run)
        nursery.start_soon(tell_leadership, quorum)
        await obey(quorum, load)
        nursery.cancel_scope.cancel()


async def tell_leadership(quorum: MetadataQuorum) -> None:
    while True:
        leadership = quorum.leadership
        tell(Leads(leadership.term, leadership.is_leader))
        await quorum.wait_leadership_changed(leadership)


async def obey(quorum: MetadataQuorum, load: Load) -> None:
    """Until told to stop, or until nobody is there any more to tell anything."""
    async for word in words():
        if word == STOP:
            return
        if word == WORK:
            load.work()
        elif word == REST:
            load.rest()
        else:
            assert word == HOLD, word
            tell(await trio.to_thread.run_sync(holding_of, quorum.image))


async def words() -> AsyncIterator[str]:
    """What is said on stdin."""
    unfinished = b""
    async with trio.lowlevel.FdStream(0) as stdin:
        async for data in stdin:
            *lines, unfinished = (unfinished + data).split(b"\n")
            for line in lines:
                yield line.decode()


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    status, problems = STOPPED, tuple[BaseException, ...]()
    try:
        trio.run(run, parse_order())
    except* CorruptJournal as group:
        status, problems = CORRUPT_JOURNAL, group.exceptions
    except* StorageError as group:
        status, problems = STORAGE_ERROR, group.exceptions
    for problem in problems:
        sys.stderr.write(f"quorum node: {problem!r}\n")
    sys.exit(status)


if __name__ == "__main__":
    main()
