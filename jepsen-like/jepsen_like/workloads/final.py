"""The final reads: every process reads all keys from the beginning to their ends.

Owns where the end of a key is, and when a process gives up. Without these reads, values that no
poll has brought may merely be late.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.generator import BEGINNING, COMMITTED, Assign
from jepsen_like.workloads.keys import key_of, split_key
from jepsen_like.workloads.polling import perform_poll
from jepsen_like.workloads.worker import new_consumer
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jepsen_like.workloads.bench import Bench
    from raftmq.client.consumer.consumer import Consumer

POLL_SECONDS = 0.5  # a poll without records: then the positions are checked
RECORDS_MAX = 5_000  # of one poll
ENDS_SECONDS_MAX = 5.0  # for the leaders to say where their keys end
CLOSE_SECONDS_MAX = 5.0  # for a consumer to close
PAUSE_SECONDS = 0.2  # after an error, before the next attempt

logger = logging.getLogger(__name__)


async def read_everything(bench: Bench, name: str, *, level: str = COMMITTED) -> None:
    """With a client of its own; again with another one after an error, while there is time."""
    reader = FinalReader(bench, name, level=level)
    deadline = trio.current_time() + bench.settings.final_seconds
    while trio.current_time() < deadline:
        with trio.CancelScope(deadline=deadline) as scope:
            try:
                await reader.run(scope)
            except RaftmqError as error:
                logger.info("final: name=%s reason=%s", name, error)
        if not reader.behind:
            return
        await trio.sleep(PAUSE_SECONDS)
    process = next(bench.numbers)
    keys = [[key, position, end] for key, (position, end) in reader.behind.items()]
    bench.recorder.invoke(process, "behind", {"keys": keys})
    bench.recorder.record(process, Type.INFO, "behind", {"keys": keys}, error="not at the end")


class FinalReader:
    """Attributes:
    behind: keys that were not read to their ends yet: the position, and the end.
    """

    def __init__(self, bench: Bench, name: str, *, level: str = COMMITTED) -> None:
        self._bench, self._name, self._level = bench, name, level
        self.behind: dict[str, tuple[int, int]] = {}
        self._set_behind({}, self._seen_ends())

    async def run(self, scope: trio.CancelScope) -> None:
        """One process, until everything was read. `scope`: to be cut short when only closing."""
        process, wanted = next(self._bench.numbers), list(self._bench.keys.everything)
        assign = Assign(tuple(wanted), BEGINNING, self._level)
        async with self._bench.new_client(self._name) as client:
            self._bench.recorder.invoke(process, "assign", assign.told)
            async with new_consumer(client, assign) as consumer:
                self._bench.recorder.record(process, Type.OK, "assign", assign.told)
                await self._read(process, consumer)
                scope.deadline = min(scope.deadline, trio.current_time() + CLOSE_SECONDS_MAX)

    async def _read(self, process: int, consumer: Consumer) -> None:
        ends = await self._ends(consumer)
        while True:
            at = {key: consumer.position(*split_key(key)) or 0 for key in ends}
            self._set_behind(at, ends)
            if not self.behind:
                return
            if not await perform_poll(
                self._bench, process, consumer, seconds=POLL_SECONDS, records_max=RECORDS_MAX
            ):
                return

    async def _ends(self, consumer: Consumer) -> dict[str, int]:
        """By the leaders; without an answer, the highest offset that any client saw.

        An acknowledged record beyond what a leader says is lost: waiting brings nothing.
        """
        with trio.move_on_after(ENDS_SECONDS_MAX):
            try:
                found = await consumer.end_offsets()
                return {key_of(*key): end for key, end in found.items()}
            except RaftmqError as error:
                logger.info("final: name=%s ends=%s", self._name, error)
        return self._seen_ends()

    def _seen_ends(self) -> dict[str, int]:
        return {key: self._bench.seen.highest(key) + 1 for key in self._bench.keys.everything}

    def _set_behind(self, at: Mapping[str, int], ends: Mapping[str, int]) -> None:
        self.behind = {
            key: (at.get(key, 0), end) for key, end in ends.items() if at.get(key, 0) < end
        }
