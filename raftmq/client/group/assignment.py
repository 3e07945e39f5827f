"""What a leader has dealt out to a member, as bytes. Pure.

The leader's own says as well with which partition counts it has planned: a static leader that
comes back, and is not to plan anew, has to notice what has changed since. For the same reason each
is told whether it was seen to hold more: the process that did may be gone by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.client.group.packing import Count, Steps, pack, partitions_in, steps_of, unpack
from raftmq.wire.subscriptions import Numbered, TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raftmq.client.group.assignors.assignor import Key

FORMAT_VERSION = 1


class _Format(Numbered, frozen=True):
    partitions: Steps
    counts: dict[TopicName, Count]
    is_awaited: bool = False


class Assigned(NamedTuple):
    """Attributes:
    counts: by topic; empty, but of a leader.
    is_awaited: it claims more, which is nobody's until it joins again.
    """

    partitions: frozenset[Key]
    counts: dict[str, int]
    is_awaited: bool = False


def encode_assignment(
    partitions: Iterable[Key],
    counts: Mapping[str, int] | None = None,
    *,
    is_awaited: bool = False,
) -> bytes:
    by_name = dict(sorted((counts or {}).items()))
    return pack(_Format(FORMAT_VERSION, steps_of(partitions), by_name, is_awaited))


def decode_assignment(data: bytes) -> Assigned:
    """No bytes at all are no partitions: so a coordinator answers whom the leader did not know.

    Raises:
        RemoteProtocolError: it is none.
    """
    if not data:
        return Assigned(frozenset(), {})
    content = unpack(data, _Format, version=FORMAT_VERSION, what="assignment")
    partitions = partitions_in(content.partitions, what="assignment")
    return Assigned(partitions, content.counts, content.is_awaited)
