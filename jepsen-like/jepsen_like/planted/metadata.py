"""Planted bugs of the metadata: a compare-and-set that does not compare.

Each is a function that patches the code through a `Patch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.metadata.apply import dispatch
from raftmq.metadata.commands import AlterTopicConfig

if TYPE_CHECKING:
    from jepsen_like.planted.patch import Patch


def overwrite_what_was_not_expected(patch: Patch) -> None:
    """A compare-and-set of a configuration does not compare."""
    alter = dispatch.RULES[AlterTopicConfig]

    def alter_anyway(draft: Any, command: AlterTopicConfig) -> Any:
        return alter(draft, replace(command, expected_epoch=-1))

    patch.setattr(dispatch, "RULES", {**dispatch.RULES, AlterTopicConfig: alter_anyway})
