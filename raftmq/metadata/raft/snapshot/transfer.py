"""Who asks whom for which bytes of a snapshot: the two ends of a transfer, as pure rules.

    sender     offer ────────▶ fetching ── last chunk written ─▶ verifying ─▶ installing ─▶ idle
               chunk ─▶ write    │  ▲
               gone ──▶ idle     └──┘ silence: ask again

Owns offsets and decisions; bytes pass through `on_chunk` only, and time is handed in. The receiver
drives: what it does not ask for is never sent, and at most two chunks are on their way or waiting
for its disk. Whoever carries out the effects does so in order, one at a time, and answers each
WriteChunk, Finish and Install with one call.
"""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
WINDOW_CHUNKS = 2  # one on its way while one is written
SNAPSHOT_BYTES_MAX = 8 << 30
INDEX_MAX = (1 << 63) - 1
TERM_MAX = 10**10 - 1
CRC_MAX = (1 << 32) - 1

READER_IDLE_SECONDS = 30.0
ANSWER_SECONDS = 2.0
FAILURE_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, order=True, slots=True)
class SnapshotId:
    """Equal ids mean equal bytes, whichever node they are on."""

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
    """Tell the peer that it must begin anew, with the snapshot that it is offered next."""

    peer: int
    snapshot: SnapshotId


class CloseReader(NamedTuple):
    """Nobody reads this old snapshot any more: drop the open file, so that its space is freed."""

    snapshot: SnapshotId


class _Use(NamedTuple):
    """The snapshot that a peer was offered, or asked for, last."""

    snapshot: SnapshotId
    last_used: float


class SnapshotSender:
    """Which snapshots a node hands out, and which of its old ones are still being read.

    The newest one is open from `on_newest` on, an older one for as long as a peer reads it.
    """

    def __init__(
        self, *, chunk_bytes: int = CHUNK_BYTES, idle_seconds: float = READER_IDLE_SECONDS
    ) -> None:
        self._chunk_bytes, self._idle_seconds = chunk_bytes, idle_seconds
        self._newest: SnapshotId | None = None
        self._open: set[SnapshotId] = set()
        self._uses: dict[int, _Use] = {}  # by peer

    def on_newest(self, snapshot: SnapshotId, now: float) -> list[CloseReader]:
        """There is a new snapshot, and an open reader for it."""
        self._newest = snapshot
        self._open.add(snapshot)
        return self.on_tick(now)

    def offer(self, peer: int, now: float) -> SnapshotId | None:
        """What to offer to a peer whose next entry is gone from the log.

        The peer may take its time to ask; what it reads already stays open as well.
        """
        use = self._uses.get(peer)
        is_free = use is None or use.snapshot == self._newest or not self._is_reading(peer, now)
        if self._newest and is_free:
            self._uses[peer] = _Use(self._newest, now)
        return self._newest

    def on_fetch(
        self, peer: int, snapshot: SnapshotId, offset: int, now: float
    ) -> SendChunk | SendGone:
        """Answer a request.

        Raises:
            RemoteProtocolError: there is no such offset.
        """
        if snapshot not in self._open:
            return SendGone(peer, snapshot)
        if not 0 <= offset < snapshot.size_bytes:
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
        return use is not None and now - use.last_used < self._idle_seconds


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
    """Decode it and become it; then `on_installed` or `on_failed`."""

    snapshot: SnapshotId


class Discard(NamedTuple):
    """Throw away what was written of it."""

    snapshot: SnapshotId


ReceiverEffect: TypeAlias = FetchChunk | WriteChunk | Finish | Install | Discard


class ReceiverState(Enum):
    IDLE = "idle"
    FETCHING = "fetching"
    VERIFYING = "verifying"
    INSTALLING = "installing"


class _Progress:
    """How far a snapshot got. Invariant: written <= received <= requested <= size."""

    def __init__(self, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self.written = self.received = self.requested = 0


class SnapshotReceiver:
    """Fetches one snapshot at a time and survives the loss of chunks, connections and leaders.

    Attributes:
        state: where the transfer stands; while IDLE, its bytes wait for a leader who offers them.
    """

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.state = ReceiverState.IDLE
        self._chunk_bytes = chunk_bytes
        self._term, self._leader = 0, 0
        self._progress: _Progress | None = None
        self._writes: deque[_Progress] = deque()  # the WriteChunks without an answer
        self._caught_up_index = -1
        self._asked_at = 0.0  # or when the last answer came
        self._paused_until = float("-inf")

    @property
    def snapshot(self) -> SnapshotId | None:
        """The one that is being fetched, or of which a part is kept."""
        return self._progress.snapshot if self._progress else None

    @property
    def written_bytes(self) -> int:
        return self._progress.written if self._progress else 0

    @property
    def deadline(self) -> float | None:
        """When `on_tick` has something to do, if nothing happens before."""
        return self._asked_at + ANSWER_SECONDS if self._is_waiting() else None

    def on_offer(
        self, term: int, leader: int, snapshot: SnapshotId, now: float
    ) -> list[ReceiverEffect]:
        """A leader has no log for us, but this.

        Cases:
          1. from a deposed leader, of what this node has anyway, or soon after a failure: no;
          2. while verifying or installing: that one first, it is committed as well;
          3. while fetching from this leader: go on, even if it has a newer one by now;
          4. while fetching from another leader: ask this one for the rest if the bytes are the
             same, and begin anew if not;
          5. idle: go on with what is kept, or begin.

        Raises:
            RemoteProtocolError: no snapshot can be like this.
        """
        _check_plausible(leader, snapshot)
        is_known = snapshot.index <= self._caught_up_index
        if term < self._term or is_known or now < self._paused_until:
            return []
        is_same_leader = leader == self._leader
        self._term, self._leader = term, leader
        match self.state:
            case ReceiverState.VERIFYING | ReceiverState.INSTALLING:
                return []
            case ReceiverState.FETCHING if is_same_leader:
                return []
        return self._begin(snapshot, now)

    def on_chunk(
        self, snapshot: SnapshotId, offset: int, data: bytes, now: float
    ) -> list[ReceiverEffect]:
        """Bytes, from whomever: equal ids mean equal bytes. What is not due is ignored.

        Raises:
            RemoteProtocolError: it is due, but has the wrong length.
        """
        progress = self._fetching(snapshot)
        if not progress or offset != progress.received or progress.received == progress.requested:
            return []
        length = min(self._chunk_bytes, snapshot.size_bytes - offset)
        if len(data) != length:
            what = f"{len(data)} bytes instead of {length} at offset {offset} of {snapshot}"
            raise RemoteProtocolError(f"a chunk of {what}")
        progress.received += length
        self._writes.append(progress)
        self._asked_at = now
        return [WriteChunk(snapshot, offset, data)]

    def on_written(self, snapshot: SnapshotId, now: float) -> list[ReceiverEffect]:
        """The oldest WriteChunk without an answer is done."""
        progress = self._take_write(snapshot)
        left = snapshot.size_bytes - progress.written
        progress.written += min(self._chunk_bytes, left)
        return self._go_on(now)

    def on_verified(self, snapshot: SnapshotId) -> list[ReceiverEffect]:
        """The Finish is done."""
        self._check_at(ReceiverState.VERIFYING, snapshot)
        if snapshot.index <= self._caught_up_index:
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
        """The oldest effect without an answer was not possible: after a pause, all over again."""
        if self.state in (ReceiverState.VERIFYING, ReceiverState.INSTALLING):
            self._check_at(self.state, snapshot)
        elif self._take_write(snapshot) is not self._progress:
            return self._go_on(now)  # that one was given up before
        self._end()
        self._paused_until = now + FAILURE_PAUSE_SECONDS
        return [Discard(snapshot)]

    def on_caught_up(self, index: int) -> list[ReceiverEffect]:
        """This node has what entries up to `index` did: no snapshot of less is wanted.

        One that is being verified or installed already comes to its end.
        """
        self._caught_up_index = max(self._caught_up_index, index)
        snapshot = self.snapshot
        is_busy = self.state in (ReceiverState.VERIFYING, ReceiverState.INSTALLING)
        if snapshot is None or is_busy or snapshot.index > index:
            return []
        self._end()
        return [Discard(snapshot)]

    def on_gone(self, leader: int, snapshot: SnapshotId) -> None:
        """The leader has it no more. Its next offer is of a newer one; another may have this."""
        if leader == self._leader and self._fetching(snapshot):
            self.state = ReceiverState.IDLE

    def on_tick(self, now: float) -> list[ReceiverEffect]:
        """Ask again if the leader has been silent for too long."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return []
        return self._ask_again(now)

    def _begin(self, snapshot: SnapshotId, now: float) -> list[ReceiverEffect]:
        """Resume if it is what we have a part of; anything else is given up."""
        effects: list[ReceiverEffect] = []
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
        """Ask for as much as there is room for; at the end, have it verified."""
        progress = self._progress
        if self.state is not ReceiverState.FETCHING or not progress:
            return []
        if progress.written == progress.snapshot.size_bytes:
            self.state = ReceiverState.VERIFYING
            return [Finish(progress.snapshot)]
        return list(self._requests(progress, now))

    def _requests(self, progress: _Progress, now: float) -> Iterator[FetchChunk]:
        size_bytes = progress.snapshot.size_bytes
        while progress.requested < size_bytes and self._outstanding(progress) < WINDOW_CHUNKS:
            if progress.requested == progress.received:
                self._asked_at = now
            yield FetchChunk(self._leader, progress.snapshot, progress.requested)
            progress.requested = min(progress.requested + self._chunk_bytes, size_bytes)

    def _outstanding(self, progress: _Progress) -> int:
        """Chunks on their way, and chunks that wait for the disk."""
        on_their_way = -(-(progress.requested - progress.received) // self._chunk_bytes)
        return on_their_way + len(self._writes)

    def _take_write(self, snapshot: SnapshotId) -> _Progress:
        """Whose WriteChunk was answered: maybe of an earlier attempt at the same snapshot."""
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
    """What an offer may claim; a file of that size must be possible, and a name for it."""
    limits = (INDEX_MAX, TERM_MAX, SNAPSHOT_BYTES_MAX, CRC_MAX)
    problems = [
        f"{field.name} {value}, allowed are 0 to {limit}"
        for field, value, limit in zip(fields(snapshot), astuple(snapshot), limits, strict=True)
        if not 0 <= value <= limit
    ]
    if snapshot.size_bytes == 0:
        problems.append("size_bytes 0, but even an empty one has a header")
    if problems:
        raise RemoteProtocolError(f"node {leader} offers a snapshot with {'; '.join(problems)}")
