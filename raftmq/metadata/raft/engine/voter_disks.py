"""Voters whose disks count: blank, established and replaced disks (decisions 0012 and 0028).

Owns the standing of this voter and what it knows of the other voters' disks. Pure.

A voter with a new directory is BLANK: the quorum may be new, or its disk was replaced and lost
votes and entries that it once promised. Until that is known it neither votes nor counts. It becomes
ESTABLISHED
  1. when every other voter is connected and in term 0: the quorum is new, there is nothing to lose;
  2. or when it applies an enrolment that names its disk. The leader proposed it after it had seen
     the new disk, and it was committed without this voter: so the leader's log held everything
     that the lost disk had helped to commit, and now this disk holds it, too.
In term 0 no voter campaigns before all others are established, so that rule 1 cannot mistake a
quorum that has begun for a new one. So a blank voter in a later term always replaces another disk.
Only its operator can know that the other disk is lost, and must say so (`quorum.replace`);
otherwise voters refuse it, and no leader enrols it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from raftmq.metadata.raft.net.messages import NodeHello, Refusal, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable


class Enrolment(NamedTuple):
    """The disk that belongs to a voter since the entry at `since_index`."""

    disk_id: bytes
    since_index: int


class VoterRun(NamedTuple):
    """One process of a voter; distinct from other processes on the same directory."""

    disk_id: bytes
    start_count: int
    nonce: bytes

    def is_older_than(self, seen: VoterRun) -> bool:
        """Whether this is a restored copy of a directory that has been used since."""
        is_same_disk = self.disk_id == seen.disk_id
        return is_same_disk and self != seen and self.start_count <= seen.start_count


class VoterMembership:
    """Attributes:
    standing: of this voter.
    enrolled: by voter; part of the replicated state, so equal on all nodes at one index.
    quorum_id: the first disk that was ever enrolled. A quorum that lost all disks and began again,
        with the same name and voters, has another one; empty before the first enrolment.
    """

    def __init__(
        self, node_id: int, voters: Iterable[int], *, disk_id: bytes, standing: Standing
    ) -> None:
        self.node_id, self.disk_id, self.standing = node_id, disk_id, standing
        self._voters = tuple(sorted(voters))
        self.others = frozenset(self._voters) - {node_id}
        self.enrolled: dict[int, Enrolment] = {}
        self.quorum_id = b""
        self._connected: dict[int, NodeHello] = {}
        self._seen: dict[int, VoterRun] = {}

    def check_hello(self, hello: NodeHello, *, term: int) -> Refusal | None:
        """Whether a peer's directory is the newest that this node, in `term`, knows of it."""
        # Majorities of two different sets of voters need not meet.
        if hello.voters not in ((), self._voters):
            theirs, ours = list(hello.voters), list(self._voters)
            return Refusal(
                f"voter {hello.node_id} knows the voters {theirs}, here they are {ours}: correct"
                " the settings of the one or the other",
                is_final=True,
            )
        run, seen = _run_of(hello), self._seen.get(hello.node_id)
        # The start count did not rise: a copy from before that run.
        if seen and run.is_older_than(seen):
            return older_copy(hello.node_id, "it ran with a newer copy of it before")
        # A copy of the settings was started elsewhere.
        if hello.standing is Standing.BLANK and self._has_other_disk(hello):
            return Refusal(
                f"voter {hello.node_id} is connected already, with another disk: two processes"
                " have this node.id, stop one of them"
            )
        # A new disk in a quorum that has begun: the operator must say so (decision 0028).
        if term > 0 and not self._may_sit(hello):
            return empty_directory(hello.node_id)
        enrolment = self.enrolled.get(hello.node_id)
        # By an enrolment that is newer than its own.
        if enrolment and _was_replaced(hello, enrolment):
            return older_copy(hello.node_id, "its disk was replaced since")
        return None

    def _has_other_disk(self, hello: NodeHello) -> bool:
        """An empty directory with the id of a live voter must not take its place."""
        connected = self._connected.get(hello.node_id)
        # No process, or itself still blank: nothing to protect.
        if connected is None or connected.standing is Standing.BLANK:
            return False
        return connected.disk_id != hello.disk_id

    def _may_sit(self, hello: NodeHello) -> bool:
        """Whether a voter is admitted in a quorum that has begun: established, or a replacement,
        or enrolled already and killed before it had applied that.
        """
        enrolment = self.enrolled.get(hello.node_id)
        is_enrolled = enrolment is not None and enrolment.disk_id == hello.disk_id
        return hello.standing is not Standing.BLANK or hello.is_replacement or is_enrolled

    def on_connected(self, hello: NodeHello) -> None:
        self._seen[hello.node_id] = _run_of(hello)
        self._connected[hello.node_id] = hello

    def on_standing(self, peer: int, standing: Standing, term: int) -> None:
        if peer in self._connected:
            changed = replace(self._connected[peer], standing=standing, term=term)
            self._connected[peer] = changed

    def distrust(self, peer: int) -> None:
        """No answer of this peer on this connection counts any more; the caller makes it stop."""
        hello = self._connected.get(peer)
        if hello is not None:
            self._connected[peer] = replace(hello, standing=Standing.BLANK)

    def on_disconnected(self, peer: int) -> None:
        self._connected.pop(peer, None)

    def standing_of(self, peer: int) -> Standing | None:
        """None if it is not connected."""
        hello = self._connected.get(peer)
        return None if hello is None else hello.standing

    def is_blank(self, peer: int) -> bool:
        return self.standing_of(peer) is Standing.BLANK

    def disk_of(self, peer: int) -> bytes | None:
        """None if it is not connected."""
        hello = self._connected.get(peer)
        return None if hello is None else hello.disk_id

    def should_establish(self, term: int) -> bool:
        """Rule 1; the caller makes it durable before it calls `establish`."""
        is_new = term == 0 and all(hello.term == 0 for hello in self._connected.values())
        return self.standing is Standing.BLANK and is_new and self._all_connected()

    def may_campaign(self, term: int) -> bool:
        # See the module: it may have voted in this term with its lost disk.
        if self.standing is Standing.BLANK:
            return False
        if term > 0:  # the quorum has begun: every voter was established before term 1
            return True
        # Term 0, a new quorum: see the module, rule 1 depends on it.
        ready = all(h.standing is Standing.ESTABLISHED for h in self._connected.values())
        return self._all_connected() and ready

    def _all_connected(self) -> bool:
        return self._connected.keys() == self.others

    def unenrolled(self) -> list[tuple[int, bytes]]:
        """Voters, this one included, whose disk must be enrolled. For a leader.

        1. No disk of that voter was enrolled yet. 2. It is blank: its disk is a new one.
        A blank voter that was connected before the quorum began must be a replacement, too.
        """
        connected = self._connected.items()
        disks = {peer: hello.disk_id for peer, hello in connected if self._may_sit(hello)}
        disks[self.node_id] = self.disk_id
        return [
            (voter, disk_id)
            for voter, disk_id in sorted(disks.items())
            if voter not in self.enrolled or self._has_new_disk(voter, disk_id)
        ]

    def _has_new_disk(self, voter: int, disk_id: bytes) -> bool:
        return self.is_blank(voter) and self.enrolled[voter].disk_id != disk_id

    def on_enrolled(self, voter: int, disk_id: bytes, index: int) -> bool:
        """An enrolment was applied; whether it establishes this voter (rule 2)."""
        self.quorum_id = self.quorum_id or disk_id
        self.enrolled[voter] = Enrolment(disk_id, index)
        is_me = voter == self.node_id and disk_id == self.disk_id
        return is_me and self.standing is Standing.BLANK


def _run_of(hello: NodeHello) -> VoterRun:
    return VoterRun(hello.disk_id, hello.start_count, hello.nonce)


def _was_replaced(hello: NodeHello, enrolment: Enrolment) -> bool:
    """An established voter on another disk, enrolled before the one that this node knows of."""
    is_other = hello.disk_id != enrolment.disk_id
    is_established = hello.standing is Standing.ESTABLISHED
    return is_other and is_established and hello.enrolled_index < enrolment.since_index


def older_copy(voter: int, why: str) -> Refusal:
    return Refusal(
        f"the directory of voter {voter} is an older copy: {why}. It may have forgotten"
        " what it promised; move it away and start with an empty directory and"
        " `-o quorum.replace=true`",
        is_final=True,
        must_stop=True,
    )


def empty_directory(voter: int) -> Refusal:
    return Refusal(
        f"the directory of voter {voter} is empty, and another one of voter {voter} has been in"
        " this quorum: start the voter on that one. If that disk is lost for good, start it once"
        " with `-o quorum.replace=true`",
        is_final=True,
    )
