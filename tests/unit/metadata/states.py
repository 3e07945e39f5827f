"""Small clusters for tests of the metadata, and commands applied to them in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.apply import apply
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.commands import (
    FORMAT_VERSION,
    NO_VERSION,
    CreateTopic,
    Envelope,
    Refused,
)
from raftmq.metadata.image import EMPTY_IMAGE, BrokerState

if TYPE_CHECKING:
    from collections.abc import Collection

    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId, PartitionId
    from raftmq.metadata.image import MetadataImage

VERSION = 100  # of a cluster at its start


def topic_id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


ORDERS = topic_id_of(1)


def epoch_of(broker_id: int) -> int:
    """The epoch under which `cluster` registers a broker."""
    return 10 + broker_id


def broker(
    broker_id: int, *, epoch: int | None = None, fenced: bool = False, stopping: bool = False
) -> BrokerState:
    """It was in service under this epoch, and is again if it is not fenced."""
    epoch = epoch_of(broker_id) if epoch is None else epoch
    return BrokerState(
        broker_id=broker_id,
        broker_epoch=epoch,
        disk_epoch=epoch,
        incarnation=bytes(16),
        directory_id=broker_id.to_bytes(16, "big"),
        fenced=fenced,
        in_controlled_shutdown=stopping,
    )


def cluster(
    count: int = 3, *, fenced: Collection[int] = (), stopping: Collection[int] = ()
) -> MetadataImage:
    """Brokers 0 to `count`, active unless they are named."""
    draft = Draft(EMPTY_IMAGE, VERSION)
    for number in range(count):
        draft.put_broker(broker(number, fenced=number in fenced, stopping=number in stopping))
    return draft.finish()._replace(changes=())


def create(
    *assignments: tuple[int, ...], name: str = "orders", topic_id: bytes = ORDERS, **configs: str
) -> CreateTopic:
    """With one partition for each assignment; configs with underscores for the dots."""
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    return CreateTopic(topic_id, name, assignments or ((0, 1, 2),), dotted)


def apply_next(
    image: MetadataImage, command: AnyCommand, command_id: CommandId | None = None
) -> tuple[MetadataImage, AnyResult]:
    return apply(image, image.version + 1, Envelope(FORMAT_VERSION, command, command_id))


def after(image: MetadataImage, *commands: AnyCommand) -> MetadataImage:
    """The image after commands that are all accepted."""
    for command in commands:
        image, result = apply_next(image, command)
        assert not isinstance(result, Refused), result
    return image


def answer(image: MetadataImage, command: AnyCommand) -> AnyResult:
    return apply_next(image, command)[1]


def refusal(image: MetadataImage, command: AnyCommand) -> Refused:
    """The answer to a command that is refused, and changes nothing but the version."""
    changed, result = apply_next(image, command)
    assert isinstance(result, Refused), result
    assert changed == image._replace(version=image.version + 1, changes=())
    return result


def seen(image: MetadataImage, key: PartitionId) -> tuple[int, int]:
    """What a broker puts into PlanMove and CancelMove."""
    plan = image.moves.get(key)
    version = NO_VERSION if plan is None else plan.planned_at
    return version, image.partitions[key].partition_epoch
