"""Hosts of the virtual network: names, IP addresses, hardware addresses, all from a number. Pure.

So no host has to ask for an address or learn one.
"""

from __future__ import annotations

import msgspec

CLIENTS_NUMBER = 254  # the last one of a /24, far from the nodes' ids
NETMASK = "255.255.255.0"
BROADCAST_BIT = 0x01  # in the first byte of a hardware address: it means more than one host


class Host(msgspec.Struct, frozen=True, array_like=True):
    """`name`: in the words of the nemesis, "n1" or "clients"."""

    name: str
    number: int

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def hardware_address(self) -> bytes:
        return bytes((0x02, 0, 10, 77, 0, self.number))  # 0x02: not from a maker's range


CLIENTS = Host("clients", CLIENTS_NUMBER)


def node_host(node_id: int) -> Host:
    assert 1 <= node_id < CLIENTS_NUMBER, f"no address for a node {node_id}"
    return Host(f"n{node_id}", node_id)
