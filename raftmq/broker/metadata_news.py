"""Writes what changes in the cluster to the log of a node: topics, leaders, in-sync sets, slots.

Owns the pace: changes within `PAUSE_SECONDS` share their lines, so that a broker that dies with a
thousand partitions makes a handful. What concerns the cluster is logged by the controller alone, of
its slots each broker tells itself.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.metadata.news import news_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

PAUSE_SECONDS = 0.5  # long enough for the reviews after a death, short enough to watch

logger = logging.getLogger("raftmq.broker")


class MetadataNews:
    """
    Args:
        is_controller: whether this node is the controller now.
    """

    def __init__(
        self, broker_id: int, quorum: MetadataQuorum, is_controller: Callable[[], bool]
    ) -> None:
        self._broker_id, self._quorum, self._is_controller = broker_id, quorum, is_controller

    async def run(self) -> NoReturn:
        """Until cancelled. What was there when it began is no news."""
        before = self._quorum.image
        while True:
            await self._quorum.wait_changed(before.version)  # until the next change
            await trio.sleep(PAUSE_SECONDS)  # and those that belong to it
            delta = self._quorum.delta_since(before.version)
            self._tell_slots(before, delta.image)
            if self._is_controller():
                for line in news_of(delta, before):
                    logger.log(
                        logging.WARNING if line.is_warning else logging.INFO, "%s", line.text
                    )
            before = delta.image

    def _tell_slots(self, before: MetadataImage, after: MetadataImage) -> None:
        if before.slots is after.slots:
            return
        had, has = self._slots_in(before), self._slots_in(after)
        if had != has:
            what = "coordinator slots: held=%d taken=%d let_go=%d"
            logger.info(what, len(has), len(has - had), len(had - has))

    def _slots_in(self, image: MetadataImage) -> set[int]:
        return {at for at, slot in enumerate(image.slots) if slot.broker_id == self._broker_id}
