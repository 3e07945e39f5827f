"""What a worker of `process` notes in the quorum of records that it handles alone, and when.

The rules are in `alone.py`. Invariant: nothing else is handled between the note and the commit that
takes it back.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from raftmq.client.processing.alone import died, is_poison, is_suspect
from raftmq.errors import IllegalGeneration, RaftmqError
from raftmq.rpc.backoff import Backoff, Pauses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from raftmq.client.consumer.batch import AnyBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.processing.order import RecordInHand
    from raftmq.client.processing.retry_policy import RetryPolicy

PAUSES = Pauses(0.2, 2.0)  # while the coordinator takes no commit; each attempt has a time limit

logger = logging.getLogger("raftmq.client")


class PoisonError(Exception):
    """A record is set aside without being handled.

    Attributes:
        crashes: so often its process has died.
    """

    def __init__(self, crashes: int) -> None:
        super().__init__(died(crashes))
        self.crashes = crashes


class AloneHandling:
    """
    Args:
        policy: None, or one without dead letters: nothing is set aside, and nothing handled alone.
        is_stopping: whether the worker is to end.
    """

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        policy: RetryPolicy | None,
        random: Random,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._consumer, self._random, self._is_stopping = consumer, random, is_stopping
        self._policy = policy if policy is not None and policy.dead_letters else None

    def is_wanted(self, batch: AnyBatch) -> bool:
        """Whether the first records of this ownership are handled alone."""
        if self._policy is None:
            return False
        return is_suspect(self._consumer.crashes(batch.topic, batch.partition))

    def poison_in(self, record: AnyRecord) -> PoisonError | None:
        """Why the record is set aside; None: it is handled."""
        assert self._policy is not None, "handled alone, without a policy"
        offsets = self._consumer._group("process").member.offsets
        crashes = offsets.crashes((record.topic, record.partition), record.offset)
        return PoisonError(crashes) if is_poison(crashes, self._policy.attempts) else None

    async def begin(self, one: RecordInHand) -> bool:
        """Note it. False: the partition is not this worker's any more, or it gives it up, or it
        stops: the record is not to be handled.
        """
        commits = self._consumer._group("process").commits
        return await self._insist(one, commits.note_alone, is_begin=True)

    async def end(self, one: RecordInHand) -> None:
        """Take the note back, with how far the partition is done."""
        commits = self._consumer._group("process").commits
        await self._insist(one, commits.end_alone)

    def is_over(self, record: AnyRecord) -> bool:
        """Whether the partition is read to its end: who crashed had no more of it in hand."""
        key = record.topic, record.partition
        state = self._consumer._subscription.states.get(key)
        is_owned = state is not None and state.ownership is record.ownership
        return is_owned and self._consumer.lag(*key) == 0

    async def _insist(
        self,
        one: RecordInHand,
        commit: Callable[[AnyRecord], Awaitable[None]],
        *,
        is_begin: bool = False,
    ) -> bool:
        backoff = Backoff(self._random, PAUSES)
        while not one.is_lost:
            try:
                await commit(one.record)
            except IllegalGeneration:  # the partition's new owner handles it
                return False
            except RaftmqError as error:
                logger.warning(
                    "process: a record that is handled alone is not noted yet: topic=%s"
                    " partition=%d offset=%d %s",
                    one.record.topic, one.record.partition, one.record.offset, error,
                )  # fmt: skip
            else:
                return True
            if self._is_stopping() or (is_begin and one.place.is_held_back):
                return False
            await anyio.sleep(backoff.next_seconds())
        return False
