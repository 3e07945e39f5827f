"""Writes histories of scheduled records by hand, all of the key "k", with a clock of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jepsen_like.history.event import NEMESIS, NODE, WATCH, Event, Type
from tests.jepsen_like.checkers.script import Script

if TYPE_CHECKING:
    from jepsen_like.history.event import Process

NODES = (1, 2, 3)


@dataclass(eq=False)
class Batch:
    """In the log. `values`: None of what was cancelled; of a scheduled batch all are hidden.

    Attributes:
        at: when a delivery was appended, by its leader's clock; None: the batch is scheduled.
    """

    base: int
    epoch: int
    values: list[int | None]
    due: float
    at: float | None = None

    @property
    def end(self) -> int:
        return self.base + len(self.values)


class ScheduleScript(Script):
    """Attributes:
    now: the time of the events that come next, in seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._processes = 100

    def _add(
        self, process: Process, kind: Type, f: str, value: Any = None, node: int | None = None
    ) -> None:
        self.events.append(Event(len(self.events), self.now, process, kind, f, value, node))

    def schedule(
        self,
        values: list[int],
        due: float,
        offsets: list[int | None] | None = None,
        kind: Type = Type.OK,
    ) -> None:
        """Answered at once."""
        self._processes += 1
        asked: dict[str, Any] = {"key": "k", "acks": -1, "values": values, "is_idempotent": True}
        asked["due"] = due
        self.begin(self._processes, "send", asked)
        told = None if offsets is None else {**asked, "offsets": offsets}
        self.end(self._processes, "send", told, kind)

    def cancel(self, value: int, offset: int, kind: Type = Type.OK, why: str = "") -> None:
        self._processes += 1
        asked = {"key": "k", "value": value, "offset": offset}
        self.begin(self._processes, "cancel", asked)
        self.end(self._processes, "cancel", {"why": why} if why else None, kind)

    def read(self, batches: list[Batch], *, process: int = 1) -> None:
        """Deliveries, as they are."""
        records, delivered = list[list[int]](), list[list[float]]()
        for batch in batches:
            assert batch.at is not None, "nobody gets what is scheduled"
            for offset, value in enumerate(batch.values, batch.base):
                if value is not None:
                    records.append([offset, value])
                    delivered.append([offset, batch.due, batch.at])
        told = {"records": [["k", records]], "high_watermarks": [], "delivered": [["k", delivered]]}
        self.begin(process, "poll")
        self.end(process, "poll", told)

    def fault(self, f: str, kind: Type, **told: Any) -> None:
        self._add(NEMESIS, kind, f, {"nodes": [1], **told})

    def pending(self, offsets: list[int]) -> None:
        """As the leader says."""
        self._add(WATCH, Type.OK, "pending", {"keys": [["k", offsets]]})

    def logs(self, batches: list[Batch]) -> None:
        """All nodes have the same."""
        for node in NODES:
            self.log(node, batches)

    def log(self, node: int, batches: list[Batch]) -> None:
        rows: list[list[Any]] = []
        hidden: list[list[Any]] = []
        for batch in batches:
            values = list(batch.values) if batch.at is not None else [None] * len(batch.values)
            rows.append([batch.base, batch.epoch, batch.base + batch.epoch, values])
            if batch.at is None:
                hidden.append([batch.base, list(batch.values)])
        end = batches[-1].end if batches else 0
        told = {"key": "k", "log_start": 0, "high_watermark": end, "batches": rows}
        self._add(NODE, Type.OK, "replica", {**told, "scheduled": hidden}, node)
