"""Which faults an aim is about, when it is met, and what the table of recoveries says."""

from __future__ import annotations

import pytest

from jepsen_like.report.aims import (
    AimResult,
    aim_results,
    aims_table,
    merged,
    quantile,
    recovery_table,
)
from jepsen_like.report.recovery import NEVER, Recovery

LEADER, BOTH, SILENCE, WHOLE = range(4)


def recovery(
    kind: str = "kill",
    *,
    whom: str = "leader",
    nodes: tuple[int, ...] = (1,),
    ack: float | None = 0.5,
    whole: float | None = 5.0,
    is_clean: bool = True,
) -> Recovery:
    return Recovery(
        kind=kind,
        whom=whom,
        nodes=nodes,
        begin=0.0,
        end=10.0,
        ack_seconds=ack,
        gap_seconds=ack,
        whole_seconds=whole,
        is_clean=is_clean,
    )


def result(place: int, *recoveries: Recovery, node_count: int = 3) -> AimResult:
    return aim_results(recoveries, node_count=node_count)[place]


@pytest.mark.parametrize(
    ("place", "kind", "whom", "limit"),
    [
        (LEADER, "kill", "leader", 1),
        (LEADER, "powercut", "leader", 1),
        (BOTH, "kill", "leader and controller", 2),
        (SILENCE, "partition", "leader", 10),
        (SILENCE, "pause", "controller", 10),
    ],
)
def test_an_aim_is_met_up_to_its_limit(place: int, kind: str, whom: str, limit: float) -> None:
    """Just in time is met, a moment later is not."""
    quick, slow = (recovery(kind, whom=whom, ack=limit + more) for more in (0.0, 0.01))
    assert result(place, quick).is_met
    missed = result(place, quick, slow)
    assert (missed.n, missed.missed, missed.is_met) == (2, 1, False)
    assert missed.worst_seconds == limit + 0.01


def test_no_fault_no_answer() -> None:
    """An aim that nothing was about is neither met nor missed."""
    assert result(BOTH, recovery(whom="leader")).is_met is None
    assert result(LEADER, recovery(whom="leader and controller")).n == 0
    assert result(LEADER, recovery(ack=None)).is_met is None


def test_never_is_longer_than_every_limit() -> None:
    """A cluster that was not whole at the end missed the aim."""
    found = result(WHOLE, recovery(whole=NEVER), recovery(whole=30.0))
    assert (found.n, found.missed) == (2, 1)


def test_unclean_faults_count_for_no_aim() -> None:
    """Whose fault it was cannot be told."""
    assert result(LEADER, recovery(ack=99.0, is_clean=False)).n == 0


@pytest.mark.parametrize(("nodes", "counts"), [((1,), 1), ((1, 2), 0), ((1, 2, 3), 0), ((), 0)])
def test_only_with_a_majority_left_alone(nodes: tuple[int, ...], counts: int) -> None:
    """Two of three paused: nobody could have answered."""
    assert result(SILENCE, recovery("pause", nodes=nodes)).n == counts


def test_two_of_five_leave_a_majority() -> None:
    """The other three go on."""
    assert result(SILENCE, recovery("pause", nodes=(1, 2)), node_count=5).n == 1


def test_clients_that_are_cut_off_wait_for_the_network() -> None:
    """The brokers hear each other well: they have no reason to choose another leader."""
    assert result(SILENCE, recovery("partition", whom="clients from leader")).n == 0


def test_several_runs_are_merged_aim_by_aim() -> None:
    """One run met it twice, the other missed it once; nothing was seen in a third."""
    runs = [[recovery(), recovery()], [recovery(ack=4.0)], []]
    found = merged([aim_results(run, node_count=3) for run in runs])[LEADER]
    assert (found.n, found.missed, found.worst_seconds) == (3, 1, 4.0)
    assert merged([]) == []


def test_the_table_groups_by_kind_and_whom() -> None:
    """Medians are of the clean ones; the others are only counted."""
    table = recovery_table(
        [
            recovery(ack=1.0),
            recovery(ack=2.0),
            recovery(ack=9.0),
            recovery(ack=77.0, is_clean=False),
            recovery("clock", whom="", ack=None, whole=NEVER),
        ]
    )
    clock, kill = table.rows
    assert kill[:7] == ["kill", "leader", "3", "1", "2.00 s", "9.00 s", "9.00 s"]
    assert clock == ["clock", "-", "1", "0", "-", "-", "-", "-", "never", "never", "never"]


def test_words_of_aims() -> None:
    """Met, missed, and not seen are three things."""
    rows = aims_table(aim_results([recovery(ack=3.0)], node_count=3)).rows
    assert [row[-1] for row in rows] == ["NOT MET", "not seen", "not seen", "met"]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.9, 9), (0.91, 10), (1.0, 10), (0, 1)])
def test_quantile_is_a_value_that_was_there(share: float, expected: int) -> None:
    """Of ten values; of none there is none."""
    assert quantile(list(range(10, 0, -1)), share) == expected
    assert quantile([], share) is None
