"""The RPC protocol without I/O: addresses, limits, and what a server supports.

Pure: clients on any event loop share it with brokers, so nothing here may know trio. Owns every
limit of a connection. (Kafka: ApiVersions)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from raftmq.errors import InvalidConfig, MessageTooLarge, UnsupportedVersion
from raftmq.model import PORT_MAX, Address
from raftmq.rpc.reply import payload_sizes
from raftmq.wire.envelopes import encode_request
from raftmq.wire.frames import LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.rpc.reply import Payload
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.hello import HelloReply


# -- Address --------------------------------------------------------------------------------------
# `host:port` as people write it, to and from an Address.
#
# Pure: nothing is resolved. An IPv6 address stands in brackets, because its colons would otherwise
# run into that of the port.


_BRACKETED = re.compile(r"\[([^\[\]]*)\]:(.*)", re.ASCII)  # [IPv6]:port
# The limits of the domain name system (253 in all, 63 a label); underscores are no valid host
# names but common in container networks.
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.I | re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)  # no sign and no leading blank, which int() would take


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


def shared_hosts(addresses: Mapping[int, Address]) -> dict[str, tuple[int, ...]]:
    """Which nodes share a host, as their addresses tell it: ids by host, of two at least.

    Loopback addresses are left out: a cluster that has them is on one machine, and meant to be.
    """
    hosts: dict[str, list[int]] = {}
    for node_id, address in sorted(addresses.items()):
        host = address.host.lower().rstrip(".")
        if not _is_loopback(host):
            hosts.setdefault(host, []).append(node_id)
    return {host: tuple(nodes) for host, nodes in hosts.items() if len(nodes) > 1}


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _host_problem(host: str, text: str) -> str:
    # People paste URLs, bare hosts, IPv6: each mistake gets an error that says what to write.
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


# -- Limits ---------------------------------------------------------------------------------------
# All limits of a connection in one place, for servers and clients.
#
# Pure. What exceeds a limit is refused with an error that names it, or waits; no buffer grows
# without bound. A connection holds at most `bytes_in_flight_max`, one frame and one read.


BROKER_CONNECTIONS_MAX = 256  # on the listener for brokers: one to three from each
# File descriptors of a process beside logs and client connections: listeners, connections of
# brokers, the quorum with its observers and connections before Hello.
OTHER_DESCRIPTORS = 640
CONNECTIONS_LEAST = 16  # an operator can still connect to a broker that lacks descriptors
FRAME_BYTES_LEAST = 1024  # less would not hold a Hello
FRAME_BYTES_MOST = (1 << 31) - 1  # Hello carries it as a signed 32-bit integer


@dataclass(frozen=True, kw_only=True)
class RpcLimits:
    """Attributes:
    frame_bytes_max: of a frame, in both directions.
    header_bytes_max: of its header: everything but the payload of records.
    requests_in_flight_max: of a connection, requests whose answer has not been sent yet.
    bytes_in_flight_max: of a connection, of these requests and of answers that wait to be sent.
    patient_requests_max: of a connection, delayed requests (long polls), not counted above.
    connections_max: of a server, by clients; more are closed at once. Brokers have their own.
    unhandled_bytes_max: of a server, of requests that are incomplete or not handled yet: of all
        clients together, and the same again of all brokers; one frame may exceed it.
    hello_seconds_max: from the beginning of a connection to the end of its Hello.
    idle_seconds_max: a server closes a connection without requests after so long.
    ping_seconds: after so long without a byte from the server a channel sends a ping.
    silence_seconds_max: a channel closes a connection after so long without a byte.
    stall_seconds_max: either side closes a connection whose peer takes no byte for so long.
    """

    frame_bytes_max: int = 64 << 20  # of requests and answers; see `unhandled_bytes_max`
    header_bytes_max: int = 2 << 20  # a metadata command may have 1 MiB, and there is more in it
    requests_in_flight_max: int = 128
    bytes_in_flight_max: int = 64 << 20  # one frame of the largest size
    patient_requests_max: int = 10_000  # waiting, each costs memory and no work
    connections_max: int = 10_000
    unhandled_bytes_max: int = 256 << 20  # four of the largest frames at once
    hello_seconds_max: float = 10.0  # a stranger holds a place for no longer
    idle_seconds_max: float = 600.0  # pings keep live clients connected; this frees dead ones
    ping_seconds: float = 2.0
    silence_seconds_max: float = 8.0  # three pings may get lost; as long as TCP keep-alive takes
    stall_seconds_max: float = 30.0  # a paused process or a slow disk at the peer gets over it

    def __post_init__(self) -> None:
        problems = [
            f"{name} = {value}: must be above 0" for name, value in vars(self).items() if value <= 0
        ]
        if not FRAME_BYTES_LEAST <= self.frame_bytes_max <= FRAME_BYTES_MOST:
            problems.append(
                f"frame_bytes_max = {self.frame_bytes_max}: "
                f"must be from {FRAME_BYTES_LEAST} to {FRAME_BYTES_MOST}"
            )
        if self.header_bytes_max > self.frame_bytes_max:
            problems.append(
                f"header_bytes_max = {self.header_bytes_max}: "
                f"must be at most frame_bytes_max = {self.frame_bytes_max}"
            )
        # Else the channel would give up before its ping could be answered.
        if self.ping_seconds >= self.silence_seconds_max:
            problems.append(
                f"ping_seconds = {self.ping_seconds:g}: "
                f"must be below silence_seconds_max = {self.silence_seconds_max:g}"
            )
        if problems:
            raise InvalidConfig(problems)


def connections_within(descriptors_max: int, *, wanted: int, logs: int) -> int:
    """How many client connections leave enough file descriptors for logs.

    Args:
        descriptors_max: of the process.
        logs: that exist now, each with an open file. As many descriptors as connections get are
            reserved for logs to come.
    """
    spare = descriptors_max - _other_descriptors(descriptors_max) - logs
    return min(wanted, max(CONNECTIONS_LEAST, spare // 2))


def logs_within(descriptors_max: int, *, connections: int) -> int:
    """How many logs there may be while clients have so many connections."""
    spare = descriptors_max - _other_descriptors(descriptors_max) - connections
    return max(1, spare)  # 0 would mean any number


def _other_descriptors(descriptors_max: int) -> int:
    return min(OTHER_DESCRIPTORS, descriptors_max // 4)


# -- Offer ----------------------------------------------------------------------------------------
# What one server accepts: which requests in which versions, and how large. (Kafka: ApiVersions)
#
# Owns the refusals on the requesting side: a request over a limit of the server, or unknown to it,
# fails before anything is sent, so that the error is definite.


class Offer:
    """Before Hello any request up to our own limit is accepted.

    Args:
        server: its name in errors.
        frame_bytes_max: our own limit.
    """

    def __init__(self, server: str, *, frame_bytes_max: int) -> None:
        self._server, self._frame_bytes_max = server, frame_bytes_max
        self._versions: Mapping[int, range] | None = None

    def on_hello(self, told: HelloReply) -> None:
        self._frame_bytes_max = min(self._frame_bytes_max, told.frame_bytes_max)
        self._versions = {
            found.api_key: range(found.version_min, found.version_max + 1)
            for found in told.api_versions
        }

    def encode(
        self,
        number: int,
        body: Request,
        payload: Payload = (),
        trace: Mapping[str, str] | None = None,
    ) -> bytes:
        """The frame of a request but for its payload.

        Raises:
            MessageTooLarge, UnsupportedVersion: the server would not take it.
        """
        # None before Hello, which itself has to pass.
        if self._versions is not None:
            self._check_version(body, self._versions)
        length = payload_sizes(payload)[0] if payload else 0
        head = encode_request(number, body, payload_length=length, trace=trace)
        # The server would close the connection on it.
        if len(head) - LENGTH.size + length > self._frame_bytes_max:
            raise MessageTooLarge(
                f"{type(body).__name__}: {len(head) + length} bytes, at most "
                f"{self._frame_bytes_max}: send less at once"
            )
        return head

    def _check_version(self, body: Request, versions: Mapping[int, range]) -> None:
        known = versions.get(body.api_key)
        # An older or newer server: refused here, with its name, rather than by a closed connection.
        if known is None or body.version not in known:
            raise UnsupportedVersion(
                f"{type(body).__name__} in version {body.version}: {self._server} does not serve it"
            )
