"""Requests about groups that a proxy delivers late, when their sender has long asked again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

import raftmq
from raftmq.metadata.image import slot_of
from raftmq.wire.frames import FrameReader
from raftmq.wire.messages.group_offsets import OffsetCommit
from raftmq.wire.messages.groups import FindCoordinator
from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.late_proxy import LateProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

RECORDS = 60
API_KEY_AT = 1  # in a header, behind the mark of an array
JOIN = b"cooperative_sticky"  # it names the assignors that a member knows
PATIENCE_SECONDS = 60.0
NOTICE_SECONDS = 4.0  # in which whoever is fenced would hear of it, with a heartbeat


class Proxied:
    """Three brokers, each behind a proxy, and a client that knows nothing of that."""

    def __init__(
        self, brokers: BrokerCluster, proxies: dict[int, LateProxy], mq: raftmq.Client
    ) -> None:
        self.brokers, self.proxies, self.mq = brokers, proxies, mq

    async def coordinator(self, group: str, *, says: int | None = None) -> int:
        """By the word of broker `says`, or of any."""
        cluster = self.mq._cluster
        deadline = trio.current_time() + PATIENCE_SECONDS
        while True:
            broker_id = cluster.any_broker() if says is None else says
            answer = await cluster.ask(broker_id, FindCoordinator((group,)), deadline=deadline)
            if not answer.body.coordinators[0].error:
                return int(answer.body.coordinators[0].broker_id)
            await trio.sleep(0.1)

    @asynccontextmanager
    async def elsewhere(self, group: str) -> AsyncIterator[None]:
        """The coordinator stalls, with the next commit before its door, and another one takes the
        slot. When the block is over the slot comes back, and then that commit arrives.
        """
        home = await self.coordinator(group)
        other = next(at for at in self.proxies if at != home)
        self.proxies[home].keep_back(is_commit)
        self.brokers.pause([home])
        self.proxies[home].is_shut = True
        yield
        assert await self.coordinator(group, says=other) != home
        self.brokers.resume([home])
        with trio.fail_after(PATIENCE_SECONDS):
            while await self.coordinator(group, says=other) != home:  # noqa: ASYNC110
                await trio.sleep(0.2)
        await trio.sleep(1.0)  # it knows as well
        self.proxies[home].is_shut = False
        assert await self.proxies[home].deliver() > 0
        assert (await self.mq.admin.describe_group(group)).coordinator == home


def group_that_comes_back() -> str:
    """Slots come back in their order, and this is of the first one."""
    return min((slot_of(name), name) for name in map("group-{}".format, range(200)))[1]


def is_commit(data: bytes) -> bool:
    """Clients send a small request in one piece."""
    reader = FrameReader(frame_bytes_max=1 << 20, header_bytes_max=1 << 20)
    return any(frame.header[API_KEY_AT] == OffsetCommit.api_key for frame in reader.receive(data))


@asynccontextmanager
async def proxied(folder: Path) -> AsyncIterator[Proxied]:
    """With a topic of one partition that is full of records."""
    async with trio.open_nursery() as nursery:
        listeners = [(await trio.open_tcp_listeners(0, host="127.0.0.1"))[0] for _ in range(3)]
        proxies = {at: LateProxy(one, nursery) for at, one in enumerate(listeners, 1)}
        addresses = {at: proxy.address for at, proxy in proxies.items()}
        with BrokerCluster(folder, advertised=addresses) as brokers:
            for at, proxy in proxies.items():
                proxy.start(brokers.address(at))
            brokers.start_all()  # they end with the thread that started them
            bootstrap = ",".join(map(str, addresses.values()))
            async with raftmq.connect(bootstrap) as mq:
                await mq.admin.create_topic("orders", partitions=1)
                async with mq.producer() as p:
                    await p.send_columns("orders", values=[b"x"] * RECORDS)
                yield Proxied(brokers, proxies, mq)
        nursery.cancel_scope.cancel()


async def test_a_commit_that_comes_when_the_slot_is_back(tmp_path: Path) -> None:
    """C2: a commit is kept back, and two more are answered by another coordinator; the slot comes
    back, and the first commit arrives: the group stays where it was."""
    async with proxied(tmp_path) as here:
        group = group_that_comes_back()
        options = {"commit": "manual", "start": "earliest", "session_timeout_ms": 60_000}
        async with here.mq.consumer("orders", group=group, **options) as c:
            records = [await anext(c) for _ in range(30)]
            await c.commit(records[9])
            async with here.elsewhere(group):
                await c.commit(records[19])
                await c.commit(records[29])
            assert await c.committed("orders", 0) == 30


async def test_what_was_handed_out_before_a_commit_came_late(tmp_path: Path) -> None:
    """C4: with commit="before" the first commit of a batch is kept back, and the batch and the next
    one are handed out by another coordinator's word; the slot comes back, and that commit arrives:
    whoever reads on is handed out neither of them again."""
    async with proxied(tmp_path) as here:
        group = group_that_comes_back()
        options = {"commit": "before", "start": "earliest", "session_timeout_ms": 60_000}
        async with here.mq.consumer("orders", group=group, **options) as c:
            batches = c.batches(max_records=10)
            handed_out = list((await anext(batches)).offsets)
            async with here.elsewhere(group):
                for _ in range(2):
                    handed_out += (await anext(batches)).offsets
        assert handed_out == list(range(30))
        async with here.mq.consumer("orders", group=group, **options) as c:
            assert (await anext(c.batches(max_records=10))).offsets[0] == len(handed_out)


@pytest.mark.parametrize("step", [1, 2])
async def test_a_join_that_comes_when_the_member_has_joined(tmp_path: Path, step: int) -> None:
    """C1: a static member's first or second JoinGroup is kept back, and it joins over another
    connection: when the copy arrives nobody is fenced, as there is one process only."""
    async with proxied(tmp_path) as here:
        joins = 0

        def is_due(data: bytes) -> bool:
            nonlocal joins
            joins += JOIN in data
            return JOIN in data and joins == step

        for proxy in here.proxies.values():
            proxy.keep_back(is_due)
        options = {"group_instance_id": "x", "start": "earliest", "session_timeout_ms": 15_000}
        async with here.mq.consumer("orders", group="billing", **options) as c:
            records = [await anext(c) for _ in range(RECORDS)]
            generation = c.generation
            (late,) = (proxy for proxy in here.proxies.values() if proxy.is_keeping)
            assert await late.deliver() > 0
            await trio.sleep(NOTICE_SECONDS)
            async with here.mq.producer() as p:
                await p.send("orders", b"y")
            assert (await anext(c)).offset == len(records)
            assert c.generation == generation
