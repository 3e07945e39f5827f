"""Random walks over shared transactions: tasks tried twice, drivers that are two, all of it late.

Two shared ids beside the two of single producers, on the same brokers and partitions. Drivers work
on one version after the other, and are replaced, sometimes by one of another lineage, or by one
that begins further back. The rules are the real ones, as in `walk`.

Promises: of each committed version exactly the members that were listed can be read, once, in all
partitions, and nothing of others; a version is committed once, whoever asks; nothing hangs, nothing
stays unsettled, and what is forgotten is open in no log that may be elected.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.broker.transactions.ends import end_of, reply_to_end
from raftmq.broker.transactions.open_transactions import OpenTransactions
from raftmq.errors import (
    ConcurrentTransactions,
    ErrorCode,
    InvalidTransaction,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    ReplayMismatch,
    TransactionAborted,
    UnknownTransaction,
)
from raftmq.metadata.apply import transaction_checks
from raftmq.metadata.commands import NO_VERSION, SettledTransaction, SharedEnd, TransactionEnd
from raftmq.metadata.snapshot import decode_image, encode_image
from raftmq.metadata.transactions import MEMBER_EPOCH, block_of, is_listed
from raftmq.model import AbortReason
from raftmq.wire.batch.control import ControlType
from raftmq.wire.messages.transactions import EndTxn
from tests.metadata_invariants import check
from tests.simulation.transactions.members_program import (
    NO_BLOCK,
    Driver,
    Handed,
    Joining,
    Member,
    Report,
    VersionEnding,
)
from tests.simulation.transactions.members_quorum import MembersQuorum
from tests.simulation.transactions.quorum import BROKERS, PARTITIONS, TOPIC_ID
from tests.simulation.transactions.replica import Record
from tests.simulation.transactions.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from raftmq.metadata.commands import EndOutcome, JoinOutcome
    from raftmq.metadata.image import TransactionState, UnsettledCommit
    from raftmq.partition.transactions import OutcomeOf
    from raftmq.wire.messages.transactions import EndTxnReply
    from tests.simulation.transactions.members_quorum import Version

SHARED_IDS = ("etl", "copy")
LINEAGES = ("checkpoint 1", "checkpoint 2")
STEPS = 1_000
TASKS_MAX = 3
RECORDS_MAX = 2  # of a member
RECENT = 6  # members that write most
SETTLE_ROUNDS = 20
UNSETTLED_MAX = 1  # so that a commit has to wait for room now and then


class MembersWalk(Walk):
    """Attributes:
    members: of every driver, the oldest first; `of_producer`: by producer id, those with a number.
    committed: the lineage that did it, by version.
    checkpoints: the highest version that some driver was told to be done, by id and lineage.
    """

    quorum: MembersQuorum
    versions_max = 8  # there are more of them, of members

    def __init__(self, seed: int) -> None:
        super().__init__(seed, MembersQuorum())
        self.members: list[Member] = []
        self.of_producer: dict[int, Member] = {}
        self.committed: dict[Version, str] = {}
        self.rows: dict[Version, int] = {}  # their counts
        self.lineages: dict[tuple[str, int], str] = {}  # by id and life
        self.checkpoints: dict[tuple[str, str], int] = {}
        self.is_healed = False
        # By broker, as each keeps it: whom a decision reaches. Keys are those of `replicas`.
        self.open_here = {broker: OpenTransactions() for broker in BROKERS}
        self._drivers_made = 0
        self.drivers = {name: [self._new_driver(name, LINEAGES[0])] for name in SHARED_IDS}

    def play(self, steps: int = STEPS) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transaction_checks, "UNSETTLED_MAX", UNSETTLED_MAX)
            super().play(steps)

    def _actions(self) -> dict[Callable[[], None], float]:
        return {
            self._send: 2, self._send_again: 1, self._commit: 2, self._abort: 0.1,
            self._ask_again: 1, self._take_over: 0.2, self._deliver: 50, self._advance: 10,
            self._replicate: 30, self._resolve: 6, self._forget_plain: 1, self._time_out: 0.4,
            self._elect: 1.2, self._settle: 3, self._read: 3, self._look_again: 1,
            self._attempt: 11, self._write: 13, self._write_again: 7, self._leave: 10,
            self._commit_version: 8, self._ask_for_version: 3, self._abort_version: 0.15,
            self._operate: 0.3, self._replace_driver: 0.6, self._list_beyond: 0.2,
        }  # fmt: skip

    # -- programs --------------------------------------------------------------------------

    def _new_driver(self, name: str, lineage: str) -> Driver:
        """It goes on where its checkpoint stands, or a little before."""
        self._drivers_made += 1
        driver = Driver(self._drivers_made, name, lineage)
        done = self.checkpoints.get((name, lineage), -1)
        back = self.random.randint(1, 2) if self.random.random() < 0.15 else 0
        driver.begin(max(0, done + 1 - back), self._tasks())
        return driver

    def _tasks(self) -> int:
        return self.random.choice((*[0] * 1, *[1] * 3, *[2] * 4, *[TASKS_MAX] * 2))

    def _replace_driver(self) -> None:
        """The one before has died, or goes on beside it for a while."""
        name = self.random.choice(SHARED_IDS)
        drivers = self.drivers[name]
        lineage = self.random.choice((*[drivers[-1].lineage] * 5, *LINEAGES))
        stays = self.random.random() < 0.5
        self.drivers[name] = [*(drivers[-1:] if stays else ()), self._new_driver(name, lineage)]
        self.counts["driver"] += 1

    def _all_drivers(self) -> list[Driver]:
        return [*chain(*self.drivers.values())]

    def _on_over(self, driver: Driver) -> None:
        """Its program ends with an error; somebody starts it again, perhaps another one."""
        drivers = self.drivers[driver.name]
        if driver in drivers:
            drivers.remove(driver)
        if not drivers:
            known = self.quorum.shared(driver.name)
            lineage = LINEAGES[0] if known is None else known.lineage
            drivers.append(self._new_driver(driver.name, lineage))

    def _attempt(self) -> None:
        """Of a task without a receipt, or as nobody knows how the one before it goes."""
        driver = self.random.choice(self._all_drivers())
        missing = [task for task in range(driver.tasks) if task not in driver.handed]
        is_sensible = self.random.random() < 0.85
        tasks = missing if is_sensible and driver.ending is None else range(driver.tasks)
        if not tasks:
            return
        member = Member(len(self.members), driver, self.random.choice([*tasks]))
        self.members.append(member)
        has_rows = self.random.random() < 0.9
        self.under_way.append(Joining(member) if has_rows else Report(member, member.leave()))

    def _member(self, members: list[Member]) -> Member | None:
        """One of them, and more often than not of the last ones."""
        is_recent = self.random.random() < 0.8
        members = members[-RECENT:] if is_recent else members
        return self.random.choice(members) if members else None

    def _write(self) -> None:
        may_write = [each for each in self.members if each.may_write()]
        member, partition = self._member(may_write), self.random.choice(PARTITIONS)
        if member is None or len(member.sent) >= RECORDS_MAX:
            return
        sequence = sum(record.partition == partition for record in member.sent)
        record = Record(
            member.name, member.serial, member.producer_id, MEMBER_EPOCH, partition, sequence
        )
        member.sent.append(record)
        self.under_way.append(record)

    def _write_again(self) -> None:
        member = self._member([each for each in self.members if each.sent])
        if member is not None:
            self.under_way.append(self.random.choice(member.sent))

    def _leave(self) -> None:
        for member in self.members:
            if member.may_leave() and self.random.random() < 0.5:
                member.leave()
        member = self._member([each for each in self.members if each.handed is not None])
        if member is not None and member.handed is not None:
            self.under_way.append(Report(member, member.handed))

    def _acknowledge(self, record: Record) -> None:
        if record.transaction_id in SHARED_IDS:
            self.members[record.client].acknowledged.add(record)
        else:
            super()._acknowledge(record)

    def _commit_version(self) -> None:
        drivers = [each for each in self._all_drivers() if each.may_commit()]
        if not drivers:
            return
        driver = self.random.choice(drivers)
        try:
            self.under_way.append(driver.commit())
        except TransactionAborted:  # all of them again: those of one opening were aborted
            self.counts["two openings"] += 1
            driver.begin(driver.version, self._tasks())

    def _ask_for_version(self) -> None:
        endings = [each.ending for each in self._all_drivers() if each.ending is not None]
        if endings:
            self.under_way.append(self.random.choice(endings))

    def _abort_version(self) -> None:
        driver = self.random.choice(self._all_drivers())
        self.under_way.append(VersionEnding(None, driver.id.end_request(is_commit=False)))
        driver.begin(driver.version, self._tasks())

    def _operate(self) -> None:
        """Somebody aborts what is open, or forgets the id."""
        name = self.random.choice(SHARED_IDS)
        shared = self.quorum.shared(name)
        if shared is None:
            return
        if self.random.random() < 0.4:
            self.counts["forgotten"] += self.quorum.delete(name)
        elif shared.block != NO_BLOCK:
            abort = EndTxn(
                name, shared.block, MEMBER_EPOCH, is_commit=False, reason=AbortReason.OPERATOR
            )
            self.under_way.append(VersionEnding(None, abort))

    def _list_beyond(self) -> None:
        """A program lists a member that nobody has joined as."""
        name = self.random.choice(SHARED_IDS)
        shared = self.quorum.shared(name)
        if shared is None or shared.block == NO_BLOCK:
            return
        numbers = (1 << shared.joined | 1).to_bytes(shared.joined // 8 + 1, "little")
        end = TransactionEnd(
            name, shared.block, MEMBER_EPOCH, is_commit=True, version=shared.open_version,
            partitions=((TOPIC_ID, 0),), shared=SharedEnd(shared.lineage, numbers),
        )  # fmt: skip
        outcome = self.quorum.end_version(end)
        assert outcome.code is ErrorCode.INVALID_REQUEST, f"nobody joined as that: {outcome}"
        assert self.quorum.shared(name) == shared, "a commit that was refused changes something"

    # -- messages --------------------------------------------------------------------------

    def _answer(self, message: Any) -> None:
        if isinstance(message, Joining):
            self._join(self._together(message.member))
        elif isinstance(message, Report):
            message.member.driver.hear(message.member, message.handed)
        elif isinstance(message, VersionEnding):
            self._hear(message, reply_to_end(self._decide_version(message)))
        elif message.end.transaction_id in SHARED_IDS:  # of a leader that is held up
            self._decide(message.end, message.records)
        else:
            super()._answer(message)

    def _together(self, member: Member) -> list[Member]:
        """With it those whose requests are in line beside it."""
        theirs = member.id
        beside = [
            message
            for message in self.under_way
            if isinstance(message, Joining) and message.member.id == theirs
        ]
        if not beside or self.random.random() < 0.5:
            return [member]
        self.under_way = [each for each in self.under_way if each not in beside]
        return [member, *[each.member for each in beside]]

    def _join(self, members: list[Member]) -> None:
        """They join the same version, in one command."""
        name, number, lineage = members[0].name, members[0].version, members[0].id.lineage
        before, version = self.quorum.shared(name), self.quorum.version_of(name, number)
        outcome = self.quorum.join(name, lineage, number, len(members))
        if not outcome.code:
            self._check_lineage(name, lineage)
        if outcome.block >= 0:
            assert version not in self.committed, f"committed, and open again: {version}"
            is_later = before is None or before.open_version <= number
            assert is_later, f"{before} was open, {outcome} is given"
            self.counts["joined"] += len(members)
        for place, member in enumerate(members):
            if self.random.random() < 0.8:  # else nobody hears of it
                self._on_joined(member, version, outcome, place)

    def _on_joined(
        self, member: Member, version: Version, outcome: JoinOutcome, place: int
    ) -> None:
        if outcome.code:
            self.counts[f"join {outcome.code.name}"] += 1
            self._on_over(member.driver)
        elif outcome.is_done:
            self.counts["done"] += 1
            self._check_count(version, outcome.count)
            self.under_way.append(Report(member, member.done()))
        elif member.block == NO_BLOCK:
            member.joined = version
            member.block, member.number = outcome.block, outcome.number + place
            self.of_producer[member.producer_id] = member

    def _check_lineage(self, name: str, lineage: str) -> None:
        life = name, self.quorum.lives[name]
        whose = self.lineages.setdefault(life, lineage)
        assert whose == lineage, f"{name}: {lineage} goes on with versions of {whose}"

    def _check_count(self, version: Version, count: int) -> None:
        """Known of the newest version only."""
        newest = self.quorum.newest.transactions[version.transaction_id].last_version
        known = self.rows[version] if version.number == newest else NO_VERSION
        assert count == known, f"{version} has {known} rows, not {count}"

    def _hear(self, ending: VersionEnding, reply: EndTxnReply) -> None:
        driver = ending.driver
        if driver is None or driver.ending is not ending:
            return
        if self.random.random() < 0.3:  # it does not
            driver.is_doubted = True
            return
        version = self.quorum.version_of(driver.name, driver.version)
        told = driver.read(reply)
        if isinstance(told, RaftmqError):
            self.counts[f"commit {type(told).__name__}"] += 1
            self._on_refused(driver, ending, version, told)
        else:
            self.counts["told again" if told.is_repeated else "told"] += 1
            self._check_count(version, NO_VERSION if told.count is None else told.count)
            self._on_done(driver, version)

    def _on_refused(
        self, driver: Driver, ending: VersionEnding, version: Version, error: RaftmqError
    ) -> None:
        """
        1. Its rows were others: it goes on with the next version all the same.
        2. The program ends; somebody starts it again.
        3. It asks again.
        4. All tasks run again.
        """
        if isinstance(error, ReplayMismatch):  # case 1
            self._on_done(driver, version)
        elif isinstance(error, ProducerFenced | InvalidTransaction):  # case 2
            self._on_over(driver)
        elif not isinstance(error, ConcurrentTransactions):  # not case 3
            if isinstance(error, TransactionAborted):
                counted = [each for each in ending.handed if self._counts(each, version.life)]
                assert not counted, f"told {error}, and {counted} count"
                assert version not in self.committed, f"told {error} of {version}"
            else:
                assert isinstance(error, UnknownTransaction | OutcomeUnknown), f"{error!r}"
            driver.begin(driver.version, self._tasks())  # case 4

    def _counts(self, handed: Handed, life: int) -> bool:
        """What was committed before the id was forgotten nobody knows any more."""
        producer_id = handed.receipt.block + handed.receipt.number
        if (producer_id, MEMBER_EPOCH) not in self.promised:
            return False
        joined = self.of_producer[producer_id].joined
        return joined is not None and joined.life == life

    def _on_done(self, driver: Driver, version: Version) -> None:
        self._check_lineage(driver.name, driver.lineage)
        known = self.quorum.newest.transactions[driver.name]
        assert version.number <= known.last_version, f"told done: {version}, {known}"
        key = driver.name, driver.lineage
        self.checkpoints[key] = max(version.number, self.checkpoints.get(key, -1))
        step = 2 if self.random.random() < 0.1 else 1
        driver.begin(version.number + step, self._tasks())

    # -- decisions -------------------------------------------------------------------------

    def _decide(self, end: TransactionEnd, records: frozenset[Record]) -> EndOutcome | None:
        if end.transaction_id in SHARED_IDS:
            return self._decide_end(end, ())
        return super()._decide(end, records)

    def _decide_version(self, ending: VersionEnding) -> EndOutcome:
        before = self.quorum.newest.transactions.get(ending.request.transaction_id)
        takes_along = before is not None and self.random.random() < 0.3
        settled = self._settled_of(before) if before is not None and takes_along else ()
        end = end_of(ending.request, now_ms=0, settled=tuple(settled))
        return self._decide_end(end, ending.handed)

    def _decide_end(self, end: TransactionEnd, handed: tuple[Handed, ...]) -> EndOutcome:
        before = self.quorum.newest.transactions.get(end.transaction_id)
        outcome = self.quorum.end_version(end)
        is_news = not outcome.code and not outcome.is_repeated
        if is_news and end.is_commit:
            self._on_commit(end, handed)
        elif is_news:
            self.counts[f"abort {outcome.reason.name}"] += 1
        if before is not None and not (is_news and end.is_commit):
            self._check_left(before, end)
        return outcome

    def _on_commit(self, end: TransactionEnd, handed: tuple[Handed, ...]) -> None:
        assert end.shared is not None
        version = self.quorum.version_of(end.transaction_id, end.version)
        assert version not in self.committed, f"committed twice: {version}"
        self._check_lineage(version.transaction_id, end.shared.lineage)
        self.committed[version] = end.shared.lineage
        self.rows[version] = end.count
        assert self.quorum.shared(version.transaction_id).block == NO_BLOCK, "committed, and open"
        for receipt, records in handed:
            assert not receipt.is_done, f"committed without what a task has dropped: {receipt}"
            if receipt.block != NO_BLOCK:
                self.promised[receipt.block + receipt.number, MEMBER_EPOCH] = records
        self.counts["version" if end.partitions else "empty version"] += 1

    def _check_left(self, before: TransactionState, end: TransactionEnd) -> None:
        """What is open is ended by nobody who means something else."""
        after = self.quorum.shared(end.transaction_id)
        shared = before.shared
        assert shared is not None
        if after == shared:
            return
        is_named = end.producer_id == shared.block or (
            end.shared is not None and end.version == shared.open_version
        )
        assert is_named, f"{shared} was ended by {end}"
        assert not end.is_commit, f"{shared} is gone, and nothing was committed by {end}"

    # -- brokers ---------------------------------------------------------------------------

    def _touched(self, broker: int, after: int, version: int) -> set[int]:
        """Those that are open here, as the broker's index has them."""
        found = self.open_here[broker].partitions_of(*self.quorum.decided(after, version))
        return set().union(*[producer_ids for _, producer_ids in found])

    def _produce(self, record: Record) -> None:
        super()._produce(record)
        self._note_open(record.partition, {record.producer_id})

    def _lead(self, partition: int, epoch: int, broker: int) -> None:
        super()._lead(partition, epoch, broker)
        self._note_open(partition, self.replicas[partition, epoch].producers.transactions.open)

    def _note_open(self, partition: int, producer_ids: Iterable[int]) -> None:
        for key, replica in self.replicas.items():
            if replica.partition == partition:
                for producer_id in {*producer_ids} & {*replica.producers.transactions.open}:
                    self.open_here[replica.broker].note(key, producer_id)

    def _look_again(self) -> None:
        """The index names no more what has ended."""
        for key, replica in self.replicas.items():
            found = {*replica.producers.transactions.open}
            self.open_here[replica.broker].put(key, found)

    def _released_by(self, broker: int) -> OutcomeOf | None:
        return self._outcomes(broker) if self.random.random() < 0.5 else None

    def _settle(self) -> None:
        """Partition by partition."""
        for name, state in sorted(self.quorum.newest.transactions.items()):
            for settled in self._settled_of(state):
                if self.random.random() < 0.7:
                    self.quorum.forget(name, settled)
                    self.counts["settled"] += 1

    def _settled_of(self, state: TransactionState) -> Iterator[SettledTransaction]:
        """What its leaders say now, those of some version since the decision."""
        for commit in state.settling:
            first = self.quorum.version if self.is_healed else commit.decided_at
            version = self.random.randint(first, self.quorum.version)
            found = [
                partition
                for partition in commit.partitions
                if self._is_commit_settled(state, commit, partition[1], version)
            ]
            if found:
                self._check_forgotten(state, commit, [number for _, number in found])
                transaction = commit.producer_id, commit.producer_epoch
                yield SettledTransaction(*transaction, tuple(found))

    def _is_commit_settled(
        self, state: TransactionState, commit: UnsettledCommit, partition: int, version: int
    ) -> bool:
        if state.shared is None:
            transaction = commit.producer_id, commit.producer_epoch
            return self._is_settled(partition, version, *transaction)
        return self._is_block_settled(partition, version, commit.producer_id)

    def _is_block_settled(self, partition: int, version: int, block: int) -> bool:
        tenure = self.quorum.leading(partition, version)
        replica = self.replicas.get((partition, tenure.leader_epoch))
        if replica is None or replica not in self._leaders():
            return False
        return replica.is_block_settled(block)

    def _check_forgotten(
        self, state: TransactionState, commit: UnsettledCommit, partitions: list[int]
    ) -> None:
        """Whoever is elected has the markers: they are committed."""
        if state.shared is None:
            return
        for producer_id, member in self.of_producer.items():
            number = producer_id - commit.producer_id
            if block_of(producer_id) == commit.producer_id and is_listed(commit.numbers, number):
                for partition in {each.partition for each in member.sent} & {*partitions}:
                    assert self._is_marked(partition, producer_id), f"open: {producer_id}"

    def _is_marked(self, partition: int, producer_id: int) -> bool:
        replicas = [each for each in self.replicas.values() if each.partition == partition]
        committed = max(each.high_watermark for each in replicas)
        newest = max(replicas, key=lambda each: each.leader_epoch)
        return any(
            entry.kind is ControlType.COMMIT and entry.header.producer_id == producer_id
            for entry in newest.entries[:committed]
        )

    # -- the end ---------------------------------------------------------------------------

    def _heal(self) -> None:
        """Every id goes on afterwards, and nothing is left to settle."""
        super()._heal()
        self.is_healed = True
        self._settle_all()
        for name in SHARED_IDS:
            self._go_on(name)
        super()._heal()
        self._settle_all()
        image = self.quorum.newest
        check(image)
        assert decode_image(encode_image(image)) == image._replace(changes=()), "a snapshot differs"

    def _settle_all(self) -> None:
        for _ in range(SETTLE_ROUNDS):
            self._settle()
            for broker in BROKERS:
                self._follow(broker, 10**6, has_snapshot=False, acts=True)
        left = [state for state in self.quorum.newest.transactions.values() if state.settling]
        assert not left, f"unsettled for ever: {left}"

    def _go_on(self, name: str) -> None:
        """One more version, with a member that writes to each partition."""
        shared = self.quorum.shared(name)
        lineage = LINEAGES[0] if shared is None else shared.lineage
        driver = self._new_driver(name, lineage)
        known = self.quorum.newest.transactions.get(name)
        driver.begin(0 if known is None else max(known.last_version, shared.open_version) + 1, 1)
        member = Member(len(self.members), driver, 0)
        self.members.append(member)
        while member.block == NO_BLOCK:  # the answer may be lost
            self._join([member])
        for replica in self._newest():
            record = Record(
                name, member.serial, member.producer_id, MEMBER_EPOCH, replica.partition, 0
            )
            member.sent.append(record)
            offset = replica.append(record, self._outcomes(replica.broker))
            assert offset is not None, f"refused: {record}"
            self._note_open(replica.partition, {record.producer_id})
            replica.raise_high_watermark(len(replica.entries), self._outcomes(replica.broker))
        driver.hear(member, member.leave())
        told = driver.read(reply_to_end(self._decide_version(driver.commit())))
        assert not isinstance(told, RaftmqError), told
        assert not told.is_repeated, told

    def _judge(self) -> None:
        """And of each task at most one attempt counts."""
        super()._judge()
        counted: dict[tuple[Version | None, int], Member] = {}
        for replica in self._newest():
            for record in replica.visible(len(replica.entries)):
                if record.transaction_id in SHARED_IDS:
                    member = self.members[record.client]
                    first = counted.setdefault((member.joined, member.task), member)
                    assert first is member, f"task {member.task} of {member.joined} counts twice"


def failure(seed: int) -> str:
    """What broke in that walk, with the command that replays it; empty: nothing."""
    walk = MembersWalk(seed)
    try:
        walk.play()
    except AssertionError as error:
        return f"{error}; replay: python -m tests.simulation.transactions --members --seed {seed}"
    return ""
