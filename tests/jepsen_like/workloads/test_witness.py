"""What is taken down of an attempt to commit, or to fetch, by what it was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jepsen_like.history.event import Type
from jepsen_like.history.recorder import Recorder
from jepsen_like.workloads.witness import Attempt, Notes
from raftmq.errors import Disconnected, ErrorCode, RaftmqError, Unreachable
from raftmq.wire.messages.group_offsets import (
    CommitOutcome,
    FetchedOffset,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    OffsetToCommit,
)

if TYPE_CHECKING:
    from jepsen_like.history.event import Event

TOPIC = b"t" * 16
KEYS = ["orders-0", "orders-1"]
COMMIT = OffsetCommit("g", 3, "m", (OffsetToCommit(TOPIC, 0, 7), OffsetToCommit(TOPIC, 1, 9)))
REFUSED = CommitOutcome(TOPIC, 0, ErrorCode.ILLEGAL_GENERATION)
DONE = CommitOutcome(TOPIC, 1)
IN_DOUBT = CommitOutcome(TOPIC, 1, ErrorCode.REQUEST_TIMED_OUT)


class Noting:
    def __init__(self) -> None:
        self.recorder = Recorder(lambda: 0.0)
        self._notes = Notes(self.recorder, {TOPIC: "orders"}, {"g": KEYS})

    def begin(self, request: OffsetCommit | OffsetFetch) -> Attempt:
        return self._notes.begin("g/1", request)

    @property
    def last(self) -> Event:
        return self.recorder.events[-1]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (OffsetCommitReply(partitions=(CommitOutcome(TOPIC, 0), DONE)), Type.OK),
        (OffsetCommitReply(ErrorCode.ILLEGAL_GENERATION, "gone"), Type.FAIL),
        (OffsetCommitReply(ErrorCode.REQUEST_TIMED_OUT, "late"), Type.INFO),
        (OffsetCommitReply(partitions=(REFUSED, DONE)), Type.INFO),
        (OffsetCommitReply(partitions=(REFUSED, REFUSED)), Type.FAIL),
        (OffsetCommitReply(partitions=(REFUSED, IN_DOUBT)), Type.INFO),
    ],
)
def test_what_a_commit_has_come_to(reply: OffsetCommitReply, kind: Type) -> None:
    """Done as a whole, certainly not, or nobody knows."""
    noting = Noting()
    attempt = noting.begin(COMMIT)
    assert noting.last.value == {
        "number": 0,
        "group": "g",
        "member_id": "m",
        "generation": 3,
        "offsets": [("orders-0", 7), ("orders-1", 9)],
    }
    attempt.on_answer(reply)
    assert (noting.last.type, noting.last.value) == (kind, {"number": 0})
    assert (noting.last.error is None) == (kind is Type.OK)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Unreachable("x"), Type.FAIL), (Disconnected("x"), Type.INFO), (None, Type.INFO)],
)
def test_an_attempt_without_an_answer(error: RaftmqError | None, kind: Type) -> None:
    """The error alone says whether it may have happened; whoever is cancelled knows nothing."""
    noting = Noting()
    noting.begin(COMMIT).on_nothing(error)
    assert noting.last.type is kind


def test_what_is_not_told_is_not_committed() -> None:
    """Where all partitions were asked for, those that are left out have nothing."""
    noting = Noting()
    reply = OffsetFetchReply(partitions=(FetchedOffset(TOPIC, 1, 4),))
    noting.begin(OffsetFetch("g")).on_answer(reply)
    assert noting.last.value["offsets"] == [["orders-0", None], ["orders-1", 4]]
    noting.begin(OffsetFetch("g", ())).on_answer(reply)
    assert noting.last.value == {"number": 1, "offsets": [["orders-1", 4]]}


def test_a_fetch_that_was_refused() -> None:
    """It tells nothing."""
    noting = Noting()
    noting.begin(OffsetFetch("g")).on_answer(OffsetFetchReply(ErrorCode.NOT_COORDINATOR, "gone"))
    assert (noting.last.type, noting.last.f) == (Type.FAIL, "committed")
    assert (noting.last.error or "").startswith("NotCoordinator: ")
