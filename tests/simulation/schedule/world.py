"""Random worlds of one partition with scheduled records: three replicas, leaders that change.

Clocks are skewed and jump, leaders are deposed and do not know it, crashes take what is not synced,
disks are lost, batches cannot be read for a while; transactions stay open for long. Meanwhile
records are scheduled, cancelled, delivered, carried forward and deleted, by the real rules of
`raftmq.partition.scheduling`; elections and replication are as simple as can be: whoever has all
that is committed may lead. A `Judge` sees what is committed; after every step each replica that has
changed knows what its log says, and each that may be elected has all that is not settled.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from raftmq.broker.timing_wheel import TimingWheel
from raftmq.model import DELAY_TICK_MS
from raftmq.partition.scheduling.schedule import CancelRefusal
from tests.simulation.schedule.judge import Judge
from tests.simulation.schedule.log import Batch, Kind
from tests.simulation.schedule.replica import Replica

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 500
REPLICAS = range(3)
PRODUCERS = range(2)
NOW = 1_700_000_000_000
DELAYS_MS = (0, 500, 5_000, 60_000, 3_600_000)
HEAL_ROUNDS = 50


class Transaction:
    """Attributes:
    sent: its records.
    is_committed: None: not decided.
    """

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.is_committed: bool | None = None


class World:
    """Attributes:
    compares: whether what replicas know is compared with their logs; else promises alone are kept.
    counts: of what happened.
    """

    def __init__(self, seed: int, *, compares: bool = True) -> None:
        self.seed, self.random, self.compares = seed, Random(seed), compares
        self.now, self.epoch = NOW, 1
        self.replicas = [
            Replica(number, self.random.randint(1_500, 5_000), self._skew()) for number in REPLICAS
        ]
        self.leader = self.replicas[0]
        self.leader.lead(self.epoch)
        self.judge = Judge()
        self.transactions = {producer: [Transaction()] for producer in PRODUCERS}
        self.records = 0
        self.counts: Counter[str] = Counter()
        # A world has its own mixture of troubles: swarm testing.
        always = (self._fetch, self._sync, self._commit)
        self.actions = {
            action: weight * (1 if action in always else self.random.choice((0.2, 1, 1, 3)))
            for action, weight in self._actions().items()
        }

    def play(self, steps: int = STEPS) -> None:
        """
        Raises:
            AssertionError: a promise is broken.
        """
        for _ in range(steps):
            (action,) = self.random.choices([*self.actions], weights=[*self.actions.values()])
            action()
            if self.leader.leads != self.epoch and self.random.random() < 0.2:
                self._elect()
            self._check()
        self._heal()

    def _actions(self) -> dict[Callable[[], None], float]:
        """What may happen next, and how often each of them does."""
        return {
            self._schedule: 10, self._append_plain: 8, self._schedule_in_transaction: 4,
            self._decide: 1.5, self._mark: 4, self._take: 10, self._finish: 14, self._cancel: 4,
            self._retain: 10, self._delete_records: 1, self._advance_start: 4,
            self._retain_alone: 6, self._fetch: 40, self._sync: 20, self._commit: 20,
            self._tick: 10, self._jump: 1, self._hear: 12, self._elect: 1.2, self._crash: 1,
            self._lose_disk: 0.4, self._repair: 1.5,
        }  # fmt: skip

    def _skew(self) -> int:
        return self.random.choice((0, 0, -200, 300, self.random.randint(-60_000, 60_000)))

    # -- clients ---------------------------------------------------------------------------

    def _asked(self) -> Replica | None:
        """The leader; or one that was, and does not know yet that it is not any more."""
        others = [each for each in self.replicas if each.leads not in (None, self.epoch)]
        if others and self.random.random() < 0.3:
            return self.random.choice(others)
        return self.leader if self.leader.leads == self.epoch else None

    def _new_batch(self, replica: Replica, delay_ms: int) -> Batch:
        count = self.random.choice((1, 1, 2, 3))
        ids = tuple(range(self.records, self.records + count))
        self.records += count
        due_ms = self.now + self.random.randint(0, delay_ms)
        assert replica.leads is not None
        length = self.random.randint(100, 300)
        return Batch(
            Kind.SCHEDULED, replica.leads, length, record_count=count, due_ms=due_ms, ids=ids
        )

    def _schedule(self) -> None:
        replica = self._asked()
        if replica is not None:
            replica.append(self._new_batch(replica, self.random.choice(DELAYS_MS)))
            self.counts["scheduled"] += 1

    def _append_plain(self) -> None:
        replica = self._asked()
        if replica is not None:
            assert replica.leads is not None
            replica.append(Batch(Kind.PLAIN, replica.leads, self.random.randint(200, 1_500)))

    def _schedule_in_transaction(self) -> None:
        replica, producer = self._asked(), self.random.choice(PRODUCERS)
        if replica is None or replica.unread is not None:
            return
        self._resolve(replica, producer)  # of the transaction before
        number = len(self.transactions[producer]) - 1
        assert replica.open_transaction(producer) in (None, number), "two transactions at once"
        batch = self._new_batch(replica, self.random.choice(DELAYS_MS[:3]))
        self.transactions[producer][-1].sent += batch.ids
        replica.append(batch._replace(producer_id=producer, transaction=number))
        self.counts["in transaction"] += 1

    def _decide(self) -> None:
        """A commit only if all that was sent is acknowledged."""
        producer = self.random.choice(PRODUCERS)
        transaction = self.transactions[producer][-1]
        is_acknowledged = all(each in self.judge.known for each in transaction.sent)
        if not is_acknowledged and self.random.random() < 0.9:
            return  # it waits
        if transaction.sent:
            transaction.is_committed = is_acknowledged and self.random.random() < 0.7
            self.counts["commit" if transaction.is_committed else "abort"] += 1
            self.transactions[producer].append(Transaction())

    def _resolve(self, replica: Replica, producer: int) -> None:
        """The marker that the producer's open transaction needs, if it is decided."""
        number = replica.open_transaction(producer)
        if number is not None and replica.unread is None:
            is_committed = self.transactions[producer][number].is_committed
            if is_committed is not None:
                replica.mark(producer, number, is_commit=is_committed)

    def _mark(self) -> None:
        replica = self._asked()
        if replica is not None:
            self._resolve(replica, self.random.choice(PRODUCERS))

    def _cancel(self) -> None:
        """Of a record that was acknowledged, by its handle."""
        replica = self._asked()
        if replica is None or not self.judge.known:
            return
        is_open = self.judge.unsettled and self.random.random() < 0.8
        record = self.random.choice(sorted(self.judge.unsettled if is_open else self.judge.known))
        handle = self.judge.known[record].handle
        refusal = replica.cancel(handle, record)
        self.counts["cancel" if refusal is None else f"cancel refused: {refusal.name}"] += 1
        is_committed = replica is self.leader and replica.high_watermark == replica.log.end
        if refusal not in (None, CancelRefusal.UNREAD) and is_committed:
            self.judge.check_refusal(record, refusal)

    # -- leaders ---------------------------------------------------------------------------

    def _take(self) -> None:
        replica = self._asked()
        if replica is not None:
            replica.take(self.now, self.random.randint(1, 3))

    def _finish(self) -> None:
        """One that was read is appended."""
        replica = self._asked()
        if replica is not None and replica.in_hand:
            kind = replica.finish(self.random.randrange(len(replica.in_hand)), self.now)
            self.counts["settled while it was read" if kind is None else kind.name] += 1

    def _retain(self) -> None:
        """The oldest segments are too old."""
        replica = self._asked()
        if replica is None or len(replica.log.segments) < 2:
            return
        end = self.random.choice(replica.log.segments[1:3])
        if end > replica.high_watermark:
            return
        if replica.may_begin_at(end):
            replica.trim(end)
            self.counts["deleted"] += 1
            return
        size = replica.log.size(replica.log.first, end)
        if replica.schedule.is_worth_carrying(end, size):
            self._carry(replica, end)

    def _carry(self, replica: Replica, end: int) -> None:
        for entry in replica.schedule.pending_from(0, end, 1_000):
            if not replica.is_carried(entry):
                replica.read(Kind.COPY, entry)

    def _delete_records(self) -> None:
        """DeleteRecords, up to any offset; answered when the log begins there."""
        replica = self._asked()
        if replica is None or replica.high_watermark <= replica.log.start:
            return
        replica.wanted_start = self.random.randint(replica.log.start, replica.high_watermark)
        self._advance_start()

    def _advance_start(self) -> None:
        replica = self._asked()
        if replica is None or replica.wanted_start <= replica.log.start:
            return
        offset = replica.wanted_start
        if replica.may_begin_at(offset):
            replica.log.start = offset
            replica.trim(offset)
            self.counts["records deleted"] += 1
            return
        if not replica.schedule.has_undecided(offset):
            self._carry(replica, offset)

    # -- replication -----------------------------------------------------------------------

    def _retain_alone(self) -> None:
        """A replica deletes what is too old, or what its leader has deleted."""
        behind = [each for each in self.replicas if each.matched_epoch != self.epoch]
        replica = self.random.choice(self.replicas + 3 * behind)
        end = replica.log.segments[min(1, len(replica.log.segments) - 1)]
        is_old = replica.log.first < end <= replica.own_high_watermark()
        if is_old and replica.may_begin_at(end):
            replica.trim(end)
            self.counts["deleted"] += 1

    def _hear(self) -> None:
        """Of the newest leader."""
        replica = self.random.choice(self.replicas)
        if replica.known_epoch < self.epoch:
            self._hear_of_leader(replica)

    def _hear_of_leader(self, replica: Replica) -> None:
        replica.known_epoch = self.epoch
        if replica.leads != self.epoch:
            replica.resign()

    def _fetch(self) -> None:
        replica = self.random.choice(self.replicas)
        leader = next((each for each in self.replicas if each.leads == replica.known_epoch), None)
        if leader is None or leader is replica or replica.leads is not None:
            return
        self._copy(replica, leader, self.random.randint(1, 12))

    def _copy(self, replica: Replica, leader: Replica, count: int) -> None:
        if replica.matched_epoch != leader.leads or replica.log.end < leader.log.start:
            end = self._common_end(replica, leader)
            if end is None or replica.log.end < leader.log.start:
                first = leader.log.at(leader.log.start)
                replica.start_over(leader.log.start if first is None else first.base_offset)
                self.counts["start over"] += 1
            else:
                replica.cut(end)
            replica.matched_epoch = replica.known_epoch
        place = next(
            (n for n, base in enumerate(leader.log.bases) if base >= replica.log.end), None
        )
        for batch in leader.log.batches[place:][:count] if place is not None else ():
            if batch.base_offset == leader.unread:
                break
            replica.copy(batch)
        known = self.random.choice((replica.high_watermark, leader.high_watermark))
        replica.high_watermark = max(replica.high_watermark, min(known, replica.log.end))
        start = min(leader.log.start, replica.high_watermark)
        if start > replica.log.start:
            replica.log.start = start

    def _common_end(self, replica: Replica, leader: Replica) -> int | None:
        """Where the logs begin to differ; None: they agree nowhere, as far as both are there. Then
        what the replica has below the leader's log start may differ, too, and it starts over."""
        end = begin = max(replica.log.first, leader.log.first, replica.high_watermark)
        while end < min(replica.log.end, leader.log.end):
            batch = replica.log.at(end)
            if batch is None or batch != leader.log.at(end):
                break
            end = batch.end_offset
        return end if end > begin or begin == replica.high_watermark else self.without_proof(end)

    def without_proof(self, _end: int) -> int | None:
        return None

    def _sync(self) -> None:
        replica = self.random.choice(self.replicas)
        replica.synced = replica.log.end

    def _commit(self) -> None:
        """What two replicas have synced is committed."""
        leader = self.leader
        if leader.leads != self.epoch:
            return
        followers = [each for each in self.replicas if each is not leader]
        ends = [each.synced for each in followers if each.matched_epoch == self.epoch]
        end = min(leader.synced, max(ends, default=0))
        self._raise_high_watermark(leader, end)

    def _raise_high_watermark(self, leader: Replica, end: int) -> None:
        leader.high_watermark = max(leader.high_watermark, end)
        while self.judge.end < leader.high_watermark:
            batch = leader.log.at(self.judge.end)
            assert batch is not None, "the world lacks what it commits"
            self.judge.on_commit(batch)

    # -- faults ----------------------------------------------------------------------------

    def _tick(self) -> None:
        self.now += self.random.choice((50, 400, 3_000, 30_000, 600_000))

    def _jump(self) -> None:
        self.random.choice((self.leader, *self.replicas)).skew_ms = self._skew()

    def may_lead(self, replica: Replica) -> bool:
        """It has all that is committed."""
        end = self.judge.end
        if not end or replica.log.end < end:
            return replica.log.end >= end
        batch = replica.log.at(end - 1)
        if batch is None:  # it has started over right there
            return replica.log.first >= end
        return batch == self.judge.committed[-1]

    def _elect(self) -> None:
        candidates = [each for each in self.replicas if self.may_lead(each)]
        if not candidates:
            return
        self.epoch += 1
        self.leader = self.random.choice(candidates)
        self.leader.resign()
        self.leader.lead(self.epoch)
        self.counts["election"] += 1

    def _crash(self) -> None:
        """What is not synced is gone, and perhaps a batch cannot be read."""
        replica = self.random.choice(self.replicas)
        ends = [each for each in (*replica.log.bases, replica.log.end) if each >= replica.synced]
        end = self.random.choice(ends)
        unread = None
        if replica.log.bases and self.random.random() < 0.3:
            unread = self.random.choice(replica.log.bases)
            unread = unread if unread < end else None
        highest = min(replica.high_watermark, end)
        lowest = max(replica.log.start, highest - 5)
        was_leader = replica.leads == self.epoch
        replica.restart(end, self.random.randint(min(lowest, highest), highest), unread)
        if was_leader and self.random.random() < 0.5 and self.may_lead(replica):
            self.epoch += 1  # it was back before another was elected
            replica.lead(self.epoch)
        self.counts["crash"] += 1
        self.counts["unread"] += unread is not None

    def _lose_disk(self) -> None:
        replica = self.random.choice(self.replicas)
        others = [each for each in self.replicas if each is not replica]
        is_safe = any(self.may_lead(each) and each.synced >= self.judge.end for each in others)
        if is_safe and replica is not self.leader:
            replica.resign()
            replica.start_over(0)
            replica.matched_epoch = 0

    def _repair(self) -> None:
        for replica in self.replicas:
            if replica.unread is not None:
                replica.repair()

    # -- checks ----------------------------------------------------------------------------

    def _check(self) -> None:
        for replica in self.replicas:
            if replica.is_changed:
                replica.is_changed = False
                replica.held = replica.scheduled_records()
                if self.compares:
                    replica.check()
                    if self.random.random() < 0.05:
                        replica.check_rebuilt()
            if self.may_lead(replica):
                lost = self.judge.unsettled - replica.held
                assert not lost, f"replica {replica.number} may lead and lacks {sorted(lost)}"

    def _heal(self) -> None:
        """No more faults: all that is due is delivered, in order, and on time from then on."""
        self._repair()
        for replica in self.replicas:
            replica.skew_ms = 0
        self._elect()
        for producer in PRODUCERS:
            self._decide_all(producer)
        self._settle_hands()
        leader = self.leader
        self._deliver(leader)
        leader.wanted_start = 0
        self._settle_hands()
        self.judge.check_end()
        for replica in self.replicas:
            if self.compares:
                replica.check()
                replica.check_rebuilt()
            assert replica.may_begin_at(replica.log.segments[-1]), "something is kept for ever"

    def _decide_all(self, producer: int) -> None:
        for transaction in self.transactions[producer]:
            if transaction.is_committed is None:
                is_acknowledged = all(each in self.judge.known for each in transaction.sent)
                transaction.is_committed = is_acknowledged

    def _settle_hands(self) -> None:
        """All that is in hand is appended, and all that is appended is committed."""
        for _ in range(2):
            for producer in PRODUCERS:
                self._resolve(self.leader, producer)
            while self.leader.in_hand:
                self.leader.finish(0, self.now)
        for replica in self.replicas:
            self._hear_of_leader(replica)
            if replica is not self.leader:
                self._copy(replica, self.leader, 10**6)
                assert replica.log.end == self.leader.log.end, "the world does not heal"
            replica.synced = replica.log.end
        self._commit()
        for replica in self.replicas:
            replica.high_watermark = self.leader.high_watermark
        self._check()

    def _deliver(self, leader: Replica) -> None:
        """By a timing wheel, as a broker does."""
        entries = [*leader.schedule.entries()]
        waiting = sorted(
            (each.due_ms, each.base_offset) for each in entries if each.settled_by == 0
        )
        wheel: TimingWheel[str] = TimingWheel(self.now)
        begun, before = self.now, len(leader.log.batches)
        while (due := leader.schedule.next_due()) is not None:
            wheel.set("orders-0", due)
            self.now = max(self.now, wheel.next_due() or 0)
            assert wheel.advance(self.now) == ["orders-0"]
            assert self.now <= max(begun, due + DELAY_TICK_MS - 1), "late"
            leader.take(self.now, 2)
            while leader.in_hand:
                leader.finish(0, self.now)
        delivered = [each.named[0] for each in leader.log.batches[before:]]
        assert delivered == [offset for _, offset in waiting], "not in order of due"


def failure(seed: int, *, compares: bool = True) -> str:
    """What broke in that world, with the command that replays it; empty: nothing."""
    try:
        World(seed, compares=compares).play()
    except AssertionError as error:
        return f"{error}; replay: python -m tests.simulation.schedule --seed {seed}"
    return ""
