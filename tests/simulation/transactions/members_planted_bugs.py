"""Bugs that shared transactions could have, to be planted into ours one at a time; see
`planted_bugs`, and `python -m tests.simulation.transactions --members --bug NAME --seeds 600`.

Not here: `block_settled_by_listed_only`, by which nothing breaks: what is not listed is aborted
whether the commit is known or forgotten.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from jepsen_like.planted.transactions import forgets_before_marker_is_committed
from raftmq.broker.transactions.open_transactions import OpenTransactions
from raftmq.client.transactions.members import VersionId
from raftmq.metadata import transactions as outcomes
from raftmq.metadata.apply import shared_transactions as rules
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.image import MEMBERS_MAX, ChangeKind, TouchedKey, TransactionState
from raftmq.model import TransactionOutcome
from raftmq.partition.transactions import Transactions
from tests.simulation.planting import Patch, demand_called, planted
from tests.simulation.transactions.members_program import NO_BLOCK, Driver, Handed, Member
from tests.simulation.transactions.members_walk import MembersWalk, failure
from tests.simulation.transactions.planted_bugs import Case, admits_decided, snapshot_wakes_nobody
from tests.simulation.transactions.replica import Replica

if TYPE_CHECKING:
    from raftmq.client.transactions.members import Receipt
    from raftmq.metadata.commands import EndOutcome, JoinOutcome, TransactionEnd, TransactionJoin
    from raftmq.wire.messages.transactions import EndTxn

# -- The quorum ------------------------------------------------------------------------------------


def unlisted_member_commits(patch: Patch) -> None:
    """A commit is one of all members that have joined."""
    patch.setattr(outcomes, "is_listed", lambda _numbers, _number: True)


def other_lineage_skips(patch: Patch) -> None:
    """Nobody compares whose versions these are."""
    original = rules._row_refusal

    def refusal(name: str, state: TransactionState, lineage: str) -> Any:
        return original(name, state, lineage if state.shared is None else state.shared.lineage)

    patch.setattr(rules, "_row_refusal", refusal)


def commit_of_joined_beyond(patch: Patch) -> None:
    """A commit may list members that nobody has joined as."""
    original = rules._end_refusal

    def refusal(draft: Draft, end: TransactionEnd, state: TransactionState) -> Any:
        assert state.shared is not None
        joined = replace(state.shared, joined=MEMBERS_MAX)
        return original(draft, end, replace(state, shared=joined))

    patch.setattr(rules, "_end_refusal", refusal)


def empty_version_keeps_block_open(patch: Patch) -> None:
    """A version that is committed without a record leaves open what its members have written."""
    original = rules._commit

    def commit(draft: Draft, command: Any, place: int, end: Any, state: Any) -> EndOutcome:
        outcome = original(draft, command, place, end, state)
        if not end.partitions:
            after = draft.transaction(end.transaction_id)
            assert after is not None
            draft.put_transaction(end.transaction_id, replace(after, shared=state.shared))
        return outcome

    patch.setattr(rules, "_commit", commit)


def commit_keeps_block_open(patch: Patch) -> None:
    """Who is late in a version that is committed joins the next one."""
    original = rules._left

    def left(state: TransactionState, reason: Any, *, is_committed: bool = False) -> Any:
        after = original(state, reason, is_committed=is_committed)
        return replace(after, shared=state.shared) if is_committed else after

    patch.setattr(rules, "_left", left)


def done_version_opens_again(patch: Patch) -> None:
    """A member joins a version that is committed."""
    original = rules._join

    def join(draft: Draft, command: Any, join: TransactionJoin) -> JoinOutcome:
        state = draft.transaction(join.transaction_id)
        is_done = state is not None and join.version <= state.last_version
        if is_done and state is not None and state.shared == rules.SharedVersions(join.lineage):
            return rules._open_version(draft, command, join, state)
        return original(draft, command, join)

    patch.setattr(rules, "_join", join)


def lower_version_reopens(patch: Patch) -> None:
    """A member of a driver from before ends the version of the next one."""
    original = rules._join

    def join(draft: Draft, command: Any, join: TransactionJoin) -> JoinOutcome:
        state = draft.transaction(join.transaction_id)
        shared = rules.SharedVersions("") if state is None else state.shared
        assert shared is not None, "walks with both kinds under one id"
        is_lower = state is not None and state.last_version < join.version < shared.open_version
        if is_lower and shared.lineage == join.lineage:
            return rules._open_version(draft, command, join, state)
        return original(draft, command, join)

    patch.setattr(rules, "_join", join)


def version_is_not_remembered(patch: Patch) -> None:
    """A commit that is asked again, or by another driver, is decided again."""
    original = rules._commit

    def commit(draft: Draft, command: Any, place: int, end: Any, state: Any) -> EndOutcome:
        outcome = original(draft, command, place, end, state)
        after = draft.transaction(end.transaction_id)
        assert after is not None
        forgetful = replace(after, last_version=state.last_version)
        draft.put_transaction(end.transaction_id, forgetful)
        return outcome

    patch.setattr(rules, "_commit", commit)


def opening_takes_block_again(patch: Patch) -> None:
    """The next opening of a version has the producer ids of the one that was aborted."""
    original = rules._open_version

    def open_version(draft: Draft, command: Any, join: Any, state: Any) -> JoinOutcome:
        last = None if state is None else state.last
        outcome = original(draft, command, join, state)
        if last is None or last.is_committed or last.version != join.version:
            return outcome
        after = draft.transaction(join.transaction_id)
        assert after is not None
        shared = replace(after.shared, block=last.producer_id)
        draft.put_transaction(join.transaction_id, replace(after, shared=shared))
        return replace(outcome, block=last.producer_id)

    patch.setattr(rules, "_open_version", open_version)


def number_is_given_twice(patch: Patch) -> None:
    """Two members have one producer id."""
    patch.setattr(Draft, "put_member", lambda *_arguments: None)


def aborted_opening_commits(patch: Patch) -> None:
    """Receipts count for the version, whichever of its openings they are of."""

    original, has_block = rules._known_outcome, rules._is_open

    def is_open(state: TransactionState, end: TransactionEnd) -> bool:
        is_version = state.shared is not None and end.version == state.shared.open_version
        return has_block(state, end) or (end.is_commit and is_version)

    patch.setattr(rules, "_is_open", is_open)

    def known(place: int, end: TransactionEnd, state: TransactionState) -> Any:
        return original(place, end, replace(state, last=None))

    patch.setattr(rules, "_known_outcome", known)


def late_abort_ends_what_is_open(patch: Patch) -> None:
    """An abort ends whatever is open under its transaction id."""
    original, known = rules._is_open, rules._known_outcome

    def is_open(state: TransactionState, end: TransactionEnd) -> bool:
        return not end.is_commit or original(state, end)

    patch.setattr(rules, "_is_open", is_open)
    patch.setattr(
        rules, "_known_outcome", lambda *asked: known(*asked) if asked[1].is_commit else None
    )


def block_is_forgotten_when_left(patch: Patch) -> None:
    """Of a commit that is not settled the metadata have no index."""

    def producer_ids(self: TransactionState) -> frozenset[int]:
        present = self.producer_id if self.shared is None else self.shared.block
        settling = () if self.shared is not None else self.settling
        ids = [present, *(one.producer_id for one in settling)]
        return frozenset(each for each in ids if each >= 0)

    patch.setattr(TransactionState, "producer_ids", producer_ids)


def id_of_single_is_read_as_block(patch: Patch) -> None:
    """The first producer id of a block is a single producer's, and taken for the block."""

    def transaction_id_of(image: Any, producer_id: int) -> str | None:
        ids = image.transaction_ids
        return ids.get(producer_id, ids.get(outcomes.block_of(producer_id)))

    patch.setattr(outcomes, "transaction_id_of", transaction_id_of)


def delta_of_block_taken_only(patch: Patch) -> None:
    """A block that its transaction id has left is not told as changed."""
    original = Draft.put_transaction

    def put(self: Draft, transaction_id: str, state: TransactionState) -> None:
        changes = dict(self._changes)
        original(self, transaction_id, state)
        if state.shared is not None:
            taken = TouchedKey(ChangeKind.TRANSACTION_BLOCK, state.shared.block)
            changes |= {taken: None} if taken in self._changes else {}
            self._changes = changes

    patch.setattr(Draft, "put_transaction", put)


def leaders_find_nobody_by_block(patch: Patch) -> None:
    """The index of what is open passes over the blocks that were decided."""
    original = OpenTransactions.partitions_of

    def found(self: OpenTransactions, producer_ids: Any, _blocks: Any = ()) -> Any:
        return original(self, producer_ids)

    patch.setattr(OpenTransactions, "partitions_of", found)


# -- Partitions ------------------------------------------------------------------------------------


def releases_what_it_does_not_know(patch: Patch) -> None:
    """A member is forgotten once its marker is committed, whatever the metadata here say."""
    original = Transactions.release

    def release(self: Transactions, high_watermark: int, _outcome_of: Any) -> Any:
        return original(self, high_watermark, lambda *_: TransactionOutcome.ABORTED)

    patch.setattr(Transactions, "release", release)


def block_settled_by_first_member(patch: Patch) -> None:
    """A leader that is asked about a block looks at its first member."""

    def settled(self: Replica, block: int) -> bool:
        return self.is_settled(block, outcomes.MEMBER_EPOCH)

    patch.setattr(Replica, "is_block_settled", settled)


def block_settled_by_deposed_leader(patch: Patch) -> None:
    """Any leader's word counts, of whichever epoch."""

    def settled(self: MembersWalk, partition: int, _version: int, block: int) -> bool:
        leaders = [each for each in self._leaders() if each.partition == partition]
        return bool(leaders) and self.random.choice(leaders).is_block_settled(block)

    patch.setattr(MembersWalk, "_is_block_settled", settled)


# -- Programs --------------------------------------------------------------------------------------


def receipts_of_another_block_count(patch: Patch) -> None:
    """A commit of the newest opening lists receipts of an earlier one."""
    original = VersionId.commit_of

    def commit_of(self: VersionId, receipts: list[Receipt], count: int | None) -> EndTxn:
        newest = max((receipt.block for receipt in receipts), default=NO_BLOCK)
        moved = [
            receipt if receipt.block == NO_BLOCK else dataclasses.replace(receipt, block=newest)
            for receipt in receipts
        ]
        return original(self, moved, count)

    patch.setattr(VersionId, "commit_of", commit_of)


def commits_without_what_was_dropped(patch: Patch) -> None:
    """A driver commits although members were told that the version is done."""
    patch.setattr(Driver, "is_done", lambda _driver: False)


def every_attempt_counts(patch: Patch) -> None:
    """A driver lists all receipts that it has heard of."""

    def hear(self: Driver, member: Member, handed: Handed) -> None:
        if (member.driver, member.opening) == (self, self.opening) and self.ending is None:
            is_first = member.task not in self.handed
            self.handed[member.task if is_first else ~member.serial] = handed

    patch.setattr(Driver, "hear", hear)


def leaves_before_all_is_acknowledged(patch: Patch) -> None:
    """A member hands out a receipt of what it has sent."""
    patch.setattr(Member, "may_leave", lambda member: member.may_write() and bool(member.sent))


BUGS: dict[str, Case] = {
    case.plant.__name__: case
    for case in (
        Case(unlisted_member_commits, 0),
        Case(other_lineage_skips, 2),
        Case(commit_of_joined_beyond, 2),
        Case(empty_version_keeps_block_open, 0),
        Case(commit_keeps_block_open, 0),
        Case(done_version_opens_again, 0),
        Case(lower_version_reopens, 5),
        Case(version_is_not_remembered, 0),
        Case(opening_takes_block_again, 0),
        Case(number_is_given_twice, 0),
        Case(aborted_opening_commits, 1),
        Case(late_abort_ends_what_is_open, 0),
        Case(block_is_forgotten_when_left, 0),
        Case(id_of_single_is_read_as_block, 6),
        Case(delta_of_block_taken_only, 0),
        Case(leaders_find_nobody_by_block, 0),
        Case(snapshot_wakes_nobody, 0),
        Case(admits_decided, 3),
        Case(releases_what_it_does_not_know, 2804),  # 1 of 3,000
        Case(forgets_before_marker_is_committed, 1),
        Case(block_settled_by_first_member, 0),
        Case(block_settled_by_deposed_leader, 3014),  # the same
        Case(receipts_of_another_block_count, 0),
        Case(commits_without_what_was_dropped, 175),
        Case(every_attempt_counts, 4),
        Case(leaves_before_all_is_acknowledged, 0),
    )
}


def is_caught(name: str) -> bool:
    case = BUGS[name]
    with planted(case.plant) as calls:
        found = failure(case.seed)
    demand_called(name, calls)
    return bool(found)
