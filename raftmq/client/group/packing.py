"""Partitions as bytes, and the frame of what members of a group tell each other. Pure.

Brokers keep these bytes and do not read them. A number of the format comes first: another number
is refused, as nobody could tell what it means; fields that are added at the end are passed over by
those that do not know them. Partitions of a topic are steps from one to the next, beginning at -1:
so they are in order, none is there twice, and most of them take one byte.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from raftmq.errors import RemoteProtocolError
from raftmq.wire.bodies import ID_MAX
from raftmq.wire.nesting import Decoder
from raftmq.wire.subscriptions import Numbered, TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.client.group.assignors.assignor import Key

Step: TypeAlias = Annotated[int, Meta(ge=1, le=ID_MAX + 1)]
Steps: TypeAlias = dict[TopicName, Annotated[tuple[Step, ...], Meta(min_length=1)]]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX + 1)]


PackedT = TypeVar("PackedT", bound=Numbered)


def steps_of(partitions: Iterable[Key]) -> Steps:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return {
        topic: tuple([after - before for before, after in pairwise([-1, *numbers])])
        for topic, numbers in by_topic.items()
    }


def partitions_in(steps: Steps, *, what: str) -> frozenset[Key]:
    """Raises RemoteProtocolError: a number that no partition may have; `what` holds it."""
    found: set[Key] = set()
    for topic, each in steps.items():
        last = sum(each) - 1
        if last > ID_MAX:
            raise RemoteProtocolError(f"{what}: {topic}-{last} is beyond {topic}-{ID_MAX}")
        found.update([(topic, number - 1) for number in accumulate(each)])
    return frozenset(found)


def pack(content: Numbered) -> bytes:
    return _encoder.encode(content)


def unpack(data: bytes, kind: type[PackedT], *, version: int, what: str) -> PackedT:
    """Raises RemoteProtocolError: it is none, over a limit, or of another version."""
    try:
        told = _decoder(Numbered).decode(data).format_version
        if told == version:
            content: PackedT = _decoder(kind).decode(data)
            return content
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise RemoteProtocolError(f"{what}: {error}") from error
    raise RemoteProtocolError(
        f"{what}: format {told}, this version of raftmq knows {version}: use one version for all "
        "members of the group"
    )


_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: type[PackedT]) -> Decoder[PackedT]:
    return Decoder(kind)
