"""TCP socket options (keep-alive, user timeout) and OSError translated into Unreachable.

Opens nothing and knows no event loop: `rpc/network.py` does for brokers,
`client/network/network.py` for clients. The options bound how long a dead peer goes unnoticed.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from raftmq.errors import Unreachable
from raftmq.rpc.protocol import format_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.model import Address

CONNECT_SECONDS_MAX = 5.0  # SYN retries after 1 and 3 s included; the kernel's own limit is 2 min
# A dead host is noticed 8 s after its last sign, as fast as by the pings of a channel
# (RpcLimits.silence_seconds_max).
KEEPALIVE_IDLE_SECONDS = 5
KEEPALIVE_INTERVAL_SECONDS = 1  # the kernel counts in whole seconds
KEEPALIVE_COUNT = 3  # two may get lost on a bad link
# As long for bytes that are not acknowledged, see `_OPTIONS`.
SILENCE_SECONDS_MAX = KEEPALIVE_IDLE_SECONDS + KEEPALIVE_INTERVAL_SECONDS * KEEPALIVE_COUNT

# Keep-alive finds a dead peer on an idle connection; the user timeout one that leaves bytes
# unacknowledged, for which the kernel would otherwise wait a quarter of an hour. The latter also
# breaks a connection whose reader has left a full window untouched for so long.
_OPTIONS = (
    (
        socket.IPPROTO_TCP,
        socket.TCP_NODELAY,
        1,
    ),  # no Nagle: small answers must not wait for the ACK of the last one
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS_MAX * 1000),
)


class SocketEndpoint(Protocol):
    """A socket of any event loop, as far as options need it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def set_options(endpoint: SocketEndpoint) -> None:
    for level, option, value in _OPTIONS:
        endpoint.setsockopt(level, option, value)


@contextmanager
def translated(operation: str, address: Address) -> Iterator[None]:
    """Errors of `operation`, such as "connect to", become Unreachable."""
    try:
        yield
    except UnicodeError as error:  # a host name that IDNA cannot encode, such as one too long
        raise unreachable(operation, address, str(error)) from error
    except OSError as error:
        # Refused only if every address of the host refused: one that timed out may be alive.
        refused = all(isinstance(each, ConnectionRefusedError) for each in _attempts(error))
        raise unreachable(operation, address, _reason(error), was_refused=refused) from error


def unreachable(
    operation: str, address: Address, reason: str, *, was_refused: bool = False
) -> Unreachable:
    what = f"{operation} {format_address(address)}: {reason}"
    return Unreachable(what, was_refused=was_refused)


def _reason(error: OSError) -> str:
    """What the system said about the first address that was tried."""
    first = _attempts(error)[0]
    # Numbers of gaierror are not errno: they have texts of their own.
    if isinstance(first, OSError) and not isinstance(first, socket.gaierror) and first.errno:
        return os.strerror(first.errno)  # without the address, which is said already
    return getattr(first, "strerror", None) or str(error)


def _attempts(error: BaseException) -> list[BaseException]:
    """The error of each address of the host; trio and anyio wrap them into one."""
    inner = error.__cause__ or error
    if isinstance(inner, BaseExceptionGroup):
        return [leaf for part in inner.exceptions for leaf in _attempts(part)]
    return [inner]
