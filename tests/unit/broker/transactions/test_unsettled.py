"""Whom to ask about which commits, and what may be forgotten: the rules alone.

A11.3.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from immutables import Map

from raftmq.broker.transactions import unsettled
from raftmq.broker.transactions.unsettled import (
    ALONG_MAX,
    PAUSE_SECONDS_MAX,
    QUICK_SECONDS,
    REST_SECONDS,
    ROUND_SECONDS,
    UnsettledCommits,
)
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import NO_BROKER, PartitionId
from raftmq.metadata.image import (
    EMPTY_IMAGE,
    MetadataImage,
    PartitionState,
    TransactionState,
    UnsettledCommit,
    slot_of,
)
from raftmq.wire.messages.transactions import PartitionSettled

if TYPE_CHECKING:
    import pytest

    from raftmq.broker.transactions.unsettled import Questions

ID, OTHER = "billing-1", "shipping-1"
TOPIC = b"t" * 16


def row(*commits: UnsettledCommit) -> TransactionState:
    return TransactionState(9, 5, b"w" * 16, 1, 60_000, settling=commits)


def commit(epoch: int, *partitions: int, producer_id: int = 9) -> UnsettledCommit:
    return UnsettledCommit(producer_id, epoch, tuple((TOPIC, each) for each in partitions), 1)


def image(*leaders: int, epoch: int = 3) -> MetadataImage:
    """Partition 0 is led by the first of them, and so on."""
    states = {}
    for number, leader in enumerate(leaders):
        known = PartitionState(
            replicas=(1, 2, 3), isr=(1, 2, 3), leader=leader, leader_epoch=epoch, partition_epoch=1
        )
        states[PartitionId(TOPIC, number)] = known
    return EMPTY_IMAGE._replace(partitions=Map(states))


def yes(questions: Questions) -> list[PartitionSettled]:
    return [
        PartitionSettled(one.topic_id, one.partition, settled=(True,) * len(one.transactions))
        for one in questions
    ]


def test_each_leader_is_asked_once_about_all_of_it() -> None:
    """In the leader epoch of the image, and with every commit of a partition together."""
    commits = UnsettledCommits()
    commits.note(ID, row(commit(3, 0, 1), commit(4, 0)), 0.0)
    asked = commits.questions(image(1, 2), 0.0)
    assert sorted(asked) == [1, 2]
    (one,) = asked[1]
    assert (one.topic_id, one.partition, one.leader_epoch) == (TOPIC, 0, 3)
    assert [(each.producer_id, each.producer_epoch) for each in one.transactions] == [
        (9, 3),
        (9, 4),
    ]
    assert not commits.questions(image(1, 2), ROUND_SECONDS / 2)


def test_a_commit_that_does_not_settle_is_asked_for_less_and_less_often() -> None:
    """Half a second, one, two, ... thirty seconds apart."""
    commits, now = UnsettledCommits(), 0.0
    commits.note(ID, row(commit(3, 0)), now)
    times = []
    while now < 200:
        if commits.questions(image(1), now):
            times.append(now)
        now += ROUND_SECONDS
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert set(gaps[6:]) == {PAUSE_SECONDS_MAX}


def test_who_waits_is_served_at_once() -> None:
    """And then after 10, 20, 40 ms, also where a silent leader had made it wait for long; for
    nobody but the ids that are waited for."""
    commits = UnsettledCommits()
    commits.note(ID, row(commit(3, 0)), 0.0)
    commits.note(OTHER, row(commit(7, 0, producer_id=10)), 0.0)
    commits.questions(image(1), 0.0)
    assert commits.wake_at(0.5) == 0.5
    commits.want(ID, 0.1)
    times, now = [], 0.1
    for _ in range(8):
        assert commits.wake_at(60.0) == now
        (question,) = commits.questions(image(1), now)[1]
        if now < ROUND_SECONDS:
            assert len(question.transactions) == 1
        times.append(now)
        now = commits.wake_at(60.0)
    gaps = [round(after - before, 6) for before, after in itertools.pairwise(times)]
    assert gaps == [QUICK_SECONDS * 2**n for n in range(6)] + [ROUND_SECONDS]
    assert not commits.unwant(ID)
    assert commits.wake_at(60.0) == 60.0


def test_who_waits_for_what_no_image_shows_yet() -> None:
    """The metadata are looked at again soon."""
    commits = UnsettledCommits()
    commits.want(ID, 1.0)
    assert not commits.questions(image(1), 1.0)
    assert commits.wake_at(9.0) == 1.0 + QUICK_SECONDS


def test_partitions_without_a_leader_wait() -> None:
    """And those of a broker that has a question already; those of deleted topics are settled."""
    commits = UnsettledCommits()
    commits.note(ID, row(commit(3, 0, 1, 2)), 0.0)
    assert not commits.questions(image(NO_BROKER, 1), 0.0, busy={1})
    assert [each.partitions for each in commits.settled_of(ID)] == [((TOPIC, 2),)]
    assert commits.take_moved() == {ID}
    assert not commits.is_settled(ID, (9, 3))


def test_only_a_yes_settles() -> None:
    """No error, no missing answer, and no answer of the wrong length."""
    commits = UnsettledCommits()
    commits.note(ID, row(commit(3, 0), commit(4, 0)), 0.0)
    asked = commits.questions(image(1), 0.0)[1]
    for answer in (
        [],
        [PartitionSettled(TOPIC, 0, ErrorCode.FENCED_LEADER_EPOCH, (True, True))],
        [PartitionSettled(TOPIC, 0, settled=(True,))],
        [PartitionSettled(TOPIC, 1, settled=(True, True))],
        [PartitionSettled(TOPIC, 0, settled=(False, False))],
    ):
        commits.on_answers(asked, answer, 0.0)
    assert not commits.settled_of(ID)
    commits.on_answers(asked, [PartitionSettled(TOPIC, 0, settled=(False, True))], 0.0)
    (settled,) = commits.settled_of(ID)
    assert (settled.producer_epoch, settled.partitions) == (4, ((TOPIC, 0),))
    assert commits.is_settled(ID, (9, 4))
    assert not commits.is_settled(ID, (9, 3))
    assert (commits.settled_count, commits.backlog(8.0)) == (1, (1, 8.0))
    assert commits.has_settled_since(ID, 0)
    assert not commits.has_settled_since(ID, 1)
    assert not commits.has_settled_since(OTHER, 0)


def test_what_is_settled_is_forgotten_when_the_id_rests() -> None:
    """One command for all of a slot; then the coordinator knows nothing of it any more."""
    commits = UnsettledCommits()
    commits.note(ID, row(commit(3, 0, 1)), 0.0)
    commits.note(OTHER, row(commit(7, 0, producer_id=10)), 0.0)
    commits.on_answers(asked := commits.questions(image(1, 1), 0.0)[1], yes(asked), 0.0)
    assert not commits.to_forget(REST_SECONDS - 0.1)
    found = commits.to_forget(REST_SECONDS)
    assert {slot: [one.transaction_id for one in ids] for slot, ids in found.items()} == {
        slot_of(ID): [ID],
        slot_of(OTHER): [OTHER],
    }
    commits.note(ID, row(), 3.0)
    commits.note(OTHER, None, 3.0)
    assert not commits.to_forget(9.0)
    assert not commits.settled_of(ID)


def test_what_the_metadata_have_forgotten_is_not_told_again() -> None:
    """Of a commit that is settled in some partitions the others stay."""
    commits = UnsettledCommits()
    commits.note(ID, row(commit(3, 0, 1)), 0.0)
    asked = commits.questions(image(1, 2), 0.0)
    commits.on_answers(asked[1], yes(asked[1]), 0.0)
    assert [one.partitions for one in commits.settled_of(ID)] == [((TOPIC, 0),)]
    commits.note(ID, row(commit(3, 1)), 1.0)
    assert not commits.settled_of(ID)
    assert not commits.is_settled(ID, (9, 3))
    assert not commits.to_forget(9.0)


def test_one_end_takes_along_only_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one commit whole, however large; the rest goes with the next ends."""
    assert ALONG_MAX >= 64, "usual commits of an id all go along"
    monkeypatch.setattr(unsettled, "ALONG_MAX", 3)
    commits = UnsettledCommits()
    sizes = {3: 5, 4: 2, 5: 2}
    commits.note(ID, row(*(commit(e, *range(size)) for e, size in sizes.items())), 0.0)
    commits.on_answers(asked := commits.questions(image(*[1] * 5), 0.0)[1], yes(asked), 0.0)
    assert [one.producer_epoch for one in commits.settled_of(ID)] == [3]
    commits.note(ID, row(commit(4, 0, 1), commit(5, 0, 1)), 1.0)
    assert [one.producer_epoch for one in commits.settled_of(ID)] == [4, 5]


class Settles(RuleBasedStateMachine):
    """Metadata, leaders and a coordinator: whatever is asked, answered, lost, repeated and
    forgotten, in whatever order, nothing counts as settled that its leader has not called settled
    in the leader epoch of an image that shows the commit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.commits, self.now = UnsettledCommits(), 0.0
        self.listed: dict[int, UnsettledCommit] = {}  # by epoch: the row in the metadata
        self.said: set[tuple[int, int]] = set()  # epoch and partition, called settled
        self.leaders, self.epochs = [1, 2, 1], [1, 1, 1]
        self.flying: list[Questions] = []
        self.next_epoch = 0

    def shown(self) -> MetadataImage:
        states = {
            PartitionId(TOPIC, number): PartitionState(
                replicas=(1, 2),
                isr=(1, 2),
                leader=leader,
                leader_epoch=self.epochs[number],
                partition_epoch=1,
            )
            for number, leader in enumerate(self.leaders)
        }
        return EMPTY_IMAGE._replace(partitions=Map(states))

    def note(self) -> None:
        self.commits.note(ID, row(*self.listed.values()), self.now)

    @rule(partitions=st.sets(st.integers(0, 2), min_size=1))
    def commit(self, partitions: set[int]) -> None:
        self.listed[self.next_epoch] = commit(self.next_epoch, *sorted(partitions))
        self.next_epoch += 1
        self.note()

    @rule(number=st.integers(0, 2), leader=st.sampled_from([1, 2, NO_BROKER]))
    def elect(self, number: int, leader: int) -> None:
        self.leaders[number] = leader
        self.epochs[number] += 1

    @rule(seconds=st.sampled_from([0.01, 0.5, 5.0, 40.0]), is_wanted=st.booleans())
    def ask(self, seconds: float, is_wanted: bool) -> None:
        self.now += seconds
        if is_wanted:
            self.commits.want(ID, self.now)
        for broker_id, questions in self.commits.questions(self.shown(), self.now).items():
            for one in questions:
                assert self.leaders[one.partition] == broker_id
                assert self.epochs[one.partition] == one.leader_epoch
            self.flying.append(questions)
        if is_wanted:
            self.commits.unwant(ID)

    @rule(data=st.data(), is_kept=st.booleans())
    def answer(self, data: st.DataObject, is_kept: bool) -> None:
        if not self.flying:
            return
        at = data.draw(st.integers(0, len(self.flying) - 1))
        questions = self.flying[at] if is_kept else self.flying.pop(at)
        answers = []
        for one in questions:
            settled = tuple(data.draw(st.booleans()) for _ in one.transactions)
            error = data.draw(st.sampled_from([0, 0, int(ErrorCode.FENCED_LEADER_EPOCH)]))
            answers.append(PartitionSettled(one.topic_id, one.partition, error, settled))
            for asked, is_settled in zip(one.transactions, settled, strict=True):
                if is_settled and not error:
                    self.said.add((asked.producer_epoch, one.partition))
        self.commits.on_answers(questions, answers, self.now)

    @rule()
    def forget(self) -> None:
        """The metadata forget what the next end takes along."""
        for one in self.commits.settled_of(ID):
            known = self.listed[one.producer_epoch]
            left = [each for each in known.partitions if each not in one.partitions]
            del self.listed[one.producer_epoch]
            if left:
                numbers = [number for _, number in left]
                self.listed[one.producer_epoch] = commit(one.producer_epoch, *numbers)
        self.listed = dict(sorted(self.listed.items()))
        self.note()

    @invariant()
    def only_what_leaders_have_said(self) -> None:
        for one in self.commits.settled_of(ID):
            for _, number in one.partitions:
                assert (one.producer_epoch, number) in self.said

    @invariant()
    def whole_only_if_every_partition_is(self) -> None:
        for epoch, known in self.listed.items():
            is_settled = all((epoch, number) in self.said for _, number in known.partitions)
            assert self.commits.is_settled(ID, (9, epoch)) == is_settled


TestSettles = Settles.TestCase
TestSettles.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
