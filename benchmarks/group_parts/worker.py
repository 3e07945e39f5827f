"""Members in a process of their own: `python -m benchmarks.group_parts.worker HOST:PORT ...`

Reads requests from stdin, `{"id", "do", ...}` in a line each, and answers on stdout. Unasked it
tells what members get and lose, and each record; times are of the monotonic clock, which the
processes share. Ends when stdin does: it never outlives whoever started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, TextIO

import trio

from benchmarks.group_parts.commit_load import commit_load
from benchmarks.group_parts.flow import flow
from benchmarks.group_parts.hosted_members import HostedMembers
from raftmq.client.client import Client, parse_bootstrap

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ENDLESS = 1 << 62


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Worker:
    def __init__(self, client: Client, nursery: trio.Nursery) -> None:
        self._client = client
        self._members = HostedMembers(client, nursery, tell)
        self._requests: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "hello": self.hello,
            "join": self._members.join,
            "leave": self._members.leave,
            "session_end": self._members.session_end,
            "commit": self.commit,
            "flow": self.flow,
        }

    async def answer(self, request: dict[str, Any]) -> None:
        number, do = request.pop("id"), request.pop("do")
        tell(id=number, **await self._requests[do](**request))

    async def hello(self) -> dict[str, Any]:
        return {}

    async def commit(self, seconds: float) -> dict[str, Any]:
        return await commit_load(self._client, self._members.consumers(), seconds)

    async def flow(self, **arguments: Any) -> dict[str, Any]:
        return await flow(self._client, **arguments)


async def serve(addresses: list[str]) -> None:
    async with Client(parse_bootstrap(addresses)) as client, trio.open_nursery() as nursery:
        worker = Worker(client, nursery)
        async for request in _requests():
            nursery.start_soon(worker.answer, request)


def _requests() -> trio.MemoryReceiveChannel[dict[str, Any]]:
    """What a thread reads from stdin; at its end the process ends, whatever else goes on."""
    send, receive = trio.open_memory_channel[dict[str, Any]](ENDLESS)
    token = trio.lowlevel.current_trio_token()

    def read(lines: TextIO) -> None:
        for line in lines:
            token.run_sync_soon(send.send_nowait, json.loads(line))
        os._exit(0)

    threading.Thread(target=read, args=[sys.stdin], daemon=True).start()
    return receive


if __name__ == "__main__":
    trio.run(serve, sys.argv[1:])
