"""Crashes and failures that once broke a promise, each with the bug that it showed.

A script shifts when the order of disk operations changes, and its crash then meets another moment.
So every bug has a scenario of its own among the unit tests as well, named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.crash_sweep import failures

if TYPE_CHECKING:
    from tests.simulation.crash_case import Mode

FOUND: list[tuple[int, int, Mode]] = [
    # An epoch entry was believed that stood in the page cache only; a power cut after a clean
    # close lost it (test_recovery: test_missing_epochs_are_read_from_the_log).
    (1, 88, "kill"),
    # A torn tail behind a clean mark was not cut, and later appends left some of it in a sealed
    # segment (test_recovery: test_a_torn_tail_is_cut_behind_a_clean_mark).
    (0, 212, "failure"),
    (0, 52, "failure"),
    # A truncation failed half-way, and the log stayed online
    # (test_directory_failures: test_a_failed_truncation_takes_the_log_offline).
    (6, 122, "failure"),
    # A waiter of a log that went offline outside of a round was never woken
    # (test_directory_failures: test_waiters_learn_of_a_failed_append).
    (20, 135, "failure"),
    # A truncation that a crash had interrupted came undone after the log had been opened again
    # (test_recovery: test_an_opening_makes_durable_what_it_shows).
    (219, 155, "kill"),
    (320, 177, "kill"),
    (11, 214, "failure"),
    # A trim that failed at its rename left the log online with the old start, the disk with the new
    # one (test_directory_failures: test_a_trim_that_fails_late_takes_the_log_offline).
    (1004, 127, "failure"),
    # A folder whose name could not be synced was taken for good at the next opening, because
    # another log had been closed cleanly (test_directory_failures:
    # test_a_name_that_was_not_synced_is_synced_before_use).
    (1015, 11, "failure"),
]


@pytest.mark.parametrize(("seed", "at", "mode"), FOUND)
def test_what_was_found_stays_found(seed: int, at: int, mode: Mode) -> None:
    """The same life, the same moment."""
    found = list(failures(seed, [mode], at))
    assert found == [], str(found[0])
