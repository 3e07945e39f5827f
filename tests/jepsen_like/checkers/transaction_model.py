"""Transactions on a few partitions: histories without any wrong.

Owns what is legal and looks suspicious: outcomes that are never told, owners that are replaced and
go on, commits that a leader learns late, versions that are tried again, results of inputs that are
sent once more after an abort, readers that wait behind an open transaction. Everything happens one
step after the other; an end is answered some steps after it was asked for. Seeded: the same seed
makes the same history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import NODE, RUN, WATCH, Event, Type

if TYPE_CHECKING:
    from random import Random

    from jepsen_like.history.event import Process

INPUTS, OUTPUTS = ("in-0", "in-1"), ("out-0", "out-1", "out-2")
KEYS = (*INPUTS, *OUTPUTS)
IDS, COPYING = ("a", "b", "copy"), "copy"  # the last one sends results of inputs
GROUP = "g"
STEPS, VALUES_MAX = 160, 3
NODES = (1, 2, 3)
Entry = tuple[int | None, int, int, bool | None]
LEARN_CHANCE = 0.3  # of a leader in each step, for each decision that it does not know yet
TOLD_CHANCE = 0.8  # of an end; otherwise its outcome is unknown


@dataclass(eq=False)
class Row:
    """What the quorum knows of an id."""

    pid: int
    epoch: int = 0
    owner: int = -1
    version: int = -1
    outcomes: dict[int, bool] = field(default_factory=dict)  # by epoch: committed


@dataclass(eq=False)
class Owner:
    id: str
    process: int
    epoch: int
    block: Block | None = None


@dataclass(eq=False)
class Block:
    number: int
    version: int | None
    is_done: bool = False
    must_abort: bool = False
    offsets: dict[str, int] = field(default_factory=dict)
    results: list[tuple[str, int]] = field(default_factory=list)  # inputs without a result yet
    ending: tuple[str, bool] | None = None  # what is to be answered, and whether it will be


@dataclass(eq=False)
class Log:
    """Of each offset the value, and of which producer id and epoch it is; a marker has no value."""

    entries: list[Entry] = field(default_factory=list)

    def open_ones(self) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for offset, (_, pid, epoch, mark) in enumerate(self.entries):
            if pid >= 0 and mark is None:
                found.setdefault((pid, epoch), offset)
            elif mark is not None:
                found.pop((pid, epoch), None)
        return found

    @property
    def stable(self) -> int:
        return min(self.open_ones().values(), default=len(self.entries))


class TransactionModel:
    def __init__(self, random: Random) -> None:
        self._random, self.events = random, list[Event]()
        self._logs = {key: Log() for key in KEYS}
        self._rows = {name: Row(pid) for pid, name in enumerate(IDS)}
        self._owners: list[Owner] = []
        self._group: dict[str, int] = {}
        self._processes = self._transactions = self._value = 0
        self._readers: dict[int, tuple[bool, dict[str, int]]] = {}

    def play(self) -> list[Event]:
        self._add(RUN, Type.INFO, "phase", "load")
        for is_committed in (True, True, False):
            self._new_reader(is_committed=is_committed)
        for name in IDS:
            self._open(name)
        for _ in range(STEPS):
            self._step()
        self._finish()
        return self.events

    def _add(
        self, process: Process, kind: Type, f: str, value: Any = None, node: int | None = None
    ) -> None:
        index = len(self.events)
        self.events.append(Event(index, index / 10, process, kind, f, value, node))

    def _both(self, process: int, f: str, asked: Any, told: Any, kind: Type = Type.OK) -> None:
        self._add(process, Type.INVOKE, f, asked)
        self._add(process, kind, f, told)

    def _next_process(self) -> int:
        self._processes += 1
        return self._processes

    # -- steps -----------------------------------------------------------------------------

    def _step(self) -> None:
        random = self._random
        self._learn(LEARN_CHANCE)
        draw = random.random()
        if draw < 0.15:
            self._read(random.choice(list(self._readers)))
        elif draw < 0.25:
            self._send_plainly()
        elif draw < 0.3:
            self._open(random.choice(IDS))
        elif self._owners:
            self._go_on(random.choice(self._owners))

    def _learn(self, chance: float) -> None:
        """Leaders append the markers of what they have learned."""
        for log in self._logs.values():
            for (pid, epoch), _ in list(log.open_ones().items()):
                row = self._rows[IDS[pid]]
                if epoch in row.outcomes and self._random.random() < chance:
                    log.entries.append((None, pid, epoch, row.outcomes[epoch]))

    def _go_on(self, owner: Owner) -> None:
        random, block = self._random, owner.block
        if block is None:
            self._begin(owner)
        elif block.ending is not None:
            self._answer(owner, block)
        elif (draw := random.random()) < 0.6:
            if owner.id == COPYING:
                self._copy(owner, block)
            else:
                self._send(owner, block, random.choice(OUTPUTS + INPUTS))
        elif draw < 0.7 and owner.id != COPYING:
            key, start = random.choice(KEYS), random.randrange(8)
            self._poll(owner, block, key, start, f"any {len(self.events)}")
        elif draw < 0.75:
            self._add(owner.process, Type.INFO, "crash")
            self._owners.remove(owner)
        else:
            self._end(owner, block)

    def _open(self, name: str) -> None:
        row, process = self._rows[name], self._next_process()
        self._both(process, "open", {"id": name}, {"id": name})
        self._decide(row, is_commit=False)
        row.owner = process
        self._owners.append(Owner(name, process, row.epoch))

    def _begin(self, owner: Owner) -> None:
        row = self._rows[owner.id]
        if row.owner != owner.process:  # it has heard that it was replaced
            self._owners.remove(owner)
            return
        self._transactions += 1
        version = row.version + self._random.choice((0, 1, 2)) if owner.id == "b" else None
        if version is not None and version < 0:
            version = 0
        is_done = version is not None and version <= row.version
        told = {"tx": self._transactions, "version": version, "is_done": is_done}
        self._both(owner.process, "begin", told, told)
        owner.epoch = row.epoch
        if not is_done:
            owner.block = Block(self._transactions, version)

    def _send(
        self, owner: Owner, block: Block, key: str, of: list[tuple[str, str, int]] | None = None
    ) -> None:
        row, log = self._rows[owner.id], self._logs[key]
        count = len(of) if of else self._random.randint(1, VALUES_MAX)
        values = [self._next_value() for _ in range(count)]
        asked = {"key": key, "acks": -1, "values": values, "is_idempotent": True}
        asked |= {"tx": block.number, "of": of}
        if owner.epoch != row.epoch:
            block.must_abort = True
            self._both(owner.process, "send", asked, None, Type.INFO)
            return
        for epoch in [epoch for pid, epoch in log.open_ones() if pid == row.pid]:
            if epoch in row.outcomes:  # the leader waits for that before it takes the next one
                log.entries.append((None, row.pid, epoch, row.outcomes[epoch]))
        start = len(log.entries)
        log.entries += [(value, row.pid, owner.epoch, None) for value in values]
        told = {**asked, "offsets": list(range(start, start + count)), "is_repeated": False}
        self._both(owner.process, "send", asked, told)

    def _send_plainly(self) -> None:
        key, value = self._random.choice(KEYS), self._next_value()
        if key in INPUTS or self._random.random() < 0.3:
            asked = {"key": key, "acks": -1, "values": [value], "is_idempotent": True}
            offset = len(self._logs[key].entries)
            self._logs[key].entries.append((value, -1, -1, None))
            self._both(self._next_process(), "send", asked, {**asked, "offsets": [offset]})

    def _poll(
        self, owner: Owner, block: Block, key: str, start: int, session: str
    ) -> list[tuple[int, int]]:
        found = self._committed(key, start)[:VALUES_MAX]
        told = {"records": [[key, found]] if found else [], "session": session}
        self._both(owner.process, "poll", {"tx": block.number}, told)
        return found

    def _committed(self, key: str, start: int) -> list[tuple[int, int]]:
        log = self._logs[key]
        return [
            (offset, value)
            for offset, (value, pid, epoch, _) in enumerate(log.entries)
            if value is not None
            and start <= offset < log.stable
            and (pid < 0 or self._rows[IDS[pid]].outcomes[epoch])
        ]

    def _copy(self, owner: Owner, block: Block) -> None:
        """A few inputs, and the result of each."""
        key = self._random.choice(INPUTS)
        start = block.offsets.get(key, self._group.get(key, 0))
        found = self._poll(owner, block, key, start, f"copy {block.number}")
        if found:
            of = [(GROUP, key, offset) for offset, _ in found]
            self._send(owner, block, self._random.choice(OUTPUTS), of)
            block.offsets[key] = found[-1][0] + 1

    # -- ends ------------------------------------------------------------------------------

    def _end(self, owner: Owner, block: Block) -> None:
        row = self._rows[owner.id]
        is_commit = not block.must_abort and self._random.random() < 0.75
        offsets = [[GROUP, key, offset] for key, offset in block.offsets.items()]
        asked = {"tx": block.number, "commit": is_commit, "offsets": offsets if is_commit else []}
        self._add(owner.process, Type.INVOKE, "end", asked)
        is_told = self._random.random() < TOLD_CHANCE
        if row.owner != owner.process or owner.epoch != row.epoch:
            block.ending = "refused", is_told
        elif is_commit and not is_told and self._random.random() < 0.3:
            block.ending = "lost", False  # it never arrived
        else:
            self._decide(row, is_commit=is_commit)
            block.ending = "committed" if is_commit else "aborted", is_told
            if is_commit:
                self._group.update(block.offsets)
                row.version = max(row.version, -1 if block.version is None else block.version)

    def _answer(self, owner: Owner, block: Block) -> None:
        assert block.ending is not None
        outcome, is_told = block.ending
        if is_told and outcome == "refused":
            self._add(owner.process, Type.FAIL, "end")
        elif is_told:
            self._add(owner.process, Type.OK, "end", {"outcome": outcome})
        else:
            self._add(owner.process, Type.INFO, "end")
            if outcome in ("committed", "aborted") and self._random.random() < 0.5:
                self._both(owner.process, "resolve", {"tx": block.number}, {"outcome": outcome})
        owner.block = None
        if outcome == "refused":
            self._owners.remove(owner)
        elif outcome == "lost":
            self._decide(self._rows[owner.id], is_commit=False, of=owner)

    def _decide(self, row: Row, *, is_commit: bool, of: Owner | None = None) -> None:
        """`of`: only if it is the owner still, and nothing was decided since."""
        if of is None or (row.owner == of.process and row.epoch == of.epoch):
            row.outcomes[row.epoch] = is_commit
            row.epoch += 1

    # -- readers, and the end --------------------------------------------------------------

    def _new_reader(self, *, is_committed: bool) -> int:
        process, level = self._next_process(), "committed" if is_committed else "uncommitted"
        asked = {"keys": list(KEYS), "from": "beginning", "level": level}
        self._both(process, "assign", asked, asked)
        self._readers[process] = is_committed, dict.fromkeys(KEYS, 0)
        return process

    def _read(self, process: int, *, keys: tuple[str, ...] | None = None) -> None:
        is_committed, at = self._readers[process]
        records = []
        for key in keys or self._random.sample(KEYS, 2):
            entries = self._logs[key].entries
            if is_committed:
                found, end = self._committed(key, at[key]), self._logs[key].stable
            else:
                end = len(entries)
                held = ((offset, entries[offset][0]) for offset in range(at[key], end))
                found = [(offset, value) for offset, value in held if value is not None]
            at[key] = max(at[key], end)
            if found:
                records.append([key, found])
        self._both(process, "poll", None, {"records": records, "high_watermarks": []})

    def _finish(self) -> None:
        """What is open is aborted when its time is over; all leaders learn everything."""
        for row in self._rows.values():
            self._decide(row, is_commit=False)
        self._learn(1.0)
        self._add(RUN, Type.INFO, "phase", "final")
        for is_committed in (True, False):
            self._read(self._new_reader(is_committed=is_committed), keys=KEYS)
        ends = [[key, log.stable, len(log.entries)] for key, log in self._logs.items()]
        self._add(WATCH, Type.OK, "stable", {"ends": ends, "unsettled": []})
        offsets = [[GROUP, key, offset] for key, offset in self._group.items()]
        self._add(WATCH, Type.OK, "group-offsets", {"offsets": offsets})
        for key, log in self._logs.items():
            for node in NODES:
                self._add(NODE, Type.OK, "replica", _dump(key, log), node)

    def _next_value(self) -> int:
        self._value += 1
        return self._value


def _dump(key: str, log: Log) -> dict[str, Any]:
    entries = list(enumerate(log.entries))
    return {
        "key": key,
        "log_start": 0,
        "high_watermark": len(entries),
        "batches": [[at, 1, hash((key, at)), [value]] for at, (value, *_) in entries],
        "transactional": [
            [at, pid, epoch] for at, (_, pid, epoch, mark) in entries if pid >= 0 and mark is None
        ],
        "markers": [
            [at, pid, epoch, mark] for at, (_, pid, epoch, mark) in entries if mark is not None
        ],
    }


def clean_transaction_history(random: Random) -> list[Event]:
    return TransactionModel(random).play()
