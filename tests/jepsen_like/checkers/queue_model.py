"""A queue that works, used by clients that are badly treated: histories in which nothing is wrong.

Owns everything that is legal and looks suspicious: sends of unknown outcome that take effect late,
twice, in part or never; copies of what was sent again; acknowledgements by one replica that are
lost; leaders that lag; readers that jump over what was deleted. Seeded: the same seed makes the
same history. Each operation is an invocation, one moment in which it has its effect, and an end;
between them other processes have their turn.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import NEMESIS, NODE, RUN, WATCH, Event, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from jepsen_like.history.event import Process

NODES = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large a history is, and how often it goes wrong for clients."""

    operations: int = 60
    keys: int = 2
    processes: int = 4
    values_per_send: int = 3
    records_per_poll: int = 6
    poll_share: float = 0.4
    trouble: float = 0.25  # of sends that do not simply end well
    other_share: float = 0.1  # of operations that neither poll nor send
    registers: bool = True


class Log:
    """The one true log of a key: what is committed, and the tail that only its leader has."""

    def __init__(self, key: str) -> None:
        self.key, self.epoch, self.log_start = key, 1, 0
        self.leader = NODES[0]
        self.records: list[int | None] = []  # committed
        self.tail: list[int] = []
        self.batches: list[list[Any]] = []  # committed; as replicas are dumped
        self.deposed: list[tuple[int, int]] = []  # epochs of old leaders, with what they knew

    @property
    def high_watermark(self) -> int:
        return len(self.records)

    def append(self, values: list[int]) -> int:
        """Committed at once; the offset of the first."""
        self.commit_tail()
        return self._commit(list(values))

    def append_lightly(self, values: list[int]) -> int:
        self.tail += values
        return len(self.records) + len(self.tail) - len(values)

    def commit_tail(self) -> None:
        if self.tail:
            self._commit(list(self.tail))
            self.tail.clear()

    def _commit(self, values: list[int | None]) -> int:
        base_offset = len(self.records)
        crc = zlib.crc32(repr((base_offset, self.epoch, values)).encode())
        self.batches.append([base_offset, self.epoch, crc, values])
        self.records += values
        return base_offset

    def change_leader(self, leader: int, *, loses_tail: bool) -> None:
        self.deposed.append((self.epoch, self.high_watermark))
        self.tail = [] if loses_tail else self.tail
        self.commit_tail()
        self.epoch, self.leader = self.epoch + 1, leader
        self._commit([None])  # what a leader writes when it begins: nobody's record

    def records_from(self, position: int, count: int) -> list[list[int | None]]:
        start = max(position, self.log_start)
        found = enumerate(self.records[start : start + count], start)
        return [[offset, value] for offset, value in found if value is not None]

    def replica(self, random: Random, *, lag: int, is_first: bool) -> dict[str, Any]:
        """A dump; one that lags has not fetched the last batches, or not deleted the first."""
        batches = self.batches[: len(self.batches) - lag] if lag else self.batches
        log_start = self.log_start if is_first else random.choice([0, self.log_start])
        end = batches[-1][0] + len(batches[-1][3]) if batches else 0
        kept = [batch for batch in batches if batch[0] + len(batch[3]) > log_start]
        return {
            "key": self.key,
            "log_start": min(log_start, end),
            "high_watermark": random.choice([end, max(0, end - 1)]),
            "batches": [[*batch[:3], list(batch[3])] for batch in kept],
        }


@dataclass(eq=False)
class Client:
    process: int
    positions: dict[str, int] = field(default_factory=dict)
    steps: Iterator[None] | None = None


class Queue:
    """Plays a history; `events` is what was taken down."""

    def __init__(self, random: Random, shape: Shape) -> None:
        self.events: list[Event] = []
        self.logs = {name: Log(name) for name in (f"t-{i}" for i in range(shape.keys))}
        self._random, self._shape = random, shape
        self._clients = [Client(number) for number in range(shape.processes)]
        self._next_process, self._next_value = shape.processes, 1
        self._begun = 0
        self._late: list[Callable[[], int]] = []  # effects that nobody waits for
        self._register: int | None = None
        self._keys = list(self.logs)

    def record(
        self, process: Process, kind: Type, f: str, value: Any = None, *, node: int | None = None
    ) -> None:
        index = len(self.events)
        self.events.append(Event(index, index / 1000, process, kind, f, value, node))

    def play(self) -> list[Event]:
        self._phase("load")
        for log in self.logs.values():
            self._leads(log)
        self._phase("faults")
        self._turns()
        self._phase("heal")
        for log in self.logs.values():
            log.commit_tail()
        self._phase("final")
        self._final_reads()
        self._dumps()
        self._phase("end")
        return self.events

    # -- turns -----------------------------------------------------------------------------

    def _turns(self) -> None:
        while self._begun < self._shape.operations or any(c.steps for c in self._clients):
            client = self._random.choice(self._clients)
            if client.steps is None and self._begun < self._shape.operations:
                self._begun += 1
                client.steps = self._operation(client)
            if client.steps is not None and next(client.steps, StopIteration) is StopIteration:
                client.steps = None
            if self._random.random() < 0.05:
                self._event_of_nobody()

    def _operation(self, client: Client) -> Iterator[None]:
        if not client.positions:
            return self._assign(client, self._random.choice(["beginning", "end"]))
        draw = self._random.random()
        if draw < self._shape.poll_share:
            return self._poll(client)
        if draw < 1 - self._shape.other_share:
            return self._send(client)
        return self._random.choice([self._assign_anew, self._watermark, self._use_register])(client)

    def _event_of_nobody(self) -> None:
        log = self.logs[self._random.choice(self._keys)]
        draw = self._random.random()
        if draw < 0.2:
            log.change_leader(self._random.choice(NODES), loses_tail=self._random.random() < 0.5)
            self._leads(log)
        elif draw < 0.3:
            log.log_start = self._random.randint(log.log_start, log.high_watermark)
        elif draw < 0.5:
            self._leads(log)
        elif draw < 0.8 and self._late:
            self._late.pop(self._random.randrange(len(self._late)))()
        elif draw < 0.9:
            self.record(NEMESIS, Type.INVOKE, "kill", {"nodes": [log.leader]})
        else:
            log.commit_tail()

    # -- what clients do -------------------------------------------------------------------

    def _assign_anew(self, client: Client) -> Iterator[None]:
        return self._assign(client, self._random.choice(["beginning", "end"]))

    def _assign(self, client: Client, start: str) -> Iterator[None]:
        keys = self._random.sample(self._keys, self._random.randint(1, len(self._keys)))
        value = {"keys": keys, "from": start}
        self.record(client.process, Type.INVOKE, "assign", value)
        yield
        is_begin = start == "beginning"
        client.positions = {k: 0 if is_begin else self.logs[k].high_watermark for k in keys}
        self.record(client.process, Type.OK, "assign", value)

    def _poll(self, client: Client) -> Iterator[None]:
        self.record(client.process, Type.INVOKE, "poll")
        yield
        value, positions = self._polled(client)
        yield
        if self._random.random() < self._shape.trouble / 4:
            positions = {key: self.logs[key].log_start for key in positions}  # wherever it may be
            self.record(client.process, Type.INFO, "poll", value)
        else:
            self.record(client.process, Type.OK, "poll", value)
        client.positions.update(positions)

    def _polled(self, client: Client) -> tuple[dict[str, Any], dict[str, int]]:
        records, high_watermarks = [], []
        positions = dict(client.positions)
        for key in positions:
            log = self.logs[key]
            found = log.records_from(positions[key], self._shape.records_per_poll)
            positions[key] = max(positions[key], log.log_start) + self._shape.records_per_poll
            positions[key] = min(positions[key], log.high_watermark)
            records.append([key, found])
            high_watermarks.append([key, log.high_watermark])
        return {"records": records, "high_watermarks": high_watermarks}, positions

    def _send(self, client: Client) -> Iterator[None]:
        log = self.logs[self._random.choice(self._keys)]
        count = self._random.randint(1, self._shape.values_per_send)
        values = list(range(self._next_value, self._next_value + count))
        self._next_value += count
        acks = -1 if self._random.random() < 0.8 else 1
        sent = {"key": log.key, "acks": acks, "values": values}
        self.record(client.process, Type.INVOKE, "send", sent)
        yield
        if self._random.random() < self._shape.trouble:
            yield from self._send_badly(client, log, sent)
            return
        append = log.append if acks == -1 else log.append_lightly
        first = append(values)
        yield
        told = {**sent, "offsets": list(range(first, first + count)), "is_repeated": False}
        self.record(client.process, Type.OK, "send", told)

    def _send_badly(self, client: Client, log: Log, sent: dict[str, Any]) -> Iterator[None]:
        ways = [self._refused, self._unknown, self._twice, self._in_part, self._nowhere]
        yield from self._random.choice(ways)(client, log, sent)

    def _refused(self, client: Client, log: Log, sent: dict[str, Any]) -> Iterator[None]:
        yield
        self.record(client.process, Type.FAIL, "send", sent if len(log.tail) % 2 else None)

    def _unknown(self, client: Client, log: Log, sent: dict[str, Any]) -> Iterator[None]:
        for _ in range(self._random.randint(0, 2)):
            self._late.append(partial(log.append, sent["values"]))
        yield
        self.record(client.process, Type.INFO, "send", sent if len(log.tail) % 2 else None)
        if self._random.random() < 0.5:
            self._crash(client)

    def _twice(self, client: Client, log: Log, sent: dict[str, Any]) -> Iterator[None]:
        first = log.append(sent["values"])
        yield
        again = log.append(sent["values"])
        told = self._random.choice([first, again])
        offsets = list(range(told, told + len(sent["values"])))
        value = {**sent, "offsets": offsets, "is_repeated": True}
        self.record(client.process, Type.OK, "send", value)

    def _in_part(self, client: Client, log: Log, sent: dict[str, Any]) -> Iterator[None]:
        values = sent["values"]
        done = self._random.randint(0, len(values))
        first = log.append(values[:done]) if done else 0
        if values[done:]:
            self._late.append(partial(log.append, values[done:]))
        yield
        offsets = [*range(first, first + done), *[None] * (len(values) - done)]
        self.record(client.process, Type.INFO, "send", {**sent, "offsets": offsets})
        self._crash(client)

    def _nowhere(self, client: Client, log: Log, sent: dict[str, Any]) -> Iterator[None]:
        """Done, but the client is not told where."""
        log.append(sent["values"])
        yield
        self.record(
            client.process, Type.OK, "send", {**sent, "offsets": [None] * len(sent["values"])}
        )

    def _crash(self, client: Client) -> None:
        self.record(client.process, Type.INVOKE, "crash")
        self.record(client.process, Type.INFO, "crash")
        client.process, self._next_process = self._next_process, self._next_process + 1
        client.positions = {}

    def _watermark(self, client: Client) -> Iterator[None]:
        log = self.logs[self._random.choice(self._keys)]
        self.record(client.process, Type.INVOKE, "watermark", {"key": log.key})
        yield
        leaders = [*log.deposed[-1:], (log.epoch, log.high_watermark)]
        epoch, high_watermark = self._random.choice(leaders)
        yield
        told = {"key": log.key, "epoch": epoch, "high_watermark": high_watermark}
        self.record(client.process, Type.OK, "watermark", told)

    def _use_register(self, client: Client) -> Iterator[None]:
        if not self._shape.registers:
            yield from self._watermark(client)
            return
        f = self._random.choice(["read", "write", "cas"])
        asked: dict[str, Any] = {"key": "register"}
        if f != "read":
            asked["value"], self._next_value = self._next_value, self._next_value + 1
        if f == "cas":
            asked["expected"] = self._random.choice([self._register, -1])
        self.record(client.process, Type.INVOKE, f, asked)
        yield
        kind, told = self._take_register(f, asked)
        yield
        if self._random.random() < self._shape.trouble:
            self.record(client.process, Type.INFO, f)
        else:
            self.record(client.process, kind, f, told)

    def _take_register(self, f: str, asked: dict[str, Any]) -> tuple[Type, dict[str, Any]]:
        if f == "read":
            return Type.OK, {**asked, "value": self._register}
        if f == "cas" and asked["expected"] != self._register:
            return Type.FAIL, {**asked, "found": self._register}
        self._register = asked["value"]
        return Type.OK, asked

    # -- what others tell ------------------------------------------------------------------

    def _phase(self, name: str) -> None:
        self.record(RUN, Type.INFO, "phase", name)

    def _leads(self, log: Log) -> None:
        value = {"key": log.key, "epoch": log.epoch}
        self.record(NODE, Type.INFO, "leads", value, node=log.leader)

    def _final_reads(self) -> None:
        for number in range(2):
            client = Client(self._next_process + number)
            value = {"keys": self._keys, "from": "beginning"}
            self.record(client.process, Type.INVOKE, "assign", value)
            self.record(client.process, Type.OK, "assign", value)
            client.positions = dict.fromkeys(self._keys, 0)
            while any(client.positions[k] < self.logs[k].high_watermark for k in self._keys):
                self.record(client.process, Type.INVOKE, "poll")
                value, client.positions = self._polled(client)
                self.record(client.process, Type.OK, "poll", value)

    def _dumps(self) -> None:
        is_whole = self._random.random() < 0.7
        whole = len(self.logs) if is_whole else 0
        value = {"partitions": len(self.logs), "led": len(self.logs), "whole": whole}
        self.record(WATCH, Type.OK, "isr", value)
        for node in NODES:
            for log in self.logs.values():
                lag = 0 if is_whole or node == NODES[0] else self._random.randint(0, 2)
                dump = log.replica(self._random, lag=lag, is_first=node == NODES[0])
                self.record(NODE, Type.OK, "replica", dump, node=node)


def clean_history(random: Random, shape: Shape | None = None) -> list[Event]:
    return Queue(random, shape or Shape()).play()
