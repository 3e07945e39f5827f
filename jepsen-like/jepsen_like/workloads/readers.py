"""A reader of all keys from their beginning, as long as a run takes.

Owns how one begins again after an error: with another consumer, under another number.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jepsen_like.history.event import Type
from jepsen_like.workloads.bench import wait_stop
from jepsen_like.workloads.generator import BEGINNING, COMMITTED, Assign
from jepsen_like.workloads.polling import perform_poll
from jepsen_like.workloads.worker import new_consumer
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Bench, Stop
    from raftmq.client.client import Client

PAUSE_SECONDS = 0.5  # after an error

logger = logging.getLogger(__name__)


async def run_reader(bench: Bench, stop: Stop, name: str, *, level: str = COMMITTED) -> None:
    """Until `stop` is set."""
    while not stop.is_set():
        try:
            async with bench.new_client(name) as client:
                await _read(bench, stop, client, level)
        except RaftmqError as error:
            logger.info("reader: name=%s reason=%s", name, error)
        await wait_stop(stop, PAUSE_SECONDS)


async def _read(bench: Bench, stop: Stop, client: Client, level: str) -> None:
    process = next(bench.numbers)
    wanted = Assign(tuple(bench.keys.everything), BEGINNING, level)
    bench.recorder.invoke(process, "assign", wanted.told)
    async with new_consumer(client, wanted) as consumer:
        bench.recorder.record(process, Type.OK, "assign", wanted.told)
        while not stop.is_set() and await perform_poll(bench, process, consumer):
            pass
