"""The judge itself: good histories pass, and each kind of bad one is called by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.powercut.events import (
    Acknowledged,
    Appended,
    Deleted,
    Deleting,
    Opened,
    Truncated,
    Truncating,
    WentOffline,
)
from tests.powercut.ledger import Found, Keeps, PartitionLedger

if TYPE_CHECKING:
    from tests.powercut.events import AnyEvent

pytestmark = pytest.mark.powercut

POWER_CUT, KILL = Keeps.ACKNOWLEDGED, Keeps.WRITTEN


def ledger_of(*events: AnyEvent) -> PartitionLedger:
    ledger = PartitionLedger(0)
    for event in events:
        ledger.record(event)
    return ledger


def ten_written(*, acknowledged: int, and_then: tuple[AnyEvent, ...] = ()) -> PartitionLedger:
    """Offsets 0 to 9 hold the sequences 100 to 109."""
    return ledger_of(
        Appended(0, 0, 10, 100, 1), Acknowledged(0, end_offset=acknowledged), *and_then
    )


def opened(end: int, *, start: int = 0, damage: str = "") -> Opened:
    return Opened(0, start, end, 0, damage)


def found(first: int, end: int) -> list[Found]:
    return [Found(offset, 100 + offset, 1) for offset in range(first, end)]


@pytest.mark.parametrize("end", [6, 8, 10])
def test_what_nobody_was_promised_may_go(end: int) -> None:
    """Six records of ten were acknowledged; a power cut may leave six to ten."""
    ledger = ten_written(acknowledged=6)
    ledger.on_opened(opened(end), POWER_CUT)
    ledger.compare(found(0, end))
    assert (ledger.findings, ledger.lost, ledger.vanished) == ([], 0, 10 - end)


def test_an_acknowledged_record_is_missing() -> None:
    """The log ends below what was acknowledged."""
    ledger = ten_written(acknowledged=6)
    ledger.on_opened(opened(4), POWER_CUT)
    assert ledger.lost == 2
    assert ledger.findings == ["partition 0: ends at 4, must reach 6"]


def test_a_kill_may_take_nothing_that_was_written() -> None:
    """The page cache survives a kill -9: the four that nobody was promised must be there."""
    ledger = ten_written(acknowledged=6)
    ledger.on_opened(opened(8), KILL)
    assert ledger.findings == ["partition 0: ends at 8, must reach 10"]


def test_a_log_that_says_more_than_can_be_read() -> None:
    """The end is where it should be, but reading stops before it."""
    ledger = ten_written(acknowledged=10)
    ledger.on_opened(opened(10), POWER_CUT)
    ledger.compare(found(0, 7))
    assert ledger.lost == 3


@pytest.mark.parametrize(
    "wrong",
    [Found(3, None, 1), Found(3, 104, 1), Found(3, 103, 2)],
    ids=["bytes", "place", "epoch"],
)
def test_an_acknowledged_record_has_changed(wrong: Found) -> None:
    """Content, place and leader epoch are all part of the promise."""
    ledger = ten_written(acknowledged=10)
    ledger.on_opened(opened(10), POWER_CUT)
    ledger.compare([*found(0, 3), wrong, *found(4, 10)])
    assert ledger.lost == 1


def test_an_append_that_could_not_be_told_of_any_more() -> None:
    """Killed between append and telling: newer content behind the end is fine, foreign is not."""
    for sequence, is_fine in ((110, True), (None, False), (50, False)):
        ledger = ten_written(acknowledged=10)
        ledger.on_opened(opened(11), POWER_CUT)
        ledger.compare([*found(0, 10), Found(10, sequence, 1)])
        assert (not ledger.findings) is is_fine


def test_what_was_truncated_must_not_come_back() -> None:
    """After a truncation that was told as done, the old records are history."""
    cut = (Truncating(0, offset=5), Truncated(0, log_end_offset=5))
    ledger = ten_written(acknowledged=10, and_then=cut)
    ledger.on_opened(opened(6), POWER_CUT)
    ledger.compare(found(0, 6))
    assert "come back" in ledger.findings[0]


@pytest.mark.parametrize("end", [5, 7, 10])
def test_a_truncation_that_only_began(end: int) -> None:
    """Nothing above the cut is promised any more, and anything of it may still be there."""
    ledger = ten_written(acknowledged=10, and_then=(Truncating(0, offset=5),))
    ledger.on_opened(opened(end), KILL)
    ledger.compare(found(0, end))
    assert ledger.findings == []


def test_records_below_a_deletion() -> None:
    """The log may start anywhere up to where a deletion began, and not before a finished one."""
    for done, start, is_fine in (
        ((), 0, True), ((), 4, True), ((), 5, False),
        ((Deleted(0, log_start_offset=4),), 4, True), ((Deleted(0, log_start_offset=4),), 0, False),
    ):  # fmt: skip
        ledger = ten_written(acknowledged=10, and_then=(Deleting(0, before_offset=4), *done))
        ledger.on_opened(opened(10, start=start), POWER_CUT)
        ledger.compare(found(start, 10))
        assert (not ledger.findings) is is_fine


@pytest.mark.parametrize(
    "event", [Acknowledged(0, end_offset=10), Appended(0, 10, 11, 110, 1)], ids=["ack", "append"]
)
def test_a_promise_while_offline(event: AnyEvent) -> None:
    """Nothing may be taken or acknowledged once the log went offline, until it is opened again."""
    ledger = ten_written(acknowledged=6, and_then=(WentOffline(0, "EIO"), event))
    assert "while it was offline" in ledger.findings[0]


def test_a_failure_that_leaves_the_log_online() -> None:
    """What is left of a log after a failed write or sync must not be used."""
    ledger = ten_written(acknowledged=6, and_then=(WentOffline(0, ""),))
    assert "did not go offline" in ledger.findings[0]


def test_a_damaged_log() -> None:
    """No disaster here damages a log, so damage is a finding."""
    ledger = ten_written(acknowledged=10)
    ledger.on_opened(opened(10, damage="damaged from offset 3 on"), POWER_CUT)
    assert ledger.findings == ["partition 0: damaged from offset 3 on"]
