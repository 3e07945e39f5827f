"""Limits that make no sense are refused, all of them at once."""

from __future__ import annotations

import pytest

from raftmq.errors import InvalidConfig
from raftmq.rpc.protocol import RpcLimits


def test_the_defaults_are_good() -> None:
    """Whoever sets nothing gets limits that fit each other."""
    assert RpcLimits().ping_seconds < RpcLimits().silence_seconds_max


def test_all_problems_are_told_together() -> None:
    """Nothing in flight, a header over its frame, a ping after the end."""
    with pytest.raises(InvalidConfig) as found:
        RpcLimits(
            requests_in_flight_max=0,
            frame_bytes_max=1000,
            header_bytes_max=2000,
            ping_seconds=9,
            silence_seconds_max=8,
        )
    assert found.value.problems == [
        "requests_in_flight_max = 0: must be above 0",
        "frame_bytes_max = 1000: must be from 1024 to 2147483647",
        "header_bytes_max = 2000: must be at most frame_bytes_max = 1000",
        "ping_seconds = 9: must be below silence_seconds_max = 8",
    ]
