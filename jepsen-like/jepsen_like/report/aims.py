"""Aims for recovery times after each kind of fault, and a table of what they were. Pure.

Owns the limits and to which faults each applies. Only clean faults count: the rest are counted
beside them. Without a majority of unaffected nodes nothing can be promised.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.report.recovery import NEVER
from jepsen_like.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jepsen_like.report.recovery import Recovery

SESSION_TIMEOUT_SECONDS = 9.0  # the default broker session: silent for longer, others take over
LEADER, BOTH, FROM_CLIENTS = "leader", "leader and controller", "clients from leader"
KILLS = frozenset({"kill", "powercut"})
SILENCES = frozenset({"partition", "pause", "freezer"})


class Aim(NamedTuple):
    """Attributes:
    name: what should happen within `limit_seconds`.
    seconds_of: how long it took, None when a fault cannot tell.
    """

    name: str
    limit_seconds: float
    is_about: Callable[[Recovery], bool]
    seconds_of: Callable[[Recovery], float | None]


class AimResult(NamedTuple):
    """Attributes:
    n: clean faults that the aim is about and that can tell.
    missed: of these took longer.
    worst_seconds: None where n is 0.
    """

    name: str
    limit_seconds: float
    n: int
    missed: int
    worst_seconds: float | None

    @property
    def is_met(self) -> bool | None:
        """None: no fault could tell."""
        return self.missed == 0 if self.n else None


def _ack_seconds(recovery: Recovery) -> float | None:
    return recovery.ack_seconds


def _whole_seconds(recovery: Recovery) -> float | None:
    return recovery.whole_seconds


def _hits_leader(recovery: Recovery) -> bool:
    return recovery.kind in KILLS and recovery.whom == LEADER


def _hits_both(recovery: Recovery) -> bool:
    return recovery.kind in KILLS and recovery.whom == BOTH


def _is_silence(recovery: Recovery) -> bool:
    """Where only clients cannot reach the leader, brokers have no reason to choose another."""
    return recovery.kind in SILENCES and recovery.whom != FROM_CLIENTS


def _any(_: Recovery) -> bool:
    return True


AIMS = (
    Aim("leader killed: first acknowledgement", 1.0, _hits_leader, _ack_seconds),
    Aim("leader and controller killed: first acknowledgement", 2.0, _hits_both, _ack_seconds),
    Aim(
        "partition or pause: first acknowledgement",
        SESSION_TIMEOUT_SECONDS + 1.0,
        _is_silence,
        _ack_seconds,
    ),
    Aim("after healing: all replicas in sync", 30.0, _any, _whole_seconds),
)


def aim_results(recoveries: Sequence[Recovery], *, node_count: int) -> list[AimResult]:
    clean = [recovery for recovery in recoveries if recovery.is_clean]
    return [_result(aim, clean, node_count) for aim in AIMS]


def _result(aim: Aim, clean: list[Recovery], node_count: int) -> AimResult:
    about = [recovery for recovery in clean if aim.is_about(recovery)]
    if aim.seconds_of is _ack_seconds:
        about = [recovery for recovery in about if _is_minority(recovery, node_count)]
    seconds = _told(aim.seconds_of(recovery) for recovery in about)
    missed = sum(took > aim.limit_seconds for took in seconds)
    return AimResult(aim.name, aim.limit_seconds, len(seconds), missed, max(seconds, default=None))


def _is_minority(recovery: Recovery, node_count: int) -> bool:
    return 0 < 2 * len(recovery.nodes) < node_count


def merged(results: Sequence[Sequence[AimResult]]) -> list[AimResult]:
    """Of several runs, aim by aim."""
    return [
        AimResult(
            name=same[0].name,
            limit_seconds=same[0].limit_seconds,
            n=sum(one.n for one in same),
            missed=sum(one.missed for one in same),
            worst_seconds=max(_told(one.worst_seconds for one in same), default=None),
        )
        for same in zip(*results, strict=True)
    ]


def recovery_table(recoveries: Sequence[Recovery]) -> Table:
    """By kind and by whom it hit; medians and the like of the clean ones only."""
    groups: dict[tuple[str, str], list[Recovery]] = defaultdict(list)
    for recovery in recoveries:
        groups[recovery.kind, recovery.whom].append(recovery)
    header = ["fault", "whom", "n", "unclean"]
    header += ["ack median", "p90", "max", "silent max", "whole median", "p90", "max"]
    rows = [[*names, *_cells(same)] for names, same in sorted(groups.items())]
    return Table(header, [[cell or "-" for cell in row] for row in rows])


def _cells(recoveries: list[Recovery]) -> list[str]:
    clean = [recovery for recovery in recoveries if recovery.is_clean]
    acks = _told(recovery.ack_seconds for recovery in clean)
    gaps = _told(recovery.gap_seconds for recovery in clean)
    wholes = _told(recovery.whole_seconds for recovery in clean)
    counts = [str(len(clean)), str(len(recoveries) - len(clean))]
    return [*counts, *_three(acks), seconds_word(max(gaps, default=None)), *_three(wholes)]


def _three(seconds: list[float]) -> list[str]:
    return [seconds_word(quantile(seconds, share)) for share in (0.5, 0.9, 1.0)]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is not exceeded by at least this share of all."""
    if not values:
        return None
    rank = -int(-share * len(values) // 1)  # rounded up
    return sorted(values)[max(rank, 1) - 1]


def seconds_word(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "never" if seconds == NEVER else f"{seconds:.2f} s"


def aims_table(results: Sequence[AimResult]) -> Table:
    words = {True: "met", False: "NOT MET", None: "not seen"}
    header = ["aim", "limit", "n", "missed", "worst", ""]
    rows = [
        [
            result.name,
            f"{result.limit_seconds:.0f} s",
            str(result.n),
            str(result.missed),
            seconds_word(result.worst_seconds),
            words[result.is_met],
        ]
        for result in results
    ]
    return Table(header, rows)


def _told(seconds: Iterable[float | None]) -> list[float]:
    return [one for one in seconds if one is not None]
