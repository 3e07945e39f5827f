"""What a history tells of scheduled records: due times, cancels, deliveries, clocks; by value.

Owns the pairing, and by how much a broker's clock may have been wrong at a time: as far as faults
of kind "clock" say. Times are seconds since the run began; judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jepsen_like.checkers.columns import KeyAccount, Send, Value
    from jepsen_like.history.event import Event, Process

CANCELLED = "cancelled"  # before: why a cancel is refused
CLOCK_BOUND_SECONDS = 0.1  # by which clocks may differ that no fault has touched
# Errors after which an original is read once more, and what is due later is delivered meanwhile.
OF_DISKS = frozenset(
    {"bitflip", "truncate", "old-directory", "disk-full", "disk-stall", "fsync-eio", "fsync-slow"}
)


class Cancel(NamedTuple):
    """One request. INFO: it may have been carried out. `why`: of one that was refused."""

    kind: Type
    invoked: int
    completed: int | None
    why: str = ""


class Stamp(NamedTuple):
    """What a record that was delivered says: when it was due; when that was, by its leader."""

    due: float
    at: float


@dataclass(eq=False, slots=True)
class FaultSpan:
    """`ahead`: by so many seconds some clock was; behind, if it is negative."""

    kind: str
    nodes: Sequence[int]
    begin: float
    end: float = float("inf")
    ahead: float = 0.0

    def meets(self, begin: float, end: float) -> bool:
        return self.begin <= end and self.end >= begin


class Seen(NamedTuple):
    """Where and when a reader first got a record: offset, event, time."""

    offset: int
    event: int
    time: float


@dataclass(eq=False, slots=True)
class Scheduled:
    """One value that was to be delivered later.

    Attributes:
        due: at the earliest: the delay counts from the call.
        offset: where it was acknowledged; None: it was not.
        first: None: no reader got it.
    """

    key: KeyAccount
    value: Value
    send: Send
    due: float
    sent_at: float
    offset: int | None = None
    first: Seen | None = None
    cancels: Sequence[Cancel] = ()

    @property
    def is_acknowledged(self) -> bool:
        return self.offset is not None

    @property
    def is_delivered(self) -> bool:
        """A reader got it, or the replicas have it among what is committed."""
        return self.key.order.first(self.value) is not None

    @property
    def cancelled(self) -> Cancel | None:
        """The request that was answered to have cancelled it, or to have found it cancelled."""
        return next(
            (one for one in self.cancels if one.kind is Type.OK or one.why == CANCELLED), None
        )

    @property
    def may_be_cancelled(self) -> bool:
        """By a request of a client: a refusal alone is no reason."""
        return any(one.kind is not Type.FAIL for one in self.cancels)

    def __str__(self) -> str:
        at = "" if self.offset is None else f", acknowledged at offset {self.offset}"
        sent = f"sent in event {self.send.invoked}{at}"
        return f"key {self.key.key!r}, value {self.value!r}, {sent}, due at {self.due:.3f} s"


@dataclass(eq=False)
class ScheduleAccount:
    """Attributes:
    keys: of the account.
    times: of each event, by its index.
    faults: those that were done, in the order of their beginning.
    stamps: by key and offset, what delivered records say.
    last_reads: by key, when the last of the last readers began.
    pending: by key, offsets of what its leader has still to deliver, asked after the last reads.
    pending_at: when it was asked.
    """

    keys: Mapping[str, KeyAccount]
    times: Sequence[float]
    faults: list[FaultSpan] = field(default_factory=list)
    stamps: dict[str, dict[int, Stamp]] = field(default_factory=dict)
    last_reads: dict[str, float] = field(default_factory=dict)
    pending: dict[str, set[int]] = field(default_factory=dict)
    pending_at: float = 0.0
    scheduled: list[Scheduled] = field(default_factory=list)
    _cancels: dict[tuple[str, Value], list[Cancel]] = field(default_factory=dict)
    _open: dict[Process, tuple[Event, tuple[str, Value]]] = field(default_factory=dict)

    # -- what happens ----------------------------------------------------------------------

    def on_cancel(self, began: Event, ended: Event | None) -> None:
        """`ended`: None: it never did."""
        asked = began.value
        kind = Type.INFO if ended is None else ended.type
        told = (ended.value if ended is not None else None) or {}
        completed = None if ended is None else ended.index
        cancel = Cancel(kind, began.index, completed, told.get("why", ""))
        self._cancels.setdefault((asked["key"], asked["value"]), []).append(cancel)

    def on_poll(self, event: Event) -> None:
        for key, stamps in (event.value or {}).get("delivered", ()):
            known = self.stamps.setdefault(key, {})
            for offset, due, at in stamps:
                known.setdefault(offset, Stamp(due, at))

    def on_pending(self, event: Event) -> None:
        self.pending_at = event.time
        self.pending = {key: set(offsets) for key, offsets in event.value["keys"]}

    def on_last_reader(self, event: Event, keys: frozenset[str]) -> None:
        self.last_reads |= dict.fromkeys(keys, event.time)

    def on_fault(self, event: Event) -> None:
        value = event.value or {}
        nodes = tuple(value.get("nodes", ()))
        if event.type is Type.INVOKE:
            ahead = value.get("offset_ms", 0) / 1000
            self.faults.append(FaultSpan(event.f, nodes, event.time, ahead=ahead))
            return
        under_way = [
            span for span in self.faults if span.kind == event.f and span.end == float("inf")
        ]
        of_these = [span for span in under_way if span.nodes == nodes] or under_way
        if of_these and "skipped" in value:
            self.faults.remove(of_these[0])
        elif of_these:
            of_these[0].end = event.time

    def end(self) -> None:
        """All sends and cancels have ended."""
        for key in self.keys.values():
            if key.scheduled:
                self.scheduled += self._of(key)

    def _of(self, key: KeyAccount) -> Iterator[Scheduled]:
        found: dict[Value, Scheduled] = {}
        for send in key.scheduled:
            assert send.due is not None, "it is scheduled"
            offsets = dict(send.acknowledged())
            for value in send.values:
                cancels = self._cancels.get((key.key, value), ())
                one = Scheduled(key, value, send, send.due, self.times[send.invoked])
                one.offset, one.cancels = offsets.get(value), cancels
                found[value] = one
        for read in key.reads:
            for offset, value in zip(read.offsets, read.values, strict=True):
                if value in found and found[value].first is None:
                    time = self.times[read.completed]
                    found[value].first = Seen(offset, read.completed, time)
        yield from found.values()

    # -- clocks and faults -----------------------------------------------------------------

    def ahead(self, begin: float, end: float) -> float:
        """By so much the clock of any leader may have been ahead at some moment between."""
        spans = [span.ahead for span in self.faults if span.meets(begin, end)]
        return CLOCK_BOUND_SECONDS + max(0.0, *spans, 0.0)

    def is_clock_touched(self, begin: float, end: float) -> bool:
        return any(span.ahead and span.meets(begin, end) for span in self.faults)

    def is_quiet(self, begin: float, end: float) -> bool:
        return not any(span.meets(begin, end) for span in self.faults)

    @property
    def has_disk_faults(self) -> bool:
        return any(span.kind in OF_DISKS for span in self.faults)
