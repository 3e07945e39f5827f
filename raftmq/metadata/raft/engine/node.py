"""The Raft node of a voter: elections, appending proposals, applying committed entries.

Adds to PySyncObj's engine what it lacks. Owns the order of steps within a tick and the state that
the rules share. No I/O, no tasks: clock and random source are arguments; messages go out through
`send`, which must hold them until the journal is synced; one task, the `Driver`, calls in. The way
of a message and of a tick through `guard`, `pinned` and this module: decision 0033.

Invariants: nothing is applied before it is committed and synced here; only a leader appends
proposals; a leader serves no read before its own no-op is applied.
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

    from raftmq.metadata.raft.engine.timing import QuorumLimits, Timing
    from raftmq.metadata.raft.engine.voter_disks import VoterMembership
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
    membership, machine: arguments.
    reads, replication, proposals: parts that other modules use, too.
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
        self._sent_standing = membership.standing
        self._leader_contact = -1e9  # time of the last message of a leader; long ago at a start
        self.sync_seconds = 0.0  # recent duration of a journal sync, rather too long than too short
        self._is_short_timeout = True  # a node that just started need not wait for a leader long
        self._office_term = 0  # the term in which this node leads, else 0
        self._enrolling: set[tuple[int, bytes]] = set()
        self._notice_at: float | None = None  # when followers must be told of the last commit
        self._log_disks: dict[int, bytes] = {}  # enrolled by the log as of `_log_disks_term`
        self._log_disks_term = -1
        self.applied_since_snapshot = self.applied_bytes_since_snapshot = 0
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

    # Called by the driver

    def tick(self) -> None:
        """One turn: elections and commits, then a leader's duties, then applying entries."""
        self.engine_tick()
        self._note_office()
        if self.is_leader:  # also in the tick in which it was elected
            self._lead()
        self._apply_committed()
        self.reads.serve(self.last_applied)

    def receive(self, peer: int, message: AnyMessage) -> SnapshotOffer | None:
        """Returns the offer of a snapshot, which the rules of transfers decide about.

        Raises:
            RemoteProtocolError: drop the connection to this peer.
        """
        return self.guard.on_message(peer, message)

    def on_connected(self, peer: int, hello: NodeHello) -> None:
        self.membership.on_connected(hello)
        self.engine_connected(peer)
        self._connected |= {peer}
        if self.is_leader:
            if hello.standing is Standing.BLANK:  # a new disk: what the old one confirmed is gone
                self.forget_match(peer)
            self.replication.on_connected(peer)

    def on_disconnected(self, peer: int) -> None:
        self.membership.on_disconnected(peer)
        self.engine_disconnected(peer)
        self._connected -= {peer}
        if peer == self.leader_id:  # its process has probably died: campaign soon
            soon = self._clock() + self._random.uniform(*self._timing.quick_seconds)
            self.election_deadline = min(self.election_deadline, soon)

    def submit(self, command: bytes, done: Callable[[Fate, object], None]) -> int | None:
        """Append a command of the state machine: its index; None, and nothing, on a follower."""
        if not self.is_leader:  # only a leader appends (H9 of decision 0011)
            return None
        index = self._append(machine_entry(command))
        self.proposals.add(index, self.term, done)
        return index

    def begin_read(self, done: Callable[[bool], None]) -> None:
        if self.is_leader:  # a follower's state may be behind: it confirms no reads
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
        """Seconds until the next tick, if nothing happens before."""
        if self._notice_at is None:  # no commit to announce
            return tick_seconds
        return min(tick_seconds, max(0.0, self._notice_at - self._clock()))

    @property
    def is_in_office(self) -> bool:
        """Whether this node leads and has applied everything of the leaders before it."""
        office = self.office_index
        return self.is_leader and office is not None and self.last_applied >= office

    # Elections

    def may_campaign(self) -> bool:
        """Called by the engine when the election deadline has passed: pre-votes come first."""
        self._log_disks_term = -1  # since it was read, this term's leader may have changed the log
        # Blank, replaced, or waiting for all voters in term 0.
        if not self.membership.may_campaign(self.term) or self.is_replaced():
            self.election_deadline = self._clock() + self._timing.retry_seconds[1]
            return False
        # A campaign is due, and no majority was asked yet.
        if not self._pre_votes.is_won(self.term + 1):
            self._ask_for_pre_votes()
        if not self._pre_votes.is_won(self.term + 1):  # a single voter has won with its own
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
        if not self.is_leader:  # a late answer, after it was elected
            self._pre_votes.on_reply(peer, reply)
            if self._pre_votes.is_won(self.term + 1):  # a majority would vote for this node
                self.election_deadline = self._clock() - 1.0  # campaign in the next tick

    def election_timeout(self) -> float:
        """A candidate's votes cost two syncs (its own and the voter's): longer on a slow disk."""
        short, self._is_short_timeout = self._is_short_timeout, False
        if short:
            return self._random.uniform(*self._timing.retry_seconds) + 4 * self.sync_seconds
        return self._random.uniform(*self._timing.election_seconds)

    def on_synced(self, seconds: float) -> None:
        # Rises at once, falls by a fifth with each faster sync: a disk with single slow syncs
        # counts as slow.
        self.sync_seconds = max(seconds, 0.8 * self.sync_seconds)

    def on_leader_contact(self) -> None:
        self._leader_contact = self._clock()
        self._pre_votes.forget()

    def hears_leader(self) -> bool:
        """Whether this node leads or hears a leader: then it grants no vote (stickiness)."""
        if self.is_leader:
            return True
        silence = self._clock() - self._leader_contact
        return self.leader_id in self._connected and silence < self._timing.election_seconds[0]

    @property
    def heard_leader_id(self) -> int | None:
        """The leader, if it was heard recently: a node that is cut off does not know it."""
        return self.leader_id if self.hears_leader() else None

    def counts(self, peer: int) -> bool:
        """Whether this voter's votes and answers count: its disk holds all that it ever promised.

        An enrolment in the log, even unapplied, excludes another disk of the same voter: once it
        is committed, both disks would count for one voter.
        """
        is_enrolled = self._enrolled_disk(peer) in (None, self.membership.disk_of(peer))
        return is_enrolled and self.membership.standing_of(peer) is Standing.ESTABLISHED

    def is_replaced(self) -> bool:
        """The same of this voter itself: once the enrolment in its log is committed, the others may
        elect a leader with the other disk, in the term in which this one campaigns.
        """
        return self._enrolled_disk(self.node_id) not in (None, self.membership.disk_id)

    def _enrolled_disk(self, voter: int) -> bytes | None:
        # A new term: the log may have got enrolments of another leader.
        if self._log_disks_term != self.term:
            self._log_disks_term, self._log_disks = self.term, self._disks_in_log()
        return self._log_disks.get(voter) or self._applied_disk(voter)

    def _disks_in_log(self) -> dict[int, bytes]:
        """By voter, from entries that are not applied yet. Read once a term, as it scans the log,
        and before a campaign; a leader adds its own enrolments (`_enrol_disks`).
        """
        own = map(own_entry, (entry for entry, _, _ in self._unapplied()))
        return {enrol.voter: enrol.disk_id for enrol in own if enrol is not None}

    def _unapplied(self) -> list[Entry]:
        first, end = self.last_applied + 1, self.journal.last_index + 1
        return self.journal.entries(first, end, sys.maxsize) if first < end else []

    def _applied_disk(self, voter: int) -> bytes | None:
        enrolment = self.membership.enrolled.get(voter)
        return None if enrolment is None else enrolment.disk_id

    def _note_office(self) -> None:
        """Reset a leader's state when this node begins or stops leading."""
        term = self.term if self.is_leader else 0
        if term == self._office_term:  # neither elected nor deposed since the last tick
            return
        self._office_term, self._notice_at = term, None
        self.reads.fail_all()
        self._enrolling.clear()

    # A leader's duties

    def replicate(self) -> None:
        """The engine's hook: on becoming leader, and once in a heartbeat period."""
        if self._office_term != self.term:  # called before `_note_office` of this tick
            self.replication.begin_office()
        self._notice_at = None
        self.replication.send_heartbeats(self._connected, self.reads.round)

    def _lead(self) -> None:
        if self.is_in_office:  # before, earlier enrolments and commits may not be applied here
            self._enrol_disks()
            # Reads are waiting: ask followers for an echo now.
            if self.reads.open_round(self.commit_index):
                self.replicate()
        self.replication.send_entries(self._connected, self.reads.round)
        self._maybe_tell_commit()

    def _maybe_tell_commit(self) -> None:
        """Send a heartbeat soon if no entries carry the new commit index to the followers."""
        # Entries or a heartbeat have carried it.
        if self.replication.commit_told == self.commit_index:
            self._notice_at = None
            return
        now = self._clock()
        # The first tick with this commit: wait, as entries may follow and carry it.
        if self._notice_at is None:
            self._notice_at = now + self._timing.commit_notice_seconds
        elif now >= self._notice_at:
            self.replicate()

    def _enrol_disks(self) -> None:
        """Only with a majority to commit it (0028): until then an enrolment would do no more than
        exclude the disk before it, even if that comes back whole.
        """
        for voter, disk_id in self.membership.unenrolled():
            # Once a term: the entry needs a moment to be committed.
            if (voter, disk_id) not in self._enrolling and self._has_majority():
                self._enrolling.add((voter, disk_id))
                self._log_disks[voter] = disk_id
                self._append(quorum_entry(Enrol(voter, disk_id)))

    def _has_majority(self) -> bool:
        """Whether a majority of voters that count is connected, as far as this node knows."""
        counting = 1 + sum(map(self.counts, self._connected))  # 1: a leader is established
        return 2 * counting > len(self.peers) + 1

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
        if first >= end:  # nothing new is committed and synced
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
        if own is not None:  # an enrolment
            self._enrolled(own.voter, own.disk_id, index)
        return apply_entry(self.machine, index, entry)

    def _enrolled(self, voter: int, disk_id: bytes, index: int) -> None:
        if voter == self.node_id:
            self._check_not_replaced(disk_id, index)
        # Rule 2 of `membership`: this disk is established.
        if self.membership.on_enrolled(voter, disk_id, index):
            self.establish()
        # Also when it is applied again after a restart.
        if voter == self.node_id and disk_id == self.membership.disk_id:
            self.journal.set_enrolled_index(index)

    def _check_not_replaced(self, disk_id: bytes, index: int) -> None:
        """Stop if another disk was enrolled for this voter: this one was replaced (0012)."""
        is_older = index > self.journal.identity.enrolled_index
        is_established = self.membership.standing is Standing.ESTABLISHED
        if disk_id != self.membership.disk_id and is_older and is_established:
            raise CorruptJournal(
                f"the disk of voter {self.node_id} was replaced by another one at entry {index};"
                " this one must not come back: move its directory away"
            )

    def establish(self) -> None:
        """Now this disk holds everything that its voter ever promised; peers hear it after sync."""
        self.membership.standing = Standing.ESTABLISHED
        self.journal.set_standing(Standing.ESTABLISHED)

    def after_sync(self) -> None:
        """This turn's changes are durable: tell peers whose Hello had the old standing."""
        # Our Hello to connected peers was older.
        if self._sent_standing is not self.membership.standing:
            self._sent_standing = self.membership.standing
            for peer in sorted(self._connected):
                self.send(peer, StandingChanged(self._sent_standing, self.term))

    def maybe_establish(self) -> None:
        if self.membership.should_establish(self.term):  # a new quorum, rule 1 of `membership`
            self.establish()

    # Snapshots, and the end

    def begin_after(self, index: int, term: int, contents: SnapshotContents) -> None:
        """At a start, with a snapshot that the machine has installed already."""
        if self.journal.term_at(index) != term:
            self.journal.install_base(index, term)  # killed between snapshot and journal: redo it
        self.journal.setRaftCommitIndex(index)  # its own hint is written late, and may be lower
        self.commit_index = max(self.commit_index, index)
        self.membership.quorum_id = contents.quorum_id
        for voter, enrolment in contents.enrolled.items():
            self._enrolled(voter, enrolment.disk_id, enrolment.since_index)

    def abandon(self) -> None:
        """This node stops: fail all reads and proposals in flight."""
        self.reads.fail_all()
        self.proposals.abandon()

    def on_snapshot(self, snapshot: SnapshotId, *, trailing: int) -> None:
        """A snapshot is durable: compact the log below it."""
        self.replication.snapshot = snapshot
        self.journal.compact(snapshot.index, trailing)

    def install_snapshot(self, index: int, term: int, contents: SnapshotContents) -> None:
        """Replace the state by a durable snapshot; the log continues behind it."""
        assert index > self.last_applied, f"{index} is behind {self.last_applied}"
        self.machine.install(index, contents.decoded)
        self.journal.install_base(index, term)
        self.commit_index = max(self.commit_index, index)
        self.last_applied = index
        self.applied_since_snapshot = self.applied_bytes_since_snapshot = 0
        self.proposals.on_skipped(index)
        self.membership.quorum_id = contents.quorum_id
        for voter, enrolment in contents.enrolled.items():
            self._enrolled(voter, enrolment.disk_id, enrolment.since_index)

    def _send_from_engine(self, peer: int, message: dict[str, Any]) -> bool:
        return self.send(peer, self.guard.from_engine(message))
