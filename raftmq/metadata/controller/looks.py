"""Looks at partitions, a bounded number in one call.

Owns the bound. There may be 100,000 partitions, and a controller shares its process with
everything else: whatever must see all of them walks through the map in many calls. The maps are
immutable, so a walk sees each key once whatever happens meanwhile; what stands behind the key is
looked up in the newest image.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LOOKS_MAX = 5_000  # in one call

T = TypeVar("T")


class Looks:
    """How many partitions may still be looked at in this call."""

    def __init__(self, left: int = LOOKS_MAX) -> None:
        self.left = left


class Walk(Generic[T]):
    """Goes on where it stopped in the call before.

    Attributes:
        is_over: whether it was found that nothing is left.
    """

    def __init__(self, keys: Iterable[T]) -> None:
        self._keys = iter(keys)
        self.is_over = False

    def go(self, looks: Looks) -> Iterator[T]:
        """The next ones, as long as looks are left and somebody asks for more."""
        for key in islice(self._keys, looks.left):
            looks.left -= 1
            yield key
        if looks.left > 0:
            self.is_over = True
