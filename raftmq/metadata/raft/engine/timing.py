"""How long the quorum waits for what; one place, with the reason of each number.

Pure values. Seconds. The silent failure of a leader (a pause, a cut) is noticed after
`election_seconds`, which is long so that a busy disk or a loaded machine elects nobody. A leader
whose process dies is noticed by the reset of its connection, at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    tick_seconds: float = 0.02  # the granularity of everything below
    heartbeat_seconds: float = 0.1
    election_seconds: tuple[float, float] = (1.0, 2.0)  # without a word from the leader
    fallback_seconds: float = 3.0  # a leader that hears no majority for so long steps down; more
    # than two syncs of a very slow disk, or nobody could take office on one
    quick_seconds: tuple[float, float] = (0.02, 0.12)  # after the connection to it broke
    retry_seconds: tuple[float, float] = (0.1, 0.4)  # after an election that nobody won
    commit_notice_seconds: float = 0.005  # followers learn of a commit this late at most, if idle


@dataclass(frozen=True, slots=True)
class QuorumLimits:
    """Bounds of work and memory. Bytes count commands, without what surrounds them."""

    applied_per_tick: int = 500
    applied_bytes_per_tick: int = 256 << 10
    proposals_waiting: int = 10_000
    in_flight_bytes: int = 8 << 20  # appended entries that a follower has not confirmed
    snapshot_entries: int = 100_000  # a snapshot after this many applied entries ...
    snapshot_bytes: int = 64 << 20  # ... or this many bytes of them
    trailing_entries: int = 20_000  # kept below a snapshot, for followers that are a little behind
