"""A program with a plain consumer and a policy, in the worlds of poison.

What is handed out alone, what is noted of it, and when that is taken back, is decided by the real
`SuspectRecords`; its commits and its reading are as small as they can be. Each await is a step,
between two of which everything else may happen. The program finishes what it was handed, holds it
in a `processing` block and asks for more, or puts it off: it seeks back and pauses.
"""

from __future__ import annotations

from types import SimpleNamespace, coroutine
from typing import TYPE_CHECKING, Any

from raftmq.client.consumer.group_consumption import SuspectRecords
from raftmq.client.consumer.record import ConsumerRecord
from raftmq.errors import IllegalGeneration
from tests.simulation.poison.worker import Tenure, Violation

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from random import Random

    from tests.simulation.poison.world import World

BATCH_MAX = 3
UNHEARD_SHARE = 0.1  # of notes that were refused for all the member knows, and are in the quorum
PUT_OFF_STEPS = 20


@coroutine
def others_step() -> Generator[None]:
    yield


class Batch:
    """Records of one partition, from a position on."""

    topic = "t"

    def __init__(self, tenure: Tenure, end: int) -> None:
        self.ownership, self.partition = tenure, tenure.partition
        self.base_offset, self.end_offset = tenure.position, end
        self.raw = [
            ConsumerRecord("t", tenure.partition, offset, -1, None, b"")
            for offset in range(tenure.position, end)
        ]

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def key(self) -> tuple[int, int]:
        return self.partition, self.base_offset


class Program:
    """A process. To `SuspectRecords` it is the consumer, too.

    Attributes:
        marking: always None: a batch that is to be noted may be revoked.
        noted: as the quorum may have it.
        current: what was handed out last, and is not finished.
        blocks: what is held in blocks.
        put_off: until which step nothing of a partition is handed out.
    """

    marking = None
    is_passing = False  # what waits is not the consumer's to see
    are_taken_over = False  # the records in flight, by `process`

    def __init__(self, world: World) -> None:
        self.world, self.chance, self.member_id = world, world.chance, ""
        self.tenures: dict[int, Tenure] = {}
        self.is_up, self.is_paused, self.now = True, False, 0
        self.noted: Batch | None = None
        self.current: Batch | None = None
        self.blocks: list[Batch] = []
        self.put_off: dict[int, int] = {}
        self._opened: Batch | None = None
        self._asking: Coroutine[None, None, None] | None = None
        self.is_each = world.plan.attempts % 2 == 0  # commit="record"
        options = SimpleNamespace(
            commit="record" if self.is_each else "batch",
            retry=SimpleNamespace(dead_letters=True, attempts=world.plan.attempts),
        )
        seen: Any = self
        reader: Any = SimpleNamespace(in_flight_records=self)
        self._suspects = SuspectRecords(options, seen, seen, reader, seen, seen.reject)  # type: ignore[arg-type]

    # -- partitions ------------------------------------------------------------------------

    def assign(self, partitions: frozenset[int]) -> None:
        for partition in sorted(self.tenures.keys() - partitions):
            self._release(partition)
        for partition in sorted(partitions - self.tenures.keys()):
            self.tenures[partition] = Tenure(self.world, partition)

    def _release(self, partition: int) -> None:
        tenure = self.tenures.pop(partition)
        tenure.has_ended = True
        self.put_off.pop(partition, None)
        if self._opened is not None and self._opened.ownership is tenure:
            self._opened = None
        if self.noted is not None and self.noted.ownership is tenure:
            self.noted = None

    def lose_all(self) -> None:
        for partition in list(self.tenures):
            self._release(partition)

    def busy(self) -> set[int]:
        """Partitions that a rebalance waits for."""
        return {one.partition for one in self._in_hand if not one.ownership.has_ended}

    @property
    def _in_hand(self) -> list[Batch]:
        return self.blocks if self.current is None else [*self.blocks, self.current]

    @property
    def alone(self) -> tuple[int, int] | None:
        """What a crash counts for by right: noted, and nothing else is in hand."""
        noted = self.noted
        is_alone = noted is not None and all(one is noted for one in self._in_hand)
        return noted.key if noted is not None and is_alone else None

    # -- steps -----------------------------------------------------------------------------

    def step(self, chance: Random) -> None:
        self.now += 1
        if not self.is_each and chance.random() < self.world.plan.commit_share:
            self.commit()
        elif self.blocks and chance.random() < 0.2:
            self._end(chance.choice(self.blocks))
        elif self._asking is not None:
            self._ask_on()
        elif self.current is not None:
            self._go_on(self.current, chance)
        else:
            self._ask_anew()

    def _go_on(self, batch: Batch, chance: Random) -> None:
        draw = chance.random()
        if draw < 0.2:
            self.blocks.append(batch)
        elif draw < 0.4 and not batch.ownership.has_ended:
            batch.ownership.position = batch.base_offset
            self.put_off[batch.partition] = self.now + PUT_OFF_STEPS
        elif not self._end(batch):
            return  # it has killed
        self.current = None
        self._ask_anew()

    def _end(self, batch: Batch) -> bool:
        """It is handled. False: the process has died of it."""
        for record in batch.raw:
            key = record.partition, record.offset
            if key in self.world.plan.poison:
                self.world.kill(self, record)
                return False
            if not batch.ownership.has_ended:
                self.world.done.add(key)
        if batch in self.blocks:
            self.blocks.remove(batch)
        return True

    def _ask_anew(self) -> None:
        self._asking = self._ask()
        self._ask_on()

    def _ask_on(self) -> None:
        assert self._asking is not None, "asks for nothing"
        try:
            self._asking.send(None)
        except StopIteration:
            self._asking = None

    async def _ask(self) -> None:
        """As `GroupConsumption.next` does it."""
        await self._suspects.end_alone()
        while True:
            found: Any = self._suspects.open_batch(self.chance.randint(1, BATCH_MAX))
            is_ours = found is not None and await self._suspects.note(found)
            if is_ours and self.has_open(found):
                self.end_batch()
                return self._hand_out(found)
            self.close(None)
            await others_step()

    def _hand_out(self, batch: Batch) -> None:
        for partition in self.tenures:
            noted = self.world.metadata.noted(partition)
            in_hand = {one.key for one in [batch, *self.blocks]}
            beside = in_hand - {(partition, noted[0])}
            if noted[1] == self.member_id and beside:
                raise Violation(f"{partition, noted[0]} is noted, and in hand is {beside}")
        self.current = batch

    # -- as the consumer -------------------------------------------------------------------

    def crashes(self, key: tuple[str, int], offset: int | None = None) -> int:
        tenure = self.tenures.get(key[1])
        told = (offset, 0) if tenure is None else tenure.told
        return told[1] if offset in (None, told[0]) else 0

    @property
    def is_held(self) -> bool:
        return bool(self.blocks)

    def open_batch(self, records_max: int) -> Batch | None:
        ready = [
            one
            for one in self.tenures.values()
            if one.position < self.world.plan.records
            and self.put_off.get(one.partition, 0) <= self.now
        ]
        if ready:
            tenure = self.chance.choice(ready)
            end = min(tenure.position + records_max, self.world.plan.records)
            self._opened = Batch(tenure, end)
        return self._opened

    def has_open(self, batch: Batch) -> bool:
        return self._opened is batch

    def close(self, last: None) -> None:
        self._opened = None

    def end_batch(self) -> None:
        assert self._opened is not None, "none is open"
        self._opened.ownership.position = self._opened.end_offset
        self._opened = None

    async def reject(self, record: ConsumerRecord, error: str, *, attempts: int) -> None:
        await others_step()
        tenure = self.tenures.get(record.partition)
        if tenure is None or tenure.told != (record.offset, attempts):
            raise IllegalGeneration("another member's")
        self.world.on_set_aside(record, attempts)

    # -- commits ---------------------------------------------------------------------------

    def _done(self, tenure: Tenure) -> int:
        offsets = [one.base_offset for one in self._in_hand if one.ownership is tenure]
        return min([tenure.position, *offsets])

    def _commits(self, tenure: Tenure, offset: int, *, alone: bool = False) -> bool:
        if not self.world.commits(self, tenure, offset, alone=alone):
            return False
        if not alone and self.noted is not None and self.noted.ownership is tenure:
            self.noted = None
        if tenure.told[0] != offset:  # it has moved
            tenure.told = offset, 0
        return True

    def _is_over(self, tenure: Tenure) -> bool:
        return tenure.has_ended or self.world.is_stranger(self)

    async def note_first(self, batch: Batch) -> bool:
        await others_step()
        if not batch.ownership.has_ended:
            self.noted = batch
        is_noted = self._commits(batch.ownership, batch.base_offset, alone=True)
        await others_step()
        return is_noted and self.chance.random() >= UNHEARD_SHARE

    async def end_first(self, batch: Batch) -> None:
        await others_step()
        while not self._is_over(batch.ownership):
            if self._commits(batch.ownership, self._done(batch.ownership)):
                return
            await others_step()

    async def commit_each(self) -> None:
        """What is new."""
        await others_step()
        for tenure in list(self.tenures.values()):
            while not self._is_over(tenure) and self._done(tenure) > self._committed(tenure):
                self._commits(tenure, self._done(tenure))
                await others_step()

    def commit(self, *, given_up: frozenset[int] = frozenset()) -> None:
        """What is new; of partitions that are given up, also that nothing is alone any more."""
        for partition, tenure in self.tenures.items():
            is_noted = self.noted is not None and self.noted.ownership is tenure
            done, is_last = self._done(tenure), is_noted and partition in given_up
            if is_last or done > self._committed(tenure):
                is_done = self._commits(tenure, done)
                while is_last and not is_done and not self._is_over(tenure):
                    is_done = self._commits(tenure, done)

    def _committed(self, tenure: Tenure) -> int:
        return self.world.metadata.committed(tenure.partition)
