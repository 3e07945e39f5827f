"""Commits of a group member that its program waits for, or hands to the transaction of a producer.

Kafka: ConsumerCoordinator, ConsumerGroupMetadata. Owns what a refused commit means, and which
offsets a transaction may carry. Invariant: records that were handed out in an ownership that has
ended are never committed, however long the commit waited.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.client.consumer.batch import known_ownership
from raftmq.client.consumer.group_reader import end_of, epoch_before_end, place_of
from raftmq.client.group.effects import LossCause, Position
from raftmq.client.group.member_shell import PAUSE_SECONDS
from raftmq.errors import (
    IllegalGeneration,
    InvalidRequest,
    InvalidTransaction,
    RaftmqError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.group_offsets import OffsetToCommit
from raftmq.wire.messages.transactions import GroupOffsets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from raftmq.client.consumer.batch import ConsumedBatch, Work
    from raftmq.client.consumer.options import GroupReading
    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.record import PartitionOwnership
    from raftmq.client.consumer.subscription import Subscription
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.client.group.membership import GroupMembership
    from raftmq.client.group.offsets import MemberOffsets


# Refusals that mean: the partition may be another member's by now.
_REFUSED = (IllegalGeneration, RebalanceInProgress, UnknownMemberId)


class ConsumerCommits:
    """The commits of one consumer that its program waits for."""

    def __init__(
        self, offsets: MemberOffsets, subscription: Subscription, options: GroupReading
    ) -> None:
        self._offsets, self._subscription, self._options = offsets, subscription, options
        self._member = options.member

    async def commit(self, work: Work | None) -> None:
        """Raises RaftmqError, see `Consumer.commit`."""
        if self._options.commits_by_transaction:
            raise InvalidTransaction(
                'commit="transaction": this consumer commits only with the transaction of a '
                "producer, and nothing was committed: call tx.commit_offsets(...) inside `async "
                'with producer.transaction() as tx:`, or open the consumer with commit="manual"'
            )
        if work is None:
            await self._insist(
                lambda: self._offsets.commit_done(is_all=True), self._at_stake(is_all=True)
            )
        else:
            ownership = self._own(work)
            key = work.topic, work.partition
            await self._insist(
                lambda: self._offsets.commit(lambda: self.positions_of(work)), {key: ownership}
            )

    async def commit_each(self) -> None:
        """Commit what is done. Records of a revoked partition are left to its new owner, who reads
        them again.
        """
        try:
            await self._insist(self._offsets.commit_done, self._at_stake(is_all=False))
        except RaftmqError as error:
            # Anything else: the program must know that it is not committed.
            if not self._is_others_turn(error):
                raise

    async def commit_first(self, batch: ConsumedBatch) -> bool:
        """Commit before handing out. False: not now, or not any more."""
        find = partial(self.positions_of, batch)
        return await self._is_accepted(lambda: self._offsets.commit(find))

    async def note_alone(self, work: Work) -> None:
        """Note in the quorum that the first record of it is handled now, and nothing else.

        Raises:
            IllegalGeneration: the partition is not this member's any more.
            RaftmqError: it may be noted, or not.
        """
        ownership, key = known_ownership(work), (work.topic, work.partition)
        note = partial(self._offsets.commit_alone, partial(self._position_before, work))
        await self._insist(note, {key: ownership})

    async def end_alone(self, work: Work) -> None:
        """It is finished, or not handled for now. Raises as `note_alone`."""
        ownership, key = known_ownership(work), (work.topic, work.partition)
        end = partial(self._offsets.end_alone, partial(self._position_before, work))
        await self._insist(end, {key: ownership})

    async def note_first(self, batch: ConsumedBatch) -> bool:
        """As `note_alone`, before handing out. False: not now, or not any more."""
        find = partial(self._position_before, batch)
        return await self._is_accepted(lambda: self._offsets.commit_alone(find))

    async def end_first(self, batch: ConsumedBatch) -> None:
        """As `end_alone`, of what `note_first` has noted, or may have; but what is another member's
        by now is left to that.
        """
        try:
            await self.end_alone(batch)
        except RaftmqError as error:
            if not self._is_others_turn(error):
                raise

    def _position_before(self, work: Work) -> dict[Key, Position]:
        """Raises IllegalGeneration: the ownership has ended."""
        (ownership, offset), key = place_of(work), (work.topic, work.partition)
        self.check_owned({key: ownership})
        assert ownership is not None, "of no member"
        assert ownership.topic_id, "read, and of no topic"
        return {key: Position(ownership.topic_id, offset)}

    async def _is_accepted(self, commit: Callable[[], Awaitable[None]]) -> bool:
        """Raises RaftmqError: nor will it be later."""
        try:
            await commit()
        except RaftmqError as error:
            # No later attempt would succeed, either.
            if not (error.retriable or self._is_others_turn(error)):
                raise
            return False
        return True

    def _is_others_turn(self, error: RaftmqError) -> bool:
        """Not with `assign`: no assignment would ever end the wait."""
        return isinstance(error, _REFUSED) and self._subscription.reads_what_is_dealt

    async def _insist(
        self,
        attempt: Callable[[], Awaitable[None]],
        at_stake: Mapping[Key, PartitionOwnership | None],
    ) -> None:
        """Repeat until it is accepted, or one of the ownerships at stake has ended. With `assign`,
        a refusal is final.
        """
        refusal: RaftmqError | None = None
        # Else an attempt with nothing left would succeed
        while (over := self._over(at_stake)) is None:
            try:
                return await attempt()
            except _REFUSED as error:
                # With `assign` no rebalance will end it
                if not self._subscription.reads_what_is_dealt:
                    raise
                refusal = error
            if self._over(at_stake) is None:
                # The rebalance is going on: the coordinator accepts again when it is over.
                await anyio.sleep(PAUSE_SECONDS)
        raise too_late(over, at_stake[over], self._member) from refusal

    def _at_stake(self, *, is_all: bool) -> dict[Key, PartitionOwnership | None]:
        states = self._subscription.states
        return {key: states[key].ownership for key in self._offsets.news(is_all=is_all)}

    def _over(self, at_stake: Mapping[Key, PartitionOwnership | None]) -> Key | None:
        """A partition at stake whose ownership has ended."""
        states = self._subscription.states
        for key, ownership in at_stake.items():
            # Revoked, or revoked and assigned again
            if key not in states or states[key].ownership is not ownership:
                return key
        return None

    def _own(self, work: Work) -> PartitionOwnership:
        """The ownership in which it was handed out, by this consumer. Raises InvalidRequest."""
        ownership = known_ownership(work)
        if ownership.owner is not self._subscription.owner:
            (topic, partition), end_offset = end_of(work)
            raise InvalidRequest(
                f"{topic}-{partition} offset {end_offset - 1} was handed out by another consumer:"
                " give it to that one; nothing was committed"
            )
        return ownership

    def positions_of(self, work: Work) -> dict[Key, Position]:
        """
        Raises:
            IllegalGeneration: the ownership has ended.
            InvalidRequest: another consumer has handed it out.
        """
        (key, end_offset), ownership = end_of(work), self._own(work)
        state = self._subscription.states.get(key)
        if state is None or state.ownership is not ownership or not ownership.topic_id:
            raise too_late(key, ownership, self._member)
        offset, epoch = state.behind(end_offset)
        if epoch is None:  # no control batch follows
            epoch = epoch_before_end(work)
        return {key: Position(ownership.topic_id, offset, epoch)}

    # For the transactions of producers

    def all_handed_out(self) -> dict[Key, Position]:
        """Of all partitions, where that is not known to be committed."""
        return self._offsets.news(is_all=True)

    def ownership_of(self, key: Key) -> PartitionOwnership | None:
        """The present one; None: it is not this member's."""
        state = self._subscription.states.get(key)
        return None if state is None else state.ownership

    def behind(self, key: Key, position: Position) -> Position:
        """Where reading goes on from a position in an ownership that has not ended."""
        offset, epoch = self._subscription.states[key].behind(position.offset)
        return position if epoch is None else Position(position.topic_id, offset, epoch)

    def check_owned(self, ownerships: Mapping[Key, PartitionOwnership | None]) -> None:
        """Raises IllegalGeneration: one of these ownerships has ended."""
        if (over := self._over(ownerships)) is not None:
            raise too_late(over, ownerships[over], self._member)

    async def commit_beginnings(self, ownerships: Mapping[Key, PartitionOwnership | None]) -> None:
        """Where reading began in these partitions is committed, once and for all.

        Raises:
            IllegalGeneration: one of these ownerships has ended.
            RaftmqError: it is not committed.
        """
        await self._insist(lambda: self._offsets.end_beginnings(ownerships), ownerships)

    def on_committed(self, positions: Mapping[Key, Position]) -> None:
        """By a transaction."""
        self._offsets.on_committed(positions)


# -- Offsets of transactions ----------------------------------------------------------------------
# Nothing is committed here: the transaction does that, under the generation of the member's newest
# assignment (decision 0038).


class _Done(NamedTuple):
    """How far a partition is done, in the ownership in which its records were handed out."""

    ownership: PartitionOwnership | None
    position: Position


class GroupProgress:
    """The offsets of one consumer that one transaction commits.

    Attributes:
        group: the name of its group.
    """

    def __init__(self, group: str, commits: ConsumerCommits, membership: GroupMembership) -> None:
        self.group = group
        self._commits, self._membership = commits, membership
        self._done: dict[Key, _Done] = {}

    def add(self, work: Work) -> None:
        """Everything up to and including it is done with this transaction.

        Raises:
            IllegalGeneration: the partition is not this member's any more, or was another's since.
        """
        for key, position in self._commits.positions_of(work).items():
            self._done[key] = _Done(work.ownership, position)

    def add_all(self) -> None:
        """All that was handed out, and is not known to be committed, is done with it."""
        for key, position in self._commits.all_handed_out().items():
            self._done[key] = _Done(self._commits.ownership_of(key), position)

    async def take(self, *, newer_than: int | None = None) -> GroupOffsets:
        """The offsets as the commit carries them, of the member as it is now.

        Args:
            newer_than: a generation under which they were refused: wait until the member has
                another one. Until then a rebalance is under way; the caller bounds the time.

        Raises:
            IllegalGeneration: one of the partitions is not this member's any more, or was another's
                since: the transaction has to be aborted.
            RaftmqError: where reading began is not committed, and has to be first.
        """
        await self._commits.commit_beginnings(self._ownerships())
        while True:
            self._commits.check_owned(self._ownerships())
            identity = self._membership.identity
            # Of the newest assignment: the quorum, which decides, compares numbers only.
            generation = self._membership.owned_partitions.generation
            if newer_than is None or generation != newer_than or not identity.is_member:
                break
            await anyio.sleep(PAUSE_SECONDS)  # until the rebalance is over
        offsets = tuple(
            OffsetToCommit(at.topic_id, key[1], at.offset, at.leader_epoch)
            for key, at in self._positions().items()
        )
        member_id = identity.member_id
        if not identity.is_member:  # it has chosen its partitions itself
            generation, member_id = ABSENT, ""
        return GroupOffsets(self.group, generation, member_id, identity.instance_id, offsets)

    def on_committed(self) -> None:
        """The transaction was committed: these offsets are no news any more."""
        owned = {
            key: done.position
            for key, done in self._done.items()
            if self._commits.ownership_of(key) is done.ownership
        }
        self._commits.on_committed(owned)

    def __bool__(self) -> bool:
        return bool(self._done)

    def _ownerships(self) -> Mapping[Key, PartitionOwnership | None]:
        return {key: done.ownership for key, done in self._done.items()}

    def _positions(self) -> dict[Key, Position]:
        """Behind what has turned out by now to be passed over."""
        return {key: self._commits.behind(key, done.position) for key, done in self._done.items()}


# -- Refused commits ------------------------------------------------------------------------------
# The message of a commit that comes too late: why, which member has the records, what to do. Pure.
#
# Coordinators refuse in terms of membership; a program has never joined anything itself.


def too_late(
    key: Key, ownership: PartitionOwnership | None, member: MemberOptions
) -> IllegalGeneration:
    """The error of a commit of records whose ownership has ended."""
    where = f"{key[0]}-{key[1]}"
    cause = LossCause.OTHER if ownership is None else ownership.cause
    if cause is LossCause.OTHER:  # no fault of the program: nothing to advise
        return IllegalGeneration(
            f"{where} is not this member's any more, or was others' since: nothing was committed, "
            "and the member that reads it now gets these records again; go on with what comes next"
        )
    why, way_out = _not_asked(member) if cause is LossCause.NOT_ASKED else _not_finished(member)
    return IllegalGeneration(
        f"{where} was taken from this member of group {member.group!r}, as its program {why}: "
        "nothing was committed, and the member that reads it now gets these records again. "
        f"{way_out}, or a smaller max_poll_records"
    )


def _not_asked(member: MemberOptions) -> tuple[str, str]:
    return (
        f"has asked for nothing for max_poll_interval_ms = {member.max_poll_interval_ms}",
        "Do what takes long inside `with consumer.processing(...)`, or take a longer "
        "max_poll_interval_ms",
    )


def _not_finished(member: MemberOptions) -> tuple[str, str]:
    return (
        "has not finished with it while the group waited, for rebalance_timeout_ms = "
        f"{member.longest_rebalance_ms}",
        "Take a longer rebalance_timeout_ms",
    )
