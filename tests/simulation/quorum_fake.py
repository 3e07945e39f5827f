"""The fake of the metadata quorum: several nodes, one log in memory, and faults on demand.

For tests of users of the quorum. `FakeCluster` owns the log, the leader, and the faults; a
`FakeQuorum` is one node's view and keeps the promises of `MetadataQuorum`. Nothing runs by itself:
the first access at a time performs everything that was due by then (`settle`). One side
always has a majority, and every answer that is allowed to be uncertain can be made so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from raftmq.errors import NotController, ProposalDiscarded, ProposalUncertain, QuorumBusy
from raftmq.metadata.commands import encode_command
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.quorum import PROPOSE_SECONDS_MAX, Leadership
from raftmq.metadata.raft.quorum import check_proposal

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage

CUT_OFF_SECONDS = 1.0  # without messages, after which a node has no leader any more

T = TypeVar("T")


class Fate(Enum):
    WAITING = "waiting"
    APPLIED = "applied"
    DISCARDED = "discarded"
    UNCERTAIN = "uncertain"


@dataclass(eq=False)
class Proposal:
    """A command on its way into the log, and what its proposer is told."""

    data: bytes
    due: float
    fate: Fate = Fate.WAITING
    result: AnyResult | None = None
    is_answer_lost: bool = False

    def settle(self, fate: Fate) -> None:
        """A proposal with an outcome keeps it."""
        if self.fate is Fate.WAITING:
            self.fate = Fate.UNCERTAIN if self.is_answer_lost else fate


class Committed(NamedTuple):
    raft_index: int
    data: bytes
    at: float


class CutOff(NamedTuple):
    since: float
    believed: Leadership


class FakeCluster:
    """Attributes:
    nodes: by node id, from 1 on; node 1 leads at first.
    delay_seconds: from proposal to commit, and what a read barrier takes.
    follow_seconds: from commit until the nodes that do not lead have applied it.
    proposals_max: commands on their way; more are refused with QuorumBusy.
    """

    def __init__(self, node_count: int = 3) -> None:
        self.delay_seconds = self.follow_seconds = 0.0
        self.proposals_max = 1000
        self.term, self.index = 1, 1
        self.leader_id: int | None = 1
        self._last_leader_id = 1
        self.log: list[Committed] = []
        self.cut_off: dict[int, CutOff] = {}
        self.pending: deque[Proposal] = deque()
        self._answers_lost = self._proposals_lost = 0
        self._moved = trio.lowlevel.ParkingLot()
        self.nodes = {number: FakeQuorum(self, number) for number in range(1, node_count + 1)}

    @property
    def leader(self) -> FakeQuorum:
        assert self.leader_id is not None, "nobody leads: depose() was called"
        return self.nodes[self.leader_id]

    # Mishaps

    def elect(self, node_id: int | None = None, *, keep_pending: bool = True) -> FakeQuorum:
        """Another leader: this one, or the next. Who waits on the old one does not get a result.

        Commands on their way are applied all the same (their proposers: ProposalUncertain), or
        overwritten (ProposalDiscarded).
        """
        self.depose(keep_pending=keep_pending)
        connected = [number for number in self.nodes if number not in self.cut_off]
        after = [number for number in connected if number > self._last_leader_id]
        self.leader_id = node_id or (after or connected)[0]
        assert self.leader_id in connected, f"node {self.leader_id} is cut off"
        self.index += 1  # the entry with which a leader begins: no command
        self.settle()
        return self.leader

    def depose(self, *, keep_pending: bool = True) -> None:
        """There is no leader from now on; nothing is committed until `elect`."""
        self.settle()
        self._last_leader_id = self.leader_id or self._last_leader_id
        self.term, self.leader_id = self.term + 1, None
        for proposal in self.pending:
            proposal.settle(Fate.UNCERTAIN if keep_pending else Fate.DISCARDED)
        if not keep_pending:
            self.pending.clear()
        self._moved.unpark_all()

    def isolate(self, node_id: int) -> None:
        """Cut a node off. If it leads, the next one is elected, and the old one learns nothing."""
        self.settle()
        assert 2 * (len(self.nodes) - len(self.cut_off) - 1) > len(self.nodes), "no majority left"
        node = self.nodes[node_id]
        self.cut_off[node_id] = CutOff(trio.current_time(), node.leadership)
        if node_id == self.leader_id:
            node.stranded, self.pending = list(self.pending), deque()
            self.elect()
        self._moved.unpark_all()

    def heal(self) -> None:
        """Everybody hears everybody; what an isolated leader was told is overwritten."""
        for node_id in self.cut_off:
            self._end_stranded(self.nodes[node_id], Fate.DISCARDED)
        self.cut_off.clear()
        self.settle()
        self._moved.unpark_all()

    def lose_answers(self, count: int, *, applied: bool = True) -> None:
        """Of the next proposals: ProposalUncertain, though applied, or because never applied."""
        if applied:
            self._answers_lost = count
        else:
            self._proposals_lost = count

    # The log

    def submit(self, node: FakeQuorum, data: bytes) -> Proposal:
        """What a node that believes to lead does with a command."""
        waiting = node.stranded if node.node_id in self.cut_off else self.pending
        if len(waiting) >= self.proposals_max:
            raise QuorumBusy(f"{self.proposals_max} proposals wait already; try again later")
        proposal = Proposal(data, trio.current_time() + self.delay_seconds)
        if self._proposals_lost:
            self._proposals_lost -= 1
            proposal.settle(Fate.UNCERTAIN)
            return proposal
        if self._answers_lost:
            self._answers_lost -= 1
            proposal.is_answer_lost = True
        waiting.append(proposal)
        self._moved.unpark_all()
        return proposal

    def settle(self) -> None:
        """Do everything that was due by now."""
        now = trio.current_time()
        while self.leader_id is not None and self.pending and self.pending[0].due <= now:
            self._commit(self.pending.popleft())
        for node_id, (since, _) in self.cut_off.items():
            if now >= since + CUT_OFF_SECONDS:
                self._end_stranded(self.nodes[node_id], Fate.UNCERTAIN)
        for node in self.nodes.values():
            node.follow(now)

    def _commit(self, proposal: Proposal) -> None:
        self.index += 1
        now = trio.current_time()
        self.log.append(Committed(self.index, proposal.data, now))
        proposal.result = self.leader.follow(now)
        proposal.settle(Fate.APPLIED)

    def _end_stranded(self, node: FakeQuorum, fate: Fate) -> None:
        for proposal in node.stranded:
            proposal.settle(fate)
        node.stranded = []

    async def until(self, poll: Callable[[], T | None], *, look_at: float = inf) -> T:
        """What `poll` returns once it is not None; it may become so at `look_at` by itself."""
        await trio.lowlevel.checkpoint()
        while True:
            self.settle()
            if (found := poll()) is not None:
                return found
            with trio.move_on_at(self._next_due(look_at)):
                await self._moved.park()

    def _next_due(self, look_at: float) -> float:
        now = trio.current_time()
        dues = [look_at]
        dues += [cut.since + CUT_OFF_SECONDS for cut in self.cut_off.values()]
        dues += [node.next_due() for node in self.nodes.values()]
        if self.pending and self.leader_id is not None:
            dues.append(self.pending[0].due)
        return min((due for due in dues if due > now), default=inf)


class FakeQuorum:
    """One node; see `MetadataQuorum`.

    Attributes:
        stranded: commands it took while it led in vain.
        unanswered: how many calls of `propose` wait.
    """

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.node_id, self._cluster = node_id, cluster
        self.stranded: list[Proposal] = []
        self.unanswered = 0
        self._machine, self._applied = MetadataMachine(), 0

    @property
    def image(self) -> MetadataImage:
        self._cluster.settle()
        return self._machine.image

    @property
    def leadership(self) -> Leadership:
        cluster = self._cluster
        if (cut := cluster.cut_off.get(self.node_id)) is None:
            return Leadership(cluster.term, cluster.leader_id, cluster.leader_id == self.node_id)
        if trio.current_time() < cut.since + CUT_OFF_SECONDS:
            return cut.believed
        return Leadership(cut.believed.term, None, is_leader=False)

    async def propose(
        self,
        command: AnyCommand,
        *,
        command_id: CommandId | None = None,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> AnyResult:
        check_proposal(command, command_id, timeout)
        data = encode_command(command, command_id)
        if not self.leadership.is_leader:
            raise self._not_leader()
        proposal = self._cluster.submit(self, data)
        self.unanswered += 1
        try:
            with trio.move_on_after(timeout):
                await self._cluster.until(
                    lambda: None if proposal.fate is Fate.WAITING else proposal.fate
                )
        finally:
            self.unanswered -= 1
        return self._result_of(proposal, type(command).__name__)

    def _result_of(self, proposal: Proposal, name: str) -> AnyResult:
        if proposal.fate is Fate.DISCARDED:
            raise ProposalDiscarded(f"{name} was overwritten by a new leader of the quorum")
        if proposal.fate is not Fate.APPLIED:
            raise ProposalUncertain(f"{name}: it is not known whether it was applied, or will be")
        assert proposal.result is not None, f"{name} was applied without a result"
        return proposal.result

    def _not_leader(self) -> NotController:
        leader = self.leadership.leader_id
        return NotController(f"node {self.node_id} does not lead, node {leader} does", leader)

    async def wait_changed(self, seen: int) -> MetadataImage:
        return await self._cluster.until(
            lambda: self._machine.image if self._machine.image.version > seen else None
        )

    def delta_since(self, seen: int) -> MetadataDelta:
        return self._machine.changes.since(seen, self.image)

    async def wait_leadership_changed(self, seen: Leadership) -> Leadership:
        return await self._cluster.until(
            lambda: self.leadership if self.leadership != seen else None
        )

    async def read_barrier(self) -> MetadataImage:
        asked = self.leadership
        answer_at = trio.current_time() + self._cluster.delay_seconds

        def poll() -> MetadataImage | None:
            if not asked.is_leader or self.leadership != asked:
                raise self._not_leader()
            is_alone = self.node_id in self._cluster.cut_off
            return self.image if trio.current_time() >= answer_at and not is_alone else None

        return await self._cluster.until(poll, look_at=answer_at)

    def install_snapshot(self) -> None:
        """What changed before now is not known any more: the next delta is incomplete."""
        self._machine.changes.reset(self.image)

    # For the cluster

    def follow(self, now: float) -> AnyResult | None:
        """Apply what has reached this node by now; the last result."""
        result = None
        while self.next_due() <= now:
            index, data, _ = self._cluster.log[self._applied]
            self._applied += 1
            result = self._machine.apply(index, data)
        return result

    def next_due(self) -> float:
        """When the next entry reaches this node."""
        cluster = self._cluster
        if self._applied == len(cluster.log) or self.node_id in cluster.cut_off:
            return inf
        lag_seconds = 0.0 if self.node_id == cluster.leader_id else cluster.follow_seconds
        return cluster.log[self._applied].at + lag_seconds
