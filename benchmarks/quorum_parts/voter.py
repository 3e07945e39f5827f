"""A voter in a process of its own: `python -m benchmarks.quorum_parts.voter '{"node_id": 1, ...}'`.

Reads requests from stdin, `{"id", "do", ...}` in a line each, and answers on stdout. Beside the
answers it tells at once that it is ready, that it leads, and that a first command of its term is
acknowledged; all with the monotonic clock, which the processes share. Ends when stdin does: no
voter outlives whoever started it.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import trio

from benchmarks.quorum_parts.figures import resident_mib
from benchmarks.quorum_parts.load import StallWatch, commit, prepare, run_load
from raftmq.errors import RaftmqError
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.observer import open_observer
from raftmq.metadata.raft.opening import open_quorum
from raftmq.metadata.raft.settings import QuorumSettings
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.metadata.quorum import MetadataQuorum

PROBE_SECONDS = 0.01
NEVER = 1 << 62
PACED = 9_999  # the client that `paced` is


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Voter:
    """Attributes:
    requests: what it can be asked to do, by name.
    """

    def __init__(self, quorum: MetadataQuorum, limits: QuorumLimits, nursery: trio.Nursery) -> None:
        self._quorum, self._limits, self._nursery = quorum, limits, nursery
        self._watch: StallWatch | None = None
        self.requests: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "status": self.status,
            "load": self.load,
            "profile": self.profile,
            "stalls": self.stalls,
            "snapshot": self.snapshot,
            "seen": self.seen,
            "paced": self.paced,
        }

    async def answer(self, request: dict[str, Any]) -> None:
        number, do = request.pop("id"), request.pop("do")
        tell(id=number, **await self.requests[do](**request))

    async def status(self) -> dict[str, Any]:
        image = self._quorum.image
        return {
            "is_leader": self._quorum.leadership.is_leader,
            "version": image.version,
            "offsets": sum(map(len, image.offsets.values())),
            "resident_mib": resident_mib(),
        }

    async def load(self, clients: int, seconds: float) -> dict[str, Any]:
        done = await run_load(self._quorum, clients=clients, seconds=seconds)
        return done._asdict()

    async def profile(self, clients: int, seconds: float, sort: str) -> dict[str, Any]:
        """The loop's thread under load."""
        profiler = cProfile.Profile()
        with profiler:
            await self.load(clients, seconds)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats(sort).print_stats(60)
        return {}

    async def stalls(self) -> dict[str, Any]:
        """Since the last time; the first time begins to watch."""
        if self._watch is None:
            self._watch = StallWatch()
            self._nursery.start_soon(self._watch.run)
        return self._watch.take()

    async def snapshot(self) -> dict[str, Any]:
        """Let one more command be enough for the next snapshot."""
        self._set_snapshot_entries(1)
        seen = self._quorum.image.version
        await self._quorum.wait_changed(seen)
        self._set_snapshot_entries(NEVER)
        return {}

    async def seen(self, seconds: float) -> dict[str, Any]:
        """Versions of the image, and when each was there, for so long."""
        seen = [(self._quorum.image.version, time.monotonic())]
        with trio.move_on_after(seconds):
            while True:
                image = await self._quorum.wait_changed(seen[-1][0])
                seen.append((image.version, time.monotonic()))
        return {"seen": seen}

    async def paced(self, seconds: float, per_second: float) -> dict[str, Any]:
        """One command after the other at a steady rate: the version of each, and when the quorum
        had answered."""
        await prepare(self._quorum)
        answered: list[tuple[int, float]] = []
        begin = trio.current_time()
        for number in range(int(seconds * per_second)):
            await trio.sleep_until(begin + number / per_second)
            await self._quorum.propose(commit(self._quorum.image, PACED, number))
            answered.append((self._quorum.image.version, time.monotonic()))
        return {"answered": answered}

    def _set_snapshot_entries(self, count: int) -> None:
        object.__setattr__(self._limits, "snapshot_entries", count)  # frozen for everybody else

    async def tell_of_offices(self, *, probes: bool) -> None:
        """Each time it comes to lead; with `probes` it then proposes all the time, a little."""
        quorum = self._quorum
        while True:
            leadership = quorum.leadership
            if leadership.is_leader:
                tell(event="leader", at=time.monotonic())
                if probes:
                    await self._probe()
            await quorum.wait_leadership_changed(leadership)

    async def _probe(self) -> None:
        offset = 0
        try:
            while True:
                if offset == 0:
                    await prepare(self._quorum)
                offset += 1
                await self._quorum.propose(commit(self._quorum.image, 0, offset))
                if offset == 1:
                    tell(event="acknowledged", at=time.monotonic())
                await trio.sleep(PROBE_SECONDS)
        except RaftmqError:
            return  # it leads no more


async def serve(config: dict[str, Any]) -> None:
    limits = QuorumLimits(snapshot_entries=NEVER, snapshot_bytes=NEVER)
    settings = QuorumSettings(
        Path(config["directory"]),
        "benchmark",
        config["node_id"],
        {int(node): Address("127.0.0.1", port) for node, port in config["ports"].items()},
        limits=limits,
        sync=config["sync"],
    )
    begin = time.monotonic()
    opening = open_quorum if config["is_voter"] else open_observer
    async with opening(settings, TcpNetwork()) as quorum, trio.open_nursery() as nursery:
        tell(event="ready", at=time.monotonic(), seconds=time.monotonic() - begin)
        voter = Voter(quorum, limits, nursery)
        if config["is_voter"]:
            nursery.start_soon(partial(voter.tell_of_offices, probes=config["probes"]))
        async for request in _requests():
            nursery.start_soon(voter.answer, request)


def _requests() -> trio.MemoryReceiveChannel[dict[str, Any]]:
    """What a thread reads from stdin; at its end the process ends, whatever else goes on."""
    send, receive = trio.open_memory_channel[dict[str, Any]](NEVER)
    token = trio.lowlevel.current_trio_token()

    def read(lines: TextIO) -> None:
        for line in lines:
            token.run_sync_soon(send.send_nowait, json.loads(line))
        os._exit(0)

    threading.Thread(target=read, args=[sys.stdin], daemon=True).start()
    return receive


if __name__ == "__main__":
    trio.run(serve, json.loads(sys.argv[1]))
