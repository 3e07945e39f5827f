"""One owner of a transaction id: a producer that runs one block after the other until its end.

Owns its life, and what the end of a block needs: a crash after which nothing leaves the program, a
pause beyond the timeout, a second owner beside which it goes on. Some owners are members of a
group: they send the result of each record that they are handed out, and commit its offset with it.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import Type
from jepsen_like.workloads.generator import END, Assign
from jepsen_like.workloads.mortal_network import MortalNetwork
from jepsen_like.workloads.transaction_bench import GROUP, MEMBER_TIMEOUT_MS, TIMEOUT_MS
from jepsen_like.workloads.transaction_block import BlockRun, Copies, Notes
from jepsen_like.workloads.transaction_plan import End, draw_block
from jepsen_like.workloads.worker import new_consumer
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.bench import Pace, Stop
    from jepsen_like.workloads.transaction_bench import TransactionBench
    from jepsen_like.workloads.transaction_plan import Block
    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.producer.producer import Producer

CRASH_SECONDS_MAX = 0.4  # from the begin of a block: before, while and after it is committed
PAUSE_SECONDS = 1.3 * TIMEOUT_MS / 1000
OVERTAKEN_SECONDS_MAX = 5.0  # for the second owner to open the id
CLOSE_SECONDS_MAX = 15.0
SESSION_MS, HEARTBEAT_MS = 6_000, 1_500
# Beyond the session, a rebalance, and a block of the next owner of its partitions.
HELD_SECONDS = 10.0
DELIVERY_MS = 15_000  # of members: a commit that is held is still waited for

logger = logging.getLogger(__name__)


class Owner:
    """
    Args:
        name: the transaction id.
        blocks_max: after which it closes.

    Attributes:
        has_opened: or will not, as it is over.
        wants_next: the next owner may begin; it need not be over.
        successor_opened: to be set when that one has opened the id.
    """

    def __init__(
        self,
        bench: TransactionBench,
        name: str,
        pace: Pace,
        *,
        is_copying: bool,
        has_versions: bool,
        blocks_max: int,
    ) -> None:
        self._shared, self._bench, self._name, self._pace = bench, bench.bench, name, pace
        self._is_copying, self._has_versions = is_copying, has_versions
        self._blocks_left = blocks_max
        self._random = Random(self._bench.random.getrandbits(64))
        self._network = MortalNetwork(self._bench.new_network(name))
        self._notes = Notes(self._bench, self._network)
        self._scope = trio.CancelScope()
        self.has_opened, self.wants_next = trio.Event(), trio.Event()
        self.successor_opened = trio.Event()
        self._copies = Copies()

    async def live(self, stop: Stop) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await self._work(stop, nursery)
                    nursery.cancel_scope.cancel()
        except* RaftmqError as group:
            logger.info("owner: name=%s reason=%s", self._name, group.exceptions[0])
        finally:
            self.has_opened.set()
            self.wants_next.set()

    async def _work(self, stop: Stop, nursery: trio.Nursery) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                self._bench.new_client(self._name, self._network)
            )
            producer = await self._open(client, stack)
            self.has_opened.set()
            everything = (*self._shared.inputs, *self._shared.outputs)
            reader: Consumer = await stack.enter_async_context(
                self._new_member(client)
                if self._is_copying
                else new_consumer(client, Assign(everything, END))
            )
            run = BlockRun(
                self._shared,
                self._name,
                self._notes,
                self._copies,
                producer=producer,
                consumer=reader,
                before_end=partial(self._before_end, nursery),
                random=self._random,
            )
            while not stop.is_set() and self._blocks_left and not self.wants_next.is_set():
                await self._pace.wait()
                self._blocks_left -= 1
                await self._run_block(run, nursery)
            self._scope.deadline = trio.current_time() + CLOSE_SECONDS_MAX

    # -- what it uses ----------------------------------------------------------------------

    async def _open(self, client: Client, stack: AsyncExitStack) -> Producer:
        settings = self._bench.settings
        producer: Producer = client.producer(
            transaction_id=self._name,
            transaction_timeout_ms=MEMBER_TIMEOUT_MS if self._is_copying else TIMEOUT_MS,
            linger_ms=0,
            request_timeout_ms=settings.request_timeout_ms,
            delivery_timeout_ms=DELIVERY_MS if self._is_copying else settings.delivery_timeout_ms,
        )
        self._notes.invoke("open", {"id": self._name})
        try:
            await stack.enter_async_context(producer)
        except RaftmqError as error:
            kind = Type.FAIL if error.definite else Type.INFO
            self._notes.record(kind, "open", error=error)
            raise
        self._notes.record(Type.OK, "open", {"id": self._name})
        return producer

    def _new_member(self, client: Client) -> Consumer:
        options: dict[str, Any] = {
            "group": GROUP,
            "commit": "transaction",
            "start": "earliest",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "on_rebalance": self._copies.on_rebalance,
        }
        return client.consumer(self._shared.input_topic, **options)

    # -- blocks ----------------------------------------------------------------------------

    async def _run_block(self, run: BlockRun, nursery: trio.Nursery) -> None:
        block = draw_block(
            self._random,
            inputs=self._shared.inputs,
            outputs=self._shared.outputs,
            is_copying=self._is_copying,
        )
        if block.end is End.CRASH:
            nursery.start_soon(self._crash, self._random.uniform(0, CRASH_SECONDS_MAX))
        version = self._shared.version(self._name) if self._has_versions else None
        await run.run(block, version)

    async def _crash(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._notes.record(Type.INFO, "crash")
        self._network.is_dead = True
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._network.die()

    async def _before_end(self, nursery: trio.Nursery, block: Block) -> None:
        if block.end is End.PAUSE:
            await trio.sleep(PAUSE_SECONDS)
        elif block.end is End.HELD and self._copies.ends:  # else there is nothing to commit
            nursery.start_soon(self._network.hold, HELD_SECONDS)
            await trio.lowlevel.checkpoint()
        elif block.end is End.OVERTAKEN:
            self.wants_next.set()
            with trio.move_on_after(OVERTAKEN_SECONDS_MAX):
                await self.successor_opened.wait()
