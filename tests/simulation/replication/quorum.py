"""The metadata quorum as an oracle for replication, with the real rules and the real controller.

Owns the one order of commands, the images, and how they reach the brokers: late, each at its own
pace, with versions left out, never backwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    AssignSlot,
    Refused,
    RegisterBroker,
    encode_command,
)
from raftmq.metadata.controller import Controller, ProbeBroker, ProbeOutcome
from raftmq.metadata.machine import MetadataMachine
from tests.simulation.replication.network import CONTROLLER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.controller import Effect, HeartbeatAnswer, ProposeCommand
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.liveness import BrokerContact
    from tests.simulation.replication.broker import Broker
    from tests.simulation.replication.world import World

CONTROLLER_TICK_SECONDS = 0.25
LATE_SECONDS_MAX, VERY_LATE_SECONDS_MAX = 0.1, 1.5


class Quorum:
    """Attributes:
    images: all that there were; the last one is committed.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance, self._machine = world, chance, MetadataMachine()
        self.images: list[MetadataImage] = [self._machine.image]
        self._controller: Controller | None = None
        self._told: dict[int, int] = {}  # which of the images each broker saw last
        self._is_on_its_way: set[int] = set()
        self.commits: dict[str, int] = {}

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    @property
    def _now(self) -> float:
        return self._world.timeline.now

    # Commands

    def commit(self, command: AnyCommand, command_id: CommandId | None = None) -> AnyResult:
        before, name = self.image, type(command).__name__
        data = encode_command(command, command_id)
        result = self._machine.apply(before.version + 1, data)
        self.images.append(self._machine.image)
        refusal = f": {result.code.name}" if isinstance(result, Refused) else ""
        if not refusal:
            self.commits[name] = self.commits.get(name, 0) + 1
        self._world.timeline.say(f"q{self.image.version} {_told(command)}{refusal}")
        is_bug = isinstance(result, Refused) and result.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert not is_bug, f"{command}: {result}"
        self._world.checks.on_commit(before, self.image)
        for broker in self._world.brokers:
            self.tell(broker)
        return result

    def on_proposal(
        self,
        command: AnyCommand,
        command_id: CommandId | None,
        answer: Callable[[AnyResult], None],
    ) -> None:
        answer(self.commit(command, command_id))

    # How brokers learn

    def tell(self, broker: Broker) -> None:
        """Unless an image is in flight to it already."""
        if broker.broker_id in self._is_on_its_way or broker.process is None:
            return
        self._is_on_its_way.add(broker.broker_id)
        is_late = not self._world.is_calm and self._chance.random() < 0.1
        most = VERY_LATE_SECONDS_MAX if is_late else LATE_SECONDS_MAX
        self._world.timeline.after(self._chance.random() * most, self._arrive, broker)

    def hold_back(self, broker: Broker) -> None:
        """It gets no image before `let_through`."""
        self._is_on_its_way.add(broker.broker_id)

    def let_through(self, broker: Broker) -> None:
        self._is_on_its_way.discard(broker.broker_id)
        self.tell(broker)

    def _arrive(self, broker: Broker) -> None:
        self._is_on_its_way.discard(broker.broker_id)
        process = broker.process
        if process is None:
            return
        if (CONTROLLER, broker.broker_id) in self._world.network.cut:
            self.tell(broker)
            return
        newest = len(self.images) - 1
        seen = min(self._told.get(broker.broker_id, 0) + 1, newest)
        chosen = newest if self._chance.random() < 0.7 else self._chance.randint(seen, newest)
        self._told[broker.broker_id] = chosen
        image = self.images[chosen]
        process.turn(lambda: process.on_image(image))
        if chosen < newest:
            self.tell(broker)

    # The controller

    def take_office(self) -> None:
        controller = self._controller = Controller()
        self._world.timeline.say("a new controller")
        self._perform(controller, controller.on_office(now=self._now, image=self.image))
        self._tick(controller)

    def _tick(self, controller: Controller) -> None:
        if self._controller is controller:
            self._perform(controller, controller.on_tick(now=self._now, image=self.image))
            self._world.timeline.after(CONTROLLER_TICK_SECONDS, self._tick, controller)

    def _perform(self, controller: Controller, effects: Sequence[Effect]) -> None:
        """There are no groups here, so coordinators' slots do not matter."""
        for effect in effects:
            if isinstance(effect, ProbeBroker):
                when = max(self._now, effect.not_before) + self._chance.random() * 0.02
                self._world.timeline.at(when, self._probe, controller, effect)
            elif not isinstance(effect.command, AssignSlot):
                delay = 0.001 + self._chance.random() * 0.02
                self._world.timeline.after(delay, self._carry_out, controller, effect)

    def _carry_out(self, controller: Controller, effect: ProposeCommand) -> None:
        result = self.commit(effect.command)
        if self._controller is controller:
            follows = controller.on_result(effect, result, now=self._now, image=self.image)
            self._perform(controller, follows)

    def _probe(self, controller: Controller, probe: ProbeBroker) -> None:
        if self._controller is not controller:
            return
        is_up = self._world.brokers[probe.broker_id].process is not None
        outcome = ProbeOutcome.ACCEPTED if is_up else ProbeOutcome.REFUSED
        follows = controller.on_probe(probe, outcome, now=self._now, image=self.image)
        self._perform(controller, follows)

    def on_heartbeat(self, said: BrokerContact, answer: Callable[[HeartbeatAnswer], None]) -> None:
        if self._controller is not None:
            answer(self._controller.on_heartbeat(said, now=self._now, image=self.image))

    def reset_connection(self, broker_id: int) -> None:
        if self._controller is not None:
            self._perform(
                self._controller,
                self._controller.on_connection_reset(broker_id, now=self._now, image=self.image),
            )


def _told(command: AnyCommand) -> str:
    """Short, for the trace."""
    return command.__class__.__name__ if isinstance(command, RegisterBroker) else f"{command}"
