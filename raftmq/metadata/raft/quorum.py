"""`MetadataQuorum` of a voter: proposals, read barriers, and the driver task of the Raft node.

Owns the outcomes of proposals and reads with their timeouts, and the order in which one driver task
receives, ticks, syncs the journal and sends. `opening` builds one. All calls are made from the trio
loop in which it was opened.
"""

from __future__ import annotations

import logging
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import (
    InvalidCommand,
    NotController,
    ProposalDiscarded,
    ProposalUncertain,
    QuorumBusy,
    RemoteProtocolError,
    StorageError,
)
from raftmq.metadata.commands import Command, CommandId, encode_command
from raftmq.metadata.quorum import PROPOSE_SECONDS_MAX, Leadership
from raftmq.metadata.raft.engine.replication import Fate
from raftmq.metadata.raft.settings import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from raftmq.disk.thread import RunSync
    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.machine import MetadataMachine
    from raftmq.metadata.raft.engine.node import RaftNode
    from raftmq.metadata.raft.journal.journal import Journal
    from raftmq.metadata.raft.net.messages import AnyMessage
    from raftmq.metadata.raft.net.transport import Transport
    from raftmq.metadata.raft.snapshot.snapshotter import Snapshotter


logger = logging.getLogger("raftmq.metadata")


# -- Driver ---------------------------------------------------------------------------------------
# The task that runs a voter: messages in, a tick, journal to disk, messages out.
#
# Owns the order that safety depends on:
#
#     inbox -> guard -> engine -> journal.prepare ─ worker: write, fdatasync ─ complete -> flush
#                proposals ──┘        (more of both queue up meanwhile: group commit)
#
# Nothing that depends on the journal is sent before it is synced: no vote, no entry, no answer. A
# journal that cannot be written ends the task, and with it the node.


class DriverTurns:
    """What other parts of a voter know of its driver: they wake it, or end it, and the turn that it
    is in may take too long.
    """

    def __init__(self, *, stuck_seconds: float) -> None:
        self._stuck_seconds, self._began = stuck_seconds, trio.current_time()
        self._woken = trio.Event()
        self._error: Exception | None = None

    def wake(self) -> None:
        """Begin the next turn now instead of with the next tick."""
        self._woken.set()

    def fail(self, error: Exception) -> None:
        """This voter must stop: end its driver with `error`, in the next turn."""
        self._error = error
        self.wake()

    @property
    def is_stuck(self) -> bool:
        """Whether this turn has waited for the disk so long that no voter follows this leader."""
        return trio.current_time() - self._began > self._stuck_seconds

    async def wait(self, seconds_max: float) -> None:
        """Until `wake`, or for so long. Always a checkpoint, so that other tasks run."""
        with trio.move_on_after(seconds_max):
            await self._woken.wait()  # ended by `wake`, or by the next tick
        self._woken = trio.Event()

    def begin(self) -> None:
        """Raises the error of `fail`."""
        self._began = trio.current_time()
        # The disk failed, or a peer has proved this directory to be an older copy.
        if self._error is not None:
            raise self._error


class Driver:
    """`on_turn`: called in order after every turn, when its changes are durable."""

    def __init__(
        self,
        node: RaftNode,
        journal: Journal,
        transport: Transport[Any],
        snapshotter: Snapshotter,
        turns: DriverTurns,
        *,
        on_turn: Sequence[Callable[[], None]],
        write_journal: RunSync,
        run_sync: RunSync,
        tick_seconds: float,
    ) -> None:
        self._node, self._journal, self._transport = node, journal, transport
        self._snapshotter, self._turns, self._on_turn = snapshotter, turns, on_turn
        self._write_journal, self._run_sync = write_journal, run_sync
        self._tick_seconds, self._removals = tick_seconds, trio.Event()

    async def run(self) -> None:
        while True:
            if self._node.has_work:  # more entries to apply than fit into one turn
                self._turns.wake()
            # Until there is work, or for one tick.
            await self._turns.wait(self._node.seconds_to_wake(self._tick_seconds))
            self._turns.begin()
            self._snapshotter.maybe_install()
            self._take_messages()
            self._node.maybe_establish()
            self._node.tick()
            self._snapshotter.maybe_take()
            await self._sync()  # until the disk has synced: nothing may be sent before
            self._node.after_sync()
            self._transport.flush()
            for tell in self._on_turn:
                tell()
            if self._journal.has_removals:
                self._removals.set()

    def _take_messages(self) -> None:
        for peer, message in self._transport.take_inbox():
            try:
                self._receive(peer, message)
            # A peer's fault ends its connection, never this node.
            except RemoteProtocolError as error:
                logger.warning("peer=%s event=protocol_error error=%s", peer, error)
                self._transport.disconnect(peer, str(error))

    def _receive(self, peer: int, message: AnyMessage) -> None:
        # An earlier message of this turn may have made us drop the peer.
        if self._transport.is_connected(peer) and not self._snapshotter.take_message(peer, message):
            offer = self._node.receive(peer, message)
            if offer is not None:  # this node's log ends before the leader's begins
                self._snapshotter.on_offer(peer, offer)

    async def _sync(self) -> None:
        batch = self._journal.prepare()
        if batch is not None:  # nothing changed: no sync
            began = trio.current_time()
            # Waits for one write and fdatasync; messages and proposals queue up meanwhile.
            await self._write_journal(batch.write)
            self._node.on_synced(trio.current_time() - began)
            self._journal.complete(batch)

    async def remove_segments(self) -> None:
        """Delete segments that are not needed any more; a task of its own, so no turn waits."""
        while True:
            await self._removals.wait()  # set by `run` when the journal has segments to remove
            self._removals = trio.Event()
            removal = self._journal.prepare_removal()
            if removal is not None:
                try:
                    await self._run_sync(removal.run)  # in a thread; a commit never waits for it
                except StorageError as error:  # they stay; the next start tries again
                    logger.warning("event=segments_left error=%s", error)
                    return
                self._journal.removed(removal)


# -- Outcomes -------------------------------------------------------------------------------------
# The outcome of each proposal, for the task that waits for it, and its timeout.
#
# One task checks the deadlines of all of them (like a purgatory): a cancel scope for each proposal
# would cost as much as the rest of its way through the leader.
#
# Invariant: an outcome is settled once, by the driver's task or by the timeout; a later outcome is
# ignored.


# Settled outcomes that may stay in the heap of deadlines before it is rebuilt without them:
# removing each at once would cost more than its memory.
SETTLED_MAX = 1024


class CommandOutcome:
    """Attributes:
    seconds: the timeout, from its creation.
    fate: None until the outcome is known or the timeout has passed.
    result: see `Fate`.
    """

    __slots__ = ("_task", "deadline", "fate", "result", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, trio.current_time() + seconds
        self.fate: Fate | None = None
        self.result: object = None
        self._task: trio.lowlevel.Task | None = None

    def __lt__(self, other: CommandOutcome) -> bool:
        return self.deadline < other.deadline

    def settle(self, fate: Fate, result: object) -> None:
        if self.fate is not None:  # late: the deadline has passed before
            return
        self.fate, self.result = fate, result
        if self._task is not None:  # a task waits already; else `wait` is not called
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> None:
        """Wait until it is settled, by the driver or by its deadline. One task only."""
        assert self.fate is None, "settled before anybody could wait"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._give_up)  # rescheduled by `settle`

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class CommandOutcomes:
    """Outcomes with a waiting task, by deadline; `run` settles those whose deadline passes."""

    def __init__(self) -> None:
        self._heap: list[CommandOutcome] = []
        self._size_max = SETTLED_MAX
        self._earlier = trio.Event()  # set when there is an earlier deadline than `run` waits for

    def add(self, seconds: float) -> CommandOutcome:
        outcome = CommandOutcome(seconds)
        if len(self._heap) >= self._size_max:  # too many settled ones are left in the heap
            self._forget_settled()
        heappush(self._heap, outcome)
        if self._heap[0] is outcome:  # `run` waits for a later deadline: wake it
            self._earlier.set()
        return outcome

    def _forget_settled(self) -> None:
        self._heap = [outcome for outcome in self._heap if outcome.fate is None]
        heapify(self._heap)
        self._size_max = 2 * len(self._heap) + SETTLED_MAX

    async def run(self) -> NoReturn:
        while True:
            # Waits for the first deadline, or for a new outcome with an earlier one.
            with trio.move_on_at(self._heap[0].deadline if self._heap else float("inf")):
                await self._earlier.wait()
            self._earlier = trio.Event()
            self._settle_late()

    def _settle_late(self) -> None:
        now = trio.current_time()
        # Also those settled before their deadline, which only remain in the heap.
        while self._heap and (self._heap[0].fate is not None or self._heap[0].deadline <= now):
            late = heappop(self._heap)
            late.settle(Fate.UNKNOWN, f"no answer within {late.seconds:g} s")


# -- Quorum ---------------------------------------------------------------------------------------


# Wait for a majority to confirm a read barrier: as long as for a proposal. A leader without a
# majority steps down after three seconds, which fails the read earlier.
READ_SECONDS_MAX = 5.0


class RaftQuorum:
    """See `MetadataQuorum` for the promises; one test suite checks them here and on the fake."""

    def __init__(
        self,
        node: RaftNode,
        machine: MetadataMachine,
        turns: DriverTurns,
        *,
        proposals_waiting: int,
    ) -> None:
        self._node, self._machine, self._turns = node, machine, turns
        self._proposals_waiting = proposals_waiting
        self._is_closed = False
        self._outcomes = CommandOutcomes()
        self._published = machine.image.version
        self._published_leadership = self.leadership
        self._changed, self._leadership_changed = trio.Event(), trio.Event()

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    @property
    def leadership(self) -> Leadership:
        node = self._node
        if self._is_closed:
            return Leadership(node.term, None, is_leader=False)
        if node.is_leader and self._turns.is_stuck:  # its disk hangs: another may lead by now
            return Leadership(node.term, None, is_leader=False)
        return Leadership(node.term, node.heard_leader_id, node.is_leader)

    @property
    def unanswered(self) -> int:
        """Proposals and reads that are still in flight."""
        return len(self._node.proposals) + len(self._node.reads)

    async def propose(
        self,
        command: AnyCommand,
        *,
        command_id: CommandId | None = None,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # ends in ProposalUncertain
    ) -> AnyResult:
        check_proposal(command, command_id, timeout)
        data = encode_command(command, command_id)
        self._check_takes()
        outcome = self._outcomes.add(timeout)
        index = self._node.submit(data, outcome.settle)
        assert index is not None, "a leader takes commands"
        self._turns.wake()
        try:
            await outcome.wait()  # until settled by the driver or the deadline
        finally:
            # Cancelled, or timed out: the entry stays in the log, but no task waits for it.
            if outcome.fate is None or outcome.fate is Fate.UNKNOWN:
                self._node.proposals.forget(index, outcome.settle)
        return self._result_of(outcome, command)

    def _check_takes(self) -> None:
        """
        Raises:
            NotController: this node does not lead, or its disk hangs.
            QuorumBusy: too many proposals are in flight (back-pressure).
        """
        # A leader whose disk hangs accepts nothing: its followers may have elected another.
        if self._is_closed or not self._node.is_leader or self._turns.is_stuck:
            raise self._not_leader()
        # Back-pressure: each holds its command in memory.
        if len(self._node.proposals) >= self._proposals_waiting:
            raise QuorumBusy(f"{self._proposals_waiting} proposals wait already; try again later")

    def _result_of(self, outcome: CommandOutcome, command: AnyCommand) -> AnyResult:
        if outcome.fate is Fate.APPLIED:
            return outcome.result  # type: ignore[return-value]  # MetadataMachine.apply returned it
        name = type(command).__name__
        # Another leader's entry has its place: it will never be applied.
        if outcome.fate is Fate.DISCARDED:
            raise ProposalDiscarded(f"{name} was overwritten by a new leader of the quorum")
        raise ProposalUncertain(
            f"{name}: {outcome.result}; it may be applied yet: propose it again with the same"
            " command id, or read first"
        )

    async def run(self) -> NoReturn:
        """Time out proposals; a task beside the driver's."""
        await self._outcomes.run()  # never returns

    def _not_leader(self) -> NotController:
        if self._is_closed:
            return NotController(f"node {self._node.node_id} stops")
        leader = self._node.heard_leader_id
        known = "no node is known to" if leader is None else f"node {leader} does"
        what = f"node {self._node.node_id} does not lead the metadata quorum; {known}"
        return NotController(what, leader)

    async def wait_changed(self, seen: int) -> MetadataImage:
        while self.image.version <= seen:
            await self._changed.wait()  # set by `publish` after a turn that applied commands
        await trio.lowlevel.checkpoint_if_cancelled()  # a checkpoint even if it need not wait
        return self.image

    def delta_since(self, seen: int) -> MetadataDelta:
        return self._machine.changes.since(seen, self.image)

    async def wait_leadership_changed(self, seen: Leadership) -> Leadership:
        while self.leadership == seen:
            # Set by `publish` after a turn that changed the leader.
            await self._leadership_changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.leadership

    async def read_barrier(self) -> MetadataImage:
        done, answers = trio.Event(), list[bool]()

        def settle(is_confirmed: bool) -> None:
            answers.append(is_confirmed)
            done.set()

        if self._is_closed:
            raise self._not_leader()  # the driver has ended: no turn would ever settle the read
        if len(self._node.reads) >= self._proposals_waiting:
            raise QuorumBusy(f"{self._proposals_waiting} reads wait already; try again later")
        self._node.begin_read(settle)
        self._turns.wake()
        with trio.move_on_after(READ_SECONDS_MAX):
            # Settled when a majority has echoed the read's round and this node has applied what was
            # committed at its begin; or with False when this node stops leading.
            await done.wait()
        if answers != [True]:  # timed out, or this node does not lead any more
            raise self._not_leader()
        return self.image

    def close(self) -> None:
        """This node stops: refuse proposals; those in flight may still be applied by others."""
        self._is_closed = True
        self._node.abandon()

    def publish(self) -> None:
        """After a turn: wake the tasks that wait for a new image or leader."""
        if self._published != self.image.version:  # no-ops and enrolments leave the image as it is
            self._published = self.image.version
            self._changed.set()
            self._changed = trio.Event()
        leadership = self.leadership
        if self._published_leadership != leadership:
            self._published_leadership = leadership
            self._leadership_changed.set()
            self._leadership_changed = trio.Event()


def check_proposal(command: object, command_id: object, timeout: object) -> None:
    """Refuse arguments here that would only be refused after they are in every voter's log.

    The fields of a command are not checked: that would cost more than the rest of its way.

    Raises:
        InvalidCommand: naming the argument; nothing was sent.
    """
    if not isinstance(command, Command):
        raise InvalidCommand(
            f"command = {brief(command)}: expected one of raftmq.metadata.commands"
        )
    if command_id is not None and not isinstance(command_id, CommandId):
        raise InvalidCommand(f"command_id = {brief(command_id)}: expected a CommandId, or None")
    if not (isinstance(timeout, (float, int)) and timeout >= 0):
        raise InvalidCommand(f"timeout = {brief(timeout)}: expected seconds, 0 or more")
