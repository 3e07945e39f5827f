"""Rules of a snapshot transfer between nodes: sender and receiver state machines, chunk by chunk.

    sender     offer ────────▶ fetching ── last chunk written ─▶ verifying ─▶ installing ─▶ idle
               chunk ─▶ write    │  ▲
               gone ──▶ idle     └──┘ silence: ask again

Pure: owns offsets and decisions; bytes pass only through `on_chunk`, time is an argument. The
receiver pulls: chunks are sent only on request, and at most two are in flight or waiting for its
disk. The caller must perform the effects in order, one at a time, and answer each WriteChunk,
Finish and Install with one call.
"""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20  # of one message; must fit into `messages.FRAME_BYTES_MAX`
WINDOW_CHUNKS = 2  # in flight: one is sent while one is written
# The most that a node accepts or writes, far above any image that fits into memory (203 MB hold
# a million offsets, decision 0010): a wrong offer must not fill the disk.
SNAPSHOT_BYTES_MAX = 8 << 30
INDEX_MAX = (1 << 63) - 1  # of `messages.Natural`
TERM_MAX = 10**10 - 1  # ten digits in the file name
CRC_MAX = (1 << 32) - 1

# A peer that asks for no chunk for so long does not read the snapshot any more: its file is closed.
# Longer than a receiver's wait for its disk, as a closed snapshot must be fetched from the start.
READER_IDLE_SECONDS = 30.0
ANSWER_SECONDS = 2.0  # without a chunk: repeat the request; answers are idempotent
FAILURE_PAUSE_SECONDS = 5.0  # after an error of the disk, or a damaged snapshot


@dataclass(frozen=True, order=True, slots=True)
class SnapshotId:
    """Equal ids mean equal bytes, on any node."""

    index: int
    term: int
    size_bytes: int
    crc: int


class SendChunk(NamedTuple):
    """Read these bytes and send them to the peer."""

    peer: int
    snapshot: SnapshotId
    offset: int
    length: int


class SendGone(NamedTuple):
    """Tell the peer to begin again, with the next snapshot that it is offered."""

    peer: int
    snapshot: SnapshotId


class CloseReader(NamedTuple):
    """No peer reads this old snapshot any more: close its file, so that its space is freed."""

    snapshot: SnapshotId


class _Use(NamedTuple):
    """The snapshot that a peer was last offered, or last asked for."""

    snapshot: SnapshotId
    last_used: float


class SnapshotSender:
    """Which snapshots a node sends, and which of its old ones are still being read.

    The newest one is open from `on_newest` on, an older one as long as a peer reads it.
    """

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._newest: SnapshotId | None = None
        self._open: set[SnapshotId] = set()
        self._uses: dict[int, _Use] = {}  # by peer

    def on_newest(self, snapshot: SnapshotId, now: float) -> list[CloseReader]:
        """There is a new snapshot, and an open reader for it."""
        self._newest = snapshot
        self._open.add(snapshot)
        return self.on_tick(now)

    def offer(self, peer: int, now: float) -> SnapshotId | None:
        """The snapshot to offer to a peer whose next entry was compacted.

        The offered one stays open until the peer asks; one that it reads already stays open, too.
        """
        use = self._uses.get(peer)
        is_free = use is None or use.snapshot == self._newest or not self._is_reading(peer, now)
        if self._newest and is_free:  # one that the peer still reads stays open instead
            self._uses[peer] = _Use(self._newest, now)
        return self._newest

    def on_fetch(
        self, peer: int, snapshot: SnapshotId, offset: int, now: float
    ) -> SendChunk | SendGone:
        """Answer a request.

        Raises:
            RemoteProtocolError: there is no such offset.
        """
        if snapshot not in self._open:  # replaced while the peer was idle
            return SendGone(peer, snapshot)
        if not 0 <= offset < snapshot.size_bytes:  # a faulty peer
            raise RemoteProtocolError(
                f"peer {peer} asks for offset {offset} of a snapshot of {snapshot.size_bytes} bytes"
            )
        self._uses[peer] = _Use(snapshot, now)
        length = min(self._chunk_bytes, snapshot.size_bytes - offset)
        return SendChunk(peer, snapshot, offset, length)

    def on_tick(self, now: float) -> list[CloseReader]:
        self._uses = {peer: use for peer, use in self._uses.items() if self._is_reading(peer, now)}
        used = {use.snapshot for use in self._uses.values()} | {self._newest}
        unused = sorted(self._open - used)
        self._open.difference_update(unused)
        return [CloseReader(snapshot) for snapshot in unused]

    def _is_reading(self, peer: int, now: float) -> bool:
        use = self._uses.get(peer)
        return use is not None and now - use.last_used < READER_IDLE_SECONDS


class FetchChunk(NamedTuple):
    """Ask the leader for the chunk at `offset`."""

    leader: int
    snapshot: SnapshotId
    offset: int


class WriteChunk(NamedTuple):
    """Write; then `on_written` or `on_failed`."""

    snapshot: SnapshotId
    offset: int
    data: bytes


class Finish(NamedTuple):
    """All bytes are written: verify, make durable; then `on_verified` or `on_failed`."""

    snapshot: SnapshotId


class Install(NamedTuple):
    """Decode and install it; then `on_installed` or `on_failed`."""

    snapshot: SnapshotId


class Discard(NamedTuple):
    """Remove the bytes written of it."""

    snapshot: SnapshotId


ReceiverEffect: TypeAlias = FetchChunk | WriteChunk | Finish | Install | Discard


class ReceiverState(Enum):
    IDLE = "idle"
    FETCHING = "fetching"
    VERIFYING = "verifying"
    INSTALLING = "installing"


class _Progress:
    """Progress of one snapshot. Invariant: written <= received <= requested <= size."""

    def __init__(self, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self.written = self.received = self.requested = 0


class SnapshotReceiver:
    """Fetches one snapshot at a time and survives the loss of chunks, connections and leaders.

    Attributes:
        state: of the transfer; while IDLE, bytes received so far are kept for the next offer.
    """

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.state = ReceiverState.IDLE
        self._chunk_bytes = chunk_bytes
        self._term, self._leader = 0, 0
        self._progress: _Progress | None = None
        self._writes: deque[_Progress] = deque()  # of the WriteChunks without an answer
        self._caught_up_index = -1
        self._asked_at = 0.0  # time of the last request or answer
        self._paused_until = float("-inf")

    @property
    def snapshot(self) -> SnapshotId | None:
        """The snapshot that is being fetched, or of which a part is kept."""
        return self._progress.snapshot if self._progress else None

    @property
    def written_bytes(self) -> int:
        return self._progress.written if self._progress else 0

    @property
    def deadline(self) -> float | None:
        """When `on_tick` must repeat the request, if no chunk comes before."""
        return self._asked_at + ANSWER_SECONDS if self._is_waiting() else None

    def on_offer(
        self, term: int, leader: int, snapshot: SnapshotId, now: float
    ) -> list[ReceiverEffect]:
        """A leader's log begins behind this node's next entry: it offers a snapshot.

        Cases:
          1. from a deposed leader, of entries that this node has, or soon after a failure: ignore;
          2. while verifying or installing: finish that one first, it is committed as well;
          3. while fetching from this leader: continue, even if it has a newer one by now;
          4. while fetching from another leader: ask this one for the rest if the bytes are the
             same, and begin again if not;
          5. idle: continue with the kept part, or begin.

        Raises:
            RemoteProtocolError: no snapshot can have such a size, index or term.
        """
        _check_plausible(leader, snapshot)
        is_known = snapshot.index <= self._caught_up_index
        if term < self._term or is_known or now < self._paused_until:  # case 1
            return []
        is_same_leader = leader == self._leader
        self._term, self._leader = term, leader
        match self.state:
            case ReceiverState.VERIFYING | ReceiverState.INSTALLING:  # case 2
                return []
            case ReceiverState.FETCHING if is_same_leader:  # case 3
                return []
        return self._begin(snapshot, now)

    def on_chunk(
        self, snapshot: SnapshotId, offset: int, data: bytes, now: float
    ) -> list[ReceiverEffect]:
        """A chunk, from any peer: equal ids mean equal bytes. One not requested is ignored.

        Raises:
            RemoteProtocolError: the requested chunk has the wrong length.
        """
        progress = self._fetching(snapshot)
        # A repeated answer, one of another snapshot, or one that was never requested.
        if not progress or offset != progress.received or progress.received == progress.requested:
            return []
        length = min(self._chunk_bytes, snapshot.size_bytes - offset)
        if len(data) != length:  # a faulty peer: equal ids mean equal chunks
            what = f"{len(data)} bytes instead of {length} at offset {offset} of {snapshot}"
            raise RemoteProtocolError(f"a chunk of {what}")
        progress.received += length
        self._writes.append(progress)
        self._asked_at = now
        return [WriteChunk(snapshot, offset, data)]

    def on_written(self, snapshot: SnapshotId, now: float) -> list[ReceiverEffect]:
        """The oldest pending WriteChunk is done."""
        progress = self._take_write(snapshot)
        left = snapshot.size_bytes - progress.written
        progress.written += min(self._chunk_bytes, left)
        return self._go_on(now)

    def on_verified(self, snapshot: SnapshotId) -> list[ReceiverEffect]:
        """The Finish is done."""
        self._check_at(ReceiverState.VERIFYING, snapshot)
        if snapshot.index <= self._caught_up_index:  # entries have arrived meanwhile
            self._end()
            return []
        self.state = ReceiverState.INSTALLING
        return [Install(snapshot)]

    def on_installed(self, snapshot: SnapshotId) -> None:
        """The Install is done."""
        self._check_at(ReceiverState.INSTALLING, snapshot)
        self._end()
        self._caught_up_index = max(self._caught_up_index, snapshot.index)

    def on_failed(self, snapshot: SnapshotId, now: float) -> list[ReceiverEffect]:
        """The oldest pending effect failed: discard the snapshot, and pause before the next try."""
        if self.state in (ReceiverState.VERIFYING, ReceiverState.INSTALLING):
            self._check_at(self.state, snapshot)
        elif self._take_write(snapshot) is not self._progress:
            return self._go_on(now)  # a write of an attempt that was given up before
        self._end()
        self._paused_until = now + FAILURE_PAUSE_SECONDS
        return [Discard(snapshot)]

    def on_caught_up(self, index: int) -> list[ReceiverEffect]:
        """This node has committed entries up to `index`: no snapshot of less is needed.

        One that is being verified or installed already is finished.
        """
        self._caught_up_index = max(self._caught_up_index, index)
        snapshot = self.snapshot
        is_busy = self.state in (ReceiverState.VERIFYING, ReceiverState.INSTALLING)
        # Nothing is fetched, it must be finished, or it is still needed.
        if snapshot is None or is_busy or snapshot.index > index:
            return []
        self._end()
        return [Discard(snapshot)]

    def on_gone(self, leader: int, snapshot: SnapshotId) -> None:
        """The leader has replaced it: its next offer is of a newer one. The bytes received so far
        are kept, as another leader may have this one.
        """
        # Else an old answer, or from a leader that was deposed.
        if leader == self._leader and self._fetching(snapshot):
            self.state = ReceiverState.IDLE

    def on_tick(self, now: float) -> list[ReceiverEffect]:
        """Repeat the request if no chunk came within ANSWER_SECONDS."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return []
        return self._ask_again(now)

    def _begin(self, snapshot: SnapshotId, now: float) -> list[ReceiverEffect]:
        """Resume if a part of this snapshot is kept; a part of another one is discarded."""
        effects: list[ReceiverEffect] = []
        # Equal ids mean equal bytes; others cannot be mixed.
        if self._progress and self._progress.snapshot != snapshot:
            effects.append(Discard(self._progress.snapshot))
            self._progress = None
        self._progress = self._progress or _Progress(snapshot)
        self.state = ReceiverState.FETCHING
        return effects + self._ask_again(now)

    def _end(self) -> None:
        self.state, self._progress = ReceiverState.IDLE, None

    def _ask_again(self, now: float) -> list[ReceiverEffect]:
        assert self._progress
        self._progress.requested = self._progress.received
        self._asked_at = now
        return self._go_on(now)

    def _go_on(self, now: float) -> list[ReceiverEffect]:
        """Request chunks up to the window; after the last one, have the file verified."""
        progress = self._progress
        if self.state is not ReceiverState.FETCHING or not progress:  # ended or paused meanwhile
            return []
        if progress.written == progress.snapshot.size_bytes:  # all chunks are on the disk
            self.state = ReceiverState.VERIFYING
            return [Finish(progress.snapshot)]
        return list(self._requests(progress, now))

    def _requests(self, progress: _Progress, now: float) -> Iterator[FetchChunk]:
        size_bytes = progress.snapshot.size_bytes
        while progress.requested < size_bytes and self._outstanding(progress) < WINDOW_CHUNKS:
            if progress.requested == progress.received:  # none was in flight: the timeout begins
                self._asked_at = now
            yield FetchChunk(self._leader, progress.snapshot, progress.requested)
            progress.requested = min(progress.requested + self._chunk_bytes, size_bytes)

    def _outstanding(self, progress: _Progress) -> int:
        """Chunks in flight, and chunks that wait for the disk."""
        on_their_way = -(-(progress.requested - progress.received) // self._chunk_bytes)
        return on_their_way + len(self._writes)

    def _take_write(self, snapshot: SnapshotId) -> _Progress:
        """The attempt whose WriteChunk was answered; maybe an earlier one at the same snapshot."""
        assert self._writes, f"an answer to no WriteChunk of {snapshot}"
        progress = self._writes.popleft()
        assert progress.snapshot == snapshot, f"{progress.snapshot} was to be written before"
        return progress

    def _fetching(self, snapshot: SnapshotId) -> _Progress | None:
        is_it = self.state is ReceiverState.FETCHING and self.snapshot == snapshot
        return self._progress if is_it else None

    def _is_waiting(self) -> bool:
        progress = self._progress
        is_fetching = self.state is ReceiverState.FETCHING
        return is_fetching and progress is not None and progress.received < progress.requested

    def _check_at(self, state: ReceiverState, snapshot: SnapshotId) -> None:
        assert (self.state, self.snapshot) == (state, snapshot), f"{self.state} {self.snapshot}"


def _check_plausible(leader: int, snapshot: SnapshotId) -> None:
    """Refuse an offer whose size or file name would be impossible."""
    limits = (INDEX_MAX, TERM_MAX, SNAPSHOT_BYTES_MAX, CRC_MAX)
    problems = [
        f"{field.name} {value}, allowed are 0 to {limit}"
        for field, value, limit in zip(fields(snapshot), astuple(snapshot), limits, strict=True)
        if not 0 <= value <= limit
    ]
    if snapshot.size_bytes == 0:  # see `format`: header and trailer
        problems.append("size_bytes 0, but even an empty one has a header")
    if problems:
        raise RemoteProtocolError(f"node {leader} offers a snapshot with {'; '.join(problems)}")
