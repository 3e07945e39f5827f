"""Random walks over transactions: lagging metadata, deposed leaders, messages lost, late and twice.

Two transaction ids, two partitions, three brokers. The rules are the real ones: of the quorum
(`metadata.apply`), of outcomes, of a partition's producers and transactions. What a walk does in
any order that could happen is what brokers and clients do around them.

Promises (docs/GUARANTEES.md, T1 to T4): all of a committed transaction is readable in the end, once
and in order, none of an aborted one; no reader was ever given anything else; nothing hangs.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from raftmq.errors import ErrorCode
from raftmq.metadata.apply import transactions as rules
from raftmq.metadata.commands import NO_BROKER, TransactionEnd
from raftmq.metadata.transactions import outcome_of, present_of, transaction_id_of
from raftmq.model import AbortReason, TransactionOutcome
from tests.simulation.transactions.quorum import BROKERS, PARTITIONS, TOPIC_ID, Quorum
from tests.simulation.transactions.replica import Record, Replica

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.commands import EndOutcome
    from raftmq.partition.transactions import OutcomeOf

STEPS = 300
LAST_EPOCH = 3  # so that transaction ids change their producer ids now and then
RECORDS_MAX = 3  # of a transaction
HEAL_ROUNDS = 400
IDS = ("transfer", "audit")


class Ending(NamedTuple):
    """A client's request to end its transaction; sent again and again it is the same."""

    client: int
    end: TransactionEnd
    records: frozenset[Record]


class Client:
    """The producer that has a transaction id now."""

    def __init__(self, number: int, name: str, producer_id: int, producer_epoch: int) -> None:
        self.number, self.name = number, name
        self.owner = number.to_bytes(16, "big")
        self.begin(producer_id, producer_epoch)

    def begin(self, producer_id: int, producer_epoch: int) -> None:
        """The next transaction."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.sent: list[Record] = []
        self.acknowledged: set[Record] = set()
        self.ending: Ending | None = None

    def may_commit(self) -> bool:
        return bool(self.sent) and self.acknowledged.issuperset(self.sent)


class Walk:
    """Attributes:
    decided: what the quorum has decided, by (producer id, epoch).
    promised: the records of the committed ones, by the same.
    counts: of what happened.
    """

    versions_max = 3  # of the metadata that a broker hears of at once

    def __init__(self, seed: int, quorum: Quorum | None = None) -> None:
        self.seed, self.random = seed, Random(seed)
        self.quorum = Quorum() if quorum is None else quorum
        first = self.quorum.version
        # What each broker has seen, and what it has acted upon: roles change a little later.
        self.seen, self.acted = dict.fromkeys(BROKERS, first), dict.fromkeys(BROKERS, first)
        self.replicas = {
            (partition, 0): Replica(partition, 0, partition, [], high_watermark=0)
            for partition in PARTITIONS
        }
        self.under_way: list[Any] = []  # messages: records, ends
        self.decided: dict[tuple[int, int], bool] = {}
        self.promised: dict[tuple[int, int], frozenset[Record]] = {}
        self.reads: list[tuple[int, list[Record]]] = []
        self.stable = dict.fromkeys(PARTITIONS, 0)  # of established leaders
        self.counts: Counter[str] = Counter()
        self._clients_made = 0
        self.clients = {name: self._opened(name) for name in IDS}

    def play(self, steps: int = STEPS) -> None:
        """
        Raises:
            AssertionError: a promise is broken.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rules, "LAST_EPOCH", LAST_EPOCH)
            for _ in range(steps):
                self._step()
            self._heal()
        self._judge()

    def _step(self) -> None:
        actions = self._actions()
        (action,) = self.random.choices([*actions], weights=[*actions.values()])
        action()

    def _actions(self) -> dict[Callable[[], None], float]:
        """What may happen next, and how often each of them does."""
        return {
            self._send: 9, self._send_again: 7, self._commit: 10, self._abort: 0.4,
            self._ask_again: 4, self._take_over: 0.4, self._deliver: 25, self._advance: 10,
            self._replicate: 15, self._resolve: 6, self._forget_plain: 3, self._time_out: 0.3,
            self._elect: 1.5, self._settle: 5, self._read: 3,
        }  # fmt: skip

    # -- clients ---------------------------------------------------------------------------

    def _opened(self, name: str) -> Client:
        """Another program opens the id: what the one before has open there is aborted."""
        self._clients_made += 1
        state = self.quorum.newest.transactions.get(name)
        if state is not None:
            self._note(state.producer_id, state.producer_epoch, is_committed=False)
        owner = self._clients_made.to_bytes(16, "big")
        opened = self.quorum.open(name, owner, 1)
        return Client(self._clients_made, name, opened.producer_id, opened.producer_epoch)

    def _take_over(self) -> None:
        name = self.random.choice(IDS)
        self.clients[name] = self._opened(name)
        self.counts["take-over"] += 1

    def _client(self) -> Client:
        return self.clients[self.random.choice(IDS)]

    def _send(self) -> None:
        client, partition = self._client(), self.random.choice(PARTITIONS)
        if client.ending is None and len(client.sent) < RECORDS_MAX:
            sequence = sum(record.partition == partition for record in client.sent)
            record = Record(
                client.name, client.number, client.producer_id, client.producer_epoch, partition,
                sequence,
            )  # fmt: skip
            client.sent.append(record)
            self.under_way.append(record)

    def _send_again(self) -> None:
        client = self._client()
        if client.ending is None and client.sent:
            self.under_way.append(self.random.choice(client.sent))

    def _commit(self) -> None:
        client = self._client()
        if client.ending is None and client.may_commit():
            self._end(client, is_commit=True)

    def _abort(self) -> None:
        client = self._client()
        if client.ending is None and client.sent:
            self._end(client, is_commit=False)

    def _end(self, client: Client, *, is_commit: bool) -> None:
        partitions = sorted({record.partition for record in client.sent})
        end = TransactionEnd(
            client.name,
            client.producer_id,
            client.producer_epoch,
            is_commit,
            client.owner,
            AbortReason.NONE if is_commit else AbortReason.PROGRAM,
            partitions=tuple((TOPIC_ID, number) for number in partitions) if is_commit else (),
        )
        client.ending = Ending(client.number, end, frozenset(client.sent))
        self.under_way.append(client.ending)

    def _ask_again(self) -> None:
        client = self._client()
        if client.ending is not None:
            self.under_way.append(client.ending)

    # -- messages --------------------------------------------------------------------------

    def _deliver(self) -> None:
        """One of them, in any order; some are lost, some come twice."""
        if not self.under_way:
            return
        place = self.random.randrange(len(self.under_way))
        message = self.under_way[place]
        if self.random.random() < 0.85:  # else a copy stays under way
            self.under_way.pop(place)
        if self.random.random() < 0.1:
            return
        if isinstance(message, Record):
            self._produce(message)
        else:
            self._answer(message)

    def _produce(self, record: Record) -> None:
        leaders = [each for each in self._leaders() if each.partition == record.partition]
        if not leaders:
            return
        replica = self.random.choice(leaders)
        outcome = self._outcomes(replica.broker)
        if outcome(record.producer_id, record.producer_epoch) is TransactionOutcome.AHEAD:
            self.counts["ahead"] += 1
        offset = replica.append(record, outcome)
        self.counts["refused" if offset is None else "appended"] += 1
        if offset is not None and offset < replica.high_watermark:
            self._acknowledge(record)

    def _acknowledge(self, record: Record) -> None:
        client = self.clients[record.transaction_id]
        if record in client.sent:
            client.acknowledged.add(record)

    def _answer(self, ending: Ending) -> None:
        """The coordinator decides; its answer may be lost."""
        outcome = self._decide(ending.end, ending.records)
        client = self.clients[ending.end.transaction_id]
        if client.ending is not ending or self.random.random() < 0.3:
            return
        if outcome is not None and outcome.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            return  # it is asked again
        state = self.quorum.newest.transactions[client.name]
        told = outcome is None or (not outcome.code and outcome.is_committed)
        name = (client.producer_id, client.producer_epoch)
        is_committed = self.decided[name]
        if ending.end.is_commit:
            assert told is is_committed, f"told committed={told} of {name}, it is {is_committed}"
        client.begin(state.producer_id, state.producer_epoch)

    def _decide(self, end: TransactionEnd, records: frozenset[Record]) -> EndOutcome | None:
        outcome = self.quorum.end(end)
        if outcome is None or not (outcome.code or outcome.is_repeated):
            self._note(end.producer_id, end.producer_epoch, is_committed=end.is_commit)
            if end.is_commit:
                self.promised[end.producer_id, end.producer_epoch] = records
        return outcome

    def _note(self, producer_id: int, epoch: int, *, is_committed: bool) -> None:
        name = (producer_id, epoch)
        assert name not in self.decided, f"decided twice: {name}"
        self.decided[name] = is_committed
        self.counts["commit" if is_committed else "abort"] += 1

    # -- brokers ---------------------------------------------------------------------------

    def _outcomes(self, broker: int) -> OutcomeOf:
        return partial(outcome_of, self.quorum.images[self.seen[broker]])

    def _leaders(self) -> list[Replica]:
        """Those that believe to lead, as far as their brokers know."""
        found = []
        for partition in PARTITIONS:
            for broker in BROKERS:
                tenure = self.quorum.leading(partition, self.acted[broker])
                if tenure.broker == broker:
                    found.append(self.replicas[partition, tenure.leader_epoch])
        return found

    def _advance(self) -> None:
        """A broker hears of later versions, or gets a snapshot of them, and acts upon them then or
        later."""
        versions = (
            self.random.randint(1, self.versions_max) if self.random.random() < 0.9 else 10**6
        )
        self._follow(
            self.random.choice(BROKERS),
            versions,
            has_snapshot=self.random.random() < 0.15,
            acts=self.random.random() > 0.3,
        )

    def _follow(self, broker: int, versions: int, *, has_snapshot: bool, acts: bool) -> None:
        before = self.seen[broker]
        self.seen[broker] = after = min(before + versions, self.quorum.version)
        if after > before:
            touched = None if has_snapshot else self._touched(broker, before, after)
            self._look(broker, touched)
        if acts:
            self.acted[broker] = after
            self._take_office(broker)

    def _touched(self, _broker: int, after: int, version: int) -> set[int]:
        """Producers whose transactions the commands of (after, version] may have decided."""
        return self.quorum.touched(after, version)

    def _look(self, broker: int, touched: set[int] | None) -> None:
        """The broker's leaders look at these producers when they come to it."""
        for replica in self.replicas.values():
            if replica.broker == broker and replica.due is not None:
                replica.due = None if touched is None else replica.due | touched

    def _take_office(self, broker: int) -> None:
        for partition in PARTITIONS:
            for tenure in self.quorum.tenures[partition]:
                is_new = (partition, tenure.leader_epoch) not in self.replicas
                if tenure.broker == broker and tenure.version <= self.acted[broker] and is_new:
                    self._lead(partition, tenure.leader_epoch, broker)

    def _lead(self, partition: int, epoch: int, broker: int) -> None:
        """With all that is committed, and what of the rest its log happened to have."""
        earlier = [each for each in self.replicas.values() if each.partition == partition]
        committed = max(each.high_watermark for each in earlier)
        newest = max(earlier, key=lambda each: each.leader_epoch)
        is_newest = epoch > newest.leader_epoch
        end = self.random.randint(committed, len(newest.entries)) if is_newest else committed
        known = self.random.randint(max(0, newest.high_watermark - 1), newest.high_watermark)
        entries = newest.entries[:end]
        replica = Replica(
            partition,
            epoch,
            broker,
            entries,
            high_watermark=min(known, end),
            snapshot_at=self.random.randint(0, end),
            released_by=self._released_by(broker),
        )
        replica.can_commit = is_newest
        for each in earlier:
            each.can_commit = each.can_commit and not is_newest
        self.replicas[partition, epoch] = replica
        replica.resolve(None, self._outcomes(broker))

    def _released_by(self, _broker: int) -> OutcomeOf | None:
        """By which metadata it had released producers before it wrote its snapshot, if any."""
        return None

    def _replicate(self) -> None:
        replica = self.random.choice([*self.replicas.values()])
        begin, end = replica.high_watermark, len(replica.entries)
        if not replica.can_commit or begin >= end:
            return
        stable = replica.last_stable_offset
        offset = self.random.randint(begin + 1, end)
        replica.raise_high_watermark(offset, self._outcomes(replica.broker))
        assert replica.last_stable_offset >= stable, "the last stable offset goes back"
        for entry in replica.entries[begin:offset]:
            if entry.record is not None and self.random.random() < 0.8:
                self._acknowledge(entry.record)

    def _resolve(self) -> None:
        for replica in self._leaders():
            if self.random.random() < 0.5:
                self._resolve_due(replica)

    def _resolve_due(self, replica: Replica) -> None:
        due, replica.due = replica.due, set()
        replica.resolve(due, self._outcomes(replica.broker))

    def _forget_plain(self) -> None:
        self.random.choice([*self.replicas.values()]).forget_plain()

    def _time_out(self) -> None:
        """A leader is held up by one that is open for too long, as far as it knows."""
        for replica in self._leaders():
            for producer_id, noted in replica.producers.transactions.open.items():
                outcome = self._outcomes(replica.broker)(producer_id, noted.producer_epoch)
                image = self.quorum.images[self.seen[replica.broker]]
                name = transaction_id_of(image, producer_id)
                if outcome is TransactionOutcome.OPEN and name is not None:
                    end = TransactionEnd(
                        name,
                        *present_of(image.transactions[name]),
                        is_commit=False,
                        reason=AbortReason.TIMEOUT,
                    )
                    self.under_way.append(Ending(NO_BROKER, end, frozenset()))

    def _elect(self) -> None:
        self.quorum.elect(self.random.choice(PARTITIONS), self.random.choice(BROKERS))
        self.counts["election"] += 1

    def _settle(self) -> None:
        """The coordinator asks the leaders, by metadata at or after the decision."""
        for name, state in sorted(self.quorum.newest.transactions.items()):
            for commit in state.settling:
                version = self.random.randint(commit.decided_at, self.quorum.version)
                if all(
                    self._is_settled(number, version, commit.producer_id, commit.producer_epoch)
                    for _, number in commit.partitions
                ):
                    self.quorum.forget(name, commit)
                    self.counts["settled"] += 1

    def _is_settled(self, partition: int, version: int, producer_id: int, epoch: int) -> bool:
        """In exactly the leader epoch of that version: a leader of an earlier one may lack what was
        acknowledged since."""
        tenure = self.quorum.leading(partition, version)
        replica = self.replicas.get((partition, tenure.leader_epoch))
        if replica is None or replica not in self._leaders():
            return False
        return replica.is_settled(producer_id, epoch)

    def _read(self) -> None:
        leaders = self._leaders()
        if not leaders:
            return
        replica = self.random.choice(leaders)
        stable = replica.last_stable_offset
        self.reads.append((replica.partition, replica.visible(stable)))
        newest = max(epoch for partition, epoch in self.replicas if partition == replica.partition)
        if replica.is_established and replica.leader_epoch == newest:
            assert stable >= self.stable[replica.partition], "the last stable offset goes back"
            self.stable[replica.partition] = stable

    # -- the end ---------------------------------------------------------------------------

    def _newest(self) -> list[Replica]:
        return [
            self.replicas[partition, self.quorum.tenures[partition][-1].leader_epoch]
            for partition in PARTITIONS
        ]

    def _heal(self) -> None:
        """No more failures: every transaction ends, by its time if nobody ends it."""
        for _ in range(HEAL_ROUNDS):
            for broker in BROKERS:
                self._follow(broker, 10**6, has_snapshot=False, acts=True)
            for replica in self._newest():
                self._resolve_due(replica)
                end = len(replica.entries)
                replica.raise_high_watermark(end, self._outcomes(replica.broker))
            if not any(replica.producers.transactions.open for replica in self._newest()):
                break
            self.under_way.clear()
            self._time_out()
            for ending in self.under_way:
                assert isinstance(ending, Ending)
                self._decide(ending.end, ending.records)
        else:
            raise AssertionError("a transaction hangs")
        for replica in self._newest():
            assert replica.last_stable_offset == replica.high_watermark, "something is held up"

    def _judge(self) -> None:
        final = {
            replica.partition: replica.visible(len(replica.entries)) for replica in self._newest()
        }
        there = {record for records in final.values() for record in records}
        assert len(there) == sum(map(len, final.values())), "a record stands there twice"
        for name, records in self.promised.items():
            assert records <= there, f"torn or lost: {name} lacks {records - there}"
        for record in there:
            name = (record.producer_id, record.producer_epoch)
            assert record in self.promised.get(name, ()), f"never committed: {record}"
        for partition, records in self.reads:
            assert final[partition][: len(records)] == records, "a reader saw something else"


def failure(seed: int) -> str:
    """What broke in that walk, with the command that replays it; empty: nothing."""
    walk = Walk(seed)
    try:
        walk.play()
    except AssertionError as error:
        return f"{error}; replay: python -m tests.simulation.transactions --seed {seed}"
    return ""
