"""What a member says of itself when it joins, as bytes: topics, and what it owns of them. Pure.

Topics go by name, as programs subscribe to names: one that is deleted and made anew is the same
subscription. Whose offsets count then, topic ids tell where offsets are committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.assignors.assignor import Subscribed
from raftmq.client.group.packing import Steps, pack, partitions_in, steps_of, unpack
from raftmq.wire.bodies import ABSENT, Generation
from raftmq.wire.subscriptions import SUBSCRIPTION_VERSION, Interest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.client.group.assignors.assignor import Key


class _Format(Interest, frozen=True):
    owned: Steps
    generation: Generation
    is_holding: bool


def encode_subscription(
    topics: Iterable[str],
    owned: Iterable[Key] = (),
    *,
    generation: int = ABSENT,
    is_holding: bool = False,
    user_data: bytes = b"",
    rack: str = "",
) -> bytes:
    """See `Subscribed`. The same content gives the same bytes: a coordinator compares them."""
    names = tuple(sorted(set(topics)))
    steps = steps_of(owned)
    content = _Format(SUBSCRIPTION_VERSION, names, user_data, rack, steps, generation, is_holding)
    return pack(content)


def decode_subscription(
    data: bytes, *, member_id: str, instance_id: str | None = None
) -> Subscribed:
    """Raises RemoteProtocolError: names the member."""
    what = f"subscription of member {member_id!r}"
    content = unpack(data, _Format, version=SUBSCRIPTION_VERSION, what=what)
    return Subscribed(
        member_id,
        frozenset(content.topics),
        partitions_in(content.owned, what=what),
        content.generation,
        content.is_holding,
        instance_id,
        content.user_data,
        content.rack,
    )
