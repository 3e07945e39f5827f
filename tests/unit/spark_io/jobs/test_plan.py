"""What an export has to write: every offset once, over any number of runs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.errors import OffsetOutOfRange
from spark_io.jobs.causes import JobError
from spark_io.jobs.export_plan import Planned, check_loss, plan
from spark_io.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable


def part(start: int, end: int) -> OffsetRange:
    return OffsetRange("t", 0, start, end)


def planned(
    files: Iterable[tuple[int, int]], end: int, *, begin: int = 0, size: int = 10,
    is_final: bool = False,
) -> list[str]:  # fmt: skip
    """`start:end` of each range; in brackets what is lost."""
    have = [part(*each) for each in files]
    found = plan(part(begin, end), have, records_per_file=size, is_final=is_final)
    texts = [f"{each.range.start}:{each.range.end}" for each in found]
    return [f"({text})" if each.is_lost else text for each, text in zip(found, texts, strict=True)]


def test_only_what_fills_a_file() -> None:
    """A file that is short today would overlap with tomorrow's."""
    assert planned([], 35) == ["0:10", "10:20", "20:30"]
    assert planned([], 30) == ["0:10", "10:20", "20:30"]
    assert planned([], 9) == planned([], 0) == []
    assert planned([], 35, is_final=True) == ["0:10", "10:20", "20:30", "30:35"]


def test_gaps_are_filled() -> None:
    """Between files, and up to multiples behind a final one."""
    assert planned([(10, 20), (30, 40)], 45) == ["0:10", "20:30"]
    assert planned([(0, 10), (10, 13)], 45) == ["13:20", "20:30", "30:40"]
    assert planned([(0, 10), (10, 13)], 13, is_final=True) == []
    assert planned([(20, 40)], 50) == ["0:10", "10:20", "40:50"]


def test_another_size() -> None:
    """Counts for what is missing; the files stay."""
    assert planned([(0, 10), (20, 30)], 45, size=20) == ["10:20", "30:40"]


def test_what_is_lost() -> None:
    """Is one range, up to where the log begins; what files hold is not lost."""
    assert planned([], 50, begin=23) == ["(0:23)", "23:30", "30:40", "40:50"]
    assert planned([(0, 20)], 50, begin=23) == ["(20:23)", "23:30", "30:40", "40:50"]
    assert planned([(0, 10), (20, 30)], 50, begin=40) == ["(10:20)", "(30:40)", "40:50"]
    assert planned([(0, 30)], 35, begin=23) == []
    assert planned([], 7, begin=7) == ["(0:7)"]


def test_loss_is_told() -> None:
    """With every range, and the way out."""
    check_loss([Planned(part(0, 10))])
    lost = [Planned(part(0, 5), is_lost=True), Planned(part(9, 10), is_lost=True)]
    with pytest.raises(OffsetOutOfRange, match=r"t-0\[0:5\], t-0\[9:10\]; --allow-loss"):
        check_loss(lost)


def test_files_that_cannot_be() -> None:
    """Files that overlap, and files of a topic that is another one now."""
    with pytest.raises(JobError, match=r"t-0\[0:10\] and t-0\[9:12\] overlap"):
        planned([(9, 12), (0, 10)], 50)
    with pytest.raises(OffsetOutOfRange, match=r"t-0\[10:20\], but .* ends at offset 15"):
        planned([(0, 10), (10, 20)], 15)


RUNS = st.lists(
    st.tuples(
        st.integers(0, 60),  # how much is added to the log before it
        st.integers(0, 15),  # ... and deleted
        st.integers(1, 25),  # records per file
        st.booleans(),  # final
        st.sets(st.integers(0, 12)),  # numbers of ranges that a crash leaves out
    ),
    max_size=6,
)


def check_apart(ranges: Iterable[OffsetRange]) -> None:
    assert all(one.end <= other.start for one, other in pairwise(sorted(ranges)))


@given(RUNS)
def test_runs_that_crash_leave_gaps_for_the_next(
    runs: list[tuple[int, int, int, bool, set[int]]],
) -> None:
    """No offset twice; one last run has all, and another one nothing more."""
    begin = end = 0
    files: list[OffsetRange] = []
    for added, deleted, size, is_final, left_out in [*runs, (0, 0, 7, True, set())]:
        end += added
        begin = min(begin + deleted, end)
        log = part(begin, end)
        found = plan(log, files, records_per_file=size, is_final=is_final)
        assert all(each.range.size > 0 for each in found)
        assert all(each.is_lost == (each.range.start < begin) for each in found)
        check_apart([*files, *(each.range for each in found)])
        if not is_final:
            ends = {end // size * size, *(each.start for each in files), begin}
            assert all(each.range.end % size == 0 or each.range.end in ends for each in found)
        done = [each.range for at, each in enumerate(found) if at not in left_out]
        files += done
        if not left_out:
            assert plan(log, files, records_per_file=size, is_final=is_final) == []
    assert sum(each.size for each in files) == end


@given(st.integers(0, 300), st.integers(0, 100), st.integers(1, 40))
def test_two_at_once_never_overlap(end: int, more: int, size: int) -> None:
    """Whoever looks later plans the same ranges, and further ones."""
    one = plan(part(0, end), [], records_per_file=size, is_final=False)
    other = plan(part(0, end + more), [], records_per_file=size, is_final=False)
    assert other[: len(one)] == one
