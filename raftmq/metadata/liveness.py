"""Which brokers are alive, as the active controller hears it.

Owns the sessions, and in them what time it is on each broker: soft state that is born with a term
in office and dies with it, and that no other node needs. It decides nothing; `controller` and
`clocks` draw the conclusions. Everybody has a fresh session when a controller takes office, because
it cannot know what its predecessor heard.

Invariants: only a heartbeat of the registered incarnation says that a broker lives, and after a
verdict of death only one that came later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.clocks import Clocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.image import BrokerState

HEARTBEAT_SECONDS = 1.0  # how often a broker sends one
SESSION_SECONDS = 6.0  # silence for longer than this ends a session
FLUSH_SECONDS_MAX = 2.0  # a flush that waits for longer means that the disk is frozen
THAW_SECONDS = 5.0  # a disk that froze is trusted again after so long without a slow flush


class BrokerContact(NamedTuple):
    """What a broker says of itself every second."""

    broker_id: int
    broker_epoch: int
    metadata_version: int  # of the newest image that it has applied
    pending_flush_seconds: float = 0.0  # age of the oldest flush that has not returned
    wants_shutdown: bool = False
    wall_clock_ms: int | None = None  # older brokers do not tell


@dataclass(slots=True)
class BrokerSession:
    """What was heard of one incarnation of a broker."""

    broker_epoch: int
    heard_at: float  # the last heartbeat, or the begin of the session
    has_spoken: bool = False  # a heartbeat has come in this term, since any verdict of death
    is_dead: bool = False
    metadata_version: int = -1
    frozen_at: float | None = None  # the last heartbeat that told of a flush that hangs
    wants_shutdown: bool = False
    clock_ms: int | None = None  # what its wall clock is ahead of our monotonic one

    def is_expired(self, now: float) -> bool:
        return self.is_dead or now - self.heard_at > SESSION_SECONDS

    def is_frozen(self, now: float) -> bool:
        return self.frozen_at is not None and now - self.frozen_at < THAW_SECONDS

    def is_ready(self, now: float, *, must_know: int) -> bool:
        """Whether it lives, has applied the metadata up to `must_know`, and wants to stay.

        That is its own registration, and when it was last told to give something up.
        """
        return (
            self.has_spoken
            and not self.is_expired(now)
            and not self.wants_shutdown
            and self.metadata_version >= must_know
        )


class BrokerSessions:
    """The sessions of all registered brokers."""

    def __init__(self) -> None:
        self._sessions: dict[int, BrokerSession] = {}

    def __getitem__(self, broker_id: int) -> BrokerSession:
        return self._sessions[broker_id]

    def track(self, brokers: Iterable[BrokerState], *, now: float) -> None:
        """Know exactly `brokers`: a session begins for whoever is new or registered anew."""
        before = self._sessions
        self._sessions = {}
        for broker in brokers:
            session = before.get(broker.broker_id)
            if session is None or session.broker_epoch != broker.broker_epoch:
                session = BrokerSession(broker.broker_epoch, heard_at=now)
            self._sessions[broker.broker_id] = session

    def on_heartbeat(self, heartbeat: BrokerContact, *, now: float) -> None:
        session = self._sessions[heartbeat.broker_id]
        assert session.broker_epoch == heartbeat.broker_epoch, "of another incarnation"
        session.heard_at, session.has_spoken, session.is_dead = now, True, False
        # Two heartbeats may overtake each other: what a broker knew, it still knows.
        session.metadata_version = max(session.metadata_version, heartbeat.metadata_version)
        session.wants_shutdown |= heartbeat.wants_shutdown
        told_ms = heartbeat.wall_clock_ms
        session.clock_ms = None if told_ms is None else told_ms - round(now * 1000)
        if heartbeat.pending_flush_seconds > FLUSH_SECONDS_MAX:
            session.frozen_at = now

    def on_death(self, broker_id: int) -> None:
        """Its process is known to be dead: the session ends now, and only a heartbeat renews it."""
        session = self._sessions[broker_id]
        session.is_dead, session.has_spoken = True, False

    def on_pause(self, seconds: float, *, now: float) -> None:
        """The controller did not listen for so long: that was nobody else's silence."""
        for session in self._sessions.values():
            session.heard_at = min(session.heard_at + seconds, now)

    def expired(self, now: float) -> list[int]:
        return [key for key, session in self._sessions.items() if session.is_expired(now)]

    def is_fit(self, broker_id: int, *, expected: int, now: float) -> bool:
        """Whether it lives, its disk takes what is written, and it follows the metadata."""
        session = self._sessions[broker_id]
        is_well = not (session.is_expired(now) or session.is_frozen(now))
        return is_well and session.metadata_version >= expected

    def clocks(self, now: float, *, difference_ms_max: int) -> Clocks:
        live = {key: it for key, it in self._sessions.items() if not it.is_expired(now)}
        heard = {
            key: session.clock_ms
            for key, session in live.items()
            if session.has_spoken and session.clock_ms is not None
        }
        awaited_count = sum(not session.has_spoken for session in live.values())
        return Clocks(heard, len(self._sessions), awaited_count, difference_ms_max)

    def all_know(self, version: int, broker_ids: Iterable[int]) -> bool:
        """Whether each of these brokers has told that it has applied `version`."""
        return all(self._sessions[key].metadata_version >= version for key in broker_ids)
