"""How members handle records at least once: by hand, and with the SDK's `process`.

Owns what a program does that cannot move a record: it tries again, and while it does the record is
not finished, and nothing behind it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from jepsen_like.history.event import Type
from jepsen_like.history.record_fate import RecordFate
from jepsen_like.workloads.retry_bench import FailedError
from raftmq.errors import IllegalGeneration, RaftmqError

if TYPE_CHECKING:
    from jepsen_like.workloads.retry_bench import Handling
    from jepsen_like.workloads.retry_member import RetryLife
    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import ConsumerRecord

POLL_SECONDS = 0.5  # without records, until it checks whether to stop
PAUSE_SECONDS = 0.3  # before a record that could not be moved is moved again
COMMIT_EVERY = 10  # records, of a program that commits itself
CONCURRENCY, IN_HAND_MAX = 4, 100

logger = logging.getLogger(__name__)


# -- By hand --------------------------------------------------------------------------------------


async def handle_by_hand(life: RetryLife, client: Client) -> None:
    """One record after the other, until its life is over."""
    options = {**life.member_options(), "commit": life.group.commit}
    async with client.consumer(*life.shared.topics, **options) as consumer:
        handled = 0
        while not life.is_over:
            record = None
            with trio.move_on_after(POLL_SECONDS):
                record = await anext(consumer)
            if record is not None:
                await _handle(life, consumer, record)
                handled += 1
            if life.group.commit == "manual" and (record is None or handled % COMMIT_EVERY == 0):
                await _commit(consumer)
        if life.group.commit == "manual":
            await _commit(consumer)


async def _handle(life: RetryLife, consumer: Consumer, record: ConsumerRecord) -> None:
    handling = life.notes.begin(record)
    await life.take_time()
    if handling.is_good:
        life.notes.end(handling, Type.OK)
    else:
        await _move(life, consumer, record, handling)


async def _move(
    life: RetryLife, consumer: Consumer, record: ConsumerRecord, handling: Handling
) -> None:
    """Until it is moved, or another member's. Raises RaftmqError: its life is over."""
    move = consumer.reject if handling.fate is RecordFate.REJECTED else consumer.retry
    kind = Type.FAIL
    while True:
        try:
            placed = await move(record, FailedError(handling.fate.value))
        except IllegalGeneration as error:
            life.notes.end(handling, kind, error=error)
            return
        except RaftmqError as error:
            kind = kind if error.definite else Type.INFO
            if life.is_over:  # without an end of the record: it comes again
                life.notes.end(handling, kind, error=error)
                raise
            logger.info("move: name=%s reason=%s", life.name, error)
            await trio.sleep(PAUSE_SECONDS)
        else:
            life.notes.end_at(handling, placed.topic)
            return


async def _commit(consumer: Consumer) -> None:
    """What cannot be committed comes again."""
    try:
        await consumer.commit()
    except RaftmqError as error:
        logger.info("commit: reason=%s", error)


# -- Process --------------------------------------------------------------------------------------


async def handle_in_process(life: RetryLife, client: Client) -> None:
    """Several at a time, until its life is over."""

    async def handle(record: ConsumerRecord) -> None:
        handling = life.notes.begin(record)
        await life.take_time()
        if handling.is_good:
            life.notes.end(handling, Type.OK)
            return
        # The SDK moves it, or not: nobody tells the handler.
        life.notes.end(handling, Type.INFO)
        raise FailedError(handling.fate.value)

    await client.process(
        *life.shared.topics,
        handler=handle,
        concurrency=CONCURRENCY,
        max_in_hand=IN_HAND_MAX,
        stop=life.over,
        **life.member_options(),
    )
