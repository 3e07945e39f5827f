"""Offsets that nobody needs any more: those of groups that have been without members for long, and
those of topics that are gone.

Owns what is forgotten, and when it is looked for. Whether it is still so is decided in the line of
the slot, by an image that shows every commit that came before: an offset that was committed since
stays.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import trio

from raftmq.broker.groups.entries import Decision
from raftmq.errors import RaftmqError
from raftmq.metadata.commands import DeleteGroup, DeleteOffsets
from raftmq.metadata.image import slot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.broker.groups.coordinator import Coordinator
    from raftmq.broker.groups.entries import Outcome
    from raftmq.broker.groups.slots import OwnedSlot
    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import MetadataImage

LOOK_SECONDS = 600.0
SLICE = 5_000  # offsets, or names of others' groups, looked at in one go
DELETED_MAX = 10_000  # offsets of one command
# A topic that was made a moment ago may be known to whoever commits, and not to this broker yet.
GONE_MS = 600_000

logger = logging.getLogger(__name__)


class Expiry:
    """`confirmed_ms`: the wall clock; None while it cannot be believed, and nothing expires."""

    def __init__(self, coordinator: Coordinator, confirmed_ms: Callable[[], int | None]) -> None:
        self._coordinator, self._confirmed_ms = coordinator, confirmed_ms

    async def run(self) -> NoReturn:
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """At all groups of this broker, once."""
        coordinator = self._coordinator
        slots = {slot.slot: slot for slot in coordinator.slots if slot.is_loaded}
        for slot in slots.values():
            coordinator.drop_idle(slot)
        image, found, seen = coordinator.image, 0, 0
        for name in _names(image):
            owner = slots.get(slot_of(name))
            seen += 1 if owner is None else 10 + len(image.offsets.get(name, ()))
            if owner is not None and self._command(owner, name, image) is not None:
                self._forget(owner, name)
                found += 1
            if seen >= SLICE:
                seen = 0
                await trio.lowlevel.checkpoint()
        if found:
            logger.info("offsets to be forgotten: groups=%d", found)

    def _forget(self, slot: OwnedSlot, name: str) -> None:
        """If it is not taken now, it is found again the next time."""
        try:
            decide = partial(self._command, slot, name)
            slot.pipeline.put(Decision(decide, partial(_note, name)))
        except RaftmqError as error:
            _note(name, error)

    def _command(
        self, slot: OwnedSlot, name: str, image: MetadataImage
    ) -> DeleteGroup | DeleteOffsets | None:
        """What of the group is to be forgotten now."""
        if name not in image.groups and name not in image.offsets:
            return None
        now_ms = self._confirmed_ms()
        if now_ms is None:
            return None
        count = len(image.offsets.get(name, ()))
        gone = set(_of_gone_topics(image, name, now_ms=now_ms))
        if name not in slot.groups:
            gone.update(self._expired(image, name, now_ms=now_ms))
            if len(gone) == count and self._is_old(image, name, now_ms=now_ms):
                return DeleteGroup(slot.slot_epoch, name)
        if not gone:
            return None
        return DeleteOffsets(slot.slot_epoch, name, tuple(sorted(gone))[:DELETED_MAX])

    def _expired(self, image: MetadataImage, name: str, *, now_ms: int) -> Iterator[PartitionId]:
        if self._is_old(image, name, now_ms=now_ms):
            before_ms = now_ms - self._coordinator.settings.offsets_retention_ms
            for key, offset in image.offsets.get(name, {}).items():
                if offset.committed_at_ms <= before_ms:
                    yield key

    def _is_old(self, image: MetadataImage, name: str, *, now_ms: int) -> bool:
        """Whether it has had no members for so long. One that was never saved never had any."""
        state = image.groups.get(name)
        if state is None:
            return True
        age_ms = now_ms - state.changed_at_ms
        return not state.members and age_ms >= self._coordinator.settings.offsets_retention_ms


def _of_gone_topics(image: MetadataImage, name: str, *, now_ms: int) -> Iterator[PartitionId]:
    for key, offset in image.offsets.get(name, {}).items():
        if key.topic_id not in image.topics and offset.committed_at_ms <= now_ms - GONE_MS:
            yield key


def _names(image: MetadataImage) -> list[str]:
    """All that were saved, or have offsets."""
    return [*image.groups, *(name for name in image.offsets if name not in image.groups)]


def _note(name: str, outcome: Outcome) -> None:
    if isinstance(outcome, RaftmqError):
        logger.info("offsets not forgotten yet: group=%s reason=%s", name, outcome)
