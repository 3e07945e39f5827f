"""Clients inside the leader's process: each commits one offset, waits for the answer, and again."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.metadata.commands import (
    NO_BROKER,
    AssignSlot,
    BrokerRegistered,
    CommitOffsets,
    GroupCommits,
    RegisterBroker,
    StoredOffset,
    UnfenceBroker,
)
from raftmq.metadata.image import slot_of

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum

BROKER = 1
WARM_UP_SECONDS = 1.0
METADATA = "m" * 130  # makes a command of about 200 bytes
WATCH_SECONDS = 0.001


class Load(NamedTuple):
    latencies: list[float]  # of acknowledged commands, without the warming up
    seconds: float
    cpu_seconds: float  # of the whole process, its clients included


async def prepare(quorum: MetadataQuorum) -> None:
    """Give every coordinator slot to one broker, so that offsets can be committed."""
    if all(slot.broker_id != NO_BROKER for slot in quorum.image.slots):
        return
    registered = await quorum.propose(RegisterBroker(BROKER, bytes(16), bytes(16)))
    assert isinstance(registered, BrokerRegistered), f"{registered}"
    await quorum.propose(UnfenceBroker(BROKER, registered.broker_epoch))
    for number, slot in enumerate(quorum.image.slots):
        await quorum.propose(AssignSlot(number, slot.epoch, BROKER))


def commit(image: MetadataImage, client: int, offset: int) -> CommitOffsets:
    group = f"load-{client:04}"
    slot = slot_of(group)
    one = StoredOffset(b"topic-of-16-byte", client, offset, metadata=METADATA)
    return CommitOffsets(slot, image.slots[slot].epoch, (GroupCommits(group, (one,)),))


async def run_load(quorum: MetadataQuorum, *, clients: int, seconds: float) -> Load:
    latencies: list[float] = []
    begin = time.perf_counter() + WARM_UP_SECONDS
    end = begin + seconds

    async def propose_again_and_again(client: int) -> None:
        offset = 0
        while (start := time.perf_counter()) < end:
            offset += 1
            await quorum.propose(commit(quorum.image, client, offset))
            if start >= begin:
                latencies.append(time.perf_counter() - start)

    await prepare(quorum)
    async with trio.open_nursery() as nursery:
        for client in range(clients):
            nursery.start_soon(propose_again_and_again, client)
        await trio.sleep(WARM_UP_SECONDS)
        cpu_before = time.process_time()
        await trio.sleep(seconds)
        cpu_seconds = time.process_time() - cpu_before
    return Load(latencies, seconds, cpu_seconds)


class StallWatch:
    """Sleeps a millisecond again and again, and notes how much later the loop came back.

    Notes the longest garbage collection as well: no other task runs during one.
    """

    def __init__(self) -> None:
        self._longest = self._longest_collection = self._collection_began = 0.0

    async def run(self) -> None:
        gc.callbacks.append(self._on_collection)
        while True:
            before = time.perf_counter()
            await trio.sleep(WATCH_SECONDS)
            late = time.perf_counter() - before - WATCH_SECONDS
            self._longest = max(self._longest, late)

    def take(self) -> dict[str, float]:
        """The longest stall and the longest collection since the last call, in seconds."""
        taken = {"longest": self._longest, "longest_collection": self._longest_collection}
        self._longest = self._longest_collection = 0.0
        return taken

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
            return
        spent = time.perf_counter() - self._collection_began
        self._longest_collection = max(self._longest_collection, spent)
