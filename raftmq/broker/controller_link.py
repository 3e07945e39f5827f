"""The way from this broker to whoever leads the quorum: on this node, or on another.

Owns the search for the leader and what a failure means. Nobody leads for a moment after a node has
died, so whoever asks waits; what was certainly not taken is sent again, what may have been taken is
not, unless it carries a command id.

    nobody leads, or nobody took it    wait, and again, until the time is over: NotController
    it may have been taken             with a command id again, else ProposalUncertain at once
    taken                              the result, whether Done or Refused
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.requests.proposals import decode_result
from raftmq.errors import (
    InvalidRequest,
    NotController,
    ProposalDiscarded,
    ProposalUncertain,
    QuorumBusy,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
)
from raftmq.metadata.commands import encode_command
from raftmq.metadata.quorum import PROPOSE_SECONDS_MAX
from raftmq.wire.bodies import ID_MAX
from raftmq.wire.messages.cluster import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    Ping,
    Propose,
    ReadBarrier,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.liveness import BrokerContact
    from raftmq.metadata.quorum import Leadership, MetadataQuorum
    from raftmq.rpc.peers import Peers
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request

PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
GRACE_SECONDS = 1.0  # for the answer of a leader that was replaced: it may be dead, or just slow
HEARTBEAT_SECONDS_MAX = 2.0
# Nothing was changed, and the same may succeed later or elsewhere.
_TRIED_AGAIN = (NotController, QuorumBusy, ProposalDiscarded, Unreachable)


class ControllerLink:
    """
    Args:
        beat_here: takes a heartbeat on this node; None where it never leads the quorum.
    """

    def __init__(
        self,
        broker_id: int,
        quorum: MetadataQuorum,
        peers: Peers,
        *,
        beat_here: Callable[[BrokerContact], BrokerHeartbeatReply] | None = None,
    ) -> None:
        self._broker_id, self._quorum, self._peers = broker_id, quorum, peers
        self._beat_here = beat_here

    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # part of the outcome, not a wait
        command_id: CommandId | None = None,
    ) -> AnyResult:
        """Have `command` committed and applied, and return what applying it answered.

        Raises:
            ProposalUncertain: it may have been applied, or may be later.
            NotController, QuorumBusy, Unreachable: no leader took it in time; definite.
            RaftmqError: it cannot be taken as it is; definite.
        """
        deadline, pause = trio.current_time() + timeout, PAUSE_SECONDS_MIN
        is_unknown = False
        while True:
            seen = self._quorum.leadership
            try:
                return await self._propose_once(command, command_id, deadline)
            except RaftmqError as error:
                problem = error
            is_unknown |= not problem.definite
            may_repeat = command_id is not None if is_unknown else isinstance(problem, _TRIED_AGAIN)
            if not may_repeat or not await self._rest(seen, pause, deadline):
                if is_unknown:
                    raise _uncertain(command, problem) from problem
                raise problem
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def heartbeat(
        self,
        said: BrokerContact,
        *,
        timeout: float = HEARTBEAT_SECONDS_MAX,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> BrokerHeartbeatReply:
        """Tell the controller, once.

        Raises:
            StaleBrokerEpoch, BrokerIdNotRegistered: this broker must register again.
            RaftmqError: it has not heard it, or the answer was lost.
        """
        deadline = trio.current_time() + timeout
        leader = await self._leader(deadline)
        if leader.is_leader:
            return self._beat(said)
        body = BrokerHeartbeat(
            said.broker_id,
            said.broker_epoch,
            said.metadata_version,
            said.pending_flush_seconds,
            said.wants_shutdown,
            said.wall_clock_ms,
        )
        reply: BrokerHeartbeatReply = (await self._ask(leader, body, deadline)).body
        return reply

    async def read_barrier(
        self,
        *,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> int:
        """The version of an image that holds all that was acknowledged, anywhere, before this call.

        Raises:
            RaftmqError: nobody could tell in time.
        """
        deadline, pause = trio.current_time() + timeout, PAUSE_SECONDS_MIN
        while True:
            seen = self._quorum.leadership
            try:
                return await self._read_barrier_once(deadline)
            except RaftmqError as error:
                if not error.retriable or not await self._rest(seen, pause, deadline):
                    raise
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _read_barrier_once(self, deadline: float) -> int:
        leader = await self._leader(deadline)
        if not leader.is_leader:
            version: int = (await self._ask(leader, ReadBarrier(), deadline)).body.metadata_version
            return version
        with trio.move_on_at(deadline):
            return (await self._quorum.read_barrier()).version
        raise NotController(f"node {self._broker_id} is not confirmed as the leader in time")

    def _beat(self, said: BrokerContact) -> BrokerHeartbeatReply:
        if self._beat_here is None:
            raise NotController(f"node {self._broker_id} holds no office", None)
        return self._beat_here(said)

    async def _propose_once(
        self, command: AnyCommand, command_id: CommandId | None, deadline: float
    ) -> AnyResult:
        leader = await self._leader(deadline)
        seconds = max(0.0, deadline - trio.current_time())
        if leader.is_leader:
            return await self._quorum.propose(command, command_id=command_id, timeout=seconds)
        timeout_ms = min(int(seconds * 1000), ID_MAX)
        body = Propose(encode_command(command, command_id), timeout_ms)
        answer = await self._ask(leader, body, deadline)
        try:
            return decode_result(answer.body.result)
        except InvalidRequest as error:  # it was applied, and this node is too old to know how
            raise ProposalUncertain(str(error)) from error

    async def _leader(self, deadline: float) -> Leadership:
        """Who leads, as far as this node knows; it waits for one."""
        with trio.move_on_at(deadline):
            leadership = self._quorum.leadership
            while leadership.leader_id is None:
                leadership = await self._quorum.wait_leadership_changed(leadership)
            return leadership
        raise NotController(f"node {self._broker_id} has heard of no leader in time")

    async def _ask(self, leader: Leadership, body: Request, deadline: float) -> Answer:
        """Ask the leader, not for much longer than it leads.

        Raises:
            Unreachable: nothing was sent; definite.
            RequestTimedOut: another leads by now; indefinite.
            RaftmqError: what `Peers.request` raises.
        """
        assert leader.leader_id is not None, "asked nobody"
        if not self._peers.is_connected(leader.leader_id):
            await self._connect(leader, deadline)
        answer = await self._while_leading(leader, body, deadline, grace_seconds=GRACE_SECONDS)
        if answer is None:
            raise RequestTimedOut(f"node {leader.leader_id} leads no more, and has not answered")
        return answer

    async def _connect(self, leader: Leadership, deadline: float) -> None:
        """Nothing is lost with a Ping, so nobody waits for a leader that is gone to be dialled.

        Raises:
            Unreachable: definite, whatever became of the Ping.
        """
        try:
            answer = await self._while_leading(leader, Ping(), deadline, grace_seconds=0.0)
        except RaftmqError as error:
            raise Unreachable(str(error)) from error
        if answer is None:
            raise Unreachable(f"node {leader.leader_id} leads no more")

    async def _while_leading(
        self, leader: Leadership, body: Request, deadline: float, *, grace_seconds: float
    ) -> Answer | None:
        """The answer; None if another leads, and there was none within `grace_seconds` after."""
        outcome: Answer | RaftmqError | None = None
        seconds = max(0.0, deadline - trio.current_time())
        assert leader.leader_id is not None, "asked nobody"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up, leader, grace_seconds, nursery.cancel_scope)
            try:
                outcome = await self._peers.request(leader.leader_id, body, timeout_seconds=seconds)
            except RaftmqError as error:  # would reach the caller in a group otherwise
                outcome = error
            nursery.cancel_scope.cancel()
        if isinstance(outcome, RaftmqError):
            raise outcome
        return outcome

    async def _give_up(
        self, leader: Leadership, grace_seconds: float, scope: trio.CancelScope
    ) -> None:
        """Once another leads: the old one may be dead, and then nobody answers."""
        leadership = leader
        while leadership.leader_id in (leader.leader_id, None):
            leadership = await self._quorum.wait_leadership_changed(leadership)
        await trio.sleep(grace_seconds)
        scope.cancel()

    async def _rest(self, seen: Leadership, seconds: float, deadline: float) -> bool:
        """Until another leads, or for so long; False if there is no time left."""
        now = trio.current_time()
        with trio.move_on_at(min(now + seconds, deadline)):
            await self._quorum.wait_leadership_changed(seen)
        return trio.current_time() < deadline


def _uncertain(command: AnyCommand, problem: RaftmqError) -> ProposalUncertain:
    name = type(command).__name__
    return ProposalUncertain(f"{name}: it is not known whether it was applied: {problem}")
