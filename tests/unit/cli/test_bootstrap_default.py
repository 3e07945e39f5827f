"""Which broker commands ask that were told of none."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click
import pytest

from raftmq.cli.clusters import bootstrap
from raftmq.local.ports import keep_any_ports
from raftmq.model import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """In place of 9292 to 9294, where something may run on this machine."""
    with keep_any_ports(3) as ports:
        monkeypatch.setattr(bootstrap, "_DEFAULT_PORTS", ports)
        yield ports


def asked() -> list[int]:
    with click.Context(click.Command("topic")):
        addresses = bootstrap.bootstrap_addresses(None)
    assert {address.host for address in addresses} == {HOST}
    return [address.port for address in addresses]


@pytest.mark.parametrize(("killed", "found"), [((), 0), ((0,), 1), ((0, 1), 2), ((0, 1, 2), 0)])
def test_brokers_of_a_local_cluster(ports: list[int], killed: tuple[int, ...], found: int) -> None:
    """After `raftmq dev kill 1` commands find broker 2; where nothing runs they name the first."""
    with ExitStack() as closing:
        for number, port in enumerate(ports):
            if number not in killed:
                closing.enter_context(socket.create_server((HOST, port)))
        assert asked() == [ports[found]]


def test_what_was_said_is_taken(ports: list[int]) -> None:
    """With -b nothing is tried."""
    with socket.create_server((HOST, ports[0])), click.Context(click.Command("topic")):
        assert bootstrap.bootstrap_addresses("b:1,c:2") == (Address("b", 1), Address("c", 2))
