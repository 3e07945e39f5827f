"""Addresses as people write them: all that is understood, and why the rest is not."""

from __future__ import annotations

import pytest

from raftmq.errors import InvalidConfig
from raftmq.model import Address
from raftmq.rpc.protocol import format_address, parse_address

GOOD = {
    "localhost:9292": Address("localhost", 9292),
    "broker_1.example.org:1": Address("broker_1.example.org", 1),
    "192.0.2.1:65535": Address("192.0.2.1", 65_535),
    "[::1]:9292": Address("::1", 9292),
    "[fe80::1%eth0]:9292": Address("fe80::1%eth0", 9292),
}


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_read_and_written(text: str) -> None:
    """What is read is written the same way again."""
    assert parse_address(text) == GOOD[text]
    assert format_address(GOOD[text]) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "nothing there; write host:port"),
        ("localhost", "no port; write host:port"),
        (":9292", "no host; write host:port"),
        ("localhost:", "port '' is no number from 1 to 65535"),
        ("localhost:0", "port '0' is no number"),
        ("localhost:65536", "port '65536' is no number"),
        ("localhost:+1", "port '\\+1' is no number"),
        ("localhost:\N{ARABIC-INDIC DIGIT ONE}", "is no number"),
        ("localhost:9292\n", "is no number"),
        ("::1:9292", "stands in brackets"),
        ("[localhost]:9292", "'localhost' is no IPv6 address"),
        ("[]:9292", "'' is no IPv6 address"),
        ("[::1]", "stands in brackets"),
        ("a b:1", "'a b' is no host name"),
        ("http://a:1", "no scheme and no path"),
        ("a..b:1", "'a..b' is no host name"),
        ("a" * 64 + ":1", "is no host name"),
        (".".join(["a" * 60] * 5) + ":1", "is no host name"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, problem: str) -> None:
    """The error quotes the text and says what to write."""
    with pytest.raises(InvalidConfig, match=problem) as raised:
        parse_address(text)
    assert repr(text) in str(raised.value)
