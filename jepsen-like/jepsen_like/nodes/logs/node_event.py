"""`NodeEvent`: something about one node that is recorded in the history."""

from __future__ import annotations

from typing import Any, NamedTuple


class NodeEvent(NamedTuple):
    """`f` and `value` as the format of the history has them."""

    node_id: int
    f: str
    value: dict[str, Any]
