"""The ledger: acknowledged and consumed values by offset, and the promises that follow.

Every value is sent by one call, so that its place identifies it. It is at one offset, unless the
producer reports that a retry may have made two. A value that was acknowledged by all, or read once,
stays at its offset for ever; each observation is compared at once with all earlier ones, so that a
trace ends where a promise is broken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate, count, pairwise
from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.batch.header import iter_batches
from raftmq.wire.batch.records import RecordBatch
from tests.simulation.brokers.tagging import tags_of
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.header import Buffer
    from tests.simulation.brokers.history import History

ACKS_ALL = -1
ANYWHERE = -1  # a partition that is not known yet


class Spot(NamedTuple):
    """A partition, as clients name it.

    Attributes:
        life: how many topics have had that name before.
    """

    topic: str
    partition: int
    life: int = 0

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}" + "'" * self.life


class Outcome(Enum):
    UNKNOWN = auto()
    OK = auto()
    FAILED = auto()  # definitely


@dataclass
class Sent:
    """Attributes:
    spot: its partition may be known later only.
    leader_epoch: the newest one that the sender knew: it was appended in that one or a later one.
    sent_at, answered_at: by the ledger's own clock.
    is_stray: the topic got a successor of the same name meanwhile: it may be that one that has it.
    may_stand_twice: as far as clients know.
    line: who has handed in other records, too, one after the other, which is their order.
    """

    spot: Spot
    values: tuple[bytes, ...]
    acks: int
    leader_epoch: int
    sent_at: int
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1
    answered_at: int = -1
    is_stray: bool = False
    may_stand_twice: bool = False
    line: str = ""


class Found(NamedTuple):
    """A record as a log has it."""

    offset: int
    leader_epoch: int
    value: bytes


def records_in(data: Buffer) -> Iterator[Found]:
    """Those of users."""
    for position, header in iter_batches(data):
        if header.is_control:
            continue
        for record in RecordBatch.decode(data, position).records():
            yield Found(record.offset, header.leader_epoch, bytes(record.value or b""))


def end_of(data: Buffer, start: int) -> int:
    """The offset after all batches; `start` where there are none."""
    return max([start, *(header.end_offset for _, header in iter_batches(data))])


class PartitionLedger:
    """Of one partition.

    Attributes:
        stands: what is at which offset for ever.
        empty: where nothing of users is, and who says so: control batches are stepped over.
        passed_over: what consumers with a filter were not given: from, to, filter, who.
        deleted_to: a client has requested to delete everything before.
        expires: the topic forgets by itself.
        predecessor: of the topic that had the same name before.
    """

    def __init__(
        self, spot: Spot, *, expires: bool = False, predecessor: PartitionLedger | None = None
    ) -> None:
        self.spot, self.deleted_to, self.expires = spot, 0, expires
        self.predecessor = predecessor
        self.stands: dict[int, bytes] = {}
        self.empty: dict[int, str] = {}
        self.passed_over: list[tuple[int, int, TagFilter, str]] = []
        self._offsets: dict[bytes, list[int]] = {}
        self.sent: dict[bytes, Sent] = {}

    def stand(self, offset: int, value: bytes, who: str, sent: Sent) -> None:
        known = self.stands.setdefault(offset, value)
        demand(known == value, f"{who}: {value!r} at {self.spot} {offset}, where {known!r} stands")
        places = self._offsets.setdefault(value, [])
        if offset not in places:
            places.append(offset)
        self.judge_copies(sent, value, who)

    def judge_copies(self, sent: Sent, value: bytes, who: str) -> None:
        places = self._offsets.get(value, [])
        demand(
            len(places) <= 1 or sent.may_stand_twice,
            f"{who}: {value!r} stands at {self.spot} {places}",
        )

    def see(self, offset: int, value: bytes, who: str) -> None:
        sent = self.sent.get(value) or self._stray(value)
        demand(sent is not None, f"{who}: {value!r} at {self.spot} {offset}, which nobody sent")
        assert sent is not None
        failed = sent.outcome is Outcome.FAILED
        demand(not failed, f"{who}: {value!r} at {self.spot} {offset}, which has failed")
        if sent.spot.life == self.spot.life:
            place(sent, self.spot, who)
        self.stand(offset, value, who, sent)

    def _stray(self, value: bytes) -> Sent | None:
        before = self.predecessor
        while before is not None and value not in before.sent:
            before = before.predecessor
        sent = before.sent[value] if before else None
        return sent if sent is not None and (sent.is_stray or sent.answered_at < 0) else None

    def skip(self, start: int, end: int, who: str, asked: TagFilter | None = None) -> None:
        """A consumer, with that filter, has gone from one to the other without a record."""
        if asked is not None:
            self.passed_over.append((start, end, asked, who))
            self.judge_passed(self.stands)
            return
        for offset in range(start, end):
            known = self.stands.get(offset)
            demand(known is None, f"{who}: steps over {known!r} at {self.spot} {offset}")
            self.empty.setdefault(offset, who)

    def judge_passed(self, there: Mapping[int, bytes]) -> None:
        """Only what does not pass was not given."""
        for start, end, asked, who in self.passed_over:
            for offset in range(start, end):
                value = there.get(offset)
                is_right = value is None or not asked.matches(tags_of(value))
                demand(is_right, f"{who}: {asked} passes over {value!r} at {self.spot} {offset}")

    def offsets_of(self, value: bytes) -> list[int]:
        """Where it was seen; more than one if there are copies."""
        return self._offsets.get(value, [])

    def acknowledged(self) -> list[Sent]:
        """By all, in this partition, in the order in which they were sent."""
        return [
            sent
            for sent in {id(sent): sent for sent in self.sent.values()}.values()
            if sent.outcome is Outcome.OK and sent.acks == ACKS_ALL and sent.spot == self.spot
        ]

    def may_have_deleted(self, offset: int) -> bool:
        return self.expires or offset < self.deleted_to


def place(sent: Sent, spot: Spot, who: str) -> None:
    """It is in that partition, and in no other one."""
    if sent.spot.partition == ANYWHERE:
        sent.spot = spot
    demand(sent.spot == spot, f"{who}: {sent.values} in {spot}, and in {sent.spot}")


class Ledger:
    """Attributes:
    acknowledged: the number of acknowledgements.
    unknown, failed: the same of the other outcomes.
    reads: records that consumers got.
    lost_lightly: acknowledged by fewer than all, and gone with a leader.
    expiring: topics that forget by themselves.
    """

    def __init__(self, history: History) -> None:
        """`history`: hears what producers do and are told, before it is judged."""
        self._history = history
        self.partitions: dict[Spot, PartitionLedger] = {}
        self.expiring: set[str] = set()
        self._clock = count(1)
        self.acknowledged = self.unknown = self.failed = self.reads = self.lost_lightly = 0

    def of(self, spot: Spot) -> PartitionLedger:
        if spot not in self.partitions:
            known = self.of(spot._replace(life=spot.life - 1)) if spot.life else None
            expires = spot.topic in self.expiring
            self.partitions[spot] = PartitionLedger(spot, expires=expires, predecessor=known)
        return self.partitions[spot]

    # Producers

    def on_send(
        self, spot: Spot, values: tuple[bytes, ...], *, acks: int, leader_epoch: int
    ) -> Sent:
        sent = Sent(spot, values, acks, leader_epoch, next(self._clock))
        self.of(spot).sent |= dict.fromkeys(values, sent)
        self._history.on_send(sent)
        return sent

    def on_unknown(self, sent: Sent, *, is_stray: bool, why: str = "") -> None:
        """Done or not, or done on which topic of that name: unknown."""
        self.unknown += 1
        sent.is_stray, sent.answered_at = is_stray, next(self._clock)
        self._history.on_told(sent, why)

    def on_acknowledged(self, sent: Sent, base_offset: int) -> None:
        self.acknowledged += 1
        sent.outcome, sent.answered_at = Outcome.OK, next(self._clock)
        sent.base_offset = base_offset
        self._history.on_told(sent)
        if sent.acks == ACKS_ALL:
            for offset, value in enumerate(sent.values, base_offset):
                self.of(sent.spot).stand(offset, value, "acknowledged", sent)

    def on_failed(self, sent: Sent, why: str) -> None:
        self.failed += 1
        sent.outcome, sent.answered_at = Outcome.FAILED, next(self._clock)
        self._history.on_told(sent, why)
        for value in sent.values if sent.spot.partition != ANYWHERE else ():
            is_seen = self.of(sent.spot).offsets_of(value)
            demand(not is_seen, f"{value!r} of {sent.spot} was read, and has failed: {why}")

    # Producers that repeat by themselves

    def on_hand_in(
        self,
        spot: Spot,
        value: bytes,
        *,
        acks: int,
        line: str,
        partition_count: int,
        after: Sent | None = None,
    ) -> Sent:
        """One record; into which partition the producer decides, if `spot` does not say. `after`:
        the one before it of the same call and partition."""
        sent = Sent(spot, (value,), acks, -1, next(self._clock), may_stand_twice=True, line=line)
        known = spot.partition != ANYWHERE
        for partition in (spot.partition,) if known else range(partition_count):
            self.of(spot._replace(partition=partition)).sent[value] = sent
        self._history.on_send(sent, after=after)
        return sent

    def on_delivered(
        self, sent: Sent, partition: int, offset: int, *, is_repeated: bool, leader_epoch: int
    ) -> None:
        """`is_repeated`: the producer says that there may be two. `leader_epoch`: see `Sent`."""
        place(sent, sent.spot._replace(partition=partition), "acknowledged")
        sent.may_stand_twice, sent.leader_epoch = is_repeated, leader_epoch
        self.on_acknowledged(sent, offset)
        self.of(sent.spot).judge_copies(sent, sent.values[0], "acknowledged")

    # Producers with names

    def on_row(self, spot: Spot, value: bytes) -> Sent:
        """It is sent by any number of runs, and stands there once; the task's own ledger says what
        became of it. Before each run.
        """
        ledger = self.of(spot)
        if value not in ledger.sent:
            ledger.sent[value] = Sent(spot, (value,), ACKS_ALL, -1, next(self._clock))
        sent = ledger.sent[value]
        sent.may_stand_twice |= ledger.may_have_deleted(0)  # and a name forgotten with it
        return sent

    def on_row_told(self, sent: Sent, offset: int) -> None:
        """A run was told where it stands."""
        self.acknowledged += 1
        self.of(sent.spot).stand(offset, sent.values[0], "acknowledged", sent)

    # Consumers

    def on_read(self, spot: Spot, data: Buffer, who: str) -> None:
        ledger = self.of(spot)
        for offset, _, value in records_in(data):
            self.reads += 1
            ledger.see(offset, value, who)

    # In the end

    def judge_log(self, spot: Spot, records: list[Found], *, start: int, latest_epoch: int) -> None:
        """`records` are all that is committed, from `start` on."""
        ledger, there = self.of(spot), {found.offset: found for found in records}
        may_start = start == 0 or ledger.may_have_deleted(start - 1)
        demand(may_start, f"{spot} starts at {start}, deleted to {ledger.deleted_to}")
        for offset, epoch, value in records:
            if offset >= start:
                ledger.see(offset, value, f"log, epoch {epoch}")
        skipped = [at for at in ledger.empty if at in there]
        who = [(at, ledger.empty[at]) for at in skipped[:3]]
        demand(not skipped, f"{spot}: {who} have stepped over "
               f"{[there[at].value for at in skipped[:3]]}")  # fmt: skip
        ledger.judge_passed({offset: found.value for offset, found in there.items()})
        missing = [at for at in sorted(ledger.stands) if at >= start and at not in there]
        first = ledger.stands.get(missing[0]) if missing else b""
        demand(not missing, f"{spot}: {first!r} is gone, "
               f"all of {missing[:5]}; there are {start} to {start + len(there)}")  # fmt: skip
        for sent in {id(sent): sent for sent in ledger.sent.values()}.values():
            if sent.outcome is Outcome.OK and sent.acks > 0 and sent.spot == spot:
                self._judge_light(sent, there, start=start, latest_epoch=latest_epoch)

    def _judge_light(
        self, sent: Sent, there: dict[int, Found], *, start: int, latest_epoch: int
    ) -> None:
        """Acknowledged by fewer than all: lost only where another leader took over. That one may
        have been eligible since before it was written, and then what stands there is older.
        """
        for offset, value in enumerate(sent.values, sent.base_offset):
            found = there.get(offset)
            if offset < start or (found is not None and found.value == value):
                continue
            self.lost_lightly += 1
            demand(
                latest_epoch > sent.leader_epoch,
                f"{value!r}, acknowledged by {sent.acks} at {sent.spot} {offset}, is gone; "
                f"found is {found}, epoch {latest_epoch}, sent in {sent.leader_epoch}",
            )

    def judge_order(self) -> None:
        """What was acknowledged before another one was sent stands before it; and of what one
        program has handed in, the order is kept, even among copies.
        """
        for spot, ledger in self.partitions.items():
            acked = sorted(ledger.acknowledged(), key=lambda sent: sent.answered_at)
            times = [sent.answered_at for sent in acked]
            ends = list(accumulate((s.base_offset + len(s.values) for s in acked), max))
            for sent in acked:
                before = bisect_left(times, sent.sent_at)
                end = ends[before - 1] if before else 0
                demand(end <= sent.base_offset, f"{spot}: {sent} stands before {end}")
            _judge_lines(ledger)

    @property
    def copies(self) -> int:
        """Values that stand twice, or more often."""
        ledgers = self.partitions.values()
        return sum(len(ledger.offsets_of(value)) > 1 for ledger in ledgers for value in ledger.sent)


def _judge_lines(ledger: PartitionLedger) -> None:
    lines: defaultdict[str, list[Sent]] = defaultdict(list)
    for sent in sorted(ledger.acknowledged(), key=lambda sent: sent.sent_at):
        if sent.line:
            lines[sent.line].append(sent)
    is_complete = not ledger.expires and not ledger.deleted_to  # first copies are where they were
    for before, after in (pair for line in lines.values() for pair in pairwise(line)):
        in_order = before.base_offset < after.base_offset
        demand(in_order, f"{ledger.spot}: {after} was handed in after {before}")
        firsts = [min(ledger.offsets_of(sent.values[0])) for sent in (before, after)]
        demand(
            firsts[0] < firsts[1] or not is_complete,
            f"{ledger.spot}: the first copy of {after} is before that of {before}: {firsts}",
        )
