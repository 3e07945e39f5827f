"""Log replication to followers, pre-vote, proposals in flight, and ReadIndex reads.

Owns the flow control towards followers: batches, in-flight bytes, one message at a time until the
logs are known to match, and the offer of a snapshot where the log does not reach back. Replaces
PySyncObj's own loop, which has no bound and spins while a snapshot is written. Never moves
`next_index` back below what a follower has confirmed. The sections below own the other rules of
the node that need no I/O.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from raftmq.metadata.raft.net.messages import APPEND_BYTES_MAX, AppendEntries, SnapshotOffer
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.raft.engine.pinned import PinnedEngine
    from raftmq.metadata.raft.journal.journal import Journal
    from raftmq.metadata.raft.net.messages import AnyMessage, Entry, PreVote, PreVoteReply
    from raftmq.metadata.raft.snapshot.transfer import SnapshotId
    from raftmq.metadata.raft.state_machine import StateMachine


MESSAGE_BYTES = 64  # counted for each entry beside its command, so that empty ones count, too


class Flow:
    """Flow control towards one follower.

    Attributes:
        is_matched: whether the follower has confirmed that its log agrees with ours.
    """

    def __init__(self) -> None:
        self.is_matched = False
        self._sent: deque[tuple[int, int]] = deque()  # (end index, bytes), unconfirmed
        self._bytes = 0

    def has_room(self, bytes_max: int) -> bool:
        # Until the logs match, one message at a time: more would probably be refused, too.
        return self._bytes < bytes_max if self.is_matched else not self._sent

    def on_sent(self, end_index: int, size: int) -> None:
        self._sent.append((end_index, size))
        self._bytes += size

    def on_confirmed(self, next_index: int) -> None:
        self.is_matched = True
        while self._sent and self._sent[0][0] <= next_index:  # confirmed
            self._bytes -= self._sent.popleft()[1]

    def restart(self) -> None:
        """What was sent may be lost: probe again where the logs match."""
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
        self.commit_told = 0  # the last commit index that was sent to every follower

    def begin_office(self) -> None:
        for flow in self._flows.values():
            flow.restart()

    def on_connected(self, peer: int) -> None:
        """Messages in flight are lost: continue behind what the follower has confirmed."""
        self._flows[peer].restart()
        match = self._engine.match_index(peer)
        if match:  # 0: nothing is confirmed yet, probe from the engine's next index
            self._engine.set_next_index(peer, match + 1)

    def on_confirmed(self, peer: int, next_index: int) -> None:
        self._flows[peer].on_confirmed(next_index)

    def on_reset(self, peer: int) -> None:
        self._flows[peer].restart()

    def send_heartbeats(self, peers: frozenset[int], read_round: int) -> None:
        """At least one message to each follower: entries, or an empty heartbeat."""
        self.commit_told = self._engine.commit_index
        for peer in sorted(peers):
            # Nothing to send, or as much in flight as allowed: an empty heartbeat.
            if not self._send_entries(peer, read_round):
                self._send_heartbeat(peer, read_round)

    def send_entries(self, peers: frozenset[int], read_round: int) -> None:
        """New entries to each follower with room in flight; they carry the commit index."""
        last_index, served = self._journal.last_index, 0
        for peer in sorted(peers):
            if self._engine.next_index(peer) <= last_index:  # an entry that it was not sent yet
                served += self._send_entries(peer, read_round)
        if served == len(peers):  # then no extra message need announce the commit
            self.commit_told = self._engine.commit_index

    def _send_entries(self, peer: int, read_round: int) -> bool:
        """As many batches as may be in flight; whether any was sent."""
        flow, sent = self._flows[peer], False
        while flow.has_room(self._in_flight_bytes):
            next_index = self._engine.next_index(peer)
            # Compacted away (the heartbeat offers a snapshot), or everything was sent.
            if not self._journal.first_index < next_index <= self._journal.last_index:
                break
            end_index = self._journal.last_index + 1
            entries = self._journal.entries(next_index, end_index, APPEND_BYTES_MAX)
            # Disconnected: `on_connected` continues from what is confirmed.
            if not self._send(peer, self._append(next_index, tuple(entries), read_round)):
                break
            sent = True
            self._engine.set_next_index(peer, entries[-1][1] + 1)
            flow.on_sent(entries[-1][1] + 1, _size_of(entries))
        return sent

    def _send_heartbeat(self, peer: int, read_round: int) -> None:
        next_index = self._engine.next_index(peer)
        # The follower's next entry is in the log, or about to be.
        if next_index > self._journal.first_index:
            self._send(peer, self._append(next_index, (), read_round))
        # Compacted: the follower needs the snapshot. Without one there was no compaction.
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


# -- Entries --------------------------------------------------------------------------------------
# Entries of the log: commands of the state machine, and the quorum's own (enrolments).
#
# Owns the two bytes in front of each and the quorum's own entries. Pure. PySyncObj needs the first
# byte (0: a command, 1: the no-op of a new leader); the second distinguishes the two kinds.


_FOR_MACHINE = b"\x00\x00"
_FOR_QUORUM = b"\x00\x01"


class Enrol(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """From here on `disk_id` is the disk of `voter` (docs/decisions/0012)."""

    voter: int
    disk_id: bytes


_decoder = Decoder[Enrol](Enrol)


def machine_entry(command: bytes) -> bytes:
    return _FOR_MACHINE + command


def quorum_entry(own: Enrol) -> bytes:
    return _FOR_QUORUM + msgspec.msgpack.encode(own)


def own_entry(entry: bytes) -> Enrol | None:
    """The quorum's own command, if it is one."""
    if entry.startswith(_FOR_QUORUM):
        return _decoder.decode(entry[len(_FOR_QUORUM) :])
    return None


def apply_entry(machine: StateMachine, index: int, entry: bytes) -> object:
    """Apply a command of the state machine; no-ops and enrolments do not concern it."""
    if entry.startswith(_FOR_MACHINE):
        return machine.apply(index, entry[len(_FOR_MACHINE) :])
    return None


# -- Prevote --------------------------------------------------------------------------------------
# Pre-vote: a node asks for votes before it raises its term, so that a node that is cut off does not
# depose the leader when it returns.
#
# Owns the rules of the request and of the answer (Ongaro's thesis, 9.6 and 4.2.3). Pure: the guard
# sends what is decided here. A node that hears its leader grants nothing (stickiness).


def would_grant(
    question: PreVote, *, term: int, last_log_index: int, last_log_term: int, hears_leader: bool
) -> bool:
    """Whether the sender could have this node's vote in `question.term`.

    1. Not while this node hears a leader.
    2. Not in a term that has begun already.
    3. Not with a log that lacks entries of this node's (5.4.1 of the Raft paper).
    """
    if hears_leader or question.term <= term:
        return False
    theirs = question.last_log_term, question.last_log_index
    return theirs >= (last_log_term, last_log_index)


class PreVotes:
    """The answers to this node's own pre-vote; a new one discards the old answers."""

    def __init__(self, node_id: int, voter_count: int) -> None:
        self._node_id, self._voter_count = node_id, voter_count
        self._term = 0
        self._granted: set[int] = set()

    def ask(self, term: int) -> None:
        self._term, self._granted = term, {self._node_id}

    def on_reply(self, peer: int, reply: PreVoteReply) -> None:
        # A late answer to an earlier pre-vote does not count.
        if reply.is_granted and reply.term == self._term:
            self._granted.add(peer)

    def forget(self) -> None:
        self._granted = set()

    def is_won(self, term: int) -> bool:
        """Whether a majority would vote for this node in `term`."""
        return term == self._term and 2 * len(self._granted) > self._voter_count


# -- Proposals ------------------------------------------------------------------------------------
# Proposals in flight: appended to the log, outcome unknown.
#
# Owns the three outcomes of a proposal. It is applied once its own entry is (same index, same
# term); discarded once an entry of another term is applied in its place; unknown once a snapshot
# covers its index, or this node stops. A caller that stops waiting calls `forget`, so that the
# proposal takes no more memory. Timeouts are the caller's.


class Fate(Enum):
    """The outcome of a proposal, passed on with the result if applied, a reason if unknown."""

    APPLIED = "applied"
    DISCARDED = "discarded"  # definite: it will never be applied
    UNKNOWN = "unknown"


class Proposal(NamedTuple):
    term: int
    done: Callable[[Fate, object], None]


class PendingProposals:
    """By index; after a change of leader one index may have been proposed twice."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Proposal]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, index: int, term: int, done: Callable[[Fate, object], None]) -> None:
        self._waiting.setdefault(index, []).append(Proposal(term, done))
        self._count += 1

    def forget(self, index: int, done: Callable[[Fate, object], None]) -> None:
        """No task waits for it any more; does nothing if its outcome was passed on already."""
        rest = [proposal for proposal in self._take(index) if proposal.done != done]
        if rest:  # proposals of an earlier term at this index
            self._waiting[index] = rest
            self._count += len(rest)

    def on_applied(self, index: int, term: int, result: object) -> None:
        for proposal in self._take(index):
            if proposal.term == term:  # else this index was taken by an entry of a newer leader
                proposal.done(Fate.APPLIED, result)
            else:
                proposal.done(Fate.DISCARDED, None)

    def on_skipped(self, index: int) -> None:
        """A snapshot replaced all entries up to `index`."""
        passed = [at for at in self._waiting if at <= index]
        self._give_up(passed, "a snapshot went past it")

    def abandon(self) -> None:
        """This node stops: all outcomes are unknown."""
        self._give_up(list(self._waiting), "this node stops")

    def _give_up(self, indexes: list[int], reason: str) -> None:
        for index in indexes:
            for proposal in self._take(index):
                proposal.done(Fate.UNKNOWN, reason)

    def _take(self, index: int) -> list[Proposal]:
        taken = self._waiting.pop(index, [])
        self._count -= len(taken)
        return taken


# -- Reads ----------------------------------------------------------------------------------------
# ReadIndex: linearizable reads, confirmed by a majority without a log entry.
#
# Owns the rounds of confirmation (Ongaro's thesis, 6.4). A read notes the commit index and the next
# round; every AppendEntries carries the newest round, every answer echoes it. Once a majority has
# echoed the read's round, no other leader can have committed anything before the read began. Pure:
# the node sends and applies.


class Read(NamedTuple):
    read_index: int  # must be applied before the read is served
    round: int  # must be echoed by a majority
    done: Callable[[bool], None]


class Reads:
    """Attributes:
    round: sent with every AppendEntries; rises when reads are waiting.
    """

    def __init__(self, voter_count: int) -> None:
        self._voter_count = voter_count
        self.round = 0
        self._asked: list[Callable[[bool], None]] = []
        self._waiting: list[Read] = []
        self._echoed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._asked) + len(self._waiting)

    def begin(self, done: Callable[[bool], None]) -> None:
        """`done(True)` when the applied state is confirmed, `done(False)` if this leader ends."""
        self._asked.append(done)

    def open_round(self, commit_index: int) -> bool:
        """Begin a round for all reads that came since the last one; whether there are any."""
        if not self._asked:
            return False
        self.round += 1
        self._waiting += [Read(commit_index, self.round, done) for done in self._asked]
        self._asked = []
        return True

    def on_echo(self, peer: int, round_number: int) -> None:
        self._echoed[peer] = max(round_number, self._echoed.get(peer, 0))

    def serve(self, last_applied: int) -> None:
        """Finish every read that a majority has confirmed and that is applied."""
        if not self._waiting:  # the usual case of a tick
            return
        confirmed = self._confirmed_round()
        waiting, self._waiting = self._waiting, []
        for read in waiting:
            if read.round <= confirmed and read.read_index <= last_applied:
                read.done(True)
            else:
                self._waiting.append(read)

    def _confirmed_round(self) -> int:
        """The newest round that a majority has echoed; the leader itself echoes at once."""
        echoed = sorted([self.round, *self._echoed.values()], reverse=True)
        majority = self._voter_count // 2 + 1
        return echoed[majority - 1] if len(echoed) >= majority else 0

    def fail_all(self) -> None:
        """This node does not lead any more: echoes of its term prove nothing now."""
        waiting = [*self._asked, *(read.done for read in self._waiting)]
        self._asked, self._waiting, self._echoed = [], [], {}
        for done in waiting:
            done(False)
