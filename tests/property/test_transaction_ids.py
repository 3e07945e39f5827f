"""Random openings, ends, settlings and expiries of transaction ids, against a model of few lines.

The model is a set of decided transactions. A11.3, A11.4.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftmq.metadata.commands import (
    NO_VERSION,
    CommitOffsets,
    DeleteTransactions,
    EndOutcome,
    ForgetSettled,
    GroupCommits,
    Refused,
    SettledCommits,
    SettledTransaction,
    StoredOffset,
    TransactionEnd,
    TransactionOpened,
    TransactionSeen,
    TransactionsEnded,
)
from raftmq.metadata.image import TransactionState, slot_of
from raftmq.metadata.snapshot import decode_image, encode_image
from raftmq.metadata.transactions import outcome_of
from raftmq.model import AbortReason, TransactionOutcome
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.states import ORDERS, apply_next
from tests.unit.metadata.transaction_ids import (
    FIRST,
    ID,
    OTHER,
    OWNER,
    SECOND,
    SLOT,
    coordinated,
    ends,
    offsets,
    opening,
)

START = coordinated()
LAST_EPOCH = 3  # that producer ids run out within a walk
owners = st.sampled_from([OWNER, OTHER])
# Of which transaction an end is: the newest that its owner knows, or an earlier one.
back = st.sampled_from([0, 0, 1, 2])
versions = st.integers(-1, 4)
Carried: TypeAlias = dict[str, Any]
carried = st.fixed_dictionaries(
    {
        "has_offsets": st.booleans(),
        "partitions": st.sampled_from([(), (FIRST,), (FIRST, SECOND)]),
        "tells_settled": st.booleans(),
    }
)


class OneTransactionId(RuleBasedStateMachine):
    """Two producers of one id act on what they were told, of which some came long ago."""

    def __init__(self) -> None:
        super().__init__()
        self.image = START
        self.decided: dict[tuple[int, int], bool] = {}  # whether committed; never decided twice
        self.told: dict[bytes, list[tuple[int, int]]] = {OWNER: [], OTHER: []}
        self.openings = {OWNER: 0, OTHER: 0}
        self.offsets: dict[int, int] = {}  # of the group: partition -> offset
        self.versions: set[int] = set()  # committed
        self.next_offset = 0
        self.patch = patch("raftmq.metadata.apply.transactions.LAST_EPOCH", LAST_EPOCH)
        self.patch.start()
        self.open(OWNER, is_retry=False, expects=False)

    def teardown(self) -> None:
        self.patch.stop()

    def say(self, command: Any) -> Any:
        before = self.image
        self.image, result = apply_next(before, command)
        check_step(before, self.image)
        check(self.image)
        return result

    @property
    def state(self) -> TransactionState | None:
        return self.image.transactions.get(ID)

    @property
    def present(self) -> tuple[int, int] | None:
        return self.state and (self.state.producer_id, self.state.producer_epoch)

    def decide(self, transaction: tuple[int, int], *, is_committed: bool) -> None:
        assert transaction not in self.decided, f"{transaction} is decided twice"
        self.decided[transaction] = is_committed

    # What producers do

    @rule(owner=owners, is_retry=st.booleans(), expects=st.booleans())
    def open(self, owner: bytes, is_retry: bool, expects: bool) -> None:
        self.openings[owner] += not is_retry
        known, before, fields = self.told[owner], self.present, {}
        if expects and known:
            fields = dict(zip(("expected_producer_id", "expected_epoch"), known[-1], strict=True))
        result = self.say(opening(self.openings[owner], owner=owner, name=ID, **fields))
        if isinstance(result, Refused):
            assert before == self.present
            return
        assert isinstance(result, TransactionOpened)
        told = result.producer_id, result.producer_epoch
        assert told == self.present
        self.hear(owner, told)
        if before is not None and before != told:
            self.decide(before, is_committed=False)

    def hear(self, owner: bytes, transaction: tuple[int, int]) -> None:
        """It writes with this number from now on."""
        assert self.state is not None
        assert self.state.owner == owner, f"{owner!r} is told the transaction of another"
        self.told[owner].append(transaction)

    @rule(owner=owners, back=back, version=versions, carried=carried)
    def commit(self, owner: bytes, back: int, version: int, carried: Carried) -> None:
        if back < len(self.told[owner]):
            self.end(owner, self.told[owner][-1 - back], is_commit=True, version=version, **carried)

    @rule(owner=owners, back=back, carried=carried, is_leader=st.booleans())
    def abort(self, owner: bytes, back: int, carried: Carried, is_leader: bool) -> None:
        if back < len(self.told[owner]):
            asked = self.told[owner][-1 - back]
            self.end(b"" if is_leader else owner, asked, is_commit=False, version=-1, **carried)

    def end(
        self, owner: bytes, asked: tuple[int, int], *, is_commit: bool, version: int,
        has_offsets: bool, partitions: Any, tells_settled: bool,
    ) -> None:  # fmt: skip
        before = self.present
        is_done = is_commit and NO_VERSION < version <= max(self.versions, default=NO_VERSION)
        self.next_offset += 1
        groups = (offsets((0, self.next_offset), group="g"),) if has_offsets else ()
        settled = self.settled() if tells_settled else ()
        reason = AbortReason.NONE if is_commit else AbortReason.PROGRAM
        command = ends(
            TransactionEnd(
                ID, *asked, is_commit, owner, reason, version, 0, partitions, groups, settled
            )
        )
        result = self.say(command)
        assert isinstance(result, TransactionsEnded)
        outcome = result.outcomes[0] if result.outcomes else EndOutcome(0, is_committed=is_commit)
        if before != self.present:
            assert before == asked, "another transaction was ended than the one that was asked for"
            self.decide(asked, is_committed=is_commit and not is_done)
            if self.decided[asked]:
                self.take_effect(version, has_offsets=has_offsets)
        if outcome.code:
            assert before == self.present
            return
        assert outcome.is_committed == (is_done or self.decided[asked]), "told something else"
        following = asked[0], asked[1] + 1  # what a coordinator tells after the usual outcome
        if result.outcomes:
            following = outcome.producer_id, outcome.producer_epoch
        if owner and following[0] >= 0:
            assert following == self.present
            self.hear(owner, following)

    def take_effect(self, version: int, *, has_offsets: bool) -> None:
        if version != NO_VERSION:
            assert version > max(self.versions, default=-1), f"version {version} is committed late"
            self.versions.add(version)
        if has_offsets:
            self.offsets[0] = self.next_offset

    # What coordinators do

    def settled(self) -> tuple[SettledTransaction, ...]:
        """One partition of each commit that is not settled yet."""
        commits = self.state.settling if self.state else ()
        return tuple(
            SettledTransaction(one.producer_id, one.producer_epoch, one.partitions[:1])
            for one in commits
        )

    @rule()
    def settle(self) -> None:
        told = (SettledCommits(ID, self.settled()),)
        assert not isinstance(self.say(ForgetSettled(SLOT, 1, told)), Refused)

    @rule(is_right=st.booleans())
    def expire(self, is_right: bool) -> None:
        state, present = self.state, self.present
        if state is None or present is None:
            return
        seen = (TransactionSeen(ID, state.changed_at_ms + (not is_right)),)
        self.say(DeleteTransactions(SLOT, 1, seen))
        assert (self.state is None) == (is_right and not state.settling)
        if self.state is None:
            self.decide(present, is_committed=False)
            self.versions.clear()

    @rule(partition=st.integers(0, 1))
    def commit_offset(self, partition: int) -> None:
        """Of a program without transactions."""
        self.next_offset += 1
        stored = (StoredOffset(ORDERS, partition, self.next_offset),)
        self.say(CommitOffsets(slot_of("g"), 1, (GroupCommits("g", stored),)))
        self.offsets[partition] = self.next_offset

    # What holds

    @invariant()
    def outcomes_are_those_of_the_model(self) -> None:
        """A commit that is settled may read as aborted, an abort never as committed."""
        for transaction, is_committed in self.decided.items():
            found = outcome_of(self.image, *transaction)
            unsettled = self.state.settling if self.state else ()
            is_kept = transaction in {(one.producer_id, one.producer_epoch) for one in unsettled}
            wanted = TransactionOutcome.COMMITTED if is_kept else TransactionOutcome.ABORTED
            assert found is wanted, f"{transaction}: {found!r}"
            assert is_committed or not is_kept, f"{transaction} was aborted"
        if self.present is not None:
            assert outcome_of(self.image, *self.present) is TransactionOutcome.OPEN

    @invariant()
    def offsets_are_the_fold_of_all_commits(self) -> None:
        """X6: of decided ends and plain commits, in the order of the log."""
        known = self.image.offsets.get("g", {})
        assert {key.partition: found.offset for key, found in known.items()} == self.offsets

    @invariant()
    def the_newest_version_is_the_highest(self) -> None:
        """X7."""
        if self.state is not None:
            assert self.state.last_version == max(self.versions, default=NO_VERSION)

    @invariant()
    def a_snapshot_says_the_same(self) -> None:
        assert decode_image(encode_image(self.image)) == self.image._replace(changes=())


TestOneTransactionId = OneTransactionId.TestCase
TestOneTransactionId.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, phases=[Phase.generate]
)
