"""What is durable, and since when something waits: the arithmetic between appends and rounds."""

from __future__ import annotations

import pytest

from raftmq.partition.storage.durability import DurableEnd


def test_a_round_covers_what_was_appended_before_it() -> None:
    """Appends go on during a round; they belong to the next one."""
    end = DurableEnd(0, 0)
    end.on_append(10, 1.0)
    mark = end.begin(2.0)
    end.on_append(20, 3.0)
    end.complete(mark)
    assert (end.durable_end_offset, end.log_end_offset, end.is_dirty) == (10, 20, True)


def test_the_age_is_that_of_the_oldest_append_not_yet_durable() -> None:
    """A frozen disk shows as an age that grows."""
    end = DurableEnd(0, 0)
    assert end.oldest_pending_age(5.0) == 0.0
    end.on_append(10, 1.0)
    end.on_append(12, 2.0)
    assert end.oldest_pending_age(5.0) == 4.0
    mark = end.begin(5.0)
    end.on_append(14, 6.0)
    assert end.oldest_pending_age(9.0) == 8.0
    end.complete(mark)
    assert end.oldest_pending_age(9.0) == 3.0


def test_a_truncation_makes_a_running_round_worthless() -> None:
    """The round synced bytes that were cut and written anew since: they prove nothing."""
    end = DurableEnd(0, 0)
    end.on_append(100, 1.0)
    mark = end.begin(1.0)
    end.on_truncate(50)
    end.on_append(100, 2.0)
    end.complete(mark)
    assert end.durable_end_offset == 0
    end.complete(end.begin(3.0))
    assert end.durable_end_offset == 100


def test_a_truncation_lowers_the_durable_end() -> None:
    """Durable records were cut on purpose: they are not there any more."""
    end = DurableEnd(100, 100)
    end.on_truncate(40)
    assert (end.durable_end_offset, end.log_end_offset) == (40, 40)


def test_what_was_cut_waits_no_more() -> None:
    """Nothing is left that is not durable: the disk owes nothing."""
    end = DurableEnd(10, 10)
    end.on_append(20, 1.0)
    end.on_truncate(10)
    assert end.oldest_pending_age(9.0) == 0.0


def test_one_round_at_a_time() -> None:
    """Two rounds of one log at once would be a bug of the flusher."""
    end = DurableEnd(0, 0)
    end.begin(0.0)
    with pytest.raises(AssertionError):
        end.begin(1.0)
