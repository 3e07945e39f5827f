"""Other local clusters of this machine: which of them listens on a port that is in use.

Reads /proc, where processes of other users and containers do not show what they have open. So an
empty answer means nothing; it is for messages only.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.local.directory import is_ours
from raftmq.local.plan import Layout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PROC = Path("/proc")
_LISTENS = "0A"  # TCP_LISTEN, in /proc/net/tcp
_STATE, _INODE = 3, 9  # fields of its lines; field 1 is the local address, host:port, hexadecimal


def clusters_on(ports: Collection[int]) -> list[Path]:
    """The directories of local clusters whose brokers listen on these ports."""
    sockets, found = set(_listening(ports)), set[Path]()
    for process in _PROC.glob("[0-9]*") if sockets else ():
        # It has ended meanwhile, or is another user's.
        with suppress(OSError):
            if sockets.intersection(opened_by(process)):
                found |= set(_cluster_of(process))
    return sorted(found)


def opened_by(process: Path) -> Iterator[str]:
    """What the descriptors of a process are, as the links in its folder of /proc name it."""
    for each in process.glob("fd/*"):
        # Closed meanwhile: the others count.
        with suppress(OSError):
            yield str(each.readlink())


def _listening(ports: Collection[int]) -> Iterator[str]:
    """As the links in /proc/PID/fd name them."""
    with suppress(OSError):
        for line in (_PROC / "net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[_STATE] == _LISTENS and port in ports:
                yield f"socket:[{fields[_INODE]}]"


def _cluster_of(process: Path) -> Iterator[Path]:
    """The directory in which its settings file lies, if that is one of a local cluster."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    if "--config" in words[:-1]:
        root = Path(words[words.index("--config") + 1]).parent
        if is_ours(Layout(root)):
            yield root
