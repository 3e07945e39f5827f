"""TAP devices and addresses of the calling thread's namespace, by the kernel's old ioctls.

Owns the layouts of the ioctls. A TAP device lives as long as its descriptor: the holder of that
reads the frames that the host sends, and writes those that it shall receive.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from jepsen_like.network.hosts import NETMASK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jepsen_like.network.hosts import Host

TUN_DEVICE = "/dev/net/tun"
# Large, as the switch's work is per frame; at 64 KiB the first TCP window would be one segment.
MTU_BYTES = 16_000

_TUNSETIFF = 0x400454CA
_IFF_TAP_WITHOUT_HEADER = 0x0002 | 0x1000  # IFF_TAP | IFF_NO_PI
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFMTU = 0x8922
_SIOCSIFHWADDR = 0x8924
_SIOCSARP = 0x8955
_IFF_UP = 0x1
_ARPHRD_ETHER = 1
_ATF_COMPLETE_FOR_EVER = 0x02 | 0x04  # ATF_COM | ATF_PERM

_ADDRESS = struct.Struct("=HH4s8x")  # struct sockaddr_in
_HARDWARE = struct.Struct("=H6s8x")  # struct sockaddr of a hardware address
_REQUEST_BYTES = 40  # struct ifreq: 16 of name, 24 of something


def bring_up(name: str) -> None:
    with _control() as control:
        flags = _read_flags(control, name)
        _set(control, _SIOCSIFFLAGS, name, struct.pack("=H", flags | _IFF_UP))


def list_up() -> list[str]:
    """The devices of this namespace that are up."""
    with _control() as control:
        names = [name for _, name in socket.if_nameindex()]
        return [name for name in names if _read_flags(control, name) & _IFF_UP]


def make_tap(name: str, host: Host) -> int:
    """A device that is up and has the addresses of `host`: its descriptor, which never blocks."""
    descriptor = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = _request(name, struct.pack("=H", _IFF_TAP_WITHOUT_HEADER))
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
        _configure(name, host)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remember_neighbours(name: str, others: Iterable[Host]) -> None:
    """Write down for ever who has which hardware address.

    Without this, hosts ask for addresses and forget them: a cut of one direction would also stop
    the other once the answers no longer arrive, and a black hole would show as "no route".
    """
    with _control() as control:
        for other in others:
            fcntl.ioctl(control.fileno(), _SIOCSARP, _neighbour(name, other))


def _configure(name: str, host: Host) -> None:
    _forbid_ipv6(name)  # it would talk by itself, and an idle network shall be idle
    with _control() as control:
        hardware = _HARDWARE.pack(_ARPHRD_ETHER, host.hardware_address)
        _set(control, _SIOCSIFHWADDR, name, hardware)
        _set(control, _SIOCSIFMTU, name, struct.pack("=i", MTU_BYTES))
        _set(control, _SIOCSIFADDR, name, _pack_address(host.address))
        _set(control, _SIOCSIFNETMASK, name, _pack_address(NETMASK))
    bring_up(name)


def _forbid_ipv6(name: str) -> None:
    switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
    if switch.exists():
        switch.write_text("1")


def _control() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _read_flags(control: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(control.fileno(), _SIOCGIFFLAGS, _request(name, b""))
    flags: int = struct.unpack_from("=H", answer, 16)[0]
    return flags


def _set(control: socket.socket, what: int, name: str, value: bytes) -> None:
    fcntl.ioctl(control.fileno(), what, _request(name, value))


def _request(name: str, value: bytes) -> bytes:
    return (name.encode().ljust(16, b"\0") + value).ljust(_REQUEST_BYTES, b"\0")


def _pack_address(address: str) -> bytes:
    return _ADDRESS.pack(socket.AF_INET, 0, socket.inet_aton(address))


def _neighbour(name: str, other: Host) -> bytes:
    """struct arpreq: protocol address, hardware address, flags, netmask, device."""
    return (
        _pack_address(other.address)
        + _HARDWARE.pack(_ARPHRD_ETHER, other.hardware_address)
        + struct.pack("=i", _ATF_COMPLETE_FOR_EVER)
        + bytes(16)
        + name.encode().ljust(16, b"\0")
    )
