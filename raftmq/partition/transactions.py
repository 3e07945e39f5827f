"""Transactions of one partition: what is open in its log, and the last stable offset. Pure.

Owns the producers with a transaction that is open, or ended and not settled yet, and the markers
that may not be committed yet (Kafka: ProducerStateManager.ongoingTxns, unreplicatedTxns). They are
pinned: no limit of time or number forgets them, as the last stable offset would pass over records
that nobody has decided (docs/decisions/0038). Decides nothing: outcomes come from the metadata.

Invariants:
1. The state follows from the batches that were noted, in their order; checks are `admission`'s.
2. `last_stable_offset` is what the log below the high watermark says, or less for a while after
   markers were merged, and while a part of the log could not be read; it falls only where the high
   watermark does, and where the log is read again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import TransactionOutcome
from raftmq.wire.batch.control import ControlType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from raftmq.partition.sequences import ProducerState

    # Of a producer id in one of its epochs, as the newest metadata of this broker have it.
    OutcomeOf = Callable[[int, int], TransactionOutcome]

# Open ones of a partition: each is about 500 bytes of memory, and a fetch can name all of them that
# were aborted in 120 KB.
OPEN_MAX = 5_000
# Markers that are kept apart: a walk in recovery, which does not know the high watermark, meets
# all of a segment. Beyond it neighbours are merged, which only holds the last stable offset back.
MARKERS_MAX = 10_000
NOTED_LONG_AGO = float("-inf")  # found in the log by a walk, or in a snapshot
_MARKERS = {
    TransactionOutcome.COMMITTED: ControlType.COMMIT,
    TransactionOutcome.ABORTED: ControlType.ABORT,
}


class NotedTransaction(NamedTuple):
    """An open one. `noted_at`: when its first batch was appended here, on the caller's clock."""

    producer_epoch: int
    first_offset: int
    noted_at: float = NOTED_LONG_AGO


class EndedTransaction(NamedTuple):
    """What a marker has ended.

    Attributes:
        stable_offset: the first offset of what is still open behind the marker, or else the offset
            after the marker.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int


class MarkerWanted(NamedTuple):
    """A marker of type `kind`, which ends what the producer has open in that epoch."""

    producer_id: int
    producer_epoch: int
    kind: ControlType


class NotedMarker(NamedTuple):
    """A marker, and where the transaction began that it has ended."""

    first_offset: int
    marker_offset: int


class UnreadPart(NamedTuple):
    """What a walk could not read: something in the offsets [begin, end). A transaction may be open
    there, or what began before `end` may have ended there, and nothing else says so."""

    begin: int
    end: int


ALL_READ = UnreadPart(0, 0)


class Transactions:
    """Attributes:
    known: state of each producer with a transaction that is open, or ended and not released.
    open: by producer id, the one that began first comes first.
    markers: those that may be at or above the high watermark. Both offsets rise from one to the
        next: a marker whose transaction began later than that of a later marker changes nothing.
    unread: from the first to the last part that a walk could not read; see `UnreadPart`.
    """

    def __init__(self, markers: Iterable[NotedMarker] = (), unread: UnreadPart = ALL_READ) -> None:
        self.known: dict[int, ProducerState] = {}
        self.open: dict[int, NotedTransaction] = {}
        self.markers = deque(markers)
        self.unread = unread

    def restore(self, states: Iterable[tuple[int, ProducerState]]) -> None:
        """From a snapshot, in any order."""
        for producer_id, state in sorted(states, key=lambda each: each[1].open_offset):
            self.known[producer_id] = state
            if state.open_offset >= 0:
                self.open[producer_id] = NotedTransaction(state.epoch, state.open_offset)

    def note(
        self,
        producer_id: int,
        state: ProducerState,
        now: float = NOTED_LONG_AGO,
    ) -> EndedTransaction | None:
        """`state` is the producer's after a batch of a transaction, or a marker. Returns what the
        batch has ended, if it is a marker."""
        self.known[producer_id] = state
        before = self.open.get(producer_id)
        if state.open_offset >= 0:
            # Another beginning: the marker before it could not be read.
            if before is None or before.first_offset != state.open_offset:
                self.open.pop(producer_id, None)  # to be inserted at the end: it begins last
                self.open[producer_id] = NotedTransaction(state.epoch, state.open_offset, now)
            return None
        if before is None:  # a batch without a transaction, or nothing was open
            return None
        del self.open[producer_id]
        marker = NotedMarker(before.first_offset, state.marker_offset)
        self._note_marker(marker)
        return EndedTransaction(producer_id, *marker, self._first_open(marker.marker_offset + 1))

    def _first_open(self, default: int) -> int:
        return next(iter(self.open.values())).first_offset if self.open else default

    def _note_marker(self, marker: NotedMarker) -> None:
        markers = self.markers
        while markers and markers[-1].first_offset >= marker.first_offset:
            markers.pop()
        markers.append(marker)
        if len(markers) > MARKERS_MAX:
            found = list(markers)
            pairs = zip(found[::2], found[1::2], strict=False)
            merged = [NotedMarker(one.first_offset, two.marker_offset) for one, two in pairs]
            self.markers = deque(merged + found[2 * len(merged) :])

    def last_stable_offset(self, high_watermark: int) -> int:
        """Everything before it is decided, and the markers are committed: Kafka's LSO."""
        decided = self.decided_end(high_watermark)
        return min(decided, self.unread.begin) if self.unread.end else decided

    def decided_end(self, high_watermark: int) -> int:
        """The same, as far as is known: what could not be read does not hold it back."""
        if not self.open and not self.markers:  # no transactions: the usual case
            return high_watermark
        stable = min(self._first_open(high_watermark), high_watermark)
        for marker in self.markers:
            if marker.marker_offset >= high_watermark:
                return min(stable, marker.first_offset)  # later ones began later
        return stable

    def on_high_watermark(self, high_watermark: int) -> None:
        """Markers below it are committed."""
        while self.markers and self.markers[0].marker_offset < high_watermark:
            self.markers.popleft()

    def on_unread(self, begin: int, end: int) -> None:
        """A walk, which goes from the log's beginning to its end, could not read all of these."""
        self.unread = UnreadPart(self.unread.begin if self.unread.end else begin, end)

    def accept_unread(self) -> None:
        """No replica has what could not be read: its markers are lost, others take their place."""
        self.unread = ALL_READ

    def on_log_start(self, offset: int) -> None:
        """Nothing before it can be read any more, nor has to be."""
        if self.unread.end <= offset:
            self.unread = ALL_READ

    def is_doubtful(self, producer_id: int) -> bool:
        """Whether what is open of the producer may go on, or have ended, in an unread batch."""
        transaction = self.open.get(producer_id)
        return transaction is not None and transaction.first_offset < self.unread.end

    # -- outcomes --------------------------------------------------------------------------

    def marker_for(self, producer_id: int, outcome_of: OutcomeOf) -> ControlType | None:
        """The marker that the producer's open transaction needs; None: not decided, as far as is
        known, or nothing is open."""
        transaction = self.open.get(producer_id)
        if transaction is None:
            return None
        marker = _MARKERS.get(outcome_of(producer_id, transaction.producer_epoch))
        # "Aborted" may be said of a commit that is settled: its marker is in what was not read.
        return None if marker is ControlType.ABORT and self.is_doubtful(producer_id) else marker

    def due(
        self, producer_ids: Iterable[int] | None, outcome_of: OutcomeOf, limit: int = OPEN_MAX
    ) -> list[MarkerWanted]:
        """The markers that the open transactions of these producers (None: of all) need now, at
        most `limit` of them."""
        wanted: list[MarkerWanted] = []
        for producer_id in self.open if producer_ids is None else dict.fromkeys(producer_ids):
            kind = self.marker_for(producer_id, outcome_of)
            if kind is not None:
                epoch = self.open[producer_id].producer_epoch
                wanted.append(MarkerWanted(producer_id, epoch, kind))
                if len(wanted) >= limit:
                    break
        return wanted

    def is_ended(
        self, producer_ids: Sequence[int], producer_epoch: int, high_watermark: int
    ) -> bool:
        """Whether nothing of that transaction is open, and no marker of its producers is at or
        above the high watermark."""
        if len(producer_ids) > 1:  # of a whole block of members, few are known here
            producer_ids = [each for each in self.known if each in producer_ids]
        return all(self._is_ended(each, producer_epoch, high_watermark) for each in producer_ids)

    def _is_ended(self, producer_id: int, producer_epoch: int, high_watermark: int) -> bool:
        transaction = self.open.get(producer_id)
        if transaction is not None and transaction.producer_epoch <= producer_epoch:
            return False
        state = self.known.get(producer_id)
        return state is None or state.marker_offset < high_watermark

    def release(
        self, high_watermark: int, outcome_of: OutcomeOf
    ) -> list[tuple[int, ProducerState]]:
        """Take out the producers whose last marker is committed, and of which these metadata know
        the decision: a late batch of that transaction is refused by its outcome from then on."""
        released = [
            (producer_id, state)
            for producer_id, state in self.known.items()
            if producer_id not in self.open
            and state.marker_offset < high_watermark
            and outcome_of(producer_id, state.epoch - 1) in _MARKERS  # a marker has the epoch after
        ]
        for producer_id, _ in released:
            del self.known[producer_id]
        return released
