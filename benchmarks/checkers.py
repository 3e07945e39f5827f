"""How long the fault suite's checkers take to judge a history, and how much memory they need.

    python -m benchmarks.checkers [--json FILE] [--operations 400000]

One history of a queue that works: 15 clients, 10 keys, sends of 4 values, of which each is read
three times, once more at the end, and kept by three replicas. One of a register: 20,000 operations
of 5 clients, of which one in five never ends. Seconds are of the wall clock and of this process'
CPU; whoever shares the machine makes them differ.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.report import Report
from jepsen_like.checkers.linearizable import check
from jepsen_like.checkers.verdict import Result, judge
from jepsen_like.history.event import NODE, RUN, Event, Type
from tests.jepsen_like.checkers.register_histories import recorded  # the one maker of such

if TYPE_CHECKING:
    from collections.abc import Callable

    from jepsen_like.history.event import Process

PROCESSES, KEYS, VALUES_PER_SEND, RECORDS_PER_POLL = 15, 10, 4, 9
SEND_SHARE = 0.5
REGISTER_OPERATIONS, CLIENTS, UNKNOWN_SHARE = 20_000, 5, 0.2
MIB = 1 << 20


class Queue:
    """Plays a history: in each turn all clients begin something, then all end it."""

    def __init__(self, operations: int) -> None:
        self.events: list[Event] = []
        self.polled = 0
        self._random, self._values = Random(1), count(1)
        self._logs: dict[str, list[int]] = {f"topic-{number}": [] for number in range(KEYS)}
        self._positions = [self._keys_of(process) for process in range(PROCESSES)]
        for process in range(PROCESSES):
            self._assign(process, list(self._positions[process]))
        for _ in range(operations // PROCESSES):
            self._turn()
        self._end()

    def _keys_of(self, process: int) -> dict[str, int]:
        names = list(self._logs)
        return {names[(2 * process + step) % KEYS]: 0 for step in range(2)}

    def _record(
        self, process: Process, kind: Type, f: str, value: Any = None, node: int | None = None
    ) -> None:
        index = len(self.events)
        self.events.append(Event(index, index / 1000, process, kind, f, value, node))

    def _assign(self, process: int, keys: list[str]) -> None:
        value = {"keys": keys, "from": "beginning"}
        self._record(process, Type.INVOKE, "assign", value)
        self._record(process, Type.OK, "assign", value)

    def _turn(self) -> None:
        sends: dict[int, dict[str, Any]] = {}
        for process in range(PROCESSES):
            if self._random.random() < SEND_SHARE:
                sends[process] = self._sent()
                self._record(process, Type.INVOKE, "send", sends[process])
            else:
                self._record(process, Type.INVOKE, "poll")
        for process in range(PROCESSES):
            if process in sends:
                self._record(process, Type.OK, "send", self._done(sends[process]))
            else:
                self._poll(process, self._positions[process])

    def _sent(self) -> dict[str, Any]:
        key = self._random.choice(list(self._logs))
        return {
            "key": key,
            "acks": -1,
            "values": [next(self._values) for _ in range(VALUES_PER_SEND)],
        }

    def _done(self, sent: dict[str, Any]) -> dict[str, Any]:
        log = self._logs[sent["key"]]
        first = len(log)
        log += sent["values"]
        return {**sent, "offsets": list(range(first, len(log))), "is_repeated": False}

    def _poll(self, process: int, positions: dict[str, int]) -> None:
        records, high_watermarks = [], []
        for key, start in positions.items():
            found = self._logs[key][start : start + RECORDS_PER_POLL]
            records.append([key, [[start + place, value] for place, value in enumerate(found)]])
            high_watermarks.append([key, len(self._logs[key])])
            positions[key] += len(found)
            self.polled += len(found)
        value = {"records": records, "high_watermarks": high_watermarks}
        self._record(process, Type.OK, "poll", value)

    def _end(self) -> None:
        self._record(RUN, Type.INFO, "phase", "final")
        self._assign(PROCESSES, list(self._logs))
        positions = dict.fromkeys(self._logs, 0)
        while any(positions[key] < len(log) for key, log in self._logs.items()):
            self._record(PROCESSES, Type.INVOKE, "poll")
            self._poll(PROCESSES, positions)
        for node in (1, 2, 3):
            for key, log in self._logs.items():
                self._record(NODE, Type.OK, "replica", _replica(key, log), node)


def _replica(key: str, log: list[int]) -> dict[str, Any]:
    starts = range(0, len(log), VALUES_PER_SEND)
    batches = [[start, 1, start, log[start : start + VALUES_PER_SEND]] for start in starts]
    return {"key": key, "log_start": 0, "high_watermark": len(log), "batches": batches}


def seconds(action: Callable[[], None]) -> tuple[float, float]:
    """Of the wall clock, and of the CPU."""
    start, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - start, time.process_time() - cpu


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // MIB


def measure_queue(report: Report, operations: int) -> None:
    queue = Queue(operations)
    before = peak_mib()

    def judged() -> None:
        assert judge(queue.events).result is Result.PASS

    wall, cpu = seconds(judged)
    report.row(
        what="judge a queue",
        operations=operations,
        polled_records=queue.polled,
        seconds=round(wall, 1),
        cpu_seconds=round(cpu, 1),
        history_mib=before,
        peak_mib=peak_mib(),
    )


def measure_register(report: Report) -> None:
    history = recorded(Random(1), REGISTER_OPERATIONS, clients=CLIENTS, unknown_share=UNKNOWN_SHARE)

    def judged() -> None:
        assert check(history) is None

    wall, cpu = seconds(judged)
    report.row(
        what="judge a register",
        operations=REGISTER_OPERATIONS,
        unknown_share=UNKNOWN_SHARE,
        seconds=round(wall, 2),
        cpu_seconds=round(cpu, 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkers", description=__doc__)
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/checkers.json")
    parser.add_argument("--operations", type=int, default=400_000)
    options = parser.parse_args()
    report = Report("checkers", options.json)
    measure_register(report)
    measure_queue(report, options.operations)
    report.finish()


if __name__ == "__main__":
    main()
