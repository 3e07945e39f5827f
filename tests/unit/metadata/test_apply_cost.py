"""A change costs what it changes: the same in an image of 100,000 partitions as in a small one.

Counted in calls and bytes instead of seconds, so that a busy machine changes nothing.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from functools import cache
from typing import Any

import pytest
from immutables import Map
from msgspec.structs import replace

from raftmq.metadata.commands import (
    AllocateProducerIds,
    AlterPartition,
    AlterTopicConfig,
    AnyCommand,
    AssignSlot,
    BeginControlledShutdown,
    CommandId,
    CommitOffsets,
    DeleteOffsets,
    FenceBroker,
    FinishReview,
    GroupCommits,
    PartitionId,
    ProposedIsrMember,
    ReassignPartition,
    Refused,
    ReviewPartitions,
    SaveGroup,
    StoredOffset,
    TransactionsEnded,
)
from raftmq.metadata.image import (
    CommittedOffset,
    MetadataImage,
    PartitionState,
    Tallying,
    TopicState,
    TransactionState,
    slot_of,
)
from tests.unit.metadata.states import (
    ORDERS,
    after,
    apply_next,
    cluster,
    epoch_of,
    topic_id_of,
)
from tests.unit.metadata.transaction_ids import FIRST as FIRST_OF
from tests.unit.metadata.transaction_ids import (
    OWNER,
    SECOND,
    SLOT,
    THIRD,
    coordinated,
    end,
    ends,
    offsets,
)

FIRST = PartitionId(ORDERS, 0)
STATE = PartitionState((0, 1, 2), (0, 1, 2), leader=0)
IMAGE_BYTES_MAX = 32 * 1024  # the changed paths of some maps, and the 64 slots
ISR = (ProposedIsrMember(0, epoch_of(0)), ProposedIsrMember(1, epoch_of(1)))
COMMITS = tuple(StoredOffset(ORDERS, number, 7) for number in range(10))


@cache
def image_of(topics: int, partitions: int) -> MetadataImage:
    """Each partition on all of 3 brokers; one group has committed an offset of each."""
    ids = [topic_id_of(number) for number in range(1, topics + 1)]
    keys = [PartitionId(topic_id, number) for topic_id in ids for number in range(partitions)]
    hosted = Map(dict.fromkeys(keys))
    tallying = Tallying()
    tallying.add(STATE, trusts_page_cache=False, times=len(keys))
    image = cluster()._replace(
        topics=Map({i: TopicState(i, i.hex(), partitions) for i in ids}),
        topic_ids=Map({i.hex(): i for i in ids}),
        partitions=Map(dict.fromkeys(keys, STATE)),
        hosted=Map(dict.fromkeys(range(3), hosted)),
        tallies=tallying.added_to(Map()),
        offsets=Map({"g": Map(dict.fromkeys(keys, CommittedOffset(1)))}),
    )
    return after(image, AssignSlot(slot_of("g"), 0, 0))


COMMANDS: list[tuple[AnyCommand, int]] = [
    (AlterPartition(0, epoch_of(0), *FIRST, leader_epoch=0, partition_epoch=0, isr=ISR), 1),
    (ReassignPartition(*FIRST, partition_epoch=0, replicas=(1, 2)), 1),
    (FenceBroker(2, epoch_of(2)), 1),
    (BeginControlledShutdown(2, epoch_of(2)), 1),
    (ReviewPartitions(0, epoch_of(0), ((ORDERS, 0), (ORDERS, 1))), 0),
    (AlterTopicConfig(ORDERS, {"retention.ms": "1"}), 1),
    (CommitOffsets(slot_of("g"), 1, (GroupCommits("g", COMMITS),)), 1),
    (DeleteOffsets(1, "g", ((ORDERS, 0),)), 1),
    (SaveGroup(1, "g", 1), 1),
    (AssignSlot(0, 0, 1), 1),
    (AllocateProducerIds(0, epoch_of(0), 1), 1),
]


def call_count(image: MetadataImage, command: AnyCommand) -> int:
    """How many functions are called to apply it, those written in C included."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # else a collection in the midst of it calls who listens for collections
    sys.setprofile(on_event)
    try:
        apply_next(image, command, CommandId(0, epoch_of(0), 0))
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def bytes_allocated(image: MetadataImage, command: AnyCommand) -> int:
    """The most memory that is taken at a time to apply it."""
    tracemalloc.start()
    try:
        apply_next(image, command, CommandId(0, epoch_of(0), 0))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("command", "changes"), COMMANDS, ids=lambda value: type(value).__name__)
def test_the_size_of_the_image_costs_nothing(command: AnyCommand, changes: int) -> None:
    """As many calls and changes with 100,000 partitions as with 20, in a few KiB."""
    small, vast = image_of(1, 20), image_of(10, 10_000)
    image, result = apply_next(vast, command)
    assert not isinstance(result, Refused), result
    assert len(image.changes) == changes
    assert call_count(vast, command) == call_count(small, command)
    assert bytes_allocated(vast, command) < IMAGE_BYTES_MAX


def test_the_end_of_a_review_looks_at_no_partition() -> None:
    """Whether something was missed is told by tallies: one number for 20 or 100,000 partitions."""
    counts = []
    for image in (image_of(1, 20), image_of(10, 10_000)):
        fenced = after(image, FenceBroker(2, epoch_of(2)))
        command = FinishReview(2, epoch_of(2), fenced.version)
        assert isinstance(apply_next(fenced, command)[1], Refused)
        counts.append(call_count(fenced, command))
    assert counts[0] == counts[1]


class CountingKey(tuple[bytes, int]):
    """The name of a partition that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountingKey.compared += 1
        return tuple.__eq__(self, other)  # type: ignore[no-any-return]

    def __lt__(self, other: Any) -> bool:
        CountingKey.compared += 1
        return tuple.__lt__(self, other)

    __hash__ = tuple.__hash__


def test_damage_is_not_searched_from_end_to_end() -> None:
    """A slice of 500 partitions of a broker with 10,000 damaged ones: a few looks for each."""
    image = after(image_of(1, 600), FenceBroker(2, epoch_of(2)))
    damaged = tuple(CountingKey((topic_id_of(9), number)) for number in range(10_000))
    broken = replace(image.brokers[2], damaged=damaged)
    image = image._replace(brokers=image.brokers.set(2, broken))
    names = tuple((ORDERS, number) for number in range(500))
    CountingKey.compared = 0
    after(image, ReviewPartitions(2, epoch_of(2), names))
    assert 0 < CountingKey.compared < 500 * 20


def test_what_was_not_changed_is_shared() -> None:
    """A commit of offsets leaves every other map of the image the very same object."""
    before = image_of(10, 10_000)
    image = after(before, COMMANDS[6][0])
    changed = {name for name in image._fields if getattr(image, name) is not getattr(before, name)}
    assert changed == {"version", "offsets", "changes"}


def test_ends_of_transactions_cost_the_same_among_many_ids() -> None:
    """200 ends, each with 3 partitions and 3 offsets: as many calls among 100,000 ids as among few,
    and at most 300 for each, so that a full command holds no loop for long.
    """
    names = [str(n) for n in range(20_000) if slot_of(str(n)) == SLOT][:200]
    moved = (offsets((0, 1), (1, 1), (2, 1)),)
    wanted = [
        end(0, name=name, producer_id=int(name), partitions=(FIRST_OF, SECOND, THIRD), groups=moved)
        for name in names
    ]
    counts = []
    for count in (max(map(int, names)) + 1, 100_000):
        rows = {str(n): TransactionState(n, 0, OWNER, 1, 60_000) for n in range(count)}
        ids = {n: str(n) for n in range(count)}
        image = coordinated()._replace(
            transactions=Map(rows), transaction_ids=Map(ids), next_producer_id=count
        )
        assert apply_next(image, ends(*wanted))[1] == TransactionsEnded()
        counts.append(call_count(image, ends(*wanted)))
    assert counts[0] == counts[1] <= 300 * len(wanted)
