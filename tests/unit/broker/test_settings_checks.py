"""Addresses that one process cannot listen on together."""

from __future__ import annotations

import pytest

from raftmq.broker.settings import collide, is_wildcard
from raftmq.rpc.protocol import parse_address


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("10.0.0.1:1", "10.0.0.1:1", True),
        ("10.0.0.1:1", "10.0.0.1:2", False),
        ("10.0.0.1:1", "10.0.0.2:1", False),
        ("0.0.0.0:1", "10.0.0.2:1", True),
        ("0.0.0.0:1", "node2:1", True),
        ("[::]:1", "node2:1", True),
        ("[::]:1", "10.0.0.2:1", False),
        ("0.0.0.0:1", "[::]:1", False),
        ("node1:1", "node2:1", False),
    ],
)
def test_addresses_that_collide(one: str, other: str, expected: bool) -> None:
    """The same port, and a host that is the other one or stands for it; in either order."""
    assert collide(parse_address(one), parse_address(other)) is expected
    assert collide(parse_address(other), parse_address(one)) is expected


def test_wildcards() -> None:
    """Addresses that stand for all of a machine; a name is none."""
    assert [is_wildcard(host) for host in ("0.0.0.0", "::", "::1", "node1")] == [
        True, True, False, False,
    ]  # fmt: skip
