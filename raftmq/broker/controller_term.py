"""The controller's shell for one term: does what the rules ask for, and tells them how it ended.

Owns the clock, the tasks and the probes of one `Controller`, which decides everything. All tasks
belong to the nursery handed in; when it is cancelled the term is over, and whatever is under way
ends without a listener.

Invariant: each effect is answered exactly once, unless the term ends before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn, assert_never

import trio

from raftmq.errors import RaftmqError, Unreachable
from raftmq.metadata.commands import (
    BeginControlledShutdown,
    FenceBroker,
    Refused,
    SetFeatureLevel,
    UnfenceBroker,
)
from raftmq.metadata.controller import Controller, ProbeBroker, ProbeOutcome, Propose
from raftmq.metadata.controller.controller import TICK_SECONDS
from raftmq.model import Address

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from raftmq.metadata.commands import AnyResult
    from raftmq.metadata.controller import Effect, HeartbeatAnswer
    from raftmq.metadata.image import BrokerState, MetadataImage
    from raftmq.metadata.liveness import Heartbeat
    from raftmq.metadata.quorum import Leadership, MetadataQuorum
    from raftmq.rpc.network import Network

PROBE_SECONDS_MAX = 1.0
_TOLD = {
    FenceBroker: "fenced",
    UnfenceBroker: "in service",
    BeginControlledShutdown: "shutting down",
}

logger = logging.getLogger(__name__)


class ControllerTerm:
    """Attributes:
    leadership: the term it belongs to.
    """

    def __init__(
        self,
        quorum: MetadataQuorum,
        network: Network,
        leadership: Leadership,
        *,
        listener: str,
        voters: Collection[int],
        clock_difference_ms_max: int,
        nursery: trio.Nursery,
    ) -> None:
        self._quorum, self._network, self._listener = quorum, network, listener
        self.leadership, self._nursery = leadership, nursery
        self._controller = Controller(voters, clock_difference_ms_max=clock_difference_ms_max)

    @property
    def is_current(self) -> bool:
        """False from the moment at which this node leads no more."""
        return self._quorum.leadership == self.leadership

    # What happens

    def begin(self, image: MetadataImage) -> None:
        """`image` is what a read barrier returned in this term."""
        self._perform(self._controller.on_office(now=trio.current_time(), image=image))

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(TICK_SECONDS)
            if self.is_current:
                self._perform(self._controller.on_tick(now=trio.current_time(), image=self._image))

    def on_heartbeat(self, said: Heartbeat) -> HeartbeatAnswer:
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

    # What is to be done about it

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Propose():
                    self._nursery.start_soon(self._propose, effect)
                case ProbeBroker():
                    self._nursery.start_soon(self._probe, effect)
                case never:
                    assert_never(never)

    async def _propose(self, effect: Propose) -> None:
        result = await self._result_of(effect)
        if self.is_current:
            now, image = trio.current_time(), self._image
            self._perform(self._controller.on_result(effect, result, now=now, image=image))

    async def _result_of(self, effect: Propose) -> AnyResult | None:
        """None if it is unknown, or nobody took it: the controller asks again."""
        try:
            result = await self._quorum.propose(effect.command)
        except RaftmqError as error:
            logger.info("proposal failed: command=%s reason=%s", effect.command, error)
            return None
        _tell(effect, result)
        return result

    async def _probe(self, probe: ProbeBroker) -> None:
        await trio.sleep_until(probe.not_before)
        outcome = await self._outcome(probe)
        logger.info("broker probed: broker=%d outcome=%s", probe.broker_id, outcome.name)
        if self.is_current:
            now, image = trio.current_time(), self._image
            self._perform(self._controller.on_probe(probe, outcome, now=now, image=image))

    async def _outcome(self, probe: ProbeBroker) -> ProbeOutcome:
        """Of another incarnation, or one with no such listener, nothing can be said."""
        broker = self._image.brokers.get(probe.broker_id)
        if broker is None or broker.broker_epoch != probe.broker_epoch:
            return ProbeOutcome.TIMED_OUT
        address = address_of(broker, self._listener)
        return await _dialled(self._network, address) if address else ProbeOutcome.TIMED_OUT


def address_of(broker: BrokerState, listener: str) -> Address | None:
    """Where the broker listens under that name."""
    for endpoint in broker.endpoints:
        if endpoint.listener == listener:
            return Address(endpoint.host, endpoint.port)
    return None


async def _dialled(network: Network, address: Address) -> ProbeOutcome:
    with trio.move_on_after(PROBE_SECONDS_MAX):
        try:
            stream = await network.dial(address)
        except Unreachable as error:
            return ProbeOutcome.REFUSED if error.was_refused else ProbeOutcome.TIMED_OUT
        await trio.aclose_forcefully(stream)
        return ProbeOutcome.ACCEPTED
    return ProbeOutcome.TIMED_OUT


def _tell(effect: Propose, result: AnyResult) -> None:
    command = effect.command
    if isinstance(result, Refused):
        logger.info("proposal refused: command=%s reason=%s", command, result.message)
    elif isinstance(command, FenceBroker | UnfenceBroker | BeginControlledShutdown):
        what = _TOLD[type(command)]
        logger.info("broker %s: broker=%d epoch=%d", what, command.broker_id, command.broker_epoch)
    elif isinstance(command, SetFeatureLevel):
        logger.info("feature level raised: level=%d", command.level)
