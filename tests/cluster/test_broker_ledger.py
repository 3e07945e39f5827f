"""The rig itself: the ledger of the brokers' clients finds what is wrong, and nothing else."""

from __future__ import annotations

import pytest

from raftmq.errors import InvalidRequest, OutcomeUnknown, Unreachable
from raftmq.wire.batch.header import pack_prefix, read_header
from tests.cluster.broker_ledger import RECORDS_PER_BATCH, BrokerLedger, StoredBatch, batch_of

pytestmark = pytest.mark.cluster


def stored(key: int, *, at: int, leader_epoch: int = 0) -> StoredBatch:
    data = batch_of(key)
    header = read_header(data)
    prefix = pack_prefix(header, base_offset=at, leader_epoch=leader_epoch)
    return StoredBatch(at, at + RECORDS_PER_BATCH, prefix + bytes(data[len(prefix) :]))


ONE, TWO = stored(1, at=0), stored(2, at=2)


def promised() -> BrokerLedger:
    """Key 1 was acknowledged, and both were read; key 3 was denied, 4 is uncertain."""
    ledger = BrokerLedger()
    ledger.on_acknowledged(1, partition=0, offset=0)
    ledger.on_failed(3, Unreachable("nobody"))
    ledger.on_failed(4, OutcomeUnknown("perhaps"))
    for batch in (ONE, TWO, TWO):
        ledger.on_read(0, batch)
    return ledger


def test_all_is_well() -> None:
    """The uncertain one is there, too: both would be right."""
    ledger = promised()
    logs = {0: [ONE, TWO, stored(4, at=4)]}
    ledger.compare({1: logs, 2: logs})
    assert (ledger.findings, ledger.lost) == ([], 0)


@pytest.mark.parametrize(
    ("log", "finding"),
    [
        ([stored(2, at=0)], "acknowledged and lost: 1"),
        ([ONE], "read, and not there any more: 2"),
        ([ONE, TWO, stored(1, at=4)], "more than once: 2"),
        ([ONE, TWO, stored(3, at=4)], "there, though denied: 2"),
    ],
)
def test_what_is_wrong_is_found(log: list[StoredBatch], finding: str) -> None:
    """All nodes agree, on something that was not promised."""
    ledger = promised()
    ledger.compare({1: {0: log}, 2: {0: log}})
    assert any(finding in found for found in ledger.findings), ledger.findings


@pytest.mark.parametrize("other", [[ONE], [ONE, stored(2, at=2, leader_epoch=1)]])
def test_logs_that_differ_are_found(other: list[StoredBatch]) -> None:
    """Shorter, or another byte; which node is right does not matter."""
    ledger = BrokerLedger()
    ledger.compare({1: {0: [ONE, TWO]}, 2: {0: other}})
    assert "the logs of 1 and 2 differ" in ledger.findings[0]


def test_reads_that_change_are_found() -> None:
    """A consumer sees something else where it has read before."""
    ledger = promised()
    ledger.on_read(0, stored(5, at=2))
    assert "0@2 was (2, 0), now reads (5, 0)" in ledger.findings


def test_errors_that_do_not_pass_are_found() -> None:
    """Whatever is retriable is counted only."""
    ledger = BrokerLedger()
    ledger.on_error("fetch", Unreachable("nobody"))
    assert not ledger.findings
    ledger.on_error("fetch", InvalidRequest("no"))
    assert ledger.findings
    assert ledger.errors == {"Unreachable": 1, "InvalidRequest": 1}


@pytest.mark.parametrize(
    ("disks", "few", "lost"),
    [
        ([[ONE, TWO], [ONE, TWO], []], False, 0),
        ([[ONE, TWO], [ONE], [TWO]], False, 0),
        ([[ONE, TWO], [], []], True, 0),
        ([[TWO], [TWO], [TWO]], True, 2),
    ],
)
def test_promises_on_too_few_disks_are_found(
    disks: list[list[StoredBatch]], few: bool, lost: int
) -> None:
    """All are dead: each promise must lie on two disks; on none, it is lost."""
    ledger = promised()
    logs_of = {node_id: {0: log} for node_id, log in enumerate(disks)}
    ledger.compare_disks(logs_of, copies=2)
    assert any("on fewer than 2 disks" in found for found in ledger.findings) == few
    assert ledger.lost == lost


def test_what_only_a_leader_took_may_be_lost() -> None:
    """It is counted, and is no finding."""
    ledger = BrokerLedger()
    for key, offset in ((1, 0), (2, 2)):
        ledger.on_taken(key, partition=0, offset=offset)
    ledger.compare({1: {0: [ONE]}, 2: {0: [ONE]}})
    assert (ledger.findings, ledger.taken_lost) == ([], 1)


def test_nobody_is_held_to_what_was_released() -> None:
    """Nor do consumers have to read the same as before."""
    ledger = promised()
    ledger.release()
    batch = stored(5, at=0)  # bears the time
    ledger.on_read(0, batch)
    ledger.compare({1: {0: [batch]}, 2: {0: [batch]}})
    assert (ledger.findings, ledger.lost) == ([], 0)
