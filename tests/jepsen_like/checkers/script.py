"""Writes short histories by hand: one line for what a process did and was told.

Owns the numbering. Each method takes down an invocation and its end at once; where operations
overlap, `begin` and `end` are called apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jepsen_like.checkers.verdict import judge
from jepsen_like.history.event import NODE, RUN, WATCH, Event, Type

if TYPE_CHECKING:
    from jepsen_like.checkers.finding import Finding
    from jepsen_like.history.event import Process

Records = list[tuple[int, int]]  # offset and value
Offsets = list[int | None] | None


class Script:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def _add(
        self, process: Process, kind: Type, f: str, value: Any = None, node: int | None = None
    ) -> None:
        index = len(self.events)
        self.events.append(Event(index, index / 10, process, kind, f, value, node))

    def begin(self, process: Process, f: str, value: Any = None) -> None:
        self._add(process, Type.INVOKE, f, value)

    def end(self, process: Process, f: str, value: Any = None, kind: Type = Type.OK) -> None:
        self._add(process, kind, f, value)

    def send(
        self,
        values: list[int],
        offsets: Offsets = None,
        *,
        process: int = 0,
        acks: int = -1,
        kind: Type = Type.OK,
        is_repeated: bool = False,
        failed: list[int] | None = None,
        is_idempotent: bool = False,
    ) -> None:
        """To the key "k"."""
        sent = {"key": "k", "acks": acks, "values": values}
        sent |= {"is_idempotent": True} if is_idempotent else {}
        self.begin(process, "send", sent)
        told = {**sent, "offsets": offsets, "is_repeated": is_repeated} if offsets else None
        if failed:
            told = {**(told or sent), "failed": failed}
        self.end(process, "send", told, kind)

    def send_many(self, count: int) -> None:
        """Values 0 to `count`, each at the offset of its number."""
        self.send(list(range(count)), list(range(count)))

    def poll(self, records: Records, *, process: int = 1, kind: Type = Type.OK) -> None:
        self.begin(process, "poll")
        pairs = [[offset, value] for offset, value in records]
        self.end(process, "poll", {"records": [["k", pairs]], "high_watermarks": []}, kind)

    def poll_watermark(self, high_watermark: int, *, process: int = 1) -> None:
        self.begin(process, "poll")
        told = {"records": [["k", []]], "high_watermarks": [["k", high_watermark]]}
        self.end(process, "poll", told)

    def assign(self, start: str = "beginning", *, process: int = 1) -> None:
        value = {"keys": ["k"], "from": start}
        self.begin(process, "assign", value)
        self.end(process, "assign", value)

    def watermark(self, epoch: int, high_watermark: int, *, process: int = 1) -> None:
        self.begin(process, "watermark", {"key": "k"})
        self.end_watermark(epoch, high_watermark, process=process)

    def end_watermark(self, epoch: int, high_watermark: int, *, process: int) -> None:
        told = {"key": "k", "epoch": epoch, "high_watermark": high_watermark}
        self.end(process, "watermark", told)

    def crash(self, process: int) -> None:
        self._add(process, Type.INFO, "crash")

    def leads(self, node: int, epoch: int) -> None:
        self._add(NODE, Type.INFO, "leads", {"key": "k", "epoch": epoch}, node)

    def phase(self, name: str) -> None:
        self._add(RUN, Type.INFO, "phase", name)

    def whole(self, count: int) -> None:
        """So many of two partitions have all replicas in sync."""
        self._add(WATCH, Type.OK, "isr", {"partitions": 2, "led": 2, "whole": count})

    def look(self, count: int | None) -> None:
        """The same; None: nobody answers."""
        if count is None:
            self._add(WATCH, Type.FAIL, "isr")
        else:
            self.whole(count)

    def keeps(self, replicas: int) -> None:
        self._add(WATCH, Type.OK, "keeps", {"replicas": replicas})

    def replica(
        self,
        node: int,
        values: list[int | None],
        *,
        high_watermark: int | None = None,
        log_start: int = 0,
        epochs: list[int] | None = None,
    ) -> None:
        """Batches of one record each, from `log_start` on; a CRC is that of its value."""
        epochs = epochs or [1] * len(values)
        batches = [
            [offset, epoch, hash(value), [value]]
            for offset, (epoch, value) in enumerate(zip(epochs, values, strict=True), log_start)
        ]
        end = log_start + len(values)
        self.dump(node, batches, end if high_watermark is None else high_watermark, log_start)

    def dump(
        self,
        node: int,
        batches: list[list[Any]],
        high_watermark: int,
        log_start: int = 0,
        *,
        damage: list[str] | None = None,
    ) -> None:
        told = {"key": "k", "log_start": log_start, "high_watermark": high_watermark}
        told |= {"damage": damage} if damage else {}
        self._add(NODE, Type.OK, "replica", {**told, "batches": batches}, node)

    def finding(self, name: str) -> Finding:
        return next(found for found in judge(self.events).findings if found.name == name)

    def found(self) -> dict[str, int]:
        """How often what was found; nothing that was not."""
        return {finding.name: finding.count for finding in judge(self.events).failures}
