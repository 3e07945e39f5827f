"""The judge of the crash sweep, on logs whose verdict is known: good ones pass, bad ones do not."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import StorageError
from raftmq.partition.storage.recovery import open_log
from raftmq.topic_config import TopicConfig
from tests.simulation.crash_expectation import Expectation, Violation, read_everything
from tests.simulation.crash_script import EPOCH_MS, make_batches
from tests.simulation.disk import SimulatedFiles

if TYPE_CHECKING:
    from raftmq.partition.storage.log import PartitionLog
    from tests.simulation.crash_expectation import Stored

RANDOM = Random(0)
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


@pytest.fixture
def log() -> PartitionLog:
    """About ten batches in several segments, none of them synced."""
    log = open_log(SimulatedFiles(RANDOM), Path("/data/log"), "orders/Partition-0", CONFIG)
    for epoch in (0, 0, 1, 1, 2):
        sent, _ = make_batches(RANDOM, log, epoch=epoch, timestamp=EPOCH_MS)
        log.append(sent, leader_epoch=epoch, now_ms=EPOCH_MS, now=0.0)
    return log


def served_by(log: PartitionLog) -> list[Stored]:
    return read_everything(log, RANDOM)


def check(owed: Expectation, log: PartitionLog, *, power_lost: bool) -> None:
    owed.check(log, random=RANDOM, power_lost=power_lost)


def violation(owed: Expectation, log: PartitionLog, *, power_lost: bool = False) -> str:
    with pytest.raises(Violation) as caught:
        check(owed, log, power_lost=power_lost)
    return str(caught.value)


def one_more(log: PartitionLog) -> Stored:
    """A batch that `log` does not hold."""
    last = served_by(log)[-1]
    return last._replace(base_offset=last.end_offset, end_offset=last.end_offset + 1)


def test_everything_there_is_right(log: PartitionLog) -> None:
    """The log serves what was appended: nothing to complain about, whatever was promised."""
    content = served_by(log)
    assert content[0].base_offset == 0
    assert content[-1].end_offset == log.log_end_offset
    for power_lost in (False, True):
        check(Expectation(content, promised=log.log_end_offset), log, power_lost=power_lost)


def test_a_lost_batch_matters_if_it_was_promised(log: PartitionLog) -> None:
    """A power cut may take what was not durable; kill -9 may take nothing."""
    lost = one_more(log)
    content = [*served_by(log), lost]
    check(Expectation(content, promised=lost.base_offset), log, power_lost=True)
    for owed, power_lost in [
        (Expectation(content, promised=lost.base_offset), False),
        (Expectation(content, promised=lost.end_offset), True),
    ]:
        assert "is lost" in violation(owed, log, power_lost=power_lost)


def test_other_bytes_are_a_violation(log: PartitionLog) -> None:
    """A sound batch at the right offset is still wrong if somebody else appended it."""
    content = served_by(log)
    content[1] = content[1]._replace(data=content[0].data)
    assert "never appended" in violation(Expectation(content), log, power_lost=True)


def test_a_batch_under_way_may_be_there(log: PartitionLog) -> None:
    """The crash came during its append, or during the truncation that takes it."""
    *content, last = served_by(log)
    check(Expectation(content, [last]), log, power_lost=False)
    assert "was cut" in violation(Expectation(content), log)


def test_a_truncation_ends_promises(log: PartitionLog) -> None:
    """While it runs both outcomes are right, when it is done only the shorter log is."""
    content = served_by(log)
    owed = Expectation(content, promised=log.log_end_offset)
    owed.begin_truncate(content[3].base_offset)
    assert owed.promised == owed.end_offset == content[3].base_offset
    check(owed, log, power_lost=False)
    owed.complete_truncate(log)
    assert "was cut" in violation(owed, log)


def test_the_log_start_stays_between_acknowledged_and_requested(log: PartitionLog) -> None:
    """Acknowledged deletions never come back; others may or may not have happened."""
    content = served_by(log)
    check(Expectation(content, start_requested=5), log, power_lost=False)
    late = Expectation(content, start_acknowledged=1, start_requested=5)
    assert violation(late, log) == "log start 0, expected 1 to 5"


def test_a_log_that_gave_up_is_a_violation(log: PartitionLog) -> None:
    """After a crash nobody needs to be called."""
    content = served_by(log)
    log.go_offline(StorageError("sulking"))
    assert violation(Expectation(content), log) == "offline: sulking"


def test_observing_raises_promises_and_never_lowers_them(log: PartitionLog) -> None:
    """What was once shown as durable is owed for ever, even if the log shows less later."""
    owed = Expectation(served_by(log), promised=4)
    owed.observe(log)
    assert (log.durable_end_offset, owed.promised) == (0, 4)
    flush = log.begin_flush(0.0)
    flush.perform(log.files)
    log.complete_flush(flush)
    owed.observe(log)
    assert owed.promised == log.log_end_offset
