"""While nothing comes: whether somebody is told why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.cli.data.silence import SILENT_SECONDS, explain_silence
from tests.unit.client.administration.bureau import open_bureau

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


async def test_nobody_leads(autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told once, however long it lasts, and again when it has come back."""
    async with open_bureau() as (bureau, admin), trio.open_nursery() as nursery:
        nursery.start_soon(explain_silence, admin, ["t"], [], lambda: 0)
        await trio.sleep(3 * SILENT_SECONDS)
        assert capsys.readouterr().err == ""
        for _ in range(2):
            bureau.world.lead("t", 0, -1)
            await trio.sleep(5 * SILENT_SECONDS)
            told = capsys.readouterr().err
            assert told.startswith("raftmq: waiting: ")
            assert "t-0" in told
            assert told.count("\n") == 1
            bureau.world.lead("t", 0, 1)
            await trio.sleep(3 * SILENT_SECONDS)
        nursery.cancel_scope.cancel()


async def test_records_come(autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]) -> None:
    """From some partition: nobody asks about the others."""
    async with open_bureau() as (bureau, admin), trio.open_nursery() as nursery:
        bureau.world.lead("t", 0, -1)
        count = iter(range(1000))
        nursery.start_soon(explain_silence, admin, ["t"], [0], lambda: next(count))
        await trio.sleep(10 * SILENT_SECONDS)
        nursery.cancel_scope.cancel()
    assert capsys.readouterr().err == ""


async def test_what_does_not_pass(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic that is gone is no reason to wait: that is told elsewhere."""
    async with open_bureau() as (_, admin), trio.open_nursery() as nursery:
        nursery.start_soon(explain_silence, admin, ["gone"], [], lambda: 0)
        await trio.sleep(3 * SILENT_SECONDS)
        nursery.cancel_scope.cancel()
    assert capsys.readouterr().err == ""
