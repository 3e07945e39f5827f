"""What is scheduled and cancelled, by chance."""

from __future__ import annotations

from random import Random

from jepsen_like.workloads.schedule_plan import (
    FAR_SECONDS,
    KNOWN_MAX,
    NEAR_SECONDS_MAX,
    SOON_SECONDS_MAX,
    Dues,
    Known,
    draw_delay,
)


def test_delays_are_of_every_kind() -> None:
    """At once, soon, later in the run, and long after it; none between the last two (A12.2)."""
    random = Random(1)
    delays = [draw_delay(random) for _ in range(2_000)]
    near = [delay for delay in delays if delay <= NEAR_SECONDS_MAX]
    far = [delay for delay in delays if delay >= FAR_SECONDS[0]]
    assert len(near) + len(far) == len(delays)
    assert 50 < len(far) < 200
    assert delays.count(0.0) > 100
    assert sum(delay > SOON_SECONDS_MAX for delay in near) > 500


def test_a_run_waits_for_what_is_due_soon() -> None:
    """For the last of it, and for nothing that is due tomorrow (A12.2)."""
    dues = Dues()
    dues.on_sent(5.0, 15.0)
    dues.on_sent(1.0, 12.0)
    dues.on_sent(FAR_SECONDS[0], 4_000.0)
    assert dues.last == 15.0


def test_what_is_cancelled_is_known() -> None:
    """Most often it is not due yet; now and then a handle is given again (A12.2)."""
    late = again = 0
    for seed in range(300):
        known: Known[int] = Known(Random(seed))
        for number in range(4):
            known.on_acknowledged(float(number), number)
        taken = [one for one in (known.take(now=1.5) for _ in range(3)) if one is not None]
        assert set(taken) <= set(range(4))
        late += sum(one < 2 for one in taken)
        again += len(taken) - len(set(taken))
    assert 30 < late < 300
    assert again > 10


def test_nothing_is_there_to_cancel() -> None:
    """Nothing at all, or nothing that is still to come (A12.2)."""
    assert Known(Random(1)).take(now=0.0) is None
    found = []
    for seed in range(100):
        known: Known[int] = Known(Random(seed))
        known.on_acknowledged(1.0, 7)
        found.append(known.take(now=2.0))
    assert set(found) == {None, 7}


def test_old_handles_are_forgotten() -> None:
    """So that a long run cancels what is still there (A12.2)."""
    known: Known[int] = Known(Random(1))
    for number in range(2 * KNOWN_MAX):
        known.on_acknowledged(1e9, number)
    taken = {known.take(now=0.0) for _ in range(10 * KNOWN_MAX)} - {None}
    assert min(one for one in taken if one is not None) >= KNOWN_MAX
