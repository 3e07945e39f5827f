"""Frames on their way: order, cuts and the limit."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jepsen_like.network.delays import Delays

THERE, BACK = ("n1", "n2"), ("n2", "n1")


def test_due_in_order() -> None:
    """Three frames, put in anyhow: each is handed out at its time and not before."""
    delays = Delays()
    for frame, due in ((b"c", 3.0), (b"a", 1.0), (b"b", 2.0)):
        delays.push(THERE, frame, due=due)
    assert delays.next_due == 1.0
    assert list(delays.pop_due(0.999)) == []
    assert list(delays.pop_due(2.0)) == [(THERE, b"a"), (THERE, b"b")]
    assert list(delays.pop_due(9.0)) == [(THERE, b"c")]
    assert delays.next_due is None


@given(st.lists(st.tuples(st.sampled_from([THERE, BACK]), st.integers(0, 3)), max_size=50))
def test_constant_delay_keeps_the_order(sent: list[tuple[tuple[str, str], int]]) -> None:
    """Bursts on two links with delays of their own: on each link, first come, first served."""
    delays, now, arrived = Delays(), 0, []
    for number, (link, pause) in enumerate(sent):
        now += pause
        arrived += delays.pop_due(now)
        delays.push(link, number.to_bytes(2), due=now + (2 if link == THERE else 5))
    arrived += delays.pop_due(now + 5)
    assert len(arrived) == len(sent)
    for link in (THERE, BACK):
        assert all(one < other for one, other in pairwise(f for at, f in arrived if at == link))
    assert delays.queued_bytes == 0


def test_cut_drops_what_is_on_its_way() -> None:
    """A link is cut while frames of two links are delayed: only its own are gone."""
    delays = Delays()
    for n in range(5):
        delays.push(THERE, b"xx", due=5.0 - n)
        delays.push(BACK, bytes([n]), due=5.0 - n)
    assert delays.drop(THERE) == 5
    assert delays.queued_bytes == 5
    assert [frame for _, frame in delays.pop_due(9.0)] == [b"\4", b"\3", b"\2", b"\1", b"\0"]


def test_room_ends() -> None:
    """Ten bytes of room: what does not fit is refused, and fits again once something left."""
    delays = Delays(bytes_max=10)
    assert delays.push(THERE, bytes(6), due=1.0)
    assert not delays.push(THERE, bytes(5), due=1.0)
    assert delays.push(THERE, bytes(4), due=2.0)
    list(delays.pop_due(1.0))
    assert delays.push(THERE, bytes(6), due=3.0)
    assert len(delays) == 2
