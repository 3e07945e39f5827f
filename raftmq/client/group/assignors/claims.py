"""Who has a partition already, by what the members say. Pure.

A claim is as old as the generation in which it was dealt out: of two, the newer one stands. Of two
of one generation neither does, as one of them is wrong and nobody knows which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.client.group.assignors.assignor import Key, Subscribed


def claims_of(members: Iterable[Subscribed]) -> dict[Key, tuple[Subscribed, ...]]:
    """By partition, those whose claims are the newest: where it is one, the claim stands."""
    found: dict[Key, tuple[Subscribed, ...]] = {}
    for member in members:
        for key in member.owned:
            others = found.get(key)
            if others is None or others[0].generation < member.generation:
                found[key] = (member,)
            elif others[0].generation == member.generation:
                found[key] = (*others, member)
    return found
