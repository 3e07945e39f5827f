"""`connect`: what is refused at once, and how often a client is opened."""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from raftmq import connect
from raftmq.client.client import Client
from raftmq.errors import Closed, InvalidConfig, Unreachable
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.world import World, open_world

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bootstrap": 5}, "bootstrap is an int"),
        ({"bootstrap": [5]}, "5 is an int"),
        ({"client_id": 5}, "client_id is an int"),
        ({"connect_timeout_ms": "5"}, "connect_timeout_ms = '5'"),
        ({"connect_timeout_ms": None}, "connect_timeout_ms = None"),
        ({"connect_timeout_ms": True}, "connect_timeout_ms = True"),
        ({"timeout_ms": 5}, "did you mean 'connect_timeout_ms'"),
    ],
)
def test_wrong_types(options: dict[str, Any], words: str) -> None:
    """A TypeError that names the argument, before anything is dialled."""
    with pytest.raises(TypeError, match=words):
        connect(**options)


@pytest.mark.parametrize("milliseconds", [0, -1, float("nan")])
def test_times_that_cannot_be(milliseconds: float) -> None:
    """The first answer may take some time."""
    with pytest.raises(InvalidConfig, match="connect_timeout_ms"):
        connect(connect_timeout_ms=milliseconds)


def client_of(world: World) -> Client:
    addresses = [broker.address for broker in world.brokers.values()]
    network = ClientNetwork(world.network.node("client"))
    return Client(addresses, network=network, random=Random(1), connect_timeout_ms=500)


def test_a_client_is_made_outside_of_any_event_loop() -> None:
    """A script makes one before its loop runs; nothing is opened yet."""
    assert isinstance(connect("127.0.0.1:1"), Client)


async def test_a_client_is_opened_once(autojump_clock: MockClock) -> None:
    """Whether that worked or not; the second time tells what to do instead."""
    async with open_world() as (world, _):
        client = client_of(world)
        async with client:
            client.consumer("t")
            with pytest.raises(Closed, match="connect again"):
                async with client:
                    pass
            client.consumer("t")
        with pytest.raises(Closed, match="connect again"):
            async with client:
                pass
        for broker in world.brokers.values():
            broker.stop()
        client = client_of(world)
        for error in (Unreachable, Closed):
            with pytest.raises(error):
                async with client:
                    pass


async def test_it_says_when_it_is_connected(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each client, with the cluster and its brokers; what it is shows in its repr."""
    async with open_world() as (world, _):
        client = client_of(world)
        assert repr(client) == "<Client of b1:9000, b2:9000, not open>"
        with caplog.at_level(logging.INFO, logger="raftmq.client"):
            async with client:
                assert repr(client).endswith(", open>")
                async with client.producer(acks=1, linger_ms=0) as producer:
                    await producer.send("t", b"x")
                    assert repr(producer) == "<Producer with acks=1, linger_ms=0, open>"
                assert repr(producer).endswith(", closed>")
        lines = [record.message for record in caplog.records if "connected" in record.message]
        assert lines == [caplog.messages[0]], "the first word of a client"
        assert lines == ["connected: cluster=cluster-a brokers=1@b1:9000,2@b2:9000"]


def test_reprs_of_the_blocking_classes() -> None:
    """As those of the asynchronous ones."""
    client = raftmq.sync.connect("127.0.0.1:1")
    assert repr(client) == "<Client of 127.0.0.1:1, not open>"
