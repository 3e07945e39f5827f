"""What requests bear, so that a coordinator can tell which of them come late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.wire.messages.group_offsets import OffsetCommit
from raftmq.wire.messages.groups import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from tests.unit.client.group.grouped import HOME, grouped

if TYPE_CHECKING:
    from trio.testing import MockClock

NINE = tuple(map(str, range(9)))


async def test_requests_bear_the_slot_epoch(autojump_clock: MockClock) -> None:
    """The slot goes to the same broker anew while a member reads: whatever changes something is
    sent under the epoch that was found then, with the next number, and what it asked before it
    found out is refused and asked again."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            for expected in (1, 2, 3):
                await c.commit(await anext(c))
                assert here.committed(0) == expected
                await here.give(HOME)
            await trio.sleep(5.0)  # heartbeats
        epochs = [body.slot_epoch for body in here.asked(OffsetCommit)]
        numbers = [body.number for body in here.asked(OffsetCommit)]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) == 3 < len(epochs)
        assert numbers == sorted(set(numbers))
        assert not any(body.sender for body in here.asked(OffsetCommit))
        for kind in (JoinGroup, SyncGroup, Heartbeat, LeaveGroup):
            assert {body.slot_epoch for body in here.asked(kind)} <= {*epochs, epochs[-1] + 1}, kind
        assert here.asked(LeaveGroup)[-1].slot_epoch == epochs[-1] + 1


async def test_who_chooses_partitions_itself_has_a_name(autojump_clock: MockClock) -> None:
    """Drawn by chance, and the numbers of its commits rise: so its coordinator can tell what comes
    late of it."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        for name in "ab":
            async with here.consumer(name, assign=[("orders", 0)], commit="manual") as c:
                for _ in range(2):
                    await c.commit(await anext(c))
        asked = [body for body in here.asked(OffsetCommit) if body.partitions]
        senders = sorted({body.sender for body in asked})
        assert len(senders) == 2
        assert all(len(sender) > 16 for sender in senders)
        for sender in senders:
            numbers = [body.number for body in asked if body.sender == sender]
            assert numbers == sorted(set(numbers))
