"""Rule for the feature level: which commands and fields every node understands (decision 0024).

Invariant: the level only rises, so that what was written at a level stays readable. Whether the
voters support a level is checked by the controller, as the image does not contain them. (Kafka:
FeatureControlManager.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.reviews import rules_of
from raftmq.metadata.commands import Done, Refused
from raftmq.metadata.election import min_isr_of, with_min_isr

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import AnyResult, SetFeatureLevel


def set_feature_level(draft: Draft, command: SetFeatureLevel) -> AnyResult:
    level, now = command.level, draft.feature_level
    if level == now:  # a retry, or another controller was first
        return Done()
    if command.expected != now:  # the level was raised meanwhile
        message = f"the feature level is {now}, expected was {command.expected}: read it again"
        return Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
    problem = _problem(draft, level, now)
    if problem is not None:
        return Refused(ErrorCode.FEATURE_UPDATE_FAILED, f"feature level {level}: {problem}")
    draft.set_feature_level(level)
    _follow_min_isr(draft, before=now)
    return Done()


def _follow_min_isr(draft: Draft, *, before: int) -> None:
    """Partitions that move may have another effective min ISR at the new level."""
    for key in sorted(draft.base.moving):
        state, rules = draft.base.partitions[key], rules_of(draft, key.topic_id)
        configured = rules.min_isr
        if min_isr_of(state, configured, before) != min_isr_of(state, configured, rules.level):
            draft.put_partition(key, with_min_isr(state, rules))


def _problem(draft: Draft, level: int, now: int) -> str | None:
    if level < now:
        return f"it is {now} and is never lowered"
    if not draft.base.brokers:  # all of none would support any level
        return "no broker is registered that supports it"
    unable = sorted(
        broker_id
        for broker_id, broker in draft.base.brokers.items()
        if not broker.feature_level_min <= level <= broker.feature_level_max
    )
    return f"brokers {unable} do not support it: upgrade them" if unable else None
