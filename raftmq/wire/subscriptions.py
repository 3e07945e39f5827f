"""What of a member's subscription matters to others than the leader of its group. Pure.

Brokers keep subscriptions as bytes; what they say, members agree on among themselves. Only this
beginning is the same for all of them: it changes when the member's program wants something else,
while the rest changes with every rebalance.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from raftmq.wire.bodies import NAME_CHARS_MAX, Name
from raftmq.wire.nesting import Decoder

SUBSCRIPTION_VERSION = 1

TopicName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class Numbered(msgspec.Struct, frozen=True, array_like=True):
    """How everything begins that members tell each other."""

    format_version: int


class Interest(Numbered, frozen=True):
    """`topics` are sorted, each named once."""

    topics: tuple[TopicName, ...]
    user_data: bytes
    rack: Name


def interest_in(subscription: bytes) -> Interest | None:
    """None: it is of a program of another kind, or of another version."""
    try:
        interest: Interest = _decoder.decode(subscription)
    except ValueError:  # msgspec's errors are ValueErrors
        return None
    return interest if interest.format_version == SUBSCRIPTION_VERSION else None


_decoder = Decoder[Interest](Interest)
