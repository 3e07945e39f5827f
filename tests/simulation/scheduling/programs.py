"""Simulated programs that schedule records on the wire protocol, cancel some, and use transactions.

Own what they send and what they are told; the ledger has it.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.client.administration.scheduled import ScheduledCalls
from raftmq.client.scheduling.handles import ScheduleHandle
from raftmq.client.transactions.asking import AskedCoordinator
from raftmq.errors import CannotCancel, RaftmqError, UnsupportedVersion, error_for
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import ACKS_ALL, TopicPartition
from raftmq.wire.messages.producers import InitProducerId
from raftmq.wire.messages.transactions import EndTxn
from tests.fetching import fetch
from tests.producing import produce
from tests.simulation.brokers.clients import Program, Worker
from tests.simulation.brokers.hosts import now_ms
from tests.simulation.brokers.ledger import Outcome
from tests.simulation.brokers.tagging import tags_of
from tests.simulation.raft.checks import demand
from tests.simulation.scheduling.ledger import Cancel, SentBatch, Transaction, TransactionFate
from tests.simulation.scheduling.plan import BEYOND_SECONDS, DELAYS

if TYPE_CHECKING:
    from typing import Any

    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.producers import InitProducerIdReply
    from raftmq.wire.messages.transactions import EndTxnReply
    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.scheduling.world import SchedulingWorld

REQUEST_SECONDS = 2.0
END_SECONDS_MAX = 8.0  # for the coordinator to say what became of a transaction
CANCEL_SECONDS_MAX = 3.0
TRANSACTION_TIMEOUT_MS = 6_000


class _Sender(Program):
    world: SchedulingWorld

    def __init__(self, world: SchedulingWorld, name: str) -> None:
        super().__init__(world, name)
        self._numbers = count()

    def _draw_values(self) -> tuple[bytes, ...]:
        """They begin as those do that have tags."""
        plan = self.world.scheduling
        padding = "." * self._random.randint(0, plan.padding_bytes)
        size = self._random.choice((1, 1, 2, 3))
        return tuple(f"sp{self.name}/{next(self._numbers)}{padding}".encode() for _ in range(size))

    def _draw_due(self) -> int | None:
        plan, random = self.world.scheduling, self._random
        if random.random() >= plan.scheduled_share:
            return None
        delay = random.uniform(*random.choice(DELAYS))
        if random.random() < plan.beyond_share:
            end = self.world.plan.seconds - trio.current_time()
            delay = max(end, 0.0) + random.uniform(0.0, BEYOND_SECONDS)
        return now_ms() + round(delay * 1000)

    async def _send(
        self,
        cluster: Cluster,
        sent: SentBatch,
        *,
        seconds: float,
        acks: int = ACKS_ALL,
        **more: Any,
    ) -> None:
        ledger, values = self.world.schedules, list(sent.values)
        ledger.on_send(sent)
        data = encode_batch(
            values=values, timestamp=now_ms(), tags=[list(tags_of(value)) for value in values],
            due_ms=sent.due_ms, **more,
        )  # fmt: skip
        try:
            sent.base_offset = await produce(
                cluster, sent.spot.topic, sent.spot.partition, bytes(data),
                acks=acks, timeout_seconds=seconds,
            )  # fmt: skip
        except RaftmqError as error:
            sent.outcome = Outcome.FAILED if error.definite else Outcome.UNKNOWN
            self.world.trace(f"{self.name} {sent} {type(error).__name__}")
            return
        # By fewer than all: it may go with its leader.
        sent.outcome = Outcome.OK if acks == ACKS_ALL else Outcome.UNKNOWN
        self.world.trace(f"{self.name} {sent} acks={acks}")


class Scheduler(_Sender, Worker):
    """One task for each partition; cancels go on beside it."""

    def __init__(self, world: SchedulingWorld, number: int) -> None:
        super().__init__(world, f"s{number}")
        self._acks = self._random.choice(((ACKS_ALL,), (ACKS_ALL,), (ACKS_ALL, ACKS_ALL, 1)))

    async def _work(self, cluster: Cluster, spot: Spot) -> None:
        async with trio.open_nursery() as cancels:
            while not self.world.is_closing:
                await self._think()
                sent = SentBatch(spot, self._draw_values(), self._draw_due())
                acks, seconds = (
                    self._random.choice(self._acks),
                    self._random.choice((0.5, 2.0, 8.0)),
                )
                await self._send(cluster, sent, acks=acks, seconds=seconds)
                if sent.due_ms is not None and sent.outcome is Outcome.OK:
                    self._maybe_cancel(cluster, cancels, sent)
            cancels.cancel_scope.deadline = trio.current_time() + CANCEL_SECONDS_MAX

    def _maybe_cancel(self, cluster: Cluster, cancels: trio.Nursery, sent: SentBatch) -> None:
        """Sooner or later, now and then just when it is due, or twice."""
        assert sent.due_ms is not None
        for delta in range(len(sent.values)):
            for _ in range(self._random.choice((1, 1, 1, 2))):
                if self._random.random() < self.world.scheduling.cancel_share:
                    left = max((sent.due_ms - now_ms()) / 1000, 0.0)
                    spread = self._random.choice((left, left, left + 0.3))
                    pause = self._random.uniform(0.0, spread)
                    if self._random.random() < 0.4:
                        pause = max(0.0, left + self._random.uniform(-0.05, 0.15))
                    cancels.start_soon(partial(self._cancel_after, cluster, pause, sent, delta))

    async def _cancel_after(
        self, cluster: Cluster, pause: float, sent: SentBatch, delta: int
    ) -> None:
        await trio.sleep(pause)
        await cancel(self.world, cluster, sent, delta)


async def cancel(world: SchedulingWorld, cluster: Cluster, sent: SentBatch, delta: int) -> None:
    """What is said of it is compared with what is committed by now."""
    ledger, spot = world.schedules, sent.spot
    before, offset = sent.cancels[delta], sent.base_offset + delta
    handle = ScheduleHandle(world.topic_ids[spot.topic, spot.life], spot.partition, offset)
    if before is Cancel.NONE:
        sent.cancels[delta] = Cancel.UNKNOWN
    reason = ""
    try:
        await ScheduledCalls(cluster, timeout_seconds=CANCEL_SECONDS_MAX).cancel_scheduled(handle)
    except CannotCancel as error:
        reason = error.reason
    except RaftmqError as error:
        world.trace(f"cancel {handle}: {error!r}")
        return
    fate = world.observer.log_of(spot).fate_of(offset)
    told = f"cancel of {spot} {offset}: {reason or 'done'}; it is {fate}"
    world.trace(told)
    ledger.answers[reason] += 1
    if reason in ("", "cancelled"):
        demand(fate == "cancelled", told)
        sent.cancels[delta] = Cancel.DONE
        return
    # What is not known was settled and deleted since: nobody asks for what was not acknowledged.
    demand(fate == reason or (reason == "unknown" and fate not in ("pending", "unknown")), told)
    if before is Cancel.NONE:
        sent.cancels[delta] = Cancel.NONE  # nothing was appended, for certain


class Owner(_Sender):
    """Of a transaction id, which it opens anew for each transaction."""

    def __init__(self, world: SchedulingWorld, number: int) -> None:
        super().__init__(world, f"t{number}")
        self._id, self._openings = f"id-{number}", count(1)
        self._owner = self._random.randbytes(16)

    async def run(self) -> None:
        async with self._cluster() as cluster:
            coordinator = AskedCoordinator(cluster, self._id, REQUEST_SECONDS)
            while not self.world.is_closing:
                await self._think()
                try:
                    await self._transact(cluster, coordinator)
                except RaftmqError as error:
                    self.world.trace(f"{self.name} {error!r}")

    async def _transact(self, cluster: Cluster, coordinator: AskedCoordinator) -> None:
        number = await self._open(coordinator)
        transaction = Transaction(f"{self.name}/{number}")
        self.world.schedules.transactions.append(transaction)
        spots = self.world.spots()
        chosen = self._random.sample(spots, self._random.randint(1, min(2, len(spots))))
        for spot in chosen:
            for sequence_of in self._batches(spot, transaction):
                sent, sequence = sequence_of
                await self._send(
                    cluster, sent, seconds=REQUEST_SECONDS, transactional=True,
                    producer_id=number[0], producer_epoch=number[1], base_sequence=sequence,
                )  # fmt: skip
                if sent.outcome is not Outcome.OK:
                    break
            await self._think()
        is_whole = all(sent.outcome is Outcome.OK for sent in transaction.sent)
        is_commit = is_whole and self._random.random() < 0.7
        await self._end(coordinator, transaction, number, chosen, is_commit=is_commit)

    def _batches(self, spot: Spot, transaction: Transaction) -> list[tuple[SentBatch, int]]:
        found, sequence = [], 0
        for _ in range(self._random.choice((1, 2))):
            values = self._draw_values()
            found.append((SentBatch(spot, values, self._draw_due(), transaction), sequence))
            sequence += len(values)
        return found

    async def _open(self, coordinator: AskedCoordinator) -> tuple[int, int]:
        opening = next(self._openings)

        def make(timeout_ms: int) -> InitProducerId:
            return InitProducerId(
                timeout_ms, self._id, self._owner, opening, TRANSACTION_TIMEOUT_MS
            )

        def read(reply: InitProducerIdReply) -> tuple[int, int]:
            if reply.error:
                raise error_for(reply.error, reply.message)
            return reply.producer_id, reply.producer_epoch

        return await coordinator.ask(make, read, deadline=trio.current_time() + END_SECONDS_MAX)

    async def _end(
        self,
        coordinator: AskedCoordinator,
        transaction: Transaction,
        number: tuple[int, int],
        spots: list[Spot],
        *,
        is_commit: bool,
    ) -> None:
        ids = self.world.topic_ids
        its = tuple(TopicPartition(ids[spot.topic, spot.life], spot.partition) for spot in spots)

        def make(timeout_ms: int) -> EndTxn:
            partitions = its if is_commit else ()
            return EndTxn(
                self._id, *number, is_commit, self._owner,
                partitions=partitions, timeout_ms=timeout_ms,
            )  # fmt: skip

        def read(reply: EndTxnReply) -> bool:
            if reply.error:
                raise error_for(reply.error, reply.message)
            return reply.is_committed

        is_committed = await coordinator.ask(
            make, read, deadline=trio.current_time() + END_SECONDS_MAX
        )
        fates = {True: TransactionFate.COMMITTED, False: TransactionFate.ABORTED}
        transaction.fate = fates[is_committed]
        self.world.trace(f"{transaction.name} {transaction.fate.name}")


class OldReader(Worker):
    """Knows no gaps: it gets what has none, or an error, and never a scheduled batch."""

    world: SchedulingWorld

    async def _work(self, cluster: Cluster, spot: Spot) -> None:
        while not self.world.is_closing:
            await trio.sleep(self._random.uniform(0.2, 1.0))
            offsets = sorted(self.world.ledger.of(spot).stands)
            offset = self._random.choice(offsets) if offsets else 0
            try:
                found = await fetch(
                    cluster, spot.topic, spot.partition, offset,
                    max_wait_seconds=0.1, timeout_seconds=0.5,
                )  # fmt: skip
            except UnsupportedVersion:
                self.world.schedules.answers["upgrade"] += 1
            except RaftmqError as error:
                self.world.trace(f"{self.name} {spot} {offset}: {error!r}")
            else:
                hidden = [
                    one.base_offset for _, one in iter_batches(found.data) if one.is_scheduled
                ]
                demand(not hidden, f"{self.name}: {spot} from {offset}: {hidden} are scheduled")
