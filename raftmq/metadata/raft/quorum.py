"""One voter's view of the quorum: `MetadataQuorum`, kept by a real node.

Owns the outcomes of proposals and reads, and who waits for what. `opening` builds one. All calls
are made from the trio loop in which it was opened.
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
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

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
# The one task that moves a voter: messages in, a tick, the journal to disk, messages out.
#
# Owns the order that everything rests on:
#
#     inbox -> guard -> engine -> journal.prepare ─ worker: write, fdatasync ─ complete -> flush
#                proposals ──┘        (more of both pile up meanwhile: group commit)
#
# Nothing that depends on the journal leaves before it is synced: not a vote, not an entry, not an
# answer. A journal that cannot be written ends the task, and with it the node.


class Driver:
    """Attributes:
    on_turn: called in order after every turn, when what it changed is durable.
    """

    def __init__(
        self,
        node: RaftNode,
        journal: Journal,
        transport: Transport[Any],
        snapshotter: Snapshotter,
        *,
        write_journal: Callable[[Callable[[], None]], Awaitable[None]],
        run_sync: Callable[[Callable[[], None]], Awaitable[None]],
        tick_seconds: float,
        stuck_seconds: float,
    ) -> None:
        self._node, self._journal, self._transport = node, journal, transport
        self._snapshotter = snapshotter
        self._write_journal, self._run_sync = write_journal, run_sync
        self._tick_seconds, self._stuck_seconds = tick_seconds, stuck_seconds
        self._turn_began = trio.current_time()
        self._event, self._removals = trio.Event(), trio.Event()
        self._error: Exception | None = None
        self.on_turn: list[Callable[[], None]] = []

    def wake(self) -> None:
        """There is something to do before the next tick."""
        self._event.set()

    def fail(self, error: Exception) -> None:
        """This voter must not go on: end its task with `error`, in the next turn."""
        self._error = error
        self.wake()

    @property
    def is_stuck(self) -> bool:
        """Whether the turn that runs has waited for the disk so long that nobody follows us."""
        return trio.current_time() - self._turn_began > self._stuck_seconds

    async def run(self) -> None:
        while True:
            await self._wait()
            self._turn_began = trio.current_time()
            if self._error is not None:
                raise self._error
            self._snapshotter.maybe_install()
            self._take_messages()
            self._node.maybe_establish()
            self._node.tick()
            self._snapshotter.maybe_take()
            await self._sync()
            self._node.after_sync()
            self._transport.flush()
            for tell in self.on_turn:
                tell()
            if self._journal.has_removals:
                self._removals.set()

    async def _wait(self) -> None:
        """Until there is work, or the clock wants a tick. Always lets others run."""
        if self._node.has_work:
            self._event.set()
        with trio.move_on_after(self._node.seconds_to_wake(self._tick_seconds)):
            await self._event.wait()
        self._event = trio.Event()

    def _take_messages(self) -> None:
        for peer, message in self._transport.take_inbox():
            try:
                self._receive(peer, message)
            except RemoteProtocolError as error:
                logger.warning("peer=%s event=protocol_error error=%s", peer, error)
                self._transport.disconnect(peer, str(error))

    def _receive(self, peer: int, message: AnyMessage) -> None:
        if self._transport.is_connected(peer) and not self._snapshotter.take_message(peer, message):
            self._node.receive(peer, message)

    async def _sync(self) -> None:
        batch = self._journal.prepare()
        if batch is not None:
            began = trio.current_time()
            await self._write_journal(batch.write)
            self._node.on_synced(trio.current_time() - began)
            self._journal.complete(batch)

    async def remove_segments(self) -> None:
        """A task beside `run`: no turn waits for segments that nothing needs any more."""
        while True:
            await self._removals.wait()
            self._removals = trio.Event()
            removal = self._journal.prepare_removal()
            if removal is not None:
                try:
                    await self._run_sync(removal.run)
                except StorageError as error:  # they stay; the next start tries again
                    logger.warning("event=segments_left error=%s", error)
                    return
                self._journal.removed(removal)


# -- Outcomes -------------------------------------------------------------------------------------
# What becomes of each proposal, for the task that waits for it, and how long that may take.
#
# Owns the waiting and its bound. One task looks at the clock for all of them: a cancel scope for
# each proposal would cost as much as the rest of its way through the leader.
#
# Invariant: an outcome is settled once, by the driver's task or by the clock; later news is
# ignored.


SETTLED_MAX = 1024  # outcomes that nobody needs any more and that are kept in spite of it


class CommandOutcome:
    """Attributes:
    seconds: how long it may take, from now on.
    fate: None as long as nothing is known, in time, of the proposal.
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
        if self.fate is not None:
            return
        self.fate, self.result = fate, result
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> None:
        """Until it is settled. One task only."""
        assert self.fate is None, "settled before anybody could wait"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._give_up)

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class CommandOutcomes:
    """Those that somebody waits for, by deadline; `run` settles whatever comes too late."""

    def __init__(self) -> None:
        self._heap: list[CommandOutcome] = []
        self._size_max = SETTLED_MAX
        self._earlier = trio.Event()  # than what `run` waits for

    def add(self, seconds: float) -> CommandOutcome:
        outcome = CommandOutcome(seconds)
        if len(self._heap) >= self._size_max:
            self._forget_settled()
        heappush(self._heap, outcome)
        if self._heap[0] is outcome:
            self._earlier.set()
        return outcome

    def _forget_settled(self) -> None:
        self._heap = [outcome for outcome in self._heap if outcome.fate is None]
        heapify(self._heap)
        self._size_max = 2 * len(self._heap) + SETTLED_MAX

    async def run(self) -> NoReturn:
        while True:
            with trio.move_on_at(self._heap[0].deadline if self._heap else float("inf")):
                await self._earlier.wait()
            self._earlier = trio.Event()
            self._settle_late()

    def _settle_late(self) -> None:
        now = trio.current_time()
        while self._heap and (self._heap[0].fate is not None or self._heap[0].deadline <= now):
            late = heappop(self._heap)
            late.settle(Fate.UNKNOWN, f"no answer within {late.seconds:g} s")


# -- Quorum ---------------------------------------------------------------------------------------


READ_SECONDS_MAX = 5.0  # a barrier that no majority confirms


class RaftQuorum:
    """See `MetadataQuorum` for the promises; they are tested on this and on the fake alike."""

    def __init__(
        self, node: RaftNode, machine: MetadataMachine, driver: Driver, *, proposals_waiting: int
    ) -> None:
        self._node, self._machine, self._driver = node, machine, driver
        self._proposals_waiting = proposals_waiting
        self._is_closed = False
        self._outcomes = CommandOutcomes()
        self._published = machine.image.version
        self._published_leadership = self.leadership
        self._changed, self._leadership_changed = trio.Event(), trio.Event()
        driver.on_turn.append(self._publish)

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    @property
    def leadership(self) -> Leadership:
        node = self._node
        if self._is_closed:
            return Leadership(node.term, None, is_leader=False)
        if node.is_leader and self._driver.is_stuck:  # its disk hangs: others lead by now
            return Leadership(node.term, None, is_leader=False)
        return Leadership(node.term, node.heard_leader_id, node.is_leader)

    @property
    def unanswered(self) -> int:
        """Proposals and reads that somebody may still wait for."""
        return len(self._node.proposals) + len(self._node.reads)

    async def propose(
        self,
        command: AnyCommand,
        *,
        command_id: CommandId | None = None,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> AnyResult:
        check_proposal(command, command_id, timeout)
        data = encode_command(command, command_id)
        self._check_takes()
        outcome = self._outcomes.add(timeout)
        index = self._node.submit(data, outcome.settle)
        assert index is not None, "a leader takes commands"
        self._driver.wake()
        try:
            await outcome.wait()
        finally:
            if outcome.fate is None or outcome.fate is Fate.UNKNOWN:
                self._node.proposals.forget(index, outcome.settle)
        return self._result_of(outcome, command)

    def _check_takes(self) -> None:
        """
        Raises:
            NotController: this node does not lead, or is not followed any more.
            QuorumBusy: too many wait.
        """
        if self._is_closed or not self._node.is_leader or self._driver.is_stuck:
            raise self._not_leader()
        if len(self._node.proposals) >= self._proposals_waiting:
            raise QuorumBusy(f"{self._proposals_waiting} proposals wait already; try again later")

    def _result_of(self, outcome: CommandOutcome, command: AnyCommand) -> AnyResult:
        if outcome.fate is Fate.APPLIED:
            return outcome.result  # type: ignore[return-value]  # MetadataMachine.apply returned it
        name = type(command).__name__
        if outcome.fate is Fate.DISCARDED:
            raise ProposalDiscarded(f"{name} was overwritten by a new leader of the quorum")
        raise ProposalUncertain(
            f"{name}: {outcome.result}; it may be applied yet: propose it again with the same"
            " command id, or read first"
        )

    async def run(self) -> NoReturn:
        """Watch the time that proposals may take; a task beside the driver's."""
        await self._outcomes.run()

    def _not_leader(self) -> NotController:
        if self._is_closed:
            return NotController(f"node {self._node.node_id} stops")
        leader = self._node.heard_leader_id
        known = "nobody is known to" if leader is None else f"node {leader} does"
        what = f"node {self._node.node_id} does not lead the metadata quorum; {known}"
        return NotController(what, leader)

    async def wait_changed(self, seen: int) -> MetadataImage:
        while self.image.version <= seen:
            await self._changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.image

    def delta_since(self, seen: int) -> MetadataDelta:
        return self._machine.changes.since(seen, self.image)

    async def wait_leadership_changed(self, seen: Leadership) -> Leadership:
        while self.leadership == seen:
            await self._leadership_changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()
        return self.leadership

    async def read_barrier(self) -> MetadataImage:
        done, answers = trio.Event(), list[bool]()

        def settle(is_confirmed: bool) -> None:
            answers.append(is_confirmed)
            done.set()

        if self._is_closed:
            raise self._not_leader()  # else nobody would ever answer
        if len(self._node.reads) >= self._proposals_waiting:
            raise QuorumBusy(f"{self._proposals_waiting} reads wait already; try again later")
        self._node.begin_read(settle)
        self._driver.wake()
        with trio.move_on_after(READ_SECONDS_MAX):
            await done.wait()
        if answers != [True]:
            raise self._not_leader()
        return self.image

    def close(self) -> None:
        """This node stops: nothing is taken; what waits may yet be applied by the others."""
        self._is_closed = True
        self._node.abandon()

    def _publish(self) -> None:
        """After a turn: wake whoever waits for what it changed."""
        if self._published != self.image.version:
            self._published = self.image.version
            self._changed.set()
            self._changed = trio.Event()
        leadership = self.leadership
        if self._published_leadership != leadership:
            self._published_leadership = leadership
            self._leadership_changed.set()
            self._leadership_changed = trio.Event()


def check_proposal(command: object, command_id: object, timeout: object) -> None:
    """What would end up in the log of every voter, and be refused there, is refused here.

    The fields of a command are not looked at: that would cost more than the rest of its way.

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
