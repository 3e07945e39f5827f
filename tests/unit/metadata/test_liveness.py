"""Who is alive: sessions of brokers, and probes that tell a dead process from a silent one."""

from __future__ import annotations

import pytest

from raftmq.metadata.controller import ProbeBroker, ProbeOutcome
from raftmq.metadata.controller.probes import (
    PROBE_PAUSE_SECONDS,
    PROBE_SERIES_SECONDS,
    Death,
    Probes,
)
from raftmq.metadata.image import BrokerState
from raftmq.metadata.liveness import (
    FLUSH_SECONDS_MAX,
    SESSION_SECONDS,
    THAW_SECONDS,
    BrokerContact,
    BrokerSession,
    BrokerSessions,
)

ACCEPTED, REFUSED, TIMED_OUT = ProbeOutcome


def broker(broker_id: int = 1, broker_epoch: int = 10) -> BrokerState:
    return BrokerState(broker_id, broker_epoch, b"incarnation", b"directory")


def sessions_of(*brokers: BrokerState, now: float = 0.0) -> BrokerSessions:
    sessions = BrokerSessions()
    sessions.track(brokers, now=now)
    return sessions


# Sessions


def test_everybody_starts_with_a_fresh_session() -> None:
    """A controller takes office: nobody is expired before a whole session has passed."""
    sessions = sessions_of(broker(1), broker(2), now=100.0)
    assert sessions.expired(100.0 + SESSION_SECONDS) == []
    assert sessions.expired(100.1 + SESSION_SECONDS) == [1, 2]


def test_a_heartbeat_renews_the_session_of_its_sender_only() -> None:
    """Of two brokers one goes on to speak: the other one expires."""
    sessions = sessions_of(broker(1), broker(2))
    sessions.on_heartbeat(BrokerContact(2, 10, 10), now=5.0)
    assert sessions.expired(7.0) == [1]


def test_a_new_incarnation_gets_a_new_session() -> None:
    """A broker registers again: what was heard of the process before it counts no more."""
    sessions = sessions_of(broker(1, broker_epoch=10))
    sessions.on_heartbeat(BrokerContact(1, 10, 30, wants_shutdown=True), now=1.0)
    sessions.track([broker(1, broker_epoch=20)], now=9.0)
    assert sessions[1] == BrokerSession(broker_epoch=20, heard_at=9.0)


def test_tracking_again_changes_nothing_and_forgets_who_is_gone() -> None:
    """The same brokers are told again and again, until one was unregistered."""
    sessions = sessions_of(broker(1), broker(2))
    sessions.track([broker(2)], now=5.0)
    assert sessions.expired(SESSION_SECONDS + 1.0) == [2]


def test_a_fresh_session_is_no_sign_of_life() -> None:
    """Nothing was heard yet in this term: the broker is not expired, and not ready either."""
    sessions = sessions_of(broker())
    assert not sessions[1].is_expired(0.0)
    assert not sessions[1].is_ready(0.0, must_know=10)
    sessions.on_heartbeat(BrokerContact(1, 10, 10), now=1.0)
    assert sessions[1].is_ready(1.0, must_know=10)


@pytest.mark.parametrize(
    ("heartbeat", "now"),
    [
        pytest.param(BrokerContact(1, 10, 9), 0.0, id="does not know what it must"),
        pytest.param(BrokerContact(1, 10, 10, wants_shutdown=True), 0.0, id="wants to go"),
        pytest.param(BrokerContact(1, 10, 10), SESSION_SECONDS + 0.1, id="silent since"),
    ],
)
def test_who_is_not_ready(heartbeat: BrokerContact, now: float) -> None:
    """A broker that spoke may still be unfit for partitions."""
    sessions = sessions_of(broker())
    sessions.on_heartbeat(heartbeat, now=0.0)
    assert not sessions[1].is_ready(now, must_know=10)


def test_a_frozen_disk_is_distrusted_until_it_behaved_for_a_while() -> None:
    """A flush hangs, and then returns: the next freeze may be a second away."""
    sessions = sessions_of(broker())
    sessions.on_heartbeat(BrokerContact(1, 10, 10, FLUSH_SECONDS_MAX), now=0.0)
    assert sessions.is_fit(1, expected=10, now=0.0)
    sessions.on_heartbeat(BrokerContact(1, 10, 10, FLUSH_SECONDS_MAX + 0.1), now=1.0)
    sessions.on_heartbeat(BrokerContact(1, 10, 10), now=2.0)
    assert not sessions.is_fit(1, expected=10, now=2.0)
    assert sessions.is_fit(1, expected=10, now=1.0 + THAW_SECONDS)


def test_who_does_not_follow_the_metadata_is_not_fit() -> None:
    """It lives and its disk is fast, and it should know version 11 by now."""
    sessions = sessions_of(broker())
    sessions.on_heartbeat(BrokerContact(1, 10, 10), now=0.0)
    assert sessions.is_fit(1, expected=10, now=0.0)
    assert not sessions.is_fit(1, expected=11, now=0.0)


def test_death_ends_a_session_until_a_later_heartbeat() -> None:
    """A verdict was wrong, or the heartbeat overtook it: whoever speaks lives."""
    sessions = sessions_of(broker())
    sessions.on_heartbeat(BrokerContact(1, 10, 10), now=0.0)
    sessions.on_death(1)
    assert sessions.expired(0.0) == [1]
    assert not sessions[1].is_ready(0.0, must_know=10)
    sessions.on_heartbeat(BrokerContact(1, 10, 10), now=0.5)
    assert sessions[1].is_ready(0.5, must_know=10)


def test_a_pause_of_the_controller_is_nobodys_silence() -> None:
    """The controller's process stood still for 20 s: all heartbeats wait in its sockets."""
    sessions = sessions_of(broker(1), broker(2))
    sessions.on_heartbeat(BrokerContact(2, 10, 10), now=20.0)
    sessions.on_pause(20.0, now=20.0)
    assert sessions.expired(20.0 + SESSION_SECONDS) == []
    assert sessions.expired(20.1 + SESSION_SECONDS) == [1, 2]


def test_heartbeats_that_overtake_each_other_take_nothing_back() -> None:
    """An older heartbeat arrives late: the broker still knows what it knew, and still wants out."""
    sessions = sessions_of(broker())
    sessions.on_heartbeat(BrokerContact(1, 10, 40, wants_shutdown=True), now=1.0)
    sessions.on_heartbeat(BrokerContact(1, 10, 30), now=1.1)
    assert sessions.all_know(40, [1])
    assert sessions[1].wants_shutdown


def test_who_has_not_spoken_knows_nothing() -> None:
    """Two brokers, of which one has told what it has applied."""
    sessions = sessions_of(broker(1), broker(2))
    sessions.on_heartbeat(BrokerContact(1, 10, 40), now=0.0)
    assert sessions.all_know(40, [1])
    assert not sessions.all_know(41, [1])
    assert not sessions.all_know(0, [1, 2])


# Probes


def begin(probes: Probes, now: float = 0.0) -> ProbeBroker:
    probe = probes.on_suspicion(broker(), now=now)
    assert probe is not None
    return probe


def second(probes: Probes, now: float = 0.0) -> ProbeBroker:
    probe = probes.on_probe(begin(probes, now), REFUSED, now=now)
    assert isinstance(probe, ProbeBroker)
    return probe


def test_a_reset_and_two_refusals_are_a_death() -> None:
    """A process was killed: the kernel answers for it, twice, with a pause between."""
    probes = Probes()
    probe = begin(probes, 1.0)
    again = probes.on_probe(probe, REFUSED, now=1.01)
    assert again == ProbeBroker(1, 10, not_before=1.01 + PROBE_PAUSE_SECONDS)
    assert probes.on_probe(again, REFUSED, now=1.07) == Death(1, 10)


@pytest.mark.parametrize("outcome", [ACCEPTED, TIMED_OUT])
def test_anything_but_a_refusal_ends_the_series(outcome: ProbeOutcome) -> None:
    """Somebody listens, or nobody answers: at the first or the second time, it is no death."""
    first = Probes()
    assert first.on_probe(begin(first), outcome, now=0.0) is None
    late = Probes()
    assert late.on_probe(second(late), outcome, now=0.1) is None


def test_one_series_at_a_time() -> None:
    """A broker had many connections, and all of them are reset."""
    probes = Probes()
    begin(probes)
    assert probes.on_suspicion(broker(), now=0.0) is None
    assert probes.on_suspicion(broker(), now=PROBE_SERIES_SECONDS + 1.0) is None
    assert probes.on_suspicion(broker(2), now=0.0) is not None


def test_no_series_soon_after_another() -> None:
    """A connection that resets all the time must not make us knock all the time; but a death that
    comes just after a probe is noticed.
    """
    probes = Probes()
    probes.on_probe(begin(probes), ACCEPTED, now=0.1)
    again = probes.on_suspicion(broker(), now=0.2)
    assert again == ProbeBroker(1, 10, PROBE_SERIES_SECONDS + PROBE_PAUSE_SECONDS)
    last = probes.on_probe(again, REFUSED, now=1.1)
    assert isinstance(last, ProbeBroker)
    assert probes.on_probe(last, REFUSED, now=1.2) == Death(1, 10)


def test_a_reset_while_a_series_is_under_way_begins_another() -> None:
    """The probe may have got there just before the broker died."""
    probes = Probes()
    probe = begin(probes)
    assert probes.on_suspicion(broker(), now=0.06) is None
    again = probes.on_probe(probe, ACCEPTED, now=0.07)
    assert again == ProbeBroker(1, 10, PROBE_SERIES_SECONDS + PROBE_PAUSE_SECONDS)
    assert probes.on_probe(again, ACCEPTED, now=1.1) is None


def test_another_process_of_the_same_broker_is_probed_at_once() -> None:
    """Killed twice within seconds: that the first process was probed is not held against it."""
    probes = Probes()
    assert probes.on_probe(second(probes), REFUSED, now=0.1) == Death(1, 10)
    again = probes.on_suspicion(broker(broker_epoch=20), now=2.0)
    assert again == ProbeBroker(1, 20, not_before=2.0 + PROBE_PAUSE_SECONDS)
    assert probes.on_suspicion(broker(broker_epoch=20), now=2.1) is None


def test_a_late_answer_about_the_process_before_is_dropped() -> None:
    """The broker was registered anew while its old process was being probed."""
    probes = Probes()
    probe = begin(probes)
    again = probes.on_suspicion(broker(broker_epoch=20), now=0.1)
    assert again is not None
    assert probes.on_probe(probe, REFUSED, now=0.2) is None
    assert isinstance(probes.on_probe(again, REFUSED, now=0.2), ProbeBroker)


def test_series_that_are_over_are_forgotten() -> None:
    """Brokers come and go for years: only those of the last seconds are remembered."""
    probes = Probes()
    for number in range(100):
        now = float(number)
        probe = probes.on_suspicion(broker(number), now=now)
        assert probe is not None
        probes.on_probe(probe, ACCEPTED, now=now)
    assert len(probes) <= PROBE_SERIES_SECONDS + 1


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    """The first probe is answered twice: its second answer is not the second probe's."""
    probes = Probes()
    probe = begin(probes)
    now = probe.not_before
    assert probes.on_probe(probe, REFUSED, now=now) is not None
    assert probes.on_probe(probe, REFUSED, now=now) is None
    assert Probes().on_probe(probe, REFUSED, now=now) is None
