"""Histories made by hand for the reports: a pen that writes events, and a whole run full of faults.

Owns no rule of any report. The whole run is drawn from a seed; its times look like those of a real
one, and its logs make no sense.
"""

from __future__ import annotations

from random import Random
from typing import Any

from jepsen_like.history.event import ACKS_ALL, NEMESIS, RUN, WATCH, Event, Process, Type

PARTITIONS = 6
Raw = tuple[float, Process, Type, str, Any, str | None]


class Pen:
    """Collects events in any order; `history` has them by time, numbered."""

    def __init__(self) -> None:
        self.raw: list[Raw] = []

    @property
    def history(self) -> list[Event]:
        return [
            Event(index, time, process, kind, f, value, error=error)
            for index, (time, process, kind, f, value, error) in enumerate(
                sorted(self.raw, key=lambda raw: raw[0])
            )
        ]

    def operation(
        self,
        process: int,
        f: str,
        *,
        begin: float,
        end: float,
        asked: Any = None,
        value: Any = None,
        outcome: Type = Type.OK,
        error: str | None = None,
    ) -> None:
        self.raw.append((begin, process, Type.INVOKE, f, asked, None))
        self.raw.append((end, process, outcome, f, value, error))

    def send(
        self,
        key: str,
        offset: int | None,
        *,
        begin: float,
        end: float,
        process: int = 0,
        acks: int = ACKS_ALL,
        outcome: Type = Type.OK,
        error: str | None = None,
    ) -> None:
        """One value; `offset` None: it was not acknowledged."""
        asked = {"key": key, "acks": acks, "values": [int(begin * 1000)]}
        value = {**asked, "offsets": [offset]}
        self.operation(
            process,
            "send",
            begin=begin,
            end=end,
            asked=asked,
            value=value,
            outcome=outcome,
            error=error,
        )

    def sends(self, key: str, times: list[float], *, process: int = 0) -> None:
        """Each acknowledged within 10 ms."""
        for offset, time in enumerate(times):
            self.send(key, offset, begin=time, end=time + 0.01, process=process)

    def poll(
        self,
        records: dict[str, list[int]],
        *,
        begin: float,
        end: float,
        process: int = 1,
        high_watermarks: dict[str, int] | None = None,
    ) -> None:
        """`records`: the offsets, by key."""
        value = {
            "records": [[key, [[offset, offset] for offset in o]] for key, o in records.items()],
            "high_watermarks": [list(item) for item in (high_watermarks or {}).items()],
        }
        self.operation(process, "poll", begin=begin, end=end, value=value)

    def assign(self, keys: list[str], *, at: float, process: int = 1, start: str) -> None:
        asked = {"keys": keys, "from": start}
        self.operation(process, "assign", begin=at, end=at, asked=asked, value=asked)

    def fault(
        self,
        kind: str,
        *,
        begin: float,
        end: float | None,
        nodes: tuple[int, ...] = (1,),
        whom: str = "leader",
        skipped: str = "",
    ) -> None:
        value: dict[str, Any] = {"nodes": list(nodes), "whom": whom}
        self.raw.append((begin, NEMESIS, Type.INVOKE, kind, value, None))
        if end is not None:
            over = {**value, "skipped": skipped} if skipped else value
            self.raw.append((end, NEMESIS, Type.INFO, kind, over, None))

    def in_sync(self, time: float, *, whole: int, led: int = PARTITIONS) -> None:
        value = {"partitions": PARTITIONS, "led": led, "whole": whole}
        self.raw.append((time, WATCH, Type.OK, "isr", value, None))

    def phase(self, time: float, name: str) -> None:
        self.raw.append((time, RUN, Type.INFO, "phase", name, None))


KINDS = ("kill", "pause", "partition", "powercut", "slow-disk", "packets", "clock")


def whole_run(
    *, seed: int, seconds: float, operations: int, kinds: tuple[str, ...] = KINDS
) -> list[Event]:
    """Load, faults one after the other and sometimes two at once, healing, final reads."""
    random, pen = Random(seed), Pen()
    for time, name in (
        (0.0, "load"),
        (5.0, "faults"),
        (seconds - 20, "heal"),
        (seconds - 9, "final"),
        (seconds - 1, "end"),
    ):
        pen.phase(time, name)
    outages = _faults(pen, random, seconds, kinds)
    _clients(pen, random, seconds, operations, outages)
    for process in range(20, 23):
        for step in range(40):
            begin = seconds - 9 + step * 0.15
            offsets = list(range(step * 60, step * 60 + 60))
            pen.poll({"a": offsets}, begin=begin, end=begin + 0.1, process=process)
    return pen.history


def _faults(
    pen: Pen, random: Random, seconds: float, kinds: tuple[str, ...]
) -> list[tuple[float, float]]:
    time, outages = 8.0, []
    pen.in_sync(0.2, whole=PARTITIONS)
    while time < seconds - 30:
        kind, lasts = random.choice(kinds), random.uniform(2, 9)
        hit = tuple(sorted(random.sample((1, 2, 3), random.choice((1, 1, 1, 2)))))
        pen.fault(kind, begin=time, end=time + lasts, nodes=hit)
        if random.random() < 0.25:
            pen.fault("clock", begin=time + 1, end=time + lasts + 2, nodes=())
        if random.random() < 0.3:
            pen.fault("pause", begin=time + 1, end=time + lasts - 0.5, nodes=hit[:1], whom="one")
        pen.in_sync(time + 0.5, whole=1, led=4)
        pen.in_sync(time + 2.0, whole=2)
        pen.in_sync(time + lasts + 2.5, whole=PARTITIONS)
        outages.append((time, time + random.uniform(0.3, 2.0)))
        time += lasts + random.uniform(3, 12)
    pen.fault("powercut", begin=time, end=time + 0.01, nodes=(1, 2, 3), whom="all")
    return outages


def _clients(
    pen: Pen, random: Random, seconds: float, operations: int, outages: list[tuple[float, float]]
) -> None:
    processes, ends = 12, dict.fromkeys("abcdef", 0)
    step = (seconds - 12) / operations * processes
    for process in range(processes):
        time = random.uniform(0, step)
        while time < seconds - 12:
            out = next((end for begin, end in outages if begin <= time < end), None)
            took = min(random.lognormvariate(-5.3, 0.6), step * 0.9)
            key = random.choice("abcdef")
            if out is not None and random.random() < 0.2:
                kind, name = random.choice(
                    ((Type.INFO, "RequestTimeout: 3 s"), (Type.FAIL, "NotLeader: n2 leads"))
                )
                pen.send(
                    key, None, begin=time, end=out + took, process=process, outcome=kind, error=name
                )
                time = out + took + step
                continue
            if process % 2:
                key = "abcdef"[process // 2 % 6]
                pen.poll({key: [ends[key]]}, begin=time, end=time + took, process=process)
            else:
                pen.send(key, ends[key], begin=time, end=time + took, process=process)
                ends[key] += 1
            time += step
