"""Requests to the controller, the leader of the quorum, on this node or another: find it, retry.

Owns the search for the leader and what a failure means. After a node has died there is no leader
for a moment, so callers wait; a command that was certainly not applied is sent again, one that may
have been applied is not, unless it carries a command id.
(Kafka: NodeToControllerChannelManager)

    no leader, or it did not take it   wait and try again until the deadline: NotController
    it may have been applied           with a command id again, else ProposalUncertain at once
    applied                            the result, Done or Refused
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

# Between attempts; a change of leader ends a pause at once. An election takes one or two seconds.
PAUSE_SECONDS_MIN = 0.05
# A new leader is found at most so late where its election is not noticed here.
PAUSE_SECONDS_MAX = 1.0
GRACE_SECONDS = 1.0  # for the answer of a leader that was replaced: it may be dead, or just slow
# An older heartbeat says nothing new: give it up and send the next one.
HEARTBEAT_SECONDS_MAX = 2.0
# Nothing was changed, and the same request may succeed later or elsewhere.
_TRIED_AGAIN = (NotController, QuorumBusy, ProposalDiscarded, Unreachable)


class ControllerLink:
    """
    Args:
        beat_here: handles a heartbeat on this node; None where it never leads the quorum.
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
        """Have `command` committed and applied; returns the result of applying it.

        Raises:
            ProposalUncertain: it may have been applied, or may be later.
            NotController, QuorumBusy, Unreachable: no leader took it in time; definite.
            RaftmqError: it is refused as it is; definite.
        """
        deadline, pause = trio.current_time() + timeout, PAUSE_SECONDS_MIN
        is_unknown = False
        while True:
            seen = self._quorum.leadership
            try:
                # One attempt; the loop decides about the next.
                return await self._propose_once(command, command_id, deadline)
            except RaftmqError as error:  # definite or not decides whether to repeat
                problem = error
            # Once one attempt may have been applied the whole call stays uncertain, and only a
            # command id, which the quorum applies once, makes another attempt safe.
            is_unknown |= not problem.definite
            may_repeat = command_id is not None if is_unknown else isinstance(problem, _TRIED_AGAIN)
            # Until the leader changes or a pause has passed.
            if not may_repeat or not await self._rest(seen, pause, deadline):
                if is_unknown:  # the caller must not take it for a refusal
                    raise _uncertain(command, problem) from problem
                raise problem
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def heartbeat(
        self,
        said: BrokerContact,
        *,
        timeout: float = HEARTBEAT_SECONDS_MAX,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> BrokerHeartbeatReply:
        """Send one heartbeat to the controller.

        Raises:
            StaleBrokerEpoch, BrokerIdNotRegistered: this broker must register again.
            RaftmqError: the controller did not get it, or its answer was lost.
        """
        deadline = trio.current_time() + timeout
        leader = await self._leader(deadline)  # waits for an election, within the timeout
        if leader.is_leader:  # the controller is on this very node
            return self._beat(said)
        body = BrokerHeartbeat(
            said.broker_id,
            said.broker_epoch,
            said.metadata_version,
            said.pending_flush_seconds,
            said.wants_shutdown,
            said.wall_clock_ms,
        )
        # An answer, or an error within HEARTBEAT_SECONDS_MAX.
        reply: BrokerHeartbeatReply = (await self._ask(leader, body, deadline)).body
        return reply

    async def read_barrier(
        self,
        *,
        timeout: float = PROPOSE_SECONDS_MAX,  # noqa: ASYNC109  # part of the outcome, not a wait
    ) -> int:
        """A version of the image with all that was acknowledged, anywhere, before this call.

        Raises:
            RaftmqError: no leader could confirm it in time.
        """
        deadline, pause = trio.current_time() + timeout, PAUSE_SECONDS_MIN
        while True:
            seen = self._quorum.leadership
            try:
                # One attempt, with a wait for a leader.
                return await self._read_barrier_once(deadline)
            # Reading twice is harmless, so any retriable error will do.
            except RaftmqError as error:
                if not error.retriable or not await self._rest(seen, pause, deadline):
                    raise
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _read_barrier_once(self, deadline: float) -> int:
        leader = await self._leader(deadline)  # waits for an election, within the deadline
        if not leader.is_leader:  # only the leader can confirm that it still leads
            version: int = (await self._ask(leader, ReadBarrier(), deadline)).body.metadata_version
            return version
        # A leader that lost its majority would wait for the round for ever.
        with trio.move_on_at(deadline):
            return (await self._quorum.read_barrier()).version
        raise NotController(f"node {self._broker_id} is not confirmed as the leader in time")

    def _beat(self, said: BrokerContact) -> BrokerHeartbeatReply:
        if self._beat_here is None:  # a node without the controller's rules, as in some simulations
            raise NotController(f"node {self._broker_id} holds no office", None)
        return self._beat_here(said)

    async def _propose_once(
        self, command: AnyCommand, command_id: CommandId | None, deadline: float
    ) -> AnyResult:
        leader = await self._leader(deadline)  # waits for an election, within the deadline
        seconds = max(0.0, deadline - trio.current_time())
        # This node leads: no network, no codec.
        if leader.is_leader:
            # The quorum keeps the deadline.
            return await self._quorum.propose(command, command_id=command_id, timeout=seconds)
        timeout_ms = min(int(seconds * 1000), ID_MAX)
        body = Propose(encode_command(command, command_id), timeout_ms)
        # An answer, or an error that says whether it may have been applied.
        answer = await self._ask(leader, body, deadline)
        try:
            return decode_result(answer.body.result)
        except InvalidRequest as error:  # it was applied, and this node is too old to know how
            raise ProposalUncertain(str(error)) from error

    async def _leader(self, deadline: float) -> Leadership:
        """The current leader, as far as this node knows; waits while there is none."""
        # Ends with an election, or at the deadline of the caller.
        with trio.move_on_at(deadline):
            leadership = self._quorum.leadership
            while leadership.leader_id is None:  # no leader is known: an election is going on
                leadership = await self._quorum.wait_leadership_changed(leadership)
            return leadership
        raise NotController(f"node {self._broker_id} has heard of no leader in time")

    async def _ask(self, leader: Leadership, body: Request, deadline: float) -> Answer:
        """Ask the leader, and give up soon after it was replaced.

        Raises:
            Unreachable: nothing was sent; definite.
            RequestTimedOut: another node leads by now; indefinite.
            RaftmqError: what `Peers.request` raises.
        """
        assert leader.leader_id is not None, "no leader to ask"
        # Dial with a Ping first: losing that is definite, losing the request would not be.
        if not self._peers.is_connected(leader.leader_id):
            await self._connect(leader, deadline)  # definite if it fails, see `_connect`
        # Or None soon after it was replaced.
        answer = await self._while_leading(leader, body, deadline, grace_seconds=GRACE_SECONDS)
        if answer is None:  # it may have been applied: the old leader took it and is silent
            raise RequestTimedOut(f"node {leader.leader_id} leads no more, and has not answered")
        return answer

    async def _connect(self, leader: Leadership, deadline: float) -> None:
        """A lost Ping changes nothing, so waiting for a dead leader can end with it.

        Raises:
            Unreachable: definite, in every case.
        """
        try:
            # No grace: nothing can be lost.
            answer = await self._while_leading(leader, Ping(), deadline, grace_seconds=0.0)
        except RaftmqError as error:  # a Ping changes nothing, so this is definite
            raise Unreachable(str(error)) from error
        if answer is None:  # replaced while it was dialled
            raise Unreachable(f"node {leader.leader_id} leads no more")

    async def _while_leading(
        self, leader: Leadership, body: Request, deadline: float, *, grace_seconds: float
    ) -> Answer | None:
        """The answer; None if another node leads and none came within `grace_seconds` after."""
        outcome: Answer | RaftmqError | None = None
        seconds = max(0.0, deadline - trio.current_time())
        assert leader.leader_id is not None, "no leader to ask"
        # Two tasks: the request, and a watch that cancels it when the leader is replaced.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up, leader, grace_seconds, nursery.cancel_scope)
            try:
                # Answered, timed out, or cancelled by `_give_up`.
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
        """Once another node leads: the old leader may be dead and never answer."""
        leadership = leader
        # No leader for a moment is no reason: the same one may be elected again.
        while leadership.leader_id in (leader.leader_id, None):
            # Cancelled as soon as the answer is there.
            leadership = await self._quorum.wait_leadership_changed(leadership)
        await trio.sleep(grace_seconds)  # the answer of a slow old leader may be under way
        scope.cancel()

    async def _rest(self, seen: Leadership, seconds: float, deadline: float) -> bool:
        """Until the leader changes, or for `seconds`; False if no time is left."""
        now = trio.current_time()
        with trio.move_on_at(min(now + seconds, deadline)):
            # Another leader may take it at once; else the pause.
            await self._quorum.wait_leadership_changed(seen)
        return trio.current_time() < deadline


def _uncertain(command: AnyCommand, problem: RaftmqError) -> ProposalUncertain:
    name = type(command).__name__
    return ProposalUncertain(f"{name}: it is not known whether it was applied: {problem}")
