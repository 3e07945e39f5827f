"""The types of an account: sends, reads, watermarks and replicas of a key, in columns.

Owns the classes only; `account` fills them. Numbers called `invoked` and `completed` are indexes of
events: they give the order in time, and the place in the history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jepsen_like.checkers.version_order import VersionOrder
from jepsen_like.history.event import ACKS_ALL, Process, Type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Value: TypeAlias = "int | str"  # what a record holds; compared only
NOT_SEEN = -1  # before every event


@dataclass(eq=False, slots=True)
class Send:
    """Attributes:
    completed: None: it never was; then its outcome is unknown.
    offsets: parallel to `values`; None: not acknowledged, or without an offset.
    is_repeated: the client may have sent it more than once.
    failed: values that certainly were not appended.
    is_idempotent: each value is in the log once at most, for any outcome.
    label: name and generation, where other runs may send the same values.
    transaction: its number; outside of any: None. Readers may rightly never get such values.
    due: when its values are to be delivered, in seconds since the run began; None: at once.
    """

    process: Process
    acks: int
    values: list[Value]
    invoked: int
    completed: int | None = None
    outcome: Type = Type.INFO
    offsets: list[int | None] = field(default_factory=list)
    is_repeated: bool = False
    failed: Sequence[Value] = ()
    is_idempotent: bool = False
    label: tuple[str, int] | None = None
    transaction: int | None = None
    due: float | None = None

    @property
    def is_for_all(self) -> bool:
        """The acknowledgement promises that all replicas in sync hold it."""
        return self.acks == ACKS_ALL

    def acknowledged(self) -> Iterator[tuple[Value, int | None]]:
        """Each value that was, and its offset where it is known. One with an offset always was."""
        offsets = self.offsets or [None] * len(self.values)
        pairs = zip(self.values, offsets, strict=True)
        return pairs if self.outcome is Type.OK else (pair for pair in pairs if pair[1] is not None)


@dataclass(eq=False, slots=True)
class Session:
    """What a process reads between two assigns. Its position on other keys is not known.

    Attributes:
        from_beginning: keys that it reads from their first record on.
        is_committed: it gets no record of a transaction that is open or aborted.
    """

    process: Process
    from_beginning: frozenset[str] = frozenset()
    is_committed: bool = True


class Read(NamedTuple):
    """What one poll returned of one key; never empty."""

    session: Session
    invoked: int
    completed: int
    offsets: tuple[int, ...]
    values: tuple[Value, ...]


class Watermark(NamedTuple):
    """What a leader said of its high watermark."""

    epoch: int
    high_watermark: int
    invoked: int
    completed: int


class PolledWatermark(NamedTuple):
    """What a poll said of the end of what is committed of one key."""

    session: Session
    high_watermark: int
    completed: int


Batch: TypeAlias = "tuple[int, int, int, list[Value | None]]"  # base offset, epoch, CRC, values


class Replica(NamedTuple):
    """The log of one node at the end. A None among the values is a control record.

    Attributes:
        transactional: base offset, producer id and epoch of each batch in a transaction.
        markers: offset, producer id, epoch, and whether it commits, of each end of one.
        scheduled: base offset and values of batches that readers do not get; None among `batches`.
    """

    node: int
    event: int
    log_start: int
    high_watermark: int
    batches: list[Batch]
    damage: Sequence[str] = ()
    transactional: Sequence[tuple[int, int, int]] = ()
    markers: Sequence[tuple[int, int, int, bool]] = ()
    scheduled: Sequence[tuple[int, list[Value]]] = ()

    @property
    def log_end(self) -> int:
        return self.batches[-1][0] + len(self.batches[-1][3]) if self.batches else self.log_start

    def in_sync(self) -> Replica:
        """The same with all of it committed, as the high watermark on disk may be an older one."""
        return self._replace(high_watermark=max(self.high_watermark, self.log_end))

    @property
    def hidden_values(self) -> set[Value]:
        return set(chain.from_iterable(values for _, values in self.scheduled))

    def offsets(self) -> Iterator[int]:
        return chain.from_iterable(range(b[0], b[0] + len(b[3])) for b in self.batches)

    def values(self) -> Iterator[Value | None]:
        return chain.from_iterable(batch[3] for batch in self.batches)

    def held(self) -> dict[int, Value | None]:
        """What stands at each offset. Made anew each time: it is large, and soon not needed."""
        return dict(zip(self.offsets(), self.values(), strict=True))


@dataclass(eq=False)
class KeyAccount:
    """All that the history tells of one key.

    Attributes:
        sends: in the order in which they were invoked.
        scheduled: sends of values that are to be delivered later; not among `sends`.
        reads: in the order in which they were completed.
        replicas: by node.
        acknowledged: values sent with acks=all, and their offset where it is known.
        lightly: the same of all other acks: such values may be lost.
        senders: by value, the last that may have done it.
        sent_again: values that more than one operation may have sent.
        leads: by epoch, the nodes that said that they led, and where first.
    leads_said: how often any node said that it leads.
    is_kept: nothing is ever deleted from it.
    """

    key: str
    sends: list[Send] = field(default_factory=list)
    scheduled: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    replicas: dict[int, Replica] = field(default_factory=dict)
    watermarks: list[Watermark] = field(default_factory=list)
    polled_watermarks: list[PolledWatermark] = field(default_factory=list)
    leads: dict[int, dict[int, int]] = field(default_factory=dict)
    leads_said: int = 0
    is_kept: bool = False
    acknowledged: dict[Value, int | None] = field(default_factory=dict)
    lightly: dict[Value, int | None] = field(default_factory=dict)
    senders: dict[Value, Send] = field(default_factory=dict)
    sent_again: set[Value] = field(default_factory=set)

    @cached_property
    def order(self) -> VersionOrder:
        return VersionOrder(self)

    @cached_property
    def read_values(self) -> set[Value]:
        return set(chain.from_iterable(read.values for read in self.reads))

    @cached_property
    def kept_values(self) -> set[Value | None]:
        """What stands in any replica, committed or not."""
        return set(chain.from_iterable(replica.values() for replica in self.replicas.values()))

    @cached_property
    def promised(self) -> dict[Value, int | None]:
        """What must be there: acknowledged by all; or by a leader that led from first to last.

        A node that began to lead only once was neither replaced nor restarted.
        """
        if self.leads_said != 1:
            return self.acknowledged
        placed = {value: offset for value, offset in self.lightly.items() if offset is not None}
        return placed | self.acknowledged

    @cached_property
    def unpromised(self) -> dict[Value, int | None]:
        """The rest of what was acknowledged."""
        return {v: offset for v, offset in self.lightly.items() if v not in self.promised}

    @cached_property
    def log_start(self) -> int:
        """What is before it was deleted, on some node at least."""
        if self.is_kept:
            return 0
        return max((replica.log_start for replica in self.replicas.values()), default=0)

    def stands_once(self, value: Value) -> bool:
        """For certain. Without idempotence, a client that does not know how it ended does not know
        that, either; with it, only what a client has sent by itself once more may stand twice.
        """
        send = self.senders.get(value)
        if send is None or value in self.sent_again:
            return False
        return send.is_idempotent or (send.outcome is Type.OK and not send.is_repeated)

    def in_transaction(self, value: Value) -> int | None:
        """The number of the transaction that sent it."""
        send = self.senders.get(value)
        return None if send is None else send.transaction

    def place(self, value: Value) -> int | None:
        """The last offset at which it is known to have been."""
        place = self.order.last(value)
        return self.lightly.get(value) if place is None else place

    def may_be_deleted(self, value: Value) -> bool:
        place = self.place(value)
        return self.log_start > 0 if place is None else place < self.log_start

    def sighting(self, value: Value) -> str:
        """Where it was seen, by a reader if there is one."""
        for read in self.reads:
            if value in read.values:
                offset = read.offsets[read.values.index(value)]
                return f"read at offset {offset} in event {read.completed}"
        for replica in self.replicas.values():
            for offset, kept in zip(replica.offsets(), replica.values(), strict=True):
                if kept == value:
                    where = f"at offset {offset} in event {replica.event}"
                    return f"kept by node {replica.node} {where}"
        return "seen nowhere"
