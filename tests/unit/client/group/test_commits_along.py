"""Commits in the background: whatever is finished is committed, also if nothing follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from raftmq.broker.groups.offset_requests import OffsetRequests
from raftmq.errors import RebalanceInProgress
from tests.unit.client.group.grouped import grouped, keys, until

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


async def test_what_is_finished_while_a_commit_is_under_way(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits take a second; the last records arrive meanwhile, and then none for a long time."""
    committed = OffsetRequests._committed

    async def slowly(self: OffsetRequests, *given: Any) -> Any:
        await trio.sleep(1.0)
        return await committed(self, *given)

    monkeypatch.setattr(OffsetRequests, "_committed", slowly)
    async with grouped(3) as here:
        member = here.begin("a")
        await until(lambda: member.held == keys(0, 1, 2))
        for partition in range(3):
            here.append(partition, "x")
            await trio.sleep(0.4)
        await until(lambda: [here.committed(each) for each in range(3)] == [1] * 3, seconds=5.0)


async def test_what_was_refused(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group deals anew when the last record is committed; it is committed when that is over."""
    admitted, refusals = OffsetRequests._admitted, list[float]()

    def sometimes(self: OffsetRequests, request: Any) -> Any:
        if len(refusals) < 3:
            refusals.append(trio.current_time())
            raise RebalanceInProgress("join again")
        return admitted(self, request)

    async with grouped(1) as here:
        member = here.begin("a")
        await until(lambda: member.held)
        monkeypatch.setattr(OffsetRequests, "_admitted", sometimes)
        here.append(0, "x")
        await until(lambda: here.committed(0) == 1, seconds=20.0)
        assert len(refusals) == 3
