"""The faults of a simulated world, composed of families: a name for each, and what injects it.

A family is a small class that gets what it acts on, and offers its faults as a table. No two
families of a world have a fault of the same name: one would silently take the place of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Inject = TypeVar("Inject", bound="Callable[[], Any]")


def by_name(*faults: Inject) -> dict[str, Inject]:
    """Methods of a family, by their own names."""
    return {fault.__name__: fault for fault in faults}


def composed(*families: Mapping[str, Inject], kinds: Iterable[str] = ()) -> dict[str, Inject]:
    """All faults of these families, among which `kinds` have to be.

    Raises:
        ValueError: two families have a fault of the same name, or a kind is a fault of none.
    """
    table: dict[str, Inject] = {}
    for family in families:
        twice = table.keys() & family.keys()
        if twice:
            raise ValueError(f"two families have a fault of the name {', '.join(sorted(twice))}")
        table |= family
    unknown = set(kinds) - table.keys()
    if unknown:
        raise ValueError(f"no family has a fault {', '.join(sorted(unknown))}")
    return table
