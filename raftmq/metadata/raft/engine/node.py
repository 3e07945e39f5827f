"""One voter: PySyncObj's engine with everything around it that it lacks. No I/O, no tasks.

Owns the order of things within a tick and the state that rules share. Time and chance are handed
in; messages go out through `send`, which must hold them back until the journal is synced. The
`driver` calls in from one task.

Invariants: nothing is applied before it is committed and synced here; only a leader appends what
is proposed; a leader serves no read before its own no-op is applied.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.engine.guard import Guard
from raftmq.metadata.raft.engine.pinned import PinnedEngine
from raftmq.metadata.raft.engine.replication import (
    Enrol,
    Fate,
    PendingProposals,
    PreVotes,
    Reads,
    Replication,
    apply_entry,
    machine_entry,
    own_entry,
    quorum_entry,
)
from raftmq.metadata.raft.net.messages import PreVote, Standing, StandingChanged

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raftmq.metadata.raft.engine.membership import VoterMembership
    from raftmq.metadata.raft.engine.timing import QuorumLimits, Timing
    from raftmq.metadata.raft.journal.journal import Journal
    from raftmq.metadata.raft.net.messages import (
        AnyMessage,
        Entry,
        NodeHello,
        PreVoteReply,
        SnapshotOffer,
    )
    from raftmq.metadata.raft.snapshot.contents import SnapshotContents
    from raftmq.metadata.raft.snapshot.transfer import SnapshotId
    from raftmq.metadata.raft.state_machine import StateMachine


class RaftNode(PinnedEngine):
    """Attributes:
    membership, machine: handed in.
    reads, replication, proposals: the parts that others ask, too.
    """

    def __init__(
        self,
        membership: VoterMembership,
        journal: Journal,
        machine: StateMachine,
        *,
        applied_index: int,
        send: Callable[[int, AnyMessage], bool],
        clock: Callable[[], float],
        random: Random,
        timing: Timing,
        limits: QuorumLimits,
    ) -> None:
        self.membership, self.machine = membership, machine
        self.send, self._random, self._timing, self._limits = send, random, timing, limits
        voter_count = len(membership.others) + 1
        self.node_id = membership.node_id
        self.guard = Guard(self)
        self.reads, self.proposals = Reads(voter_count), PendingProposals()
        self._pre_votes = PreVotes(self.node_id, voter_count)
        self._connected: frozenset[int] = frozenset()
        self._told_standing = membership.standing
        self._leader_contact = -1e9
        self.sync_seconds = 0.0  # what a sync of the journal takes, rather too much
        self._is_short_timeout = True  # a node that just started asks soon
        self._office_term = 0  # the term in which this node leads, else 0
        self._enrolling: set[tuple[int, bytes]] = set()
        self._notice_at: float | None = None
        self._log_disks: dict[int, bytes] = {}  # enrolled by the log as of `_log_disks_term`
        self._log_disks_term = -1
        self.applied_since_snapshot = self.applied_bytes_since_snapshot = 0
        self.on_offer: Callable[[int, SnapshotOffer], None] = lambda peer, offer: None
        super().__init__(
            self.node_id,
            membership.others,
            journal,
            send=self._send_from_engine,
            clock=clock,
            heartbeat_seconds=timing.heartbeat_seconds,
            election_seconds=timing.election_seconds,
            fallback_seconds=timing.fallback_seconds,
        )
        self.replication = Replication(self, journal, send, in_flight_bytes=limits.in_flight_bytes)
        self.last_applied = applied_index

    # What the driver tells

    def tick(self) -> None:
        """One turn: elections and commits, then what a leader owes, then what can be applied."""
        self.engine_tick()
        self._note_office()
        if self.is_leader:
            self._lead()
        self._apply_committed()
        self.reads.serve(self.last_applied)

    def receive(self, peer: int, message: AnyMessage) -> None:
        """
        Raises:
            RemoteProtocolError: drop the connection to this peer.
        """
        self.guard.on_message(peer, message)

    def on_connected(self, peer: int, hello: NodeHello) -> None:
        self.membership.on_connected(hello)
        self.engine_connected(peer)
        self._connected |= {peer}
        if self.is_leader:
            if hello.standing is Standing.BLANK:
                self.forget_match(peer)
            self.replication.on_connected(peer)

    def on_disconnected(self, peer: int) -> None:
        self.membership.on_disconnected(peer)
        self.engine_disconnected(peer)
        self._connected -= {peer}
        if peer == self.leader_id:
            soon = self._clock() + self._random.uniform(*self._timing.quick_seconds)
            self.election_deadline = min(self.election_deadline, soon)

    def submit(self, command: bytes, done: Callable[[Fate, object], None]) -> int | None:
        """Append a command of the state machine: its index; None, and nothing, on a follower."""
        if not self.is_leader:
            return None
        index = self._append(machine_entry(command))
        self.proposals.add(index, self.term, done)
        return index

    def begin_read(self, done: Callable[[bool], None]) -> None:
        if self.is_leader:
            self.reads.begin(done)
        else:
            done(False)

    def is_connected(self, peer: int) -> bool:
        return peer in self._connected

    @property
    def has_work(self) -> bool:
        """Whether another tick would do something at once."""
        return self.last_applied < self._applicable_index()

    def seconds_to_wake(self, tick_seconds: float) -> float:
        """When the clock alone makes another tick worth while."""
        if self._notice_at is None:
            return tick_seconds
        return min(tick_seconds, max(0.0, self._notice_at - self._clock()))

    @property
    def is_in_office(self) -> bool:
        """Whether this node leads and has applied everything of the leaders before it."""
        office = self.office_index
        return self.is_leader and office is not None and self.last_applied >= office

    # Elections

    def may_campaign(self) -> bool:
        """Asked by the engine when the election deadline has passed: first ask the others."""
        if not self.membership.may_campaign(self.term):
            self.election_deadline = self._clock() + self._timing.retry_seconds[1]
            return False
        if not self._pre_votes.is_won(self.term + 1):
            self._ask_for_pre_votes()
        if not self._pre_votes.is_won(self.term + 1):
            return False
        self._pre_votes.forget()
        self._is_short_timeout = True
        return True

    def _ask_for_pre_votes(self) -> None:
        self.election_deadline = self._clock() + self._random.uniform(*self._timing.retry_seconds)
        self._pre_votes.ask(self.term + 1)
        last_index = self.journal.last_index
        question = PreVote(self.term + 1, last_index, self.term_at(last_index))
        for peer in sorted(self._connected):
            self.send(peer, question)

    def on_pre_vote_reply(self, peer: int, reply: PreVoteReply) -> None:
        if not self.is_leader:
            self._pre_votes.on_reply(peer, reply)
            if self._pre_votes.is_won(self.term + 1):
                self.election_deadline = self._clock() - 1.0  # campaign in the next tick

    def election_timeout(self) -> float:
        """A candidate waits for votes that cost two syncs: longer where the disk is slow."""
        short, self._is_short_timeout = self._is_short_timeout, False
        if short:
            return self._random.uniform(*self._timing.retry_seconds) + 4 * self.sync_seconds
        return self._random.uniform(*self._timing.election_seconds)

    def on_synced(self, seconds: float) -> None:
        self.sync_seconds = max(seconds, 0.8 * self.sync_seconds)

    def on_leader_contact(self) -> None:
        self._leader_contact = self._clock()
        self._pre_votes.forget()

    def hears_leader(self) -> bool:
        """Whether an election now would only disturb."""
        if self.is_leader:
            return True
        silence = self._clock() - self._leader_contact
        return self.leader_id in self._connected and silence < self._timing.election_seconds[0]

    @property
    def heard_leader_id(self) -> int | None:
        """Who leads, unless that is long ago: a node that is cut off does not know."""
        return self.leader_id if self.hears_leader() else None

    def on_snapshot_offered(self, peer: int, offer: SnapshotOffer) -> None:
        self.on_offer(peer, offer)

    def counts(self, peer: int) -> bool:
        """Whether what this voter says may count: its disk holds all that was ever promised.

        An enrolment in the log is reason enough not to count another disk of the same voter:
        both would count for one promise, once it is committed.
        """
        if self._log_disks_term != self.term:
            self._log_disks_term, self._log_disks = self.term, self._disks_in_log()
        enrolled = self._log_disks.get(peer) or self._applied_disk(peer)
        is_enrolled = enrolled is None or enrolled == self.membership.disk_of(peer)
        return is_enrolled and self.membership.standing_of(peer) is Standing.ESTABLISHED

    def _disks_in_log(self) -> dict[int, bytes]:
        """By voter, from entries that are not applied yet. Once a term: a leader adds its own."""
        own = map(own_entry, (entry for entry, _, _ in self._unapplied()))
        return {enrol.voter: enrol.disk_id for enrol in own if enrol is not None}

    def _unapplied(self) -> list[Entry]:
        first, end = self.last_applied + 1, self.journal.last_index + 1
        return self.journal.entries(first, end, sys.maxsize) if first < end else []

    def _applied_disk(self, voter: int) -> bytes | None:
        enrolment = self.membership.enrolled.get(voter)
        return None if enrolment is None else enrolment.disk_id

    def _note_office(self) -> None:
        """Take up or lay down what belongs to a term in office."""
        term = self.term if self.is_leader else 0
        if term == self._office_term:
            return
        self._office_term, self._notice_at = term, None
        self.reads.fail_all()
        self._enrolling.clear()

    # A leader's duties

    def replicate(self) -> None:
        """The engine's hook: on taking office, and once in a heartbeat's time."""
        if self._office_term != self.term:
            self.replication.begin_office()
        self._notice_at = None
        self.replication.send_heartbeats(self._connected, self.reads.round)

    def _lead(self) -> None:
        if self.is_in_office:
            self._enrol_disks()
            if self.reads.open_round(self.commit_index):
                self.replicate()
        self.replication.send_entries(self._connected, self.reads.round)
        self._maybe_tell_commit()

    def _maybe_tell_commit(self) -> None:
        """If nothing else carries the news of a commit to the followers, say it soon."""
        if self.replication.commit_told == self.commit_index:
            self._notice_at = None
            return
        now = self._clock()
        if self._notice_at is None:
            self._notice_at = now + self._timing.commit_notice_seconds
        elif now >= self._notice_at:
            self.replicate()

    def _enrol_disks(self) -> None:
        for voter, disk_id in self.membership.unenrolled():
            if (voter, disk_id) not in self._enrolling:
                self._enrolling.add((voter, disk_id))
                self._log_disks[voter] = disk_id
                self._append(quorum_entry(Enrol(voter, disk_id)))

    def _append(self, entry: bytes) -> int:
        index = self.journal.last_index + 1
        self.journal.add(entry, index, self.term)
        return index

    # Applying

    def _applicable_index(self) -> int:
        return min(self.commit_index, self.journal.synced_index)

    def _apply_committed(self) -> None:
        """Within the budget of a tick; the rest waits for the next one (H15)."""
        first, end = self.last_applied + 1, self._applicable_index() + 1
        end = min(end, first + self._limits.applied_per_tick)
        if first >= end:
            return
        for entry, index, term in self.journal.entries(
            first, end, self._limits.applied_bytes_per_tick
        ):
            result = self._apply(index, entry)
            self.last_applied = index
            self.applied_bytes_since_snapshot += len(entry)
            self.proposals.on_applied(index, term, result)
        self.applied_since_snapshot += self.last_applied + 1 - first

    def _apply(self, index: int, entry: bytes) -> object:
        own = own_entry(entry)
        if own is not None:
            self._enrolled(own.voter, own.disk_id, index)
        return apply_entry(self.machine, index, entry)

    def _enrolled(self, voter: int, disk_id: bytes, index: int) -> None:
        if voter == self.node_id:
            self._check_not_replaced(disk_id, index)
        if self.membership.on_enrolled(voter, disk_id, index):
            self.establish()
        if voter == self.node_id and disk_id == self.membership.disk_id:
            self.journal.set_enrolled_index(index)

    def _check_not_replaced(self, disk_id: bytes, index: int) -> None:
        """Another disk was enrolled for this voter, and this one has come back."""
        is_older = index > self.journal.identity.enrolled_index
        is_established = self.membership.standing is Standing.ESTABLISHED
        if disk_id != self.membership.disk_id and is_older and is_established:
            raise CorruptJournal(
                f"the disk of voter {self.node_id} was replaced by another one at entry {index};"
                " this one must not come back: move its directory away"
            )

    def establish(self) -> None:
        """This disk holds everything that its voter ever promised; told once that is synced."""
        self.membership.standing = Standing.ESTABLISHED
        self.journal.set_standing(Standing.ESTABLISHED)

    def after_sync(self) -> None:
        """All that this turn decided is durable. Whoever heard an older Hello must know of it."""
        if self._told_standing is not self.membership.standing:
            self._told_standing = self.membership.standing
            for peer in sorted(self._connected):
                self.send(peer, StandingChanged(self._told_standing, self.term))

    def maybe_establish(self) -> None:
        if self.membership.should_establish(self.term):
            self.establish()

    # Snapshots, and the end

    def begin_after(self, index: int, term: int, picture: SnapshotContents) -> None:
        """At a start, with a snapshot that the machine shows already."""
        if self.journal.term_at(index) != term:
            self.journal.install_base(index, term)  # killed before it was noted: do it now
        self.journal.setRaftCommitIndex(index)  # it notes such things late, and may not know yet
        self.commit_index = max(self.commit_index, index)
        self.membership.quorum_id = picture.quorum_id
        for voter, enrolment in picture.enrolled.items():
            self._enrolled(voter, enrolment.disk_id, enrolment.since_index)

    def abandon(self) -> None:
        """This node stops: nobody will be told more."""
        self.reads.fail_all()
        self.proposals.abandon()

    def on_snapshot(self, snapshot: SnapshotId, *, trailing: int) -> None:
        """A snapshot is durable: the log need not reach back behind it."""
        self.replication.snapshot = snapshot
        self.journal.compact(snapshot.index, trailing)

    def install_snapshot(self, index: int, term: int, picture: SnapshotContents) -> None:
        """Become what a durable snapshot shows; the log goes on behind it."""
        assert index > self.last_applied, f"{index} is behind {self.last_applied}"
        self.machine.install(index, picture.decoded)
        self.journal.install_base(index, term)
        self.commit_index = max(self.commit_index, index)
        self.last_applied = index
        self.applied_since_snapshot = self.applied_bytes_since_snapshot = 0
        self.proposals.on_skipped(index)
        self.membership.quorum_id = picture.quorum_id
        for voter, enrolment in picture.enrolled.items():
            self._enrolled(voter, enrolment.disk_id, enrolment.since_index)

    def _send_from_engine(self, peer: int, message: dict[str, Any]) -> bool:
        return self.send(peer, self.guard.from_engine(message))
