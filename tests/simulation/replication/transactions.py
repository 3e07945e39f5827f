"""Transactions in a world of replication: clients, a coordinator that settles, and their promises.

Three transaction ids, each with one client at a time, over all partitions. The quorum decides at
once; brokers learn of it late, as of everything. Replicas, elections, cuts and high watermarks are
those of the world. Invariants (docs/decisions/0038):

X1 every marker says what was decided. X2 the last stable offset is what the committed log says.
X3 what is open is ended before its producer's next epoch begins. X4 what is settled is open in no
log that may be elected cleanly. X5 in the end nothing is open, and nothing is held back.

An unclean election takes these promises from its partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import RaftmqError
from raftmq.metadata.commands import (
    NO_BROKER,
    AssignSlot,
    EndTransactions,
    ForgetSettled,
    OpenTransaction,
    PartitionId,
    SettledCommits,
    SettledTransaction,
    TransactionEnd,
    TransactionOpened,
    TransactionsEnded,
)
from raftmq.metadata.image import slot_of
from raftmq.model import AbortReason
from raftmq.wire.batch.control import ControlType
from tests.simulation.replication.leading import Leading
from tests.simulation.replication.ledger import demand
from tests.simulation.replication.network import CLIENTS
from tests.simulation.transactions.replica import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from raftmq.metadata.image import MetadataImage, TransactionState, UnsettledCommit
    from raftmq.wire.batch.header import BatchHeader
    from tests.simulation.replication.disk import Record
    from tests.simulation.replication.leading import Outcome
    from tests.simulation.replication.world import World

IDS = ("transfer", "audit", "billing")
TIMEOUT_MS = 60_000
RECORDS_MAX = 4  # of a transaction
TRY_SECONDS, GIVE_UP_SECONDS = (
    0.15,
    1.5,
)  # until a record is sent again, and the end without success
ABORTS, TAKE_OVERS = 0.2, 0.05  # probabilities at each end
SETTLE_SECONDS = 0.2
MARKERS = {True: ControlType.COMMIT, False: ControlType.ABORT}


class Sent(NamedTuple):
    key: PartitionId
    value: int
    header: BatchHeader


class Client:
    """One producer: records, each sent until it is acknowledged, then the end."""

    def __init__(self, transactions: Transactions, name: str, opened: TransactionOpened) -> None:
        self._all, self._world, self.name = transactions, transactions.world, name
        self._chance = transactions.chance
        self.owner, self.is_over = transactions.owner(name), False
        self._begin(opened.producer_id, opened.producer_epoch)

    def _begin(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._missing: dict[int, Sent] = {}
        self.sent: list[Sent] = []
        self._began_at = self._world.timeline.now
        name = (producer_id, producer_epoch)
        self._world.timeline.after(self._chance.random() * 0.1, self._send, name)

    def _send(self, name: tuple[int, int]) -> None:
        if self.is_over or self._all.is_closing:
            return
        counts: dict[PartitionId, int] = {}
        for _ in range(self._chance.randint(1, RECORDS_MAX)):
            key = self._chance.choice(self._world.keys)
            header = header_of(0, *name, counts.get(key, 0), 0)
            counts[key] = counts.get(key, 0) + 1
            sent = Sent(key, self._world.clients.new_value(), header)
            self.sent.append(sent)
            self._missing[sent.value] = sent
        self._try(name)

    def _try(self, name: tuple[int, int]) -> None:
        """What is not acknowledged, to whoever believes to lead; then once more."""
        if self.is_over or name != (self.producer_id, self.producer_epoch):
            return
        late = self._world.timeline.now - self._began_at
        if not self._missing or late > GIVE_UP_SECONDS or self._all.is_closing:
            self._end()
            return
        tried: set[PartitionId] = set()
        for sent in self._missing.values():  # of each partition one after the other
            leaders = self._world.clients.leaders(sent.key)
            if sent.key not in tried and leaders:
                tried.add(sent.key)
                self._ask(self._chance.choice(leaders), sent)
        self._world.timeline.after(self._chance.random() * TRY_SECONDS, self._try, name)

    def _ask(self, role: Leading, sent: Sent) -> None:
        broker_id = role.process.broker_id

        def reply(outcome: Outcome) -> None:
            self._world.network.send((broker_id, CLIENTS), self._hear, sent, outcome)

        def append() -> None:
            if role.process.roles.get(role.key) is role:
                role.on_transactional(sent.value, sent.header, reply)

        self._world.network.send((CLIENTS, broker_id), role.process.turn, append)

    def _hear(self, sent: Sent, outcome: Outcome) -> None:
        if outcome == "ok":
            self._missing.pop(sent.value, None)

    def _end(self) -> None:
        if not self._all.has_coordinator(self.name):
            name = (self.producer_id, self.producer_epoch)
            self._world.timeline.after(TRY_SECONDS, self._try, name)
            return
        is_commit = not self._missing and self._chance.random() > ABORTS
        if self._chance.random() < TAKE_OVERS:
            self._all.take_over(self.name)
            return
        state = self._all.end(self, is_commit=is_commit)
        self._begin(state.producer_id, state.producer_epoch)


class Transactions:
    """Attributes:
    decided: by (producer id, epoch), whether it was committed.
    committed: all records that were.
    is_closing: clients abort what they have, and begin nothing.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self.world, self.chance, self.is_closing = world, chance, False
        self.decided: dict[tuple[int, int], bool] = {}
        self.committed: list[Sent] = []
        self._clients: dict[str, Client] = {}
        self._opened = self.settled = 0

    def begin(self) -> None:
        for name in IDS:
            self.take_over(name)
        self._settle()

    @property
    def _image(self) -> MetadataImage:
        return self.world.quorum.image

    def owner(self, name: str) -> bytes:
        return f"{name}-{self._opened}".encode().ljust(16)

    def has_coordinator(self, name: str) -> bool:
        """A slot whose broker is out of service goes to another one."""
        slot, image = slot_of(name), self._image
        if image.slots[slot].broker_id == NO_BROKER:
            active = [each for each in sorted(image.brokers) if image.is_active(each)]
            if not active:
                return False
            self.world.quorum.commit(AssignSlot(slot, image.slots[slot].epoch, active[0]))
        return True

    def _slot_epoch(self, name: str) -> int:
        assert self.has_coordinator(name), f"no coordinator of {name}"
        return self._image.slots[slot_of(name)].epoch

    def take_over(self, name: str) -> None:
        """Another program opens the id."""
        if name in self._clients:
            self._clients[name].is_over = True
        state = self._image.transactions.get(name)
        if state is not None:
            self.decided[state.producer_id, state.producer_epoch] = False
        self._opened += 1
        command = OpenTransaction(self._slot_epoch(name), name, self.owner(name), 1, TIMEOUT_MS)
        opened = self.world.quorum.commit(command)
        assert isinstance(opened, TransactionOpened), opened
        self._clients[name] = Client(self, name, opened)

    def end(self, client: Client, *, is_commit: bool) -> TransactionState:
        name = client.name
        keys = sorted({sent.key for sent in client.sent}) if is_commit else []
        end = TransactionEnd(
            name,
            client.producer_id,
            client.producer_epoch,
            is_commit,
            client.owner,
            AbortReason.NONE if is_commit else AbortReason.PROGRAM,
            partitions=tuple((key.topic_id, key.partition) for key in keys),
        )
        self.decided[client.producer_id, client.producer_epoch] = is_commit
        self.committed += client.sent if is_commit else []
        command = EndTransactions(slot_of(name), self._slot_epoch(name), (end,))
        result = self.world.quorum.commit(command)
        assert isinstance(result, TransactionsEnded), result
        assert not any(outcome.code for outcome in result.outcomes), result
        return self._image.transactions[name]

    # Settling

    def _settle(self) -> None:
        """The coordinator asks, by metadata at or after each decision."""
        for name, state in sorted(self._image.transactions.items()):
            for commit in state.settling:
                self._ask_leaders(name, commit)
        self.world.timeline.after(SETTLE_SECONDS, self._settle)

    def _ask_leaders(self, name: str, commit: UnsettledCommit) -> None:
        images = self.world.quorum.images
        image = images[self.chance.randint(commit.decided_at, len(images) - 1)]
        for place in commit.partitions:
            key = PartitionId(*place)
            role = self.leader(image, key)
            if role is not None:
                link, turn = (CLIENTS, role.process.broker_id), role.process.turn
                epoch = image.partitions[key].leader_epoch
                self.world.network.send(link, turn, self._ask, role, epoch, name, commit)

    def leader(self, image: MetadataImage, key: PartitionId) -> Leading | None:
        """The one that is elected, if it still leads or does already, in whichever epoch."""
        broker_id = image.partitions[key].leader
        process = None if broker_id == NO_BROKER else self.world.brokers[broker_id].process
        role = process.roles.get(key) if process else None
        return role if isinstance(role, Leading) else None

    def _ask(self, role: Leading, leader_epoch: int, name: str, commit: UnsettledCommit) -> None:
        """At the leader; a yes arrives at once."""
        if role.process.roles.get(role.key) is not role:
            return
        try:
            is_settled = role.is_settled(leader_epoch, [commit.producer_id], commit.producer_epoch)
        except RaftmqError:
            return
        if is_settled and self.has_coordinator(name):
            self._check_settled(role.key, commit)
            self.settled += 1
            one = SettledTransaction(commit.producer_id, commit.producer_epoch, (role.key,))
            command = ForgetSettled(
                slot_of(name), self._slot_epoch(name), (SettledCommits(name, (one,)),)
            )
            self.world.quorum.commit(command)

    def _check_settled(self, key: PartitionId, commit: UnsettledCommit) -> None:
        """X4."""
        state = self._image.partitions[key]
        for broker_id in (*state.isr, *state.eligible):
            log = self.world.checks.trusted_log(broker_id, key)
            if log is not None:
                noted = log.transactions.open.get(commit.producer_id)
                is_open = noted is not None and noted.producer_epoch <= commit.producer_epoch
                demand(not is_open, f"X4: {commit} is settled, and open at {broker_id} in {key}")

    # Promises

    def on_marker(self, role: Leading, marker: Record) -> None:
        """X1, of every leader, deposed ones included."""
        header = marker.header
        assert header is not None
        name = (header.producer_id, header.producer_epoch - 1)
        if self.world.checks.ledger(role.key).unclean_epoch:
            return
        wanted = MARKERS.get(self.decided.get(name))  # type: ignore[arg-type]
        demand(marker.kind is wanted, f"X1: {name} ends with {marker}, decided was {wanted}")

    def on_stable(self, role: Leading) -> None:
        """X2 and X3, by what was committed."""
        ledger, end = self.world.checks.ledger(role.key), role.rules.high_watermark
        if ledger.unclean_epoch or end > ledger.end:
            return
        expected = stable_in(ledger.records[:end])
        stable = role.last_stable_offset
        demand(stable == expected, f"X2: stable below {stable}, committed is {expected}")

    def complaints(self) -> list[str]:
        """X5."""
        found = []
        for key in self.world.keys:
            role = self.world.leader(key)
            if role is not None and role.last_stable_offset != role.rules.high_watermark:
                found.append(f"X5: {key} is held back: {role.log.transactions.open}")
        return found

    def judge(self) -> None:
        """All that was committed is there, and nothing else counts."""
        for key in self.world.keys:
            if self.world.checks.ledger(key).unclean_epoch:
                continue
            role = self.world.leader(key)
            assert role is not None
            there = {record.value: record for record in role.log.records}
            for sent in self.committed:
                if sent.key == key:
                    is_there = sent.value in there or role.log.start > 0
                    demand(is_there, f"{sent} was committed, and is lost")


def stable_in(records: Sequence[Record]) -> int:
    """The last stable offset of a log that is committed to its end."""
    open_since: dict[int, tuple[int, int]] = {}  # epoch and offset, by producer id
    for offset, record in enumerate(records):
        header = record.header
        if header is None:
            continue
        if record.kind is not None:
            open_since.pop(header.producer_id, None)
            continue
        epoch, _ = open_since.setdefault(header.producer_id, (header.producer_epoch, offset))
        demand(epoch == header.producer_epoch, f"X3: {record} follows epoch {epoch} without an end")
    return min((offset for _, offset in open_since.values()), default=len(records))
