"""One voter's view of the quorum: `MetadataQuorum`, kept by a real node.

Owns the outcomes of proposals and reads, and who waits for what. `opening` builds one. All calls
are made from the trio loop in which it was opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import (
    InvalidCommand,
    NotController,
    ProposalDiscarded,
    ProposalUncertain,
    QuorumBusy,
)
from raftmq.metadata.commands import Command, CommandId, encode_command
from raftmq.metadata.quorum import PROPOSE_SECONDS_MAX, Leadership
from raftmq.metadata.raft.outcomes import Outcome, Outcomes
from raftmq.metadata.raft.proposals import Fate
from raftmq.metadata.raft.settings import brief

if TYPE_CHECKING:
    from typing import NoReturn

    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.machine import MetadataMachine
    from raftmq.metadata.raft.driver import Driver
    from raftmq.metadata.raft.node import RaftNode


READ_SECONDS_MAX = 5.0  # a barrier that no majority confirms


class RaftQuorum:
    """See `MetadataQuorum` for the promises; they are tested on this and on the fake alike."""

    def __init__(
        self, node: RaftNode, machine: MetadataMachine, driver: Driver, *, proposals_waiting: int
    ) -> None:
        self._node, self._machine, self._driver = node, machine, driver
        self._proposals_waiting = proposals_waiting
        self._is_closed = False
        self._outcomes = Outcomes()
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

    def _result_of(self, outcome: Outcome, command: AnyCommand) -> AnyResult:
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
