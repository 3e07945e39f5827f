"""A request is added as docs/ARCHITECTURE.md says, "How to add a request", and nowhere else."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.broker.requests.metadata import MetadataRequests
from raftmq.client.administration.admin import Admin
from raftmq.client.administration.questions import ask_any
from raftmq.client.client import Client
from raftmq.client.routing.attempts import RepeatEffect
from raftmq.model import Address
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import REQUESTS, Body, Name, Natural, Request
from tests import protocol_rows
from tests.simulation.client_network import ClientNetwork
from tests.simulation.groups.whole_brokers import CLIENTS, NODES, whole_brokers
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.server import Handlers


@pytest.fixture
def _registry() -> Iterator[None]:
    """Without the requests of the test afterwards."""
    known = dict(REQUESTS)
    yield
    REQUESTS.clear()
    REQUESTS.update(known)


@pytest.mark.usefixtures("_registry")
async def test_a_request_is_added_in_three_places(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """How many topics begin with some letters: asked by a client of whole brokers, and described in
    docs/PROTOCOL.md.
    """

    # 1. Its messages, as in wire/messages/metadata.py
    class CountTopicsReply(Body, frozen=True):
        count: Natural = 0

    class CountTopics(Request, frozen=True):
        api_key = 1900
        reply = CountTopicsReply

        prefix: Name = ""

    # 2. Its handler, as in broker/requests/metadata.py
    def on_count_topics(
        self: MetadataRequests, _context: Any, request: CountTopics, _payload: Any
    ) -> Reply:
        names = self._quorum.image.topic_ids
        return Reply(CountTopicsReply(sum(name.startswith(request.prefix) for name in names)))

    handlers = MetadataRequests.handlers

    def more_handlers(self: MetadataRequests) -> Handlers:
        return {**handlers(self), CountTopics: partial(on_count_topics, self)}

    monkeypatch.setattr(MetadataRequests, "handlers", more_handlers)

    # 3. The client's call, as in client/administration/topics.py and admin.py
    async def count_topics(cluster: Cluster, prefix: str, *, deadline: float) -> int:
        return await ask_any(
            cluster,
            lambda _timeout_ms: CountTopics(prefix),
            lambda reply: int(reply.count),
            deadline=deadline,
            repeats=RepeatEffect.HARMLESS,
        )

    async def call(self: Admin, prefix: str = "") -> int:
        return await count_topics(self._cluster, prefix, deadline=self._deadline())

    monkeypatch.setattr(Admin, "count_topics", call, raising=False)

    async with whole_brokers() as whole:
        network = ClientNetwork(whole.network.node("program"))
        addresses = [Address(f"n{number}", CLIENTS) for number in NODES]
        async with Client(
            addresses, network=network, random=Random(3), now_ms=lambda: NOW_MS
        ) as client:
            for name in ("orders", "order-lines", "returns"):
                await client.admin.create_topic(name, partitions=1)
            admin: Any = client.admin
            assert (await admin.count_topics(), await admin.count_topics("order")) == (3, 2)

    page = protocol_rows.PAGE.read_text("utf-8")
    for kind in (CountTopics, CountTopicsReply):
        kind.__module__ = "raftmq.wire.messages.cluster"
    written = protocol_rows.rows(page, [CountTopics, CountTopicsReply]).split("\n")
    added = [line for line in written if line not in page.split("\n")]
    assert added == [
        "| 1900 `CountTopics` | `prefix` name = empty |  |",
        "| `CountTopicsReply` | `count` u63 = 0 |  |",
    ]
    (above,) = [line for line in page.split("\n") if line.startswith("| `ReadBarrierReply` |")]
    assert written[written.index(above) + 1] == added[0]
