"""Processes in which attempts of tasks run, each a member of a version of a shared transaction.

Owns how an attempt is recorded: as a process of its own that joins, sends, and has a receipt if it
ended well. Whether its records count is said by a commit that lists it, and by nothing else.
"""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import trio

from jepsen_like.history.event import ACKS_ALL, Type
from jepsen_like.workloads import generator
from jepsen_like.workloads.keys import encode_value, split_key
from jepsen_like.workloads.mortal_network import MortalNetwork
from jepsen_like.workloads.sending import hand_in, outcome_of, result_of
from jepsen_like.workloads.transaction_bench import TIMEOUT_MS
from jepsen_like.workloads.transaction_block import Notes
from jepsen_like.workloads.version_plan import Fate
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from jepsen_like.workloads.transaction_bench import TransactionBench
    from jepsen_like.workloads.transaction_plan import Send
    from jepsen_like.workloads.version_plan import AttemptPlan
    from raftmq.client.client import Client
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.transactions.members import Receipt
    from raftmq.client.transactions.shared import Member, SharedVersion

LATE_SECONDS_MAX = 4.0  # for a version to be over: beyond its timeout
DEATH_PAUSE_SECONDS = 0.2  # until a process is there again

logger = logging.getLogger(__name__)


HandedIn: TypeAlias = "tuple[dict[str, Any], list[Delivery | RaftmqError]]"  # as it was recorded


class VersionName(NamedTuple):
    id: str
    lineage: str
    version: int

    def of(self, client: Client) -> SharedVersion:
        shared = client.shared_transaction(
            self.id, lineage=self.lineage, transaction_timeout_ms=TIMEOUT_MS
        )
        return shared.version(self.version)


class _FailedError(Exception):
    """A mistake of the program."""


class Process:
    """One that runs attempts, life after life.

    Args:
        name: of its machine.
    """

    def __init__(self, shared: TransactionBench, name: str) -> None:
        self._bench, self._name = shared.bench, name
        self._line, self._attempts = trio.open_memory_channel[Attempt](inf)

    def start(self, attempt: Attempt) -> None:
        self._line.send_nowait(attempt)

    def close(self) -> None:
        """Nothing more is started."""
        self._line.close()

    async def live(self) -> None:
        """Until it is closed, and all is over."""
        is_over = False
        while not is_over:
            network = MortalNetwork(self._bench.new_network(self._name))
            with trio.CancelScope() as scope:
                async with (
                    self._bench.new_client(self._name, network) as client,
                    trio.open_nursery() as nursery,
                ):
                    async for attempt in self._attempts:
                        nursery.start_soon(attempt.run, client, network, scope)
                    is_over = True
            if scope.cancelled_caught:
                await trio.sleep(DEATH_PAUSE_SECONDS)


class Attempt:
    """One attempt of a task.

    Args:
        is_over: the version is decided, as far as its driver knows.

    Attributes:
        tx: its number in the history.
        is_done: it was told that the version was committed before.
        receipt: None: it has not ended well.
        has_ended: in whatever way.
    """

    def __init__(
        self, shared: TransactionBench, name: VersionName, plan: AttemptPlan, is_over: trio.Event
    ) -> None:
        self._bench, self._name, self._plan = shared.bench, name, plan
        self._is_over = is_over
        self.tx = next(shared.numbers)
        self.is_done = False
        self.receipt: Receipt | None = None
        self.has_ended = trio.Event()

    async def run(self, client: Client, network: MortalNetwork, life: trio.CancelScope) -> None:
        """`life`: of its process."""
        self._notes = Notes(self._bench, network)
        try:
            await self._be_member(client, partial(self._die, network, life))
        finally:
            self.has_ended.set()

    async def _die(self, network: MortalNetwork, life: trio.CancelScope) -> None:
        """With its process, and all others in it."""
        self._notes.record(Type.INFO, "crash")
        network.is_dead = True
        life.cancel()
        with trio.CancelScope(shield=True):
            await network.die()
        await trio.sleep_forever()

    async def _be_member(self, client: Client, die: Callable[[], Awaitable[None]]) -> None:
        settings = self._bench.settings
        member = self._name.of(client).join(
            linger_ms=0,
            request_timeout_ms=settings.request_timeout_ms,
            delivery_timeout_ms=settings.delivery_timeout_ms,
        )
        told = {"tx": self.tx, **self._name._asdict()}
        self._notes.invoke("join", told)
        has_joined = False
        last: HandedIn | None = None
        try:
            async with member:
                has_joined, self.is_done = True, member.is_done
                self._notes.record(Type.OK, "join", {**told, "is_done": self.is_done})
                last = await self._fill(member, die)
            self.receipt = member.receipt
        except RaftmqError as error:
            if not has_joined:
                kind = Type.FAIL if error.definite else Type.INFO
                self._notes.record(kind, "join", error=error)
            logger.info("member: tx=%d reason=%s", self.tx, error)
        except _FailedError:
            pass
        if last is not None:
            await self._tell_outcome(*last)

    async def _fill(self, member: Member, die: Callable[[], Awaitable[None]]) -> HandedIn | None:
        """Returns the last send: the end of the block waits for that."""
        sends = self._plan.sends
        if member.is_done:
            for send in sends:
                await self._drop(member, send)
            return None
        for send in sends[:-1]:
            await self._tell_outcome(*await self._hand_in(member, send))
        if self._plan.fate is Fate.LATE:
            with trio.move_on_after(LATE_SECONDS_MAX):
                await self._is_over.wait()
        last = await self._hand_in(member, sends[-1]) if sends else None
        if self._plan.fate is Fate.DIES:
            await die()
        if self._plan.fate is Fate.FAILS:
            if last is not None:
                await self._tell_outcome(*last)
            raise _FailedError
        return last

    async def _hand_in(self, member: Member, send: Send) -> HandedIn:
        operation = generator.Send(send.key, self._bench.keys.take_steadily(*send))
        asked = {"key": send.key, "acks": ACKS_ALL, "values": operation.values}
        asked |= {"is_idempotent": True, "tx": self.tx}
        self._notes.invoke("send", asked)
        return asked, await hand_in(self._bench, member, operation)

    async def _tell_outcome(
        self, asked: dict[str, Any], deliveries: list[Delivery | RaftmqError]
    ) -> None:
        outcome = outcome_of([await result_of(one) for one in deliveries])
        # What was refused does not count; whether it stands in the log is not known.
        kind = Type.OK if outcome.type is Type.OK else Type.INFO
        self._notes.record(
            kind, "send", {**asked, "offsets": outcome.offsets, "is_repeated": False}
        )
        self._bench.seen.on_sent(asked["key"], outcome.offsets)

    async def _drop(self, member: Member, send: Send) -> None:
        """As the version is committed: such records are counted, and no more."""
        topic, partition = split_key(send.key)
        for value in self._bench.keys.take_steadily(*send):
            await member.enqueue(topic, encode_value(value), partition=partition)
