"""What takes longer than it may, as a broker tells it to people (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.transactions.overdue import GRACE_SECONDS, UNSETTLED_SECONDS, OverdueRequests
from raftmq.broker.transactions.unsettled import UnsettledCommits
from raftmq.metadata.image import TransactionState, UnsettledCommit
from raftmq.wire.messages.transactions import (
    OVERDUE_MAX,
    DescribeOverdue,
    DescribeOverdueReply,
    OverdueCommits,
    OverduePartition,
)
from tests.unit.broker.asking import ask
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.transacting import ID, end, leading, open_id

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node

TIMEOUT_SECONDS = 900.0


async def told_by(node: Node, commits: UnsettledCommits) -> DescribeOverdueReply:
    requests = OverdueRequests(
        node.replicas,
        lambda seconds: commits.overdue(trio.current_time(), seconds),
        timeout_ms_max=int(TIMEOUT_SECONDS * 1000),
    )
    reply = await ask(requests.describe, DescribeOverdue())
    assert isinstance(reply, DescribeOverdueReply)
    return reply


async def test_what_is_open_for_too_long(autojump_clock: MockClock) -> None:
    """Not before any timeout is over, and some time to have it aborted; nor what has ended."""
    async with leading(partitions=2) as (cluster, node):
        producer = await open_id(cluster)
        producer.send(node.replicas.get(TOPIC_ID, 1))
        await trio.sleep(TIMEOUT_SECONDS + GRACE_SECONDS - 1)
        assert (await told_by(node, UnsettledCommits())).open == ()
        await trio.sleep(2)
        [one] = (await told_by(node, UnsettledCommits())).open
        assert one == OverduePartition(TOPIC_ID, 1, ID, one.open_ms)
        assert one.open_ms > TIMEOUT_SECONDS * 1000
        await end(cluster, producer)
        await settle()
        assert (await told_by(node, UnsettledCommits())).open == ()


async def test_what_is_not_settled(autojump_clock: MockClock) -> None:
    """The oldest ids first, as many as people look at; those that are young are not told."""
    commits = UnsettledCommits()

    def note(name: str, *epochs: int) -> None:
        settling = tuple(UnsettledCommit(9, each, ((TOPIC_ID, 0),), 1) for each in epochs)
        row = TransactionState(9, 5, b"w" * 16, 1, 60_000, settling=settling)
        commits.note(name, row, trio.current_time())

    async with leading() as (_, node):
        note("old", 1, 2, 3)
        await trio.sleep(1.0)
        for number in range(OVERDUE_MAX):
            note(f"id-{number:03}", 1)
        await trio.sleep(UNSETTLED_SECONDS + 1)
        note("young", 1)
        told = (await told_by(node, commits)).unsettled
        assert len(told) == OVERDUE_MAX
        assert told[0] == OverdueCommits("old", 3, int((UNSETTLED_SECONDS + 2) * 1000))
        assert "young" not in {one.transaction_id for one in told}
