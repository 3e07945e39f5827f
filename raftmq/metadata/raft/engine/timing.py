"""Raft timeouts (heartbeat, election, step down) and limits (batches, in-flight bytes, snapshots).

Pure values, in seconds. A leader that fails silently (a pause, a network cut) is noticed after
`election_seconds`, which is long so that a busy disk or a loaded machine causes no election. A
leader whose process dies is noticed at once by the reset of its connection.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    tick_seconds: float = 0.02  # the granularity of all timeouts below; each idle tick costs CPU
    heartbeat_seconds: float = 0.1  # a tenth of the election timeout: some may be lost
    # A follower that hears no leader for so long asks for pre-votes; at random, so that two seldom
    # ask at the same time.
    election_seconds: tuple[float, float] = (1.0, 2.0)
    # A leader that hears no majority for so long steps down. More than two syncs of a very slow
    # disk, or no leader could be elected on such disks.
    fallback_seconds: float = 3.0
    quick_seconds: tuple[float, float] = (0.02, 0.12)  # instead, when the leader's connection broke
    retry_seconds: tuple[float, float] = (0.1, 0.4)  # before the next try when no candidate won
    commit_notice_seconds: float = 0.005  # an idle leader tells followers of a commit this late


@dataclass(frozen=True, slots=True)
class QuorumLimits:
    """Bounds of work and memory. Bytes count commands only, without framing."""

    # Entries and bytes applied in one turn, some milliseconds of the event loop; a backlog after a
    # restart must not block heartbeats (H15 of decision 0011).
    applied_per_tick: int = 500
    applied_bytes_per_tick: int = 256 << 10  # large commands: fewer of them
    proposals_waiting: int = 10_000  # in flight; beyond that QuorumBusy (back-pressure)
    # Appended entries that a follower has not confirmed: fills a fast link for many round trips,
    # and bounds what a slow follower costs the leader in memory.
    in_flight_bytes: int = 8 << 20
    # A snapshot is taken after this many applied entries, or this many bytes of them: they bound
    # the replay of a restart, and each snapshot writes the whole image.
    snapshot_entries: int = 100_000
    snapshot_bytes: int = 64 << 20  # large commands: earlier
    # Entries kept below a snapshot: a follower that is no further behind gets entries, not the
    # whole snapshot.
    trailing_entries: int = 20_000
