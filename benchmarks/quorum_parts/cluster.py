"""Three voters in processes of their own, as the one who starts, asks and kills them sees it."""

from __future__ import annotations

import json
import math
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODES = (1, 2, 3)
OBSERVER = 4
START_SECONDS_MAX = 60.0


class VoterProcess:
    """Attributes:
    ready: once it is: its event, with the seconds that opening the quorum took.
    """

    def __init__(self, node_id: int, process: trio.Process) -> None:
        self.node_id, self.process = node_id, process
        self.ready: dict[str, Any] = {}
        self._numbers = count(1)
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._sending, self._event = trio.Lock(), trio.Event()
        self._events: list[dict[str, Any]] = []

    async def read(self) -> None:
        """What it says, until it ends."""
        assert self.process.stdout
        rest = b""
        async for data in self.process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, said: dict[str, Any]) -> None:
        if "id" in said:
            self._answers.pop(said.pop("id")).send_nowait(said)
            return
        if said["event"] == "ready":
            self.ready = said
        self._events.append(said)
        self._event.set()
        self._event = trio.Event()

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number], answer = trio.open_memory_channel[dict[str, Any]](1)
        assert self.process.stdin
        line = json.dumps({"id": number, "do": do, **arguments}) + "\n"
        async with self._sending:  # several may be under way
            await self.process.stdin.send_all(line.encode())
        return await answer.receive()

    async def event(self, name: str, since: float = -math.inf) -> float:
        """When this happened, at or after `since`."""
        while True:
            for event in self._events:
                if event["event"] == name and event["at"] >= since:
                    return float(event["at"])
            await self._event.wait()

    async def kill(self) -> float:
        """Returns when that was."""
        at = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        return at


class Cluster:
    """Attributes:
    voters: by node id; those that were killed as well, until they are started again.
    """

    def __init__(self, root: Path, nursery: trio.Nursery, *, sync: bool, probes: bool) -> None:
        self.root, self._nursery = root, nursery
        self._sync, self._probes = sync, probes
        self._ports = free_ports(len(NODES))
        self.voters: dict[int, VoterProcess] = {}

    def directory(self, node_id: int) -> Path:
        return self.root / f"voter-{node_id}"

    async def start(self, *nodes: int) -> None:
        """Until each has opened its directory; they are started all at once."""
        for node_id in nodes:
            self.voters[node_id] = await self._start(node_id)
        with trio.fail_after(START_SECONDS_MAX):
            for node_id in nodes:
                await self.voters[node_id].event("ready")

    async def _start(self, node_id: int) -> VoterProcess:
        self.directory(node_id).mkdir(exist_ok=True)
        config = {
            "node_id": node_id,
            "directory": str(self.directory(node_id)),
            "ports": dict(zip(NODES, self._ports, strict=True)),
            "sync": self._sync,
            "probes": self._probes,
            "is_voter": node_id in NODES,
        }
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "benchmarks.quorum_parts.voter", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        voter = VoterProcess(node_id, process)
        self._nursery.start_soon(voter.read)
        return voter

    async def leader(self) -> VoterProcess:
        with trio.fail_after(START_SECONDS_MAX):
            while True:
                for voter in self.running():
                    if (await voter.ask("status"))["is_leader"]:
                        return voter
                await trio.sleep(0.05)

    def running(self) -> list[VoterProcess]:
        return [voter for voter in self.voters.values() if voter.process.returncode is None]

    async def wait_version(self, voter: VoterProcess, version: int) -> float:
        """Until it has applied this; the time at which that was seen."""
        while (await voter.ask("status"))["version"] < version:  # noqa: ASYNC110  # it has no event
            await trio.sleep(0.02)
        return time.monotonic()

    async def kill_all(self) -> None:
        for voter in self.running():
            await voter.kill()


@asynccontextmanager
async def open_cluster(
    root: Path, *, sync: bool = True, probes: bool = False
) -> AsyncIterator[Cluster]:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(root, nursery, sync=sync, probes=probes)
        await cluster.start(*NODES)
        try:
            yield cluster
        finally:
            with trio.CancelScope(shield=True):
                await cluster.kill_all()
            nursery.cancel_scope.cancel()


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
