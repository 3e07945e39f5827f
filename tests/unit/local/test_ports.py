"""Ports are kept from other programs until the nodes listen, and those in use are named."""

from __future__ import annotations

import socket

import pytest

from raftmq.errors import Unreachable
from raftmq.local.plan import HOST, ClusterPlan
from raftmq.local.ports import is_listening, keep_any_ports, keep_free_ports, keep_ports
from raftmq.model import Address

ANYWHERE = ClusterPlan(cluster_id="local-1", brokers=2, port=0)


def test_free_ports_are_kept() -> None:
    """Listeners of nodes are let through, nobody else is given the same."""
    plan, keepers = keep_free_ports(ANYWHERE)
    with keepers:
        for one in plan.endpoints():
            socket.create_server((HOST, one.port)).close()  # as a node does, with SO_REUSEADDR
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((HOST, one.port))
    assert (plan.brokers, plan.cluster_id) == (2, "local-1")


def test_who_listens() -> None:
    """A port that is only kept refuses connections; one that is listened on takes them."""
    with keep_any_ports(2) as ports, socket.create_server((HOST, ports[0])):
        assert [is_listening(Address(HOST, port)) for port in ports] == [True, False]


def test_two_clusters_get_different_ports() -> None:
    """Even if neither listens yet."""
    plan, keepers = keep_free_ports(ANYWHERE)
    with keepers:
        other, other_keepers = keep_free_ports(ANYWHERE)
        with other_keepers:
            ports = [one.port for each in (plan, other) for one in each.endpoints()]
    assert len(set(ports)) == 12


def test_any_free_ports_are_kept() -> None:
    """As many as are asked for, from other reservations too, until the block is left."""
    with keep_any_ports(30) as ports, keep_any_ports(30) as others:
        assert len({*ports, *others}) == 60
        socket.create_server((HOST, ports[0])).close()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, ports[0]))
    with socket.socket() as other:
        other.bind((HOST, ports[1]))


def test_ports_in_use_are_named() -> None:
    """All of them, with what wants them and the way out; none is kept after that."""
    plan, keepers = keep_free_ports(ANYWHERE)
    keepers.close()
    with (
        socket.create_server((HOST, plan.port + 1)),
        socket.create_server((HOST, plan.port + 20)),
        pytest.raises(Unreachable) as caught,
    ):
        keep_ports(plan)
    assert str(caught.value) == (
        f"in use on {HOST}: port {plan.port + 20} (broker 1 wants it for other voters), port"
        f" {plan.port + 1} (broker 2 wants it for clients); stop what listens there (`ss -ltnp`"
        " names it: another `raftmq dev`?), or choose other ports with --port, 0 for free ones"
    )
    keep_ports(plan).close()


def test_ports_that_have_just_served() -> None:
    """A connection that the server closed blocks its port for a minute, but not for us."""
    plan, keepers = keep_free_ports(ANYWHERE)
    keepers.close()
    place = (HOST, plan.port)
    with socket.create_server(place) as server, socket.create_connection(place):
        server.accept()[0].close()
    keep_ports(plan).close()
