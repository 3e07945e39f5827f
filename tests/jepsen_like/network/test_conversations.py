"""What is known of connections, and the RSTs that end them."""

from __future__ import annotations

from jepsen_like.network.conversations import Conversations
from jepsen_like.network.frames import RST, read_segment
from tests.jepsen_like.network.tcp_frames import N1, N2, N3, answer_frame, tcp_frame, udp_frame

ONE, OTHER, THIRD = N1.hardware_address, N2.hardware_address, N3.hardware_address


def test_idle_connection_is_reset_at_both_ends() -> None:
    """Both ends have spoken and all is acknowledged: one RST for each, with the right number."""
    known = Conversations()
    known.note(tcp_frame(sequence=1000, acknowledged=5000, payload=b"12345"))
    known.note(answer_frame(sequence=5000, acknowledged=1005))
    resets = known.reset(ONE, OTHER)
    assert sorted((reset[:6], read_segment(reset).sequence) for reset in resets) == [
        (ONE, 5000),
        (OTHER, 1005),
    ]


def test_both_numbers_are_tried_while_something_is_unacknowledged() -> None:
    """n2 was sent 5 bytes and has not said whether it has them: it may expect either number."""
    known = Conversations()
    known.note(answer_frame(sequence=5000, acknowledged=1000))
    known.note(tcp_frame(sequence=1000, acknowledged=5000, payload=b"12345"))
    sequences = [
        read_segment(reset).sequence for reset in known.reset(ONE, OTHER) if reset.startswith(OTHER)
    ]
    assert sorted(sequences) == [1000, 1005]


def test_order_of_the_ends_does_not_matter() -> None:
    """A link is named the other way round: the same connections are meant."""
    known = Conversations()
    known.note(tcp_frame())
    assert len(known.reset(OTHER, ONE)) == 2


def test_others_are_left_alone() -> None:
    """Connections of n1 with n2 and n3: only those with n2 are reset, and once."""
    known = Conversations()
    known.note(tcp_frame(N1, N2))
    known.note(tcp_frame(N1, N3))
    assert known.reset(ONE, OTHER)
    assert not known.reset(ONE, OTHER)
    assert known.reset(ONE, THIRD)


def test_connection_that_was_reset_is_forgotten() -> None:
    """A host sends a RST itself: both directions are over."""
    known = Conversations()
    known.note(tcp_frame())
    known.note(answer_frame())
    known.note(answer_frame(flags=RST))
    assert len(known) == 0


def test_only_tcp_is_noted() -> None:
    """A datagram belongs to no connection."""
    known = Conversations()
    known.note(udp_frame(payload=bytes(40)))
    assert len(known) == 0


def test_least_recently_used_is_forgotten() -> None:
    """Three connections, room for two: the first was used again, so the second goes."""
    known = Conversations(kept_max=2)
    for port in (1, 2, 1, 3):
        known.note(tcp_frame(source_port=port))
    ports = {read_segment(reset).source_port for reset in known.reset(ONE, OTHER)}
    assert (len(known), ports & {1, 2, 3}) == (0, {1, 3})
