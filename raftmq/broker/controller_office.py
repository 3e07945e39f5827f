"""The controller's office: held by the node that leads the quorum, one term after the other.

Owns who is in office here, and since when: from a read barrier, after which this node knows all
that was ever acknowledged, to the moment at which it leads no more. Then every task of the term is
cancelled, and results that were under way are dropped with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.broker.controller_term import ControllerTerm
from raftmq.broker.settings import BROKERS
from raftmq.errors import (
    BrokerIdNotRegistered,
    ErrorCode,
    NotController,
    QuorumBusy,
    StaleBrokerEpoch,
)
from raftmq.metadata.clocks import DIFFERENCE_MS_MAX
from raftmq.wire.messages.cluster import BrokerHeartbeatReply, WrongClock

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.liveness import Heartbeat
    from raftmq.metadata.quorum import Leadership, MetadataQuorum
    from raftmq.rpc.network import Network

BARRIER_PAUSE_SECONDS = 0.1

logger = logging.getLogger(__name__)


class ControllerOffice:
    """`run` takes office whenever this node leads.

    Args:
        node_id: for messages.
        listener: the name of the endpoints at which brokers are probed.
        voters: of the quorum, all of which register as brokers, too.
        clock_difference_ms_max: by how much brokers' wall clocks may differ and still agree.
    """

    def __init__(
        self,
        node_id: int,
        quorum: MetadataQuorum,
        network: Network,
        *,
        listener: str = BROKERS,
        voters: Collection[int] = (),
        clock_difference_ms_max: int = DIFFERENCE_MS_MAX,
    ) -> None:
        self._node_id, self._quorum, self._network = node_id, quorum, network
        self._listener, self._voters = listener, voters
        self._clock_difference_ms_max = clock_difference_ms_max
        self._term: ControllerTerm | None = None

    @property
    def is_held(self) -> bool:
        """Whether this node decides for the cluster now."""
        return self._term is not None and self._term.is_current

    async def run(self) -> NoReturn:
        while True:
            leadership = self._quorum.leadership
            if leadership.is_leader:
                await self._hold(leadership)
            else:
                await self._quorum.wait_leadership_changed(leadership)

    def on_heartbeat(self, said: Heartbeat) -> BrokerHeartbeatReply:
        """
        Raises:
            NotController: no office is held here, or not with all that this broker knows.
            StaleBrokerEpoch, BrokerIdNotRegistered: it must register again.
        """
        term = self._in_office()
        if said.broker_epoch > self._quorum.image.version:
            # Its registration is news here: this node was deposed and has not heard of it.
            raise NotController(f"node {self._node_id} is behind broker {said.broker_id}")
        answer = term.on_heartbeat(said)
        who = f"broker {said.broker_id}"
        if answer.code == ErrorCode.BROKER_ID_NOT_REGISTERED:
            raise BrokerIdNotRegistered(f"{who} is not registered: register it")
        if answer.code == ErrorCode.STALE_BROKER_EPOCH:
            raise StaleBrokerEpoch(f"{who} is not registered under epoch {said.broker_epoch}")
        assert answer.code == ErrorCode.NONE, f"{answer} to {said}"
        wrong = tuple(WrongClock(*one) for one in answer.clocks.wrong)
        return BrokerHeartbeatReply(
            answer.is_fenced,
            answer.may_stop,
            answer.clocks.is_confirmed,
            wrong,
            answer.clocks.ahead_ms,
        )

    def on_connection_reset(self, broker_id: int) -> None:
        """The other end of a connection with this broker, whoever dialled it, has hung up.

        Whoever takes office later asks every broker, so there is nothing to remember until then.
        """
        if self._term is not None and self._term.is_current:
            self._term.on_connection_reset(broker_id)

    def _in_office(self) -> ControllerTerm:
        if self._term is not None and self._term.is_current:
            return self._term
        leadership = self._quorum.leadership
        leader_id = leadership.leader_id
        if leadership.is_leader:
            known = "it takes office just now"
        else:
            known = "nobody is known to be" if leader_id is None else f"node {leader_id} is"
        raise NotController(f"node {self._node_id} is not the controller; {known}", leader_id)

    async def _hold(self, leadership: Leadership) -> None:
        """Until this node leads no more, or in another term."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, leadership, nursery)
            await self._quorum.wait_leadership_changed(leadership)
            nursery.cancel_scope.cancel()

    async def _serve(self, leadership: Leadership, nursery: trio.Nursery) -> None:
        image = await self._confirmed()
        term = ControllerTerm(
            self._quorum,
            self._network,
            leadership,
            listener=self._listener,
            voters=self._voters,
            clock_difference_ms_max=self._clock_difference_ms_max,
            nursery=nursery,
        )
        if not term.is_current:
            return  # the nursery is about to be cancelled
        term.begin(image)
        self._term = term
        logger.info("in office: node=%d term=%d", self._node_id, leadership.term)
        try:
            await term.run()
        finally:
            self._term = None
            logger.info("out of office: node=%d term=%d", self._node_id, leadership.term)

    async def _confirmed(self) -> MetadataImage:
        """An image that holds all that was acknowledged before this term."""
        while True:
            try:
                return await self._quorum.read_barrier()
            except (NotController, QuorumBusy) as error:
                logger.info("no office yet: node=%d reason=%s", self._node_id, error)
            await trio.sleep(BARRIER_PAUSE_SECONDS)
