"""`host:port` as people write it, to and from an Address.

Pure: nothing is resolved. An IPv6 address stands in brackets, because its colons would otherwise
run into that of the port.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from raftmq.errors import InvalidConfig
from raftmq.model import Address

PORT_MAX = 65_535
_BRACKETED = re.compile(r"\[([^\[\]]*)\]:(.*)", re.ASCII)
# The limits of the domain name system; underscores are common in container networks.
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.I | re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


def parse_address(text: str) -> Address:
    """The address that `text` names.

    Args:
        text: `host:port`, `192.0.2.1:port` or `[2001:db8::1]:port`.

    Raises:
        InvalidConfig: `text` is none of these.
    """
    bracketed = _BRACKETED.fullmatch(text)
    host, _, port = ("", "", "") if bracketed else text.rpartition(":")
    if bracketed:
        host, port = bracketed.groups()
    problem = (_ipv6_problem(host) if bracketed else _host_problem(host, text)) or _port_problem(
        port
    )
    if problem:
        raise InvalidConfig([f"address {text!r}: {problem}"])
    return Address(host, int(port))


def format_address(address: Address) -> str:
    return str(address)


def _host_problem(host: str, text: str) -> str:
    if "://" in text:
        return "no scheme and no path belong to it; write host:port"
    if ":" not in text:
        return "no port; write host:port" if text else "nothing there; write host:port"
    if not host:
        return "no host; write host:port"
    if ":" in host:
        return "an IPv6 address stands in brackets: [::1]:9292"
    return "" if _HOST.fullmatch(host) else f"{host!r} is no host name and no IPv4 address"


def _ipv6_problem(host: str) -> str:
    try:
        IPv6Address(host)
    except ValueError:
        return f"{host!r} is no IPv6 address; only these stand in brackets"
    return ""


def _port_problem(port: str) -> str:
    if _PORT.fullmatch(port) and 1 <= int(port) <= PORT_MAX:
        return ""
    return f"port {port!r} is no number from 1 to {PORT_MAX}"
