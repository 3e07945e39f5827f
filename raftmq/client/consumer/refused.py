"""What a program is told whose commit comes too late: why, who has the records, what to do. Pure.

Coordinators say what they think of a member, in words that a member understands; a program has
never joined anything itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.effects import Cause
from raftmq.errors import IllegalGeneration

if TYPE_CHECKING:
    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.tenure import Tenure
    from raftmq.client.group.member_options import MemberOptions


def too_late(key: Key, tenure: Tenure | None, member: MemberOptions) -> IllegalGeneration:
    """The commit of something that was handed out in a tenure that is over."""
    where = f"{key[0]}-{key[1]}"
    cause = Cause.OTHER if tenure is None else tenure.cause
    if cause is Cause.OTHER:
        return IllegalGeneration(
            f"{where} is not this member's any more, or was others' since: nothing was committed, "
            "and whoever reads it now is given these records again; go on with what comes next"
        )
    why, way_out = _not_asked(member) if cause is Cause.NOT_ASKED else _not_finished(member)
    return IllegalGeneration(
        f"{where} was taken from this member of group {member.group!r}, as its program {why}: "
        "nothing was committed, and whoever reads it now is given these records again. "
        f"{way_out}, or a smaller max_poll_records"
    )


def _not_asked(member: MemberOptions) -> tuple[str, str]:
    return (
        f"has asked for nothing for max_poll_interval_ms = {member.max_poll_interval_ms}",
        "Do what takes long inside `with consumer.processing(...)`, or take a longer "
        "max_poll_interval_ms",
    )


def _not_finished(member: MemberOptions) -> tuple[str, str]:
    return (
        "has not finished with it while the group waited, for rebalance_timeout_ms = "
        f"{member.longest_rebalance_ms}",
        "Take a longer rebalance_timeout_ms",
    )
