"""An observer among voters, one of which lies, or says nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.metadata.raft.net.messages import (
    PROTOCOL_VERSION,
    NodeHello,
    ObserverEntries,
    ObserverFetch,
    ObserverOffer,
    Role,
    SnapshotChunk,
    SnapshotFetch,
    VoteReply,
)
from raftmq.metadata.raft.observer import ANSWER_SECONDS_MAX
from raftmq.model import Address
from tests.simulation.raft_cluster import open_cluster
from tests.unit.metadata.raft.talk import fill
from tests.unit.metadata.raft.test_observer import NODES, caught_up, snapshots_of
from tests.unit.metadata.raft.voters import Stranger

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.metadata.raft.net.messages import AnyMessage


@pytest.mark.parametrize(
    "answer",
    [
        VoteReply(1),
        ObserverEntries(5, ((b"\x01", 5, 1),)),
        ObserverOffer(0, 0, 0, 0),
        None,
    ],
    ids=["vote", "hole", "nothing", "silence"],
)
async def test_nonsense_is_not_believed(
    answer: AnyMessage | None, autojump_clock: MockClock
) -> None:
    """Another message, a hole in the log, an empty snapshot, silence: on to the next voter."""
    async with open_cluster(1, 2, 3) as cluster, trio.open_nursery() as nursery:
        await fill(cluster, 1)
        liar = Liar(answer)
        address = Address("liar", 9000)
        await nursery.start(cluster.network.node("liar").serve, liar.serve, address)
        async with cluster.observe(9, voters={4: address, **cluster.voters}) as observer:
            cluster.network.partition(["node-9"], NODES)
            with trio.fail_after(ANSWER_SECONDS_MAX + 10):
                await liar.was_left.wait()
            cluster.heal()
            await caught_up(cluster, observer)
        nursery.cancel_scope.cancel()


async def test_a_snapshot_that_is_none(autojump_clock: MockClock) -> None:
    """The bytes are not what was promised: they are thrown away, and another voter is asked."""
    async with open_cluster(1, 2, 3) as cluster, trio.open_nursery() as nursery:
        await fill(cluster, 1)
        liar = Liar(ObserverOffer(50, 1, 10, 7))
        address = Address("liar", 9000)
        await nursery.start(cluster.network.node("liar").serve, liar.serve, address)
        async with cluster.observe(9, voters={4: address, **cluster.voters}) as observer:
            cluster.network.partition(["node-9"], NODES)
            with trio.fail_after(20):
                await liar.was_left.wait()
            cluster.heal()
            await caught_up(cluster, observer)
        assert snapshots_of(cluster) == []
        nursery.cancel_scope.cancel()


class Liar:
    """A voter that answers every fetch alike, and a fetch of a snapshot with ten zeros."""

    def __init__(self, answer: AnyMessage | None) -> None:
        self.answer, self.was_left = answer, trio.Event()

    async def serve(self, stream: trio.abc.Stream) -> None:
        voter = Stranger(stream)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(voter.keep_alive)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._converse(voter)
            nursery.cancel_scope.cancel()

    async def _converse(self, voter: Stranger) -> None:
        await voter.say(NodeHello(PROTOCOL_VERSION, "c", Role.VOTER, 4))
        assert isinstance(await voter.hear(), NodeHello)
        while (asked := await voter.hear()) is not None:
            if isinstance(asked, SnapshotFetch):
                wanted = (asked.index, asked.snapshot_term, asked.size_bytes, asked.crc)
                await voter.say(SnapshotChunk(*wanted, asked.offset, bytes(10)))
            elif self.answer is not None:
                assert isinstance(asked, ObserverFetch)
                await voter.say(self.answer)
        self.was_left.set()
