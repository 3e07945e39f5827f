"""Broker sessions of the active controller: heartbeats, session timeout, frozen disks, wall clocks.

Owns soft state of one controller term, which no other node needs (Kafka: BrokerHeartbeatManager).
It decides nothing: `controller` fences and unfences, `clocks` judges the clocks. Every broker gets
a fresh session when a controller becomes active, as it cannot know what its predecessor received.

Invariants: only a heartbeat of the registered incarnation keeps a session alive, and after the
process was found dead (`on_death`) only a later heartbeat renews it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from raftmq.metadata.clocks import Clocks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.image import BrokerState

HEARTBEAT_SECONDS = 1.0  # period of a broker's heartbeats; several must be lost to end a session
# Six missed heartbeats: a pause of the process or a lost connection is shorter. A crash is detected
# within about 0.1 s by `controller.probes`; this is for machines and networks that go silent.
SESSION_SECONDS = 6.0
# A flush that has not returned for so long means a frozen disk: acknowledgements wait for it while
# heartbeats go on, so no session would expire. Fencing a disk that is only busy costs elections.
FLUSH_SECONDS_MAX = 2.0
# A frozen disk counts as healthy again after so long without a slow flush: several heartbeats, so
# that a disk that stalls again and again is not fenced and unfenced each time.
THAW_SECONDS = 5.0


class BrokerContact(NamedTuple):
    """The contents of a heartbeat of a broker."""

    broker_id: int
    broker_epoch: int
    metadata_version: int  # of the newest image that it has applied
    pending_flush_seconds: float = 0.0  # age of the oldest flush that has not returned
    wants_shutdown: bool = False
    wall_clock_ms: int | None = None  # None: a broker of a version that does not send it


@dataclass(slots=True)
class BrokerSession:
    """What the controller has received from one incarnation of a broker."""

    broker_epoch: int
    heard_at: float  # time of the last heartbeat, or of the beginning of the session
    has_spoken: bool = False  # a heartbeat came in this term, after any `on_death`
    is_dead: bool = False
    metadata_version: int = -1
    frozen_at: float | None = None  # time of the last heartbeat that reported a hanging flush
    wants_shutdown: bool = False
    clock_ms: int | None = None  # its wall clock minus the controller's monotonic clock

    def is_expired(self, now: float) -> bool:
        return self.is_dead or now - self.heard_at > SESSION_SECONDS

    def is_frozen(self, now: float) -> bool:
        return self.frozen_at is not None and now - self.frozen_at < THAW_SECONDS

    def is_ready(self, now: float, *, must_know: int) -> bool:
        """Whether it may be unfenced: alive, not shutting down, and not behind `must_know`.

        `must_know` is the version of its registration, or of the last change that took partitions
        from it, whichever is later.
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
        """Keep sessions of exactly `brokers`; a new registration begins a new session."""
        before = self._sessions
        self._sessions = {}
        for broker in brokers:
            session = before.get(broker.broker_id)
            # New, or registered again: soft state of the former process is void.
            if session is None or session.broker_epoch != broker.broker_epoch:
                session = BrokerSession(broker.broker_epoch, heard_at=now)
            self._sessions[broker.broker_id] = session

    def on_heartbeat(self, heartbeat: BrokerContact, *, now: float) -> None:
        session = self._sessions[heartbeat.broker_id]
        assert session.broker_epoch == heartbeat.broker_epoch, "of another incarnation"
        session.heard_at, session.has_spoken, session.is_dead = now, True, False
        # An older heartbeat may arrive after a newer one: the applied version never goes back.
        session.metadata_version = max(session.metadata_version, heartbeat.metadata_version)
        session.wants_shutdown |= heartbeat.wants_shutdown  # a shutdown is not taken back
        sent_ms = heartbeat.wall_clock_ms
        session.clock_ms = None if sent_ms is None else sent_ms - round(now * 1000)
        if heartbeat.pending_flush_seconds > FLUSH_SECONDS_MAX:
            session.frozen_at = now

    def on_death(self, broker_id: int) -> None:
        """Its process is dead (see `probes`): end the session now; only a heartbeat renews it."""
        session = self._sessions[broker_id]
        session.is_dead, session.has_spoken = True, False

    def on_pause(self, seconds: float, *, now: float) -> None:
        """The controller itself did not run for so long: do not count that as brokers' silence."""
        for session in self._sessions.values():
            session.heard_at = min(session.heard_at + seconds, now)

    def expired(self, now: float) -> list[int]:
        return [key for key, session in self._sessions.items() if session.is_expired(now)]

    def is_fit(self, broker_id: int, *, expected: int, now: float) -> bool:
        """Whether it is alive, its disk is not frozen, and it has applied version `expected`."""
        session = self._sessions[broker_id]
        is_well = not (session.is_expired(now) or session.is_frozen(now))
        return is_well and session.metadata_version >= expected

    def clocks(self, now: float, *, difference_ms_max: int) -> Clocks:
        live = {key: it for key, it in self._sessions.items() if not it.is_expired(now)}
        heard = {  # clocks of brokers that sent one in this term; the dead confirm nothing
            key: session.clock_ms
            for key, session in live.items()
            if session.has_spoken and session.clock_ms is not None
        }
        awaited_count = sum(not session.has_spoken for session in live.values())
        return Clocks(heard, len(self._sessions), awaited_count, difference_ms_max)

    def all_know(self, version: int, broker_ids: Iterable[int]) -> bool:
        """Whether each of these brokers has reported that it applied `version`."""
        return all(self._sessions[key].metadata_version >= version for key in broker_ids)
