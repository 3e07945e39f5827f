"""What a worker of `process` notes in the quorum of records that it handles alone, and when.

The rules are in `alone.py`. Invariant: nothing else is handled between the note and the commit that
takes it back.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from raftmq.client.processing.alone import died, is_passed, is_poison, is_suspect
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
        crashes = self._crashes(record)
        return PoisonError(crashes) if is_poison(crashes, self._policy.attempts) else None

    def is_passed(self, record: AnyRecord) -> bool:
        """Whether others are handled while it waits for its next attempt."""
        assert self._policy is not None, "handled alone, without a policy"
        return is_passed(self._crashes(record), self._policy.attempts)

    def _crashes(self, record: AnyRecord) -> int:
        offsets = self._consumer._group("process").member.offsets
        return offsets.crashes((record.topic, record.partition), record.offset)

    async def begin(self, one: RecordInHand, first: AnyRecord) -> bool:
        """Note the first unfinished record of its partition: that is `one`, or what it passes.
        False: the partition is not this worker's any more, or it gives it up, or it
        stops: the record is not to be handled.
        """
        commits = self._consumer._group("process").commits
        return await self._insist(one, partial(commits.note_alone, first), is_begin=True)

    async def end(self, one: RecordInHand, first: AnyRecord) -> None:
        """Take the note back, with how far the partition is done."""
        commits = self._consumer._group("process").commits
        await self._insist(one, partial(commits.end_alone, first))

    def is_over(self, record: AnyRecord) -> bool:
        """Whether the partition is read to its end: who crashed had no more of it in hand."""
        key = record.topic, record.partition
        state = self._consumer._subscription.states.get(key)
        is_owned = state is not None and state.ownership is record.ownership
        return is_owned and self._consumer.lag(*key) == 0

    async def _insist(
        self,
        one: RecordInHand,
        commit: Callable[[], Awaitable[None]],
        *,
        is_begin: bool = False,
    ) -> bool:
        backoff = Backoff(self._random, PAUSES)
        while not one.is_lost:
            try:
                await commit()
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
