"""The fate of a proposal is told once, to whoever still waits."""

from __future__ import annotations

from raftmq.metadata.raft.engine.replication import Fate, PendingProposals


class Waiter:
    """Somebody who proposed, and what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Fate, object]] = []

    def settle(self, fate: Fate, result: object) -> None:
        self.told.append((fate, result))


def proposed(proposals: PendingProposals, index: int, *, term: int) -> Waiter:
    waiter = Waiter()
    proposals.add(index, term, waiter.settle)
    return waiter


def test_applied_or_overwritten() -> None:
    """The entry of the same term is the proposal; one of another term took its place."""
    proposals = PendingProposals()
    kept, lost = proposed(proposals, 5, term=1), proposed(proposals, 6, term=1)
    proposals.on_applied(5, 1, "answer")
    proposals.on_applied(6, 2, "of another")
    assert kept.told == [(Fate.APPLIED, "answer")]
    assert lost.told == [(Fate.DISCARDED, None)]
    assert len(proposals) == 0


def test_one_index_may_be_proposed_twice() -> None:
    """Deposed and in office again, at the same place of the log: each learns its own fate."""
    proposals = PendingProposals()
    first, second = proposed(proposals, 5, term=1), proposed(proposals, 5, term=3)
    assert len(proposals) == 2
    proposals.on_applied(5, 3, "answer")
    assert first.told == [(Fate.DISCARDED, None)]
    assert second.told == [(Fate.APPLIED, "answer")]
    assert len(proposals) == 0


def test_who_gave_up_is_told_nothing() -> None:
    """One of two at an index forgets: it takes no room and hears nothing, the other one does."""
    proposals = PendingProposals()
    gone, patient = proposed(proposals, 5, term=1), proposed(proposals, 5, term=1)
    proposals.forget(5, gone.settle)
    assert len(proposals) == 1
    proposals.on_applied(5, 1, "answer")
    assert gone.told == []
    assert patient.told == [(Fate.APPLIED, "answer")]
    proposals.forget(5, patient.settle)
    assert len(proposals) == 0


def test_a_snapshot_hides_what_became_of_it() -> None:
    """What stands below the snapshot's end is unknown for ever, what stands above may be known."""
    proposals = PendingProposals()
    below, above = proposed(proposals, 5, term=1), proposed(proposals, 6, term=1)
    proposals.on_skipped(5)
    assert below.told == [(Fate.UNKNOWN, "a snapshot went past it")]
    assert above.told == []
    assert len(proposals) == 1


def test_at_the_end_everybody_is_told() -> None:
    """The node stops: whatever waits is unknown."""
    proposals = PendingProposals()
    waiters = [proposed(proposals, index, term=1) for index in (5, 6)]
    proposals.abandon()
    assert [waiter.told for waiter in waiters] == [[(Fate.UNKNOWN, "this node stops")]] * 2
    assert len(proposals) == 0
