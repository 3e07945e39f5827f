"""Network and mount namespaces of the kernel: make one, enter one, without any tool.

A namespace belongs to a thread. A new one is therefore made, or an old one visited, in a thread
that ends right after; it lives as long as a descriptor, a socket or a process is in it. Nothing
here has a name in the file system, so nothing can be left over.
"""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from jepsen_like.network.devices import bring_up

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_libc = ctypes.CDLL(None, use_errno=True)


def unshare_here() -> None:
    """Give this process, for the rest of its life, mounts and a network of its own.

    Its mounts and devices are invisible to other processes, and end with it and its children. Must
    come before the first thread: a thread that is there already would stay behind.

    Raises:
        OSError: not root, or a kernel without namespaces.
    """
    assert threading.active_count() == 1, "other threads would stay in the old namespaces"
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET), "unshare")
    # Mounts of this process must not spread to the others, which is the default of most systems.
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate")
    bring_up("lo")


def make_namespace() -> int:
    """A new network with nothing but `lo`: the descriptor that keeps it alive."""
    return _in_short_thread(_make_namespace_here)


def in_namespace(descriptor: int, function: Callable[[], T]) -> T:
    """Call it inside that network. Sockets and devices that it makes stay there for good.

    Do not start processes so: a process that shall die with its parent dies with this thread.
    """

    def visit() -> T:
        _check(_libc.setns(descriptor, _CLONE_NEWNET), "setns")
        return function()

    return _in_short_thread(visit)


def _make_namespace_here() -> int:
    _check(_libc.unshare(_CLONE_NEWNET), "unshare")
    bring_up("lo")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _in_short_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="namespace") as thread:
        return thread.submit(function).result()


def _check(result: int, what: str) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
