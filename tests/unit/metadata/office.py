"""A controller in office, with a clock and images that are made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from immutables import Map
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    Done,
    PartitionId,
    Refused,
)
from raftmq.metadata.controller import (
    Controller,
    HeartbeatAnswer,
    ProbeBroker,
    ProbeOutcome,
    ProposeCommand,
)
from raftmq.metadata.controller.controller import TICK_SECONDS
from raftmq.metadata.image import (
    SLOT_COUNT,
    BrokerState,
    MetadataImage,
    PartitionState,
    Pending,
    SlotState,
    Tallying,
)
from raftmq.metadata.liveness import BrokerContact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.commands import AnyResult
    from raftmq.metadata.controller import Effect

TOPIC = b"t" * 16
DONE = Done()
FENCED = {"fenced": True, "pending": Pending.MOVE_LEADERS, "pending_since": 90}
REFUSED = Refused(ErrorCode.STALE_BROKER_EPOCH, "stale")


def key(partition: int) -> PartitionId:
    return PartitionId(TOPIC, partition)


def image_of(
    *brokers: BrokerState,
    partitions: Iterable[PartitionState] = (),
    version: int = 100,
    slots: tuple[SlotState, ...] | None = None,
) -> MetadataImage:
    """Slots are spread over the active brokers, so that nothing is to be done about them."""
    image = MetadataImage(
        version,
        brokers=Map({found.broker_id: found for found in brokers}),
        partitions=Map({key(n): state for n, state in enumerate(partitions)}),
    )
    hosted: dict[int, dict[PartitionId, None]] = {}
    tallying = Tallying()
    for name, state in image.partitions.items():
        tallying.add(state, trusts_page_cache=False)
        for broker_id in state.replicas:
            hosted.setdefault(broker_id, {})[name] = None
    active = [found.broker_id for found in brokers if image.is_active(found.broker_id)]
    spread = [SlotState(active[n % len(active)] if active else -1) for n in range(SLOT_COUNT)]
    return image._replace(
        hosted=Map({broker_id: Map(keys) for broker_id, keys in hosted.items()}),
        tallies=tallying.added_to(image.tallies),
        slots=slots or tuple(spread),
    )


def broker(broker_id: int, **changes: object) -> BrokerState:
    """Unfenced, registered at 10 times its id."""
    active = BrokerState(broker_id, 10 * broker_id, b"i", b"d", fenced=False)
    return replace(active, **changes)


def led_by(leader: int, *followers: int) -> PartitionState:
    return PartitionState((leader, *followers), (leader, *followers), leader)


def with_broker(image: MetadataImage, changed: BrokerState) -> MetadataImage:
    brokers = image.brokers.set(changed.broker_id, changed)
    return image._replace(version=image.version + 1, brokers=brokers)


@dataclass
class Office:
    """A controller in office, with its clock and image, and all that it asked for so far."""

    image: MetadataImage
    now: float = 1000.0
    controller: Controller = field(default_factory=Controller)

    def __post_init__(self) -> None:
        self.first = self.controller.on_office(now=self.now, image=self.image)

    def tick(self, seconds: float = TICK_SECONDS) -> list[object]:
        """Let time pass, tick by tick; the commands of the last tick."""
        end, effects = self.now + seconds, []
        while self.now < end - TICK_SECONDS / 2:
            self.now += TICK_SECONDS
            effects = self.controller.on_tick(now=self.now, image=self.image)
            if effects:
                break
        return commands_in(effects)

    def heartbeat(self, broker_id: int, **changes: object) -> HeartbeatAnswer:
        """Of the registered incarnation, which knows everything, unless told otherwise."""
        epoch = self.image.brokers[broker_id].broker_epoch
        said = BrokerContact(broker_id, epoch, self.image.version)._replace(**changes)  # type: ignore[arg-type]
        return self.controller.on_heartbeat(said, now=self.now, image=self.image)

    def result(self, command: object, result: AnyResult | None = DONE) -> list[object]:
        effect = ProposeCommand(command)  # type: ignore[arg-type]
        found = self.controller.on_result(effect, result, now=self.now, image=self.image)
        return commands_in(found)

    def probe(self, probe: Effect, outcome: ProbeOutcome) -> list[Effect]:
        assert isinstance(probe, ProbeBroker)
        return self.controller.on_probe(probe, outcome, now=self.now, image=self.image)


def commands_in(effects: list[Effect]) -> list[object]:
    assert all(isinstance(effect, ProposeCommand) for effect in effects)
    return [effect.command for effect in effects if isinstance(effect, ProposeCommand)]
