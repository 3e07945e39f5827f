"""Why nobody leads: the words for each case, and the log line when it lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.metadata.raft import status
from raftmq.metadata.raft.status import VoterView, explain
from tests.simulation.raft_cluster import open_cluster

if TYPE_CHECKING:
    from trio.testing import MockClock

BLANK, ESTABLISHED = "blank", "established"


@pytest.mark.parametrize(
    ("term", "standings", "words"),
    [
        (0, {1: BLANK, 2: BLANK, 3: None}, ["not connected: voter 3", "a new quorum begins when"]),
        (0, {1: BLANK, 2: None, 3: None}, ["voter 2, voter 3", "all of its voters are up"]),
        (0, {1: BLANK, 2: ESTABLISHED, 3: None}, ["never had a leader", "2 that are established"]),
        (4, {1: BLANK, 2: ESTABLISHED, 3: None}, ["blank: voter 1", "2 established", "filled it"]),
        (4, {1: None, 2: ESTABLISHED, 3: None}, ["voter 1, voter 3", "needed, 1 are here"]),
        (4, dict.fromkeys((1, 2, 3), ESTABLISHED), ["enough voters are here"]),
        (4, {1: None, 2: "replaced", 3: ESTABLISHED}, ["voter 1; the log of voter 2 itself has"]),
    ],
    ids=["new", "alone", "half begun", "blank", "minority", "slow", "replaced"],
)
def test_the_reason_is_named(term: int, standings: dict[int, str | None], words: list[str]) -> None:
    """Who is missing, who is blank, and what is needed."""
    told = explain(VoterView(term, standings))
    assert [word for word in words if word not in told] == []


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.pathname == status.__file__]


async def test_a_new_quorum_says_whom_it_waits_for(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three are up for a minute: one line from each; then the third comes."""
    caplog.set_level("INFO")
    async with open_cluster(1, 2) as cluster:
        await trio.sleep(60)
        lines = told(caplog)
        assert len(lines) == 2
        assert all("reason=not connected: voter 3; blank: voter 1" in line for line in lines)
        await cluster.start(3)
        await cluster.leader()
        await trio.sleep(1)
        assert sum("leader found" in line for line in told(caplog)) == 2


async def test_with_a_leader_nothing_is_said(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An election takes less than the patience of the log."""
    async with open_cluster(1, 2, 3) as cluster:
        await cluster.leader()
        await trio.sleep(30)
        assert told(caplog) == []
