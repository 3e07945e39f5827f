"""Planting a bug: attributes of the code are replaced, and calls of the replacements are counted.

`ForGood` is a `Patch` for processes that live with their bug; simulations have one of their own,
which takes everything back. A bug that patches a name which no caller looks up does nothing, for
example where callers have imported it by value: `Calls` shows that.
"""

from __future__ import annotations

import re
import sys
from functools import partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

PLANTED, CALLED = "planted bug at", "planted bug called at"


class Patch(Protocol):
    def setattr(self, target: Any, name: str, value: Any) -> None:
        """`target` has an attribute of that name already."""


class Calls:
    """Calls of the replacements of one bug.

    Attributes:
        counts: by place, how often it was called.
        constants: places of values that are no functions, whose use cannot be counted.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.constants: set[str] = set()

    @property
    def missing(self) -> list[str]:
        """What was never called."""
        return [place for place, count in self.counts.items() if not count]

    def counted(self, target: Any, name: str, value: Any) -> Any:
        """What `value` is, but that every call is counted; a coroutine counts when it is made."""
        place = f"{_name_of(target)}.{name}"
        if isinstance(value, property):
            parts = (value.fget, value.fset, value.fdel)
            fget, fset, fdel = (part and self._counted(place, part) for part in parts)
            return property(fget, fset, fdel)
        if isinstance(value, classmethod | staticmethod):
            return type(value)(self._counted(place, value.__func__))
        if isinstance(value, type) or not callable(value):
            self.constants.add(place)
            return value
        counted = self._counted(place, value)
        # A method of what it is put into only if it would be one itself: a partial is not, although
        # it has a `__get__` since 3.13.
        is_method = hasattr(value, "__get__") and not isinstance(value, partial)
        return counted if is_method else staticmethod(counted)

    def _count(self, place: str) -> None:
        self.counts[place] += 1

    def _counted(self, place: str, function: Callable[..., Any]) -> Callable[..., Any]:
        self.counts.setdefault(place, 0)

        @wraps(function)
        def counting(*args: Any, **named: Any) -> Any:
            self._count(place)
            return function(*args, **named)

        return counting


class ForGood(Calls):
    """Writes each replacement and its first call to stderr: the log of the node, which survives a
    kill of the node.
    """

    def setattr(self, target: Any, name: str, value: Any) -> None:
        assert hasattr(target, name), f"{target} has no {name}"
        setattr(target, name, self.counted(target, name, value))

    def _counted(self, place: str, function: Callable[..., Any]) -> Callable[..., Any]:
        _tell(PLANTED, place)
        return super()._counted(place, function)

    def _count(self, place: str) -> None:
        super()._count(place)
        if self.counts[place] == 1:
            _tell(CALLED, place)


def places_told(mark: str, said: str) -> set[str]:
    """`said`: by processes that live with a bug, among other things."""
    return set(re.findall(rf"^{mark} (\S+)$", said, re.MULTILINE))


def _tell(mark: str, place: str) -> None:
    sys.stderr.write(f"{mark} {place}\n")
    sys.stderr.flush()


def _name_of(target: Any) -> str:
    if isinstance(target, ModuleType):
        return target.__name__
    return target.__qualname__ if isinstance(target, type) else type(target).__qualname__
