"""What a member of a group logs: that it joins, what it gets, and what it loses, with the reason.

It tells the operator of a program why no records come. Pure, but for the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftmq.client.group.effects import AskCoordinator, Assign, LossCause, Lost
from raftmq.wire.messages.groups import JoinGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect
    from raftmq.client.group.member_options import MemberOptions


logger = logging.getLogger("raftmq.client")

NAMED_MAX = 5  # partitions that a line names


class MemberLog:
    """A line for each rebalance that ends with partitions, or takes them away without a word."""

    def __init__(self, member: MemberOptions) -> None:
        self._member, self._is_joining = member, False

    def on_effect(self, effect: Effect) -> None:
        group = self._member.group
        match effect:
            case AskCoordinator(request=JoinGroup()) if not self._is_joining:
                # One that was killed holds the others up until its session is over.
                self._is_joining = True
                logger.info(
                    "joining: group=%s: waits for its other members, until their sessions end if "
                    "they do not answer",
                    group,
                )
            case Assign():
                self._is_joining = False
                logger.info(
                    "joined: group=%s generation=%s partitions=%s",
                    group, effect.generation, _named(effect.partitions) or "none new",
                )  # fmt: skip
            case Lost() if effect.partitions:
                logger.warning(
                    "partitions lost: group=%s partitions=%s: %s; records that were not committed "
                    "are handed out to others",
                    group, _named(effect.partitions), self._why(effect.cause),
                )  # fmt: skip

    def _why(self, cause: LossCause) -> str:
        member = self._member
        if cause is LossCause.NOT_ASKED:
            return (
                "the program has asked for nothing for max_poll_interval_ms = "
                f"{member.max_poll_interval_ms}"
            )
        if cause is LossCause.NOT_FINISHED:
            return (
                "the program has not finished with them within rebalance_timeout_ms = "
                f"{member.longest_rebalance_ms}"
            )
        return "the group has gone on without this member"


def _named(keys: Sequence[Key]) -> str:
    names = ", ".join(f"{topic}-{partition}" for topic, partition in keys[:NAMED_MAX])
    rest = len(keys) - NAMED_MAX
    return f"{names} and {rest} more" if rest > 0 else names
