"""Commits without an answer: none is told otherwise than it is, whatever comes later (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raftmq.errors import ErrorCode, OutcomeUnknown
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.world import done_and_refused, refused, silent

if TYPE_CHECKING:
    from trio.testing import MockClock

ID: dict[str, Any] = {"transaction_id": "billing-1"}


async def test_a_coordinator_that_does_not_know(autojump_clock: MockClock) -> None:
    """It answers that its quorum has not answered: the commit may be carried out, as it is here.
    What comes then is no proof that it is not: an id that is forgotten, or another owner."""
    for code in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.PRODUCER_FENCED, None):
        async with open_transactions() as (coordinator, (world, _, client)):
            options = {**ID, "transaction_timeout_ms": 5000, "request_timeout_ms": 1000}
            async with client.producer(**options) as producer:
                said = ErrorCode.REQUEST_TIMED_OUT
                again = [refused(said)] * 99 if code is None else [refused(code)]
                coordinator.ends += [done_and_refused(said), *again]
                with pytest.raises(OutcomeUnknown):
                    async with producer.transaction() as tx:
                        await tx.send("t", "a")
                coordinator.ends.clear()
                if code is None:
                    assert await tx.resolve() == "committed"
            assert committed_in(coordinator, world) == ["a"]


async def test_a_refusal_does_not_undo_a_late_commit(autojump_clock: MockClock) -> None:
    """The first attempt is on its way for long, the second is refused, the abort has no answer:
    whether the first one is carried out is not known."""
    async with open_transactions() as (coordinator, (world, _, client)):
        options = {**ID, "request_timeout_ms": 1000, "delivery_timeout_ms": 3000}
        async with client.producer(**options) as producer:
            refusal = refused(ErrorCode.ILLEGAL_GENERATION)
            coordinator.ends += [silent, refusal, refusal, *[silent] * 40]
            with pytest.raises(OutcomeUnknown):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send("t", "a")
                    tx.commit_offsets({("t", 0): 42}, group="billing")
            assert tx.outcome is None
            coordinator.end(coordinator.commits[0])  # it arrives
            coordinator.ends.clear()
            assert await tx.resolve() == "committed"
        assert committed_in(coordinator, world) == ["a"]
