"""Controller leadership: runs the controller's rules on the node that leads the quorum, by term.

`ControllerTerm` owns the clock, the tasks and the probes of one `Controller`, which decides
everything; all its tasks belong to one nursery, and when that is cancelled the term is over.
`ControllerLeadership` owns the sequence of terms. (Kafka: QuorumController)

Invariant: the outcome of each effect is returned to the controller exactly once, unless the term
ends before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn, assert_never

import trio

from raftmq.broker.settings import BROKERS
from raftmq.errors import (
    BrokerIdNotRegistered,
    ErrorCode,
    NotController,
    QuorumBusy,
    RaftmqError,
    StaleBrokerEpoch,
    Unreachable,
)
from raftmq.metadata.clocks import DIFFERENCE_MS_MAX
from raftmq.metadata.commands import (
    BeginControlledShutdown,
    FenceBroker,
    Refused,
    SetFeatureLevel,
    UnfenceBroker,
)
from raftmq.metadata.controller import Controller, ProbeBroker, ProbeOutcome, ProposeCommand
from raftmq.metadata.controller.controller import TICK_SECONDS
from raftmq.model import Address
from raftmq.wire.messages.cluster import BrokerHeartbeatReply, WrongClockRow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from raftmq.metadata.commands import AnyResult
    from raftmq.metadata.controller import Effect, HeartbeatAnswer
    from raftmq.metadata.image import BrokerState, MetadataImage
    from raftmq.metadata.liveness import BrokerContact
    from raftmq.metadata.quorum import Leadership, MetadataQuorum
    from raftmq.rpc.network import Network


logger = logging.getLogger("raftmq.broker")


PROBE_SECONDS_MAX = 1.0  # to connect on a local network; a live process accepts in milliseconds
_STATE_WORDS = {
    FenceBroker: "fenced",
    UnfenceBroker: "in service",
    BeginControlledShutdown: "shutting down",
}


class ControllerTerm:
    """Attributes:
    leadership: the term of the quorum that it belongs to.
    """

    def __init__(
        self,
        quorum: MetadataQuorum,
        network: Network,
        leadership: Leadership,
        *,
        voters: Collection[int],
        clock_difference_ms_max: int,
        nursery: trio.Nursery,
    ) -> None:
        self._quorum, self._network = quorum, network
        self.leadership, self._nursery = leadership, nursery
        self._controller = Controller(voters, clock_difference_ms_max=clock_difference_ms_max)

    @property
    def is_current(self) -> bool:
        """False as soon as this node does not lead the quorum any more, or in another term."""
        return self._quorum.leadership == self.leadership

    # Inputs

    async def run(self, image: MetadataImage) -> NoReturn:
        """`image` is the result of a read barrier in this term."""
        self._perform(self._controller.on_office(now=trio.current_time(), image=image))
        while True:
            await trio.sleep(TICK_SECONDS)  # rules about silence need no finer clock
            # The nursery is about to be cancelled: a deposed controller must not decide any more.
            if self.is_current:
                self._perform(self._controller.on_tick(now=trio.current_time(), image=self._image))

    def on_heartbeat(self, said: BrokerContact) -> HeartbeatAnswer:
        return self._controller.on_heartbeat(said, now=trio.current_time(), image=self._image)

    def on_connection_reset(self, broker_id: int) -> None:
        self._perform(
            self._controller.on_connection_reset(
                broker_id, now=trio.current_time(), image=self._image
            )
        )

    @property
    def _image(self) -> MetadataImage:
        return self._quorum.image

    # Effects

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case ProposeCommand():
                    self._nursery.start_soon(self._propose, effect)
                case ProbeBroker():
                    self._nursery.start_soon(self._probe, effect)
                case never:
                    assert_never(never)

    async def _propose(self, effect: ProposeCommand) -> None:
        result = await self._result_of(effect)
        # A result that comes after the term belongs to no controller.
        if self.is_current:
            now, image = trio.current_time(), self._image
            self._perform(self._controller.on_result(effect, result, now=now, image=image))

    async def _result_of(self, effect: ProposeCommand) -> AnyResult | None:
        """None if the outcome is unknown or nothing was applied: the controller proposes again."""
        try:
            # Until applied, refused, or unknown after the quorum's own timeout.
            result = await self._quorum.propose(effect.command)
        # Not an error of the cluster: leadership changes, and the next term decides anew.
        except RaftmqError as error:
            logger.info("proposal failed: command=%s reason=%s", effect.command, error)
            return None
        _tell(effect, result)
        return result

    async def _probe(self, probe: ProbeBroker) -> None:
        # The kernel may close the listening socket of a dying process last, so probes wait.
        await trio.sleep_until(probe.not_before)
        outcome = await self._outcome(probe)  # at most PROBE_SECONDS_MAX
        logger.info("broker probed: broker=%d outcome=%s", probe.broker_id, outcome.name)
        if self.is_current:  # a probe's result in another term would be about old state
            now, image = trio.current_time(), self._image
            self._perform(self._controller.on_probe(probe, outcome, now=now, image=image))

    async def _outcome(self, probe: ProbeBroker) -> ProbeOutcome:
        """The result of connecting; TIMED_OUT, which proves nothing, if it cannot be tried."""
        broker = self._image.brokers.get(probe.broker_id)
        # Another process has registered meanwhile, so the question is void.
        if broker is None or broker.broker_epoch != probe.broker_epoch:
            return ProbeOutcome.TIMED_OUT
        address = address_of(broker, BROKERS)
        # No such listener: it cannot be probed.
        return await _dialled(self._network, address) if address else ProbeOutcome.TIMED_OUT


def address_of(broker: BrokerState, listener: str) -> Address | None:
    """The endpoint of the broker with that listener name."""
    for endpoint in broker.endpoints:
        if endpoint.listener == listener:
            return Address(endpoint.host, endpoint.port)
    return None


async def _dialled(network: Network, address: Address) -> ProbeOutcome:
    with trio.move_on_after(PROBE_SECONDS_MAX):
        try:
            stream = await network.dial(address)
        except Unreachable as error:  # nothing listens there any more, or the host does not answer
            # Refused: the host answers and no process listens, so the broker is gone.
            return ProbeOutcome.REFUSED if error.was_refused else ProbeOutcome.TIMED_OUT
        # A probe is no conversation: the peer sees a connection that ends.
        await trio.aclose_forcefully(stream)
        return ProbeOutcome.ACCEPTED
    return ProbeOutcome.TIMED_OUT


def _tell(effect: ProposeCommand, result: AnyResult) -> None:
    # Only what an operator wants to see in the log.
    command = effect.command
    if isinstance(result, Refused):  # usual where two effects overtook each other
        logger.info("proposal refused: command=%s reason=%s", command, result.message)
    # Changes of a broker's state are logged for the operator.
    elif isinstance(command, FenceBroker | UnfenceBroker | BeginControlledShutdown):
        what = _STATE_WORDS[type(command)]
        logger.info("broker %s: broker=%d epoch=%d", what, command.broker_id, command.broker_epoch)
    elif isinstance(command, SetFeatureLevel):
        logger.info("feature level raised: level=%d", command.level)


# -- Controller leadership ------------------------------------------------------------------------
# Controller leadership: held by the node that leads the quorum, one term after the other.
#
# Owns since when this node is the controller: from a read barrier, after which its image holds all
# that was ever acknowledged, to the moment at which it does not lead the quorum any more. Then
# every task of the term is cancelled, and results in flight are dropped with it.


BARRIER_PAUSE_SECONDS = 0.1  # between attempts while the quorum is busy


class ControllerLeadership:
    """`run` acts as the controller whenever this node leads the quorum.

    Args:
        node_id: for messages.
        voters: of the quorum; all of them register as brokers too.
        clock_difference_ms_max: by how much brokers' wall clocks may differ and still agree.
    """

    def __init__(
        self,
        node_id: int,
        quorum: MetadataQuorum,
        network: Network,
        *,
        voters: Collection[int] = (),
        clock_difference_ms_max: int = DIFFERENCE_MS_MAX,
    ) -> None:
        self._node_id, self._quorum, self._network = node_id, quorum, network
        self._voters, self._clock_difference_ms_max = voters, clock_difference_ms_max
        self._term: ControllerTerm | None = None

    @property
    def is_held(self) -> bool:
        """Whether this node is the controller now."""
        return self._term is not None and self._term.is_current

    async def run(self) -> NoReturn:
        while True:
            leadership = self._quorum.leadership
            if leadership.is_leader:
                # Until another node leads, or this one in a later term.
                await self._hold(leadership)
            else:
                # Until an election; an observer waits for ever.
                await self._quorum.wait_leadership_changed(leadership)

    def on_heartbeat(self, said: BrokerContact) -> BrokerHeartbeatReply:
        """
        Raises:
            NotController: this node is not the controller, or is behind this broker.
            StaleBrokerEpoch, BrokerIdNotRegistered: the broker must register again.
        """
        term = self._current_term()
        if said.broker_epoch > self._quorum.image.version:  # the broker knows more than this node
            # Its registration is missing here: this node was deposed and has not noticed.
            raise NotController(f"node {self._node_id} is behind broker {said.broker_id}")
        answer = term.on_heartbeat(said)
        who = f"broker {said.broker_id}"
        # The controller's metadata has lost or never had it.
        if answer.code == ErrorCode.BROKER_ID_NOT_REGISTERED:
            raise BrokerIdNotRegistered(f"{who} is not registered: register it")
        # A newer process of that broker is registered.
        if answer.code == ErrorCode.STALE_BROKER_EPOCH:
            raise StaleBrokerEpoch(f"{who} is not registered under epoch {said.broker_epoch}")
        assert answer.code == ErrorCode.NONE, f"{answer} to {said}"
        wrong = tuple(WrongClockRow(*one) for one in answer.clocks.wrong)
        return BrokerHeartbeatReply(
            answer.is_fenced,
            answer.may_stop,
            answer.clocks.is_confirmed,
            wrong,
            answer.clocks.ahead_ms,
        )

    def on_connection_reset(self, broker_id: int) -> None:
        """A connection with this broker, dialled by either side, was closed by the other end.

        Outside of a term there is nothing to remember: a new controller probes every broker.
        """
        if self._term is not None and self._term.is_current:
            self._term.on_connection_reset(broker_id)

    def _current_term(self) -> ControllerTerm:
        # Otherwise elected and waiting for its read barrier, or the term is over.
        if self._term is not None and self._term.is_current:
            return self._term
        leadership = self._quorum.leadership
        leader_id = leadership.leader_id
        if leadership.is_leader:
            known = "it takes office just now"
        else:
            known = "no node is known to be" if leader_id is None else f"node {leader_id} is"
        raise NotController(f"node {self._node_id} is not the controller; {known}", leader_id)

    async def _hold(self, leadership: Leadership) -> None:
        """One term: until this node does not lead any more, or in another term."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, leadership, nursery)
            # The term's tasks run meanwhile; a change of leadership cancels all of them.
            await self._quorum.wait_leadership_changed(leadership)
            nursery.cancel_scope.cancel()

    async def _serve(self, leadership: Leadership, nursery: trio.Nursery) -> None:
        # A majority has confirmed this leader, and its image is complete.
        image = await self._confirmed()
        term = ControllerTerm(
            self._quorum,
            self._network,
            leadership,
            voters=self._voters,
            clock_difference_ms_max=self._clock_difference_ms_max,
            nursery=nursery,
        )
        # Deposed while the barrier was on its way.
        if not term.is_current:
            return  # the nursery is about to be cancelled
        self._term = term
        logger.info("controller elected: node=%d term=%d", self._node_id, leadership.term)
        try:
            await term.run(image)  # until the nursery of the term is cancelled
        finally:
            self._term = None
            logger.info("controller stepped down: node=%d term=%d", self._node_id, leadership.term)

    async def _confirmed(self) -> MetadataImage:
        """An image with all that was acknowledged before this term."""
        while True:
            try:
                # Needs answers of a majority; fails when deposed.
                return await self._quorum.read_barrier()
            # Too early after the election, or deposed: then `_hold` cancels this.
            except (NotController, QuorumBusy) as error:
                logger.info("not controller yet: node=%d reason=%s", self._node_id, error)
            # A busy quorum needs a moment; `_hold` ends the loop.
            await trio.sleep(BARRIER_PAUSE_SECONDS)
