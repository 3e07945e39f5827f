"""Read-only columns that compute an item when it is asked for, instead of holding all of them.

They keep a decoded batch small: what a consumer sees as a column of Python objects is an array
of machine integers, or raw bytes, until somebody touches it. Nothing is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator

Item = TypeVar("Item")


class Computed(Sequence[Item]):
    """`count` items; item i is `compute(i)`, each time it is asked for."""

    def __init__(self, count: int, compute: Callable[[int], Item]) -> None:
        self._indexes = range(count)
        self._compute = compute

    def __len__(self) -> int:
        return len(self._indexes)

    def __iter__(self) -> Iterator[Item]:
        return map(self._compute, self._indexes)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._compute(each) for each in self._indexes[index]]
        return self._compute(self._indexes[index])


class Shifted(Sequence[int]):
    """Absolute numbers, held as their small differences from `base`."""

    def __init__(self, base: int, deltas: array[int]) -> None:
        self._base = base
        self._deltas = deltas

    def __len__(self) -> int:
        return len(self._deltas)

    def __iter__(self) -> Iterator[int]:
        base = self._base
        return (base + delta for delta in self._deltas)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self._base + delta for delta in self._deltas[index]]
        return self._base + self._deltas[index]
