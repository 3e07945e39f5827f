"""Commits that a program waits for: those that it asks for, and those before it is handed more.

Owns what a refusal means. While a group deals anew one is refused for a moment; that is repeated,
as long as the partitions stay. Invariant: what was handed out in a tenure that is over is never
committed, however long the commit waited for its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from raftmq.client.consumer.in_hand import end_of, epoch_before_end
from raftmq.client.consumer.refused import too_late
from raftmq.client.consumer.tenure import known_tenure, tenure_of
from raftmq.client.group.changes import PAUSE_SECONDS
from raftmq.client.group.committing import Position
from raftmq.errors import IllegalGeneration, RaftmqError, RebalanceInProgress, UnknownMemberId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.consumer.tenure import Tenure, Work
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.client.group.offsets import MemberOffsets

# The partition may be somebody else's by now.
_REFUSED = (IllegalGeneration, RebalanceInProgress, UnknownMemberId)


class GroupCommits:
    def __init__(
        self, offsets: MemberOffsets, subscription: Subscription, member: MemberOptions
    ) -> None:
        self._offsets, self._subscription, self._member = offsets, subscription, member

    async def commit(self, work: Work | None) -> None:
        """Raises RaftmqError, see `Consumer.commit`."""
        if work is None:
            await self._insist(
                lambda: self._offsets.commit_done(is_all=True), self._at_stake(is_all=True)
            )
        else:
            key, tenure = (work.topic, work.partition), known_tenure(work)
            await self._insist(
                lambda: self._offsets.commit(lambda: self._positions(work)), {key: tenure}
            )

    async def commit_each(self) -> None:
        """What is done. What somebody else has now, somebody else will do again."""
        try:
            await self._insist(self._offsets.commit_done, self._at_stake(is_all=False))
        except RaftmqError as error:
            if not self._is_others_turn(error):
                raise

    async def commit_first(self, batch: ConsumedBatch) -> bool:
        """False: not now, or not any more."""
        try:
            await self._offsets.commit(lambda: self._positions(batch))
        except RaftmqError as error:
            if not (error.retriable or self._is_others_turn(error)):
                raise
            return False
        return True

    def _is_others_turn(self, error: RaftmqError) -> bool:
        """Not where somebody reads partitions of his own choice: he would wait for ever."""
        return isinstance(error, _REFUSED) and self._subscription.reads_what_is_dealt

    async def _insist(
        self, attempt: Callable[[], Awaitable[None]], at_stake: Mapping[Key, Tenure | None]
    ) -> None:
        """Until it is accepted, or one of these is over. Who is no member is refused for good."""
        refusal: RaftmqError | None = None
        while (over := self._over(at_stake)) is None:  # else nothing may be left to commit
            try:
                return await attempt()
            except _REFUSED as error:
                if not self._subscription.reads_what_is_dealt:
                    raise
                refusal = error
            if self._over(at_stake) is None:
                await anyio.sleep(PAUSE_SECONDS)
        raise too_late(over, at_stake[over], self._member) from refusal

    def _at_stake(self, *, is_all: bool) -> dict[Key, Tenure | None]:
        states = self._subscription.states
        return {key: states[key].tenure for key in self._offsets.news(is_all=is_all)}

    def _over(self, at_stake: Mapping[Key, Tenure | None]) -> Key | None:
        """One of them that is."""
        states = self._subscription.states
        for key, tenure in at_stake.items():
            if key not in states or states[key].tenure is not tenure:
                return key
        return None

    def _positions(self, work: Work) -> dict[Key, Position]:
        """Raises IllegalGeneration."""
        (key, end_offset), tenure = end_of(work), tenure_of(work)
        state = self._subscription.states.get(key)
        if state is None or tenure is None or state.tenure is not tenure or not tenure.topic_id:
            raise too_late(key, tenure, self._member)
        offset, epoch = state.behind(end_offset)
        if epoch is None:
            epoch = epoch_before_end(work)
        return {key: Position(tenure.topic_id, offset, epoch)}
