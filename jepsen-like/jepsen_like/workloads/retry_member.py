"""One life of a member of a group with retries: it joins, handles, and leaves or crashes.

Owns its connections, and what befalls it beside the faults of the cluster: it is slow, for a while
all that it sends arrives late, or it crashes; nothing leaves it then, not even a leave request. How
its group handles records is in `retry_ways.py` and `retry_transactions.py`.
"""

from __future__ import annotations

import logging
import math
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.workloads.group_plan import End
from jepsen_like.workloads.keys import key_of
from jepsen_like.workloads.mortal_network import MortalNetwork
from jepsen_like.workloads.retry_bench import POLICY, HandlingNotes
from jepsen_like.workloads.sending import error_text
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from jepsen_like.workloads.bench import Stop
    from jepsen_like.workloads.group_plan import Fate
    from jepsen_like.workloads.retry_bench import RetryBench
    from jepsen_like.workloads.retry_plan import RetryGroup
    from raftmq.client.client import Client
    from raftmq.client.group.effects import Rebalance

    Work: TypeAlias = "Callable[[RetryLife, Client], Awaitable[None]]"

WORK_SECONDS_MAX = 0.01  # for one record, so that crashes come in the midst of one
SESSION_MS, HEARTBEAT_MS, POLL_MS_MAX = 6_000, 1_500, 8_000
CLOSE_SECONDS_MAX = 20.0  # to commit and leave, while faults go on

logger = logging.getLogger(__name__)


class RetryLife:
    """
    Attributes:
    shared: with all other members.
    random: its own chance.
    notes: of what it does.
    over: it is to end: nothing more is begun.
    """

    def __init__(self, shared: RetryBench, group: RetryGroup, name: str) -> None:
        self.shared, self.group, self.name = shared, group, name
        self.random = Random(shared.bench.random.getrandbits(64))
        self._network = MortalNetwork(shared.bench.new_network(name))
        self.notes = HandlingNotes(shared, group, name, self._network)
        self.over = trio.Event()
        self._scope = trio.CancelScope()
        self._idle_until = 0.0

    async def run(self, stop: Stop, fate: Fate, work: Work) -> None:
        """Until its end, or until `stop` is set: then it leaves."""
        self.notes.tell("worker", {"group": self.group.name})
        error: str | None = None
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._meet_fate, fate)
                    nursery.start_soon(self._wait_over, stop, fate)
                    async with self.shared.bench.new_client(self.name, self._network) as client:
                        await work(self, client)
                    nursery.cancel_scope.cancel()
        except* RaftmqError as group:
            error = error_text(_first_of(group))
            logger.info("member: name=%s reason=%s", self.name, error)
        self.notes.tell("gone", error=error)

    @property
    def is_over(self) -> bool:
        return self.over.is_set()

    async def take_time(self) -> None:
        """What handling one record takes; also all of a time in which the member is slow."""
        await trio.sleep(self.random.uniform(0, WORK_SECONDS_MAX))
        await trio.sleep_until(max(self._idle_until, trio.current_time()))

    def member_options(self) -> dict[str, Any]:
        """Of its consumer."""
        return {
            "group": self.group.name,
            "retry": POLICY,
            "start": "earliest",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "max_poll_interval_ms": POLL_MS_MAX,
            "on_rebalance": self._on_rebalance,
        }

    # -- what befalls it -------------------------------------------------------------------

    async def _wait_over(self, stop: Stop, fate: Fate) -> None:
        """Whoever crashes does not leave before. What is in hand is finished, and committed, while
        there is time.
        """
        seconds = math.inf if fate.end is End.CRASH else fate.seconds
        with trio.move_on_after(seconds):
            await stop.wait()
        self.notes.tell("leave")
        self._scope.deadline = trio.current_time() + CLOSE_SECONDS_MAX
        self.over.set()

    async def _meet_fate(self, fate: Fate) -> None:
        began_at = trio.current_time()
        if fate.idle_at is not None:
            await trio.sleep_until(began_at + fate.idle_at)
            self.notes.tell("idle", {"seconds": round(fate.idle_seconds, 2)})
            self._idle_until = trio.current_time() + fate.idle_seconds
        if fate.mute_at is not None:
            await trio.sleep_until(began_at + fate.mute_at)
            self.notes.tell("mute", {"seconds": round(fate.mute_seconds, 2)})
            await self._network.hold(fate.mute_seconds)
        if fate.end is End.CRASH:
            await trio.sleep_until(began_at + fate.seconds)
            self.notes.tell("crash")
            self._network.is_dead = True
            self._scope.cancel()
            with trio.CancelScope(shield=True):
                await self._network.die()

    def _on_rebalance(self, rebalance: Rebalance) -> None:
        told = {
            what: [key_of(*key) for key in getattr(rebalance, what)]
            for what in ("assigned", "revoked", "lost")
            if getattr(rebalance, what)
        }
        self.notes.tell("holds", {**told, "generation": rebalance.generation})


def _first_of(group: BaseExceptionGroup[RaftmqError]) -> RaftmqError:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
