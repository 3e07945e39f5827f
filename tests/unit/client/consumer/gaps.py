"""A partition of which a broker sends some batches and says what it has left out between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.wire.messages.fetch import LeftOutRange, PartitionFetched
from tests.unit.client.consumer.pure_world import TOPIC_ID, PureWorld, fetched

if TYPE_CHECKING:
    from raftmq.client.consumer.fetch_plan import PlannedRequest
    from raftmq.rpc.reply import Answer

END = 20


def begun(**options: object) -> tuple[PureWorld, PlannedRequest]:
    """A consumer that has asked for the records from the start, of a leader in its third epoch."""
    world = PureWorld(1, **options)
    for _ in range(3):
        world.lead(0, 1)
    world.tell_metadata()
    world.start()
    return world, ask_again(world)


def ask_again(world: PureWorld) -> PlannedRequest:
    world.now += 1
    question = world.ask(1)
    assert question is not None
    return question


def told(*batches: bytes, left_out: list[tuple[int, int, int]] | None = None) -> Answer:
    """`left_out`: start, end and leader epoch of each range."""
    ranges = tuple(LeftOutRange(*one) for one in left_out or ())
    data = b"".join(batches)
    one = PartitionFetched(
        TOPIC_ID, 0, 0, END, 0, len(data), last_stable_offset=END, left_out=ranges
    )
    return fetched([one], [data])
