"""How a bug gets into the code: attributes are replaced.

pytest's MonkeyPatch is a `Patch` that takes everything back; `ForGood` is for processes that live
with their bug.
"""

from __future__ import annotations

from typing import Any, Protocol


class Patch(Protocol):
    def setattr(self, target: Any, name: str, value: Any) -> None:
        """`target` has an attribute of that name already."""


class ForGood:
    def setattr(self, target: Any, name: str, value: Any) -> None:
        assert hasattr(target, name), f"{target} has no {name}"
        setattr(target, name, value)
