"""What a leader sends to each follower, and how much of it at once.

Owns the flow towards followers: batches, the bytes in flight, one message at a time until the
logs are known to match, and the offer of a snapshot where the log does not reach back. Replaces
PySyncObj's own loop, which has no bound and spins while a snapshot is written. Never moves
`next_index` back below what a follower has confirmed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from raftmq.metadata.raft.messages import APPEND_BYTES_MAX, AppendEntries, SnapshotOffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.raft.journal import Journal
    from raftmq.metadata.raft.messages import AnyMessage, Entry
    from raftmq.metadata.raft.pinned import PinnedEngine
    from raftmq.metadata.raft.snapshot_transfer import SnapshotId

MESSAGE_BYTES = 64  # counted for each entry beside its command


class Flow:
    """Towards one follower.

    Attributes:
        is_matched: whether the follower has confirmed that its log agrees with ours.
    """

    def __init__(self) -> None:
        self.is_matched = False
        self._sent: deque[tuple[int, int]] = deque()  # (end index, bytes), unconfirmed
        self._bytes = 0

    def has_room(self, bytes_max: int) -> bool:
        return self._bytes < bytes_max if self.is_matched else not self._sent

    def on_sent(self, end_index: int, size: int) -> None:
        self._sent.append((end_index, size))
        self._bytes += size

    def on_confirmed(self, next_index: int) -> None:
        self.is_matched = True
        while self._sent and self._sent[0][0] <= next_index:
            self._bytes -= self._sent.popleft()[1]

    def restart(self) -> None:
        """What was sent may never arrive: find out anew where the logs agree."""
        self.is_matched, self._bytes = False, 0
        self._sent.clear()


class Replication:
    """Attributes:
    snapshot: the newest one on this node's disk.
    """

    def __init__(
        self,
        engine: PinnedEngine,
        journal: Journal,
        send: Callable[[int, AnyMessage], bool],
        *,
        in_flight_bytes: int,
    ) -> None:
        self.snapshot: SnapshotId | None = None
        self._engine, self._journal, self._send = engine, journal, send
        self._in_flight_bytes = in_flight_bytes
        self._flows = {peer: Flow() for peer in engine.peers}
        self.commit_told = 0  # the commit index that every follower was told last

    def begin_office(self) -> None:
        for flow in self._flows.values():
            flow.restart()

    def on_connected(self, peer: int) -> None:
        """What was in flight is lost; go on from what is confirmed."""
        self._flows[peer].restart()
        match = self._engine.match_index(peer)
        if match:
            self._engine.set_next_index(peer, match + 1)

    def on_confirmed(self, peer: int, next_index: int) -> None:
        self._flows[peer].on_confirmed(next_index)

    def on_reset(self, peer: int) -> None:
        self._flows[peer].restart()

    def send_heartbeats(self, peers: frozenset[int], read_round: int) -> None:
        """At least one message to each, whatever there is to say."""
        self.commit_told = self._engine.commit_index
        for peer in sorted(peers):
            if not self._send_entries(peer, read_round):
                self._send_heartbeat(peer, read_round)

    def send_entries(self, peers: frozenset[int], read_round: int) -> None:
        """To each that can take more than it was sent. The commit index travels with them."""
        last_index, told = self._journal.last_index, 0
        for peer in sorted(peers):
            if self._engine.next_index(peer) <= last_index:
                told += self._send_entries(peer, read_round)
        if told == len(peers):
            self.commit_told = self._engine.commit_index

    def _send_entries(self, peer: int, read_round: int) -> bool:
        """As many batches as there is room for; whether anything was sent."""
        flow, sent = self._flows[peer], False
        while flow.has_room(self._in_flight_bytes):
            next_index = self._engine.next_index(peer)
            if not self._journal.first_index < next_index <= self._journal.last_index:
                break
            end_index = self._journal.last_index + 1
            entries = self._journal.entries(next_index, end_index, APPEND_BYTES_MAX)
            if not self._send(peer, self._append(next_index, tuple(entries), read_round)):
                break
            sent = True
            self._engine.set_next_index(peer, entries[-1][1] + 1)
            flow.on_sent(entries[-1][1] + 1, _size_of(entries))
        return sent

    def _send_heartbeat(self, peer: int, read_round: int) -> None:
        next_index = self._engine.next_index(peer)
        if next_index > self._journal.first_index:
            self._send(peer, self._append(next_index, (), read_round))
        elif self.snapshot is not None:
            self._send(peer, _offer(self._engine.term, read_round, self.snapshot))

    def _append(self, next_index: int, entries: tuple[Entry, ...], read_round: int) -> AnyMessage:
        return AppendEntries(
            term=self._engine.term,
            commit_index=self._engine.commit_index,
            previous_index=next_index - 1,
            previous_term=self._engine.term_at(next_index - 1),
            entries=entries,
            round=read_round,
        )


def _offer(term: int, read_round: int, snapshot: SnapshotId) -> AnyMessage:
    return SnapshotOffer(
        term=term,
        round=read_round,
        index=snapshot.index,
        snapshot_term=snapshot.term,
        size_bytes=snapshot.size_bytes,
        crc=snapshot.crc,
    )


def _size_of(entries: list[Entry]) -> int:
    return sum(len(command) for command, _, _ in entries) + MESSAGE_BYTES * len(entries)
