"""Writes what changes in the cluster to the log of a node: topics, leaders, in-sync sets, slots.

Owns the pace: topics and brokers are logged at once; changes of partitions and slots within
`PAUSE_SECONDS` share their lines, so that the death of a broker with a thousand partitions makes a
handful. The controller alone logs what concerns the cluster; each broker logs its own slots.
"""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.metadata.cluster_events import broker_and_topic_events, partition_events

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.cluster_events import ClusterEvent
    from raftmq.metadata.delta import MetadataDelta
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

PAUSE_SECONDS = 0.5  # long enough for the reviews after a death, short enough to watch

logger = logging.getLogger("raftmq.broker")


class ClusterEventLog:
    """
    Args:
        is_controller: whether this node is the controller now.
    """

    def __init__(
        self, broker_id: int, quorum: MetadataQuorum, is_controller: Callable[[], bool]
    ) -> None:
        self._broker_id, self._quorum, self._is_controller = broker_id, quorum, is_controller

    async def run(self) -> NoReturn:
        """Until cancelled. The state at its start is not logged."""
        before = seen = self._quorum.image
        deadline = inf
        while True:
            with trio.move_on_at(deadline):
                await self._quorum.wait_changed(seen.version)  # or the pause is over
            self._log(broker_and_topic_events, seen)
            if deadline == inf:
                deadline = trio.current_time() + PAUSE_SECONDS
            seen = self._quorum.image
            if trio.current_time() >= deadline:
                self._log(partition_events, before)
                self._log_slots(before, seen)
                before, deadline = seen, inf

    def _log(
        self,
        events: Callable[[MetadataDelta, MetadataImage], list[ClusterEvent]],
        before: MetadataImage,
    ) -> None:
        if self._is_controller():
            for event in events(self._quorum.delta_since(before.version), before):
                level = logging.WARNING if event.is_warning else logging.INFO
                logger.log(level, "%s", event.text)

    def _log_slots(self, before: MetadataImage, after: MetadataImage) -> None:
        if before.slots is after.slots:
            return
        had, has = self._slots_in(before), self._slots_in(after)
        if had != has:
            what = "coordinator slots: held=%d taken=%d let_go=%d"
            logger.info(what, len(has), len(has - had), len(had - has))

    def _slots_in(self, image: MetadataImage) -> set[int]:
        return {at for at, slot in enumerate(image.slots) if slot.broker_id == self._broker_id}
