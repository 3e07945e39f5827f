"""Offsets that were committed beyond the end of a log: told as a warning, and not changed.

Whoever sets them may know better: the records may be on their way. Nobody waits for long for a log
whose leader does not answer.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING

import anyio

from raftmq.client.administration.offsets import ends_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.client.administration.groups.results import TopicPartition
    from raftmq.client.routing.cluster import Cluster

LOOK_SECONDS_MAX = 2.0  # they are committed already

logger = logging.getLogger(__name__)


async def warn_beyond(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], *, deadline: float
) -> None:
    """One warning for each of them; none where no leader has told an end."""
    soon = min(deadline, anyio.current_time() + LOOK_SECONDS_MAX)
    by_topic: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for (topic, partition), offset in offsets.items():
        if offset:  # no log ends before 0
            by_topic[topic][partition] = offset
    for topic, wanted in by_topic.items():
        ends = await ends_of(cluster, topic, list(wanted), deadline=soon)
        for partition, (_, end) in ends.items():
            if wanted[partition] > end:
                logger.warning(
                    "group %s: %s-%d: offset %d is committed, beyond the end of the log, %d: a"
                    " consumer finds nothing there, and goes on as its auto_offset_reset= says",
                    group, topic, partition, wanted[partition], end,
                )  # fmt: skip
