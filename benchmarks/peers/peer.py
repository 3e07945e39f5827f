"""What a peer is to the benchmark: how its servers are had and run, and what its client does.

Each peer is a module of this package. Its `Peer` installs and runs servers, in the environment of
the checkout; its `Client` is used by the load, in the environment of the peer, where alone the
peer's packages are installed. So these modules import such packages within functions only, and
nothing else that the standard library does not bring, but anyio.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from pathlib import Path

    import anyio.abc

    from benchmarks.peers.environment import Environment

HOST = "127.0.0.1"
NODES = (1, 2, 3)
REPLICAS, MIN_IN_SYNC = 3, 2


class NotWhole(Exception):
    """Not all replicas of the stream are there yet."""


class Cluster(NamedTuple):
    """Three servers that run. `addresses`: where clients connect, HOST:PORT."""

    addresses: Sequence[str]
    process_ids: Sequence[int]


class Stream(NamedTuple):
    """What a load writes to: one log of three replicas. `is_synced`: on disk before the ack."""

    name: str
    is_synced: bool


class Reading:
    """Records that are wanted, and when they came.

    Attributes:
    left: how many are still wanted.
    """

    def __init__(self, count: int) -> None:
        self.left = self._count = count
        self._first, self._began, self._ended = 0, 0.0, 0.0

    def take(self, count: int = 1) -> bool:
        """They have come; whether that is all."""
        if not self._first:
            self._first, self._began = count, time.monotonic()
        self.left -= count
        if self.left <= 0:
            self._ended = time.monotonic()
        return self.left <= 0

    def per_second(self) -> float:
        """From the first ones on: what a client does before, once, is not counted."""
        return (self._count - self._first) / (self._ended - self._began)


class Client(ABC):
    """A client on one stream, as a program would use it that wants to be fast."""

    def __init__(self, stream: Stream, tasks: anyio.abc.TaskGroup) -> None:
        self.stream, self._tasks = stream, tasks

    @abstractmethod
    async def prepare(self) -> None:
        """Make the stream; called again after an error, until all of its replicas are there.

        Raises:
            Exception: any, of a cluster that is not ready.
        """

    @abstractmethod
    async def send(self, value: bytes) -> None:
        """One record, until it is acknowledged."""

    def send_soon(self, value: bytes, done: Callable[[object], None]) -> None:
        """One record, without waiting; `done` is called with None or an error, from any thread.

        Clients that have callbacks do without a task for each record.
        """
        self._tasks.start_soon(self._send_then, value, done)

    async def _send_then(self, value: bytes, done: Callable[[object], None]) -> None:
        try:
            await self.send(value)
        except Exception as error:  # the load ends with it
            done(error)
        else:
            done(None)

    @abstractmethod
    async def send_many(self, values: Iterator[bytes]) -> None:
        """As fast as the client can, until all are acknowledged."""

    @abstractmethod
    async def read(self, reading: Reading) -> None:
        """From the first record of the stream on, until that has all it wants."""


class Peer(ABC):
    """Attributes:
    acknowledged: what an acknowledgement means, without and (`synced`) with a sync to disk
        before it; None: the peer cannot do that.
    sync_is_of_servers: it is a setting of servers, so that they have to be started again.
    warm_up_seconds: of load, before anything is measured.
    packages: of the client, as pip takes them; versions of all that have one are shown.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    acknowledged: ClassVar[str]
    synced: ClassVar[str | None]
    backend: ClassVar[str] = "asyncio"
    sync_is_of_servers: ClassVar[bool] = False
    warm_up_seconds: ClassVar[float] = 3.0
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    @abstractmethod
    def install(self) -> dict[str, str]:
        """Into the peer's environment, unless it is there; versions, by what has one.

        Raises:
            Unavailable: it cannot be had on this machine.
        """

    @abstractmethod
    def open_cluster(self, folder: Path, *, is_synced: bool) -> AbstractContextManager[Cluster]:
        """Three servers with their data in `folder`, until they listen; killed afterwards."""

    @staticmethod
    @abstractmethod
    def connect(addresses: Sequence[str], stream: Stream) -> AbstractAsyncContextManager[Client]:
        """Called in the peer's environment."""


def any_module(name: str) -> Any:
    """A package that only the peer's environment has."""
    from importlib import import_module

    return import_module(name)
