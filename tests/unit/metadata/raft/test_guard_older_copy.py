"""Rule 7 of the guard: who lacks what it has confirmed came back with an older copy."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.metadata.raft.net.messages import Refusal
from tests.simulation.raft.lockstep import Lockstep, quorum
from tests.unit.metadata.raft.test_guard import reply


@pytest.fixture
def world() -> Lockstep:
    """Voter 1 leads term 1; all have the same log, committed and applied."""
    return quorum(1)


def test_a_follower_that_forgot_what_it_confirmed_must_stop(world: Lockstep) -> None:
    """A copy of its directory from this very run is put back, under the same leader."""
    world.settle()
    copy = world[2].files.photograph(Random(0), power_lost=False)
    for _ in range(5):
        world[1].submit(b"a")
    world.settle()
    confirmed = world[1].node.match_index(2)
    world.crash(2)
    world.start(2, copy)
    world.connect(1, 2)
    world[1].take_sent()
    world.run_until(lambda: world[1].node.match_index(2) < confirmed)
    (refusal,) = world[1].take_sent(Refusal, to=2)
    assert refusal.must_stop
    assert f"had confirmed {confirmed}" in refusal.reason
    assert not world[1].node.counts(2)


def test_what_an_older_copy_says_counts_no_more(world: Lockstep) -> None:
    """It goes on answering as if nothing had been said: no commit comes of it."""
    leader = world[1]
    world.isolate(3)
    leader.node.receive(2, reply(2, is_reset=True, is_success=False, last_index=1))
    leader.submit(b"a")
    before, end = leader.node.commit_index, leader.journal.last_index + 1
    leader.turn()
    leader.node.receive(2, reply(end, last_index=end - 1))
    leader.turn()
    assert leader.node.commit_index == before
