"""What a program is told when its partitions change. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Rebalance(NamedTuple):
    """One change of what a member reads; partitions are pairs of topic and number.

    Attributes:
        revoked: are given to others once the callback returns; what was done of them is committed,
            as the commit mode says, before it is called.
        assigned: are read from now on.
        lost: belong to others already, perhaps: the member was silent for too long, or was put
            out. What it did of them since its last commit will be done again.
        generation: of the group, as this member knows it.
    """

    revoked: tuple[tuple[str, int], ...] = ()
    assigned: tuple[tuple[str, int], ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    generation: int = -1


OnRebalance: TypeAlias = "Callable[[Rebalance], Awaitable[None] | None]"
