"""What becomes of frames under commands: the switch, with its time and its wires in hand."""

from __future__ import annotations

from random import Random

import pytest

from jepsen_like.network.commands import Ask, Cut, Heal, Reset, ShapeLink
from jepsen_like.network.delays import Delays
from jepsen_like.network.fabric import Fabric
from jepsen_like.network.frames import RST, flags_of, is_tcp
from jepsen_like.network.hosts import CLIENTS
from jepsen_like.network.rules import Shape
from tests.jepsen_like.network.tcp_frames import (
    N1,
    N2,
    N3,
    answer_frame,
    tcp_frame,
    udp_frame,
)

HOSTS = (N1, N2, N3, CLIENTS)
NOW = 50.0


class Wires:
    """Attributes:
    arrived: who was given which frame, in order.
    down: hosts that take nothing.
    """

    def __init__(self) -> None:
        self.arrived: list[tuple[str, bytes]] = []
        self.down: set[str] = set()

    def send(self, target: str, frame: bytes) -> bool:
        if target in self.down:
            return False
        self.arrived.append((target, frame))
        return True

    def take(self) -> list[tuple[str, bytes]]:
        taken, self.arrived = self.arrived, []
        return taken

    def take_resets(self) -> set[str]:
        """Who was sent RSTs; nothing else may have been sent."""
        taken = self.take()
        assert all(is_tcp(frame) and flags_of(frame) & RST for _, frame in taken)
        return {target for target, _ in taken}


@pytest.fixture
def wires() -> Wires:
    return Wires()


@pytest.fixture
def fabric(wires: Wires) -> Fabric:
    return Fabric(HOSTS, Random(7), wires.send)


def test_frame_reaches_whom_it_names(fabric: Fabric, wires: Wires) -> None:
    """n1 sends to n2: nobody else hears of it."""
    fabric.on_frame("n1", udp_frame(), NOW)
    assert wires.take() == [("n2", udp_frame())]
    assert fabric.counts.forwarded == 1


def test_question_to_all(fabric: Fabric, wires: Wires) -> None:
    """A broadcast, as of ARP: all but the one that asks get it, except through a cut."""
    question = b"\xff" * 6 + udp_frame()[6:]
    fabric.on_command(Cut("n1", "n3"), NOW)
    fabric.on_frame("n1", question, NOW)
    assert [target for target, _ in wires.take()] == ["n2", "clients"]


def test_stray_frames(fabric: Fabric, wires: Wires) -> None:
    """One for an address that nobody has, one for a host that is down: counted, no more."""
    fabric.on_frame("n1", b"\x02" * 6 + udp_frame()[6:], NOW)
    wires.down.add("n2")
    fabric.on_frame("n1", udp_frame(), NOW)
    assert (fabric.counts.stray, fabric.counts.forwarded) == (2, 0)


def test_cut_one_way_and_heal(fabric: Fabric, wires: Wires) -> None:
    """n1 is cut off from n2 only: the other direction works, and after healing all does."""
    fabric.on_command(Cut("n1", "n2"), NOW)
    fabric.on_frame("n1", udp_frame(N1, N2), NOW)
    fabric.on_frame("n2", udp_frame(N2, N1), NOW)
    assert [target for target, _ in wires.take()] == ["n1"]
    fabric.on_command(Heal(), NOW)
    fabric.on_frame("n1", udp_frame(N1, N2), NOW)
    assert [target for target, _ in wires.take()] == ["n2"]
    assert fabric.counts.cut == 1


def test_delayed_frames_arrive_in_order(fabric: Fabric, wires: Wires) -> None:
    """25 ms: nothing until then, and then in the order of sending."""
    fabric.on_command(ShapeLink("n1", "n2", Shape(delay_seconds=0.025)), NOW)
    for n in range(5):
        fabric.on_frame("n1", udp_frame(payload=bytes([n])), NOW + n / 1000)
    assert fabric.next_due == NOW + 0.025
    fabric.on_time(NOW + 0.024)
    assert wires.take() == []
    fabric.on_time(NOW + 1.0)
    assert [frame[-1] for _, frame in wires.take()] == [0, 1, 2, 3, 4]
    assert (fabric.counts.delayed, fabric.counts.forwarded) == (5, 5)


def test_cut_drops_what_is_on_its_way(fabric: Fabric, wires: Wires) -> None:
    """A frame is delayed when its link is cut: it never arrives, healed or not."""
    fabric.on_command(ShapeLink("n1", "n2", Shape(delay_seconds=1.0)), NOW)
    fabric.on_frame("n1", udp_frame(), NOW)
    counts = fabric.on_command(Cut("n1", "n2"), NOW)
    fabric.on_command(Heal(), NOW)
    fabric.on_time(NOW + 9)
    assert wires.take() == []
    assert (counts.cut, fabric.next_due) == (1, None)


def test_heal_leaves_what_is_on_its_way(fabric: Fabric, wires: Wires) -> None:
    """A delay ends by healing: what was sent before still comes at its time, what is new now."""
    fabric.on_command(ShapeLink("n1", "n2", Shape(delay_seconds=1.0)), NOW)
    fabric.on_frame("n1", udp_frame(payload=b"old"), NOW)
    fabric.on_command(Heal(), NOW)
    fabric.on_frame("n1", udp_frame(payload=b"new"), NOW)
    fabric.on_time(NOW + 1.0)
    assert [frame[-3:] for _, frame in wires.take()] == [b"new", b"old"]


def test_loss_and_duplicates_are_counted(fabric: Fabric, wires: Wires) -> None:
    """A link that loses all, and one that doubles all."""
    fabric.on_command(ShapeLink("n1", "n2", Shape(loss=1.0)), NOW)
    fabric.on_command(ShapeLink("n2", "n1", Shape(duplicate=1.0)), NOW)
    fabric.on_frame("n1", udp_frame(N1, N2), NOW)
    fabric.on_frame("n2", udp_frame(N2, N1), NOW)
    assert [target for target, _ in wires.take()] == ["n1", "n1"]
    assert (fabric.counts.lost, fabric.counts.duplicated) == (1, 1)


def test_too_much_on_its_way(wires: Wires) -> None:
    """More is sent than may be delayed: the rest is dropped and counted."""
    fabric = Fabric(HOSTS, Random(7), wires.send, delays=Delays(bytes_max=100))
    fabric.on_command(ShapeLink("n1", "n2", Shape(delay_seconds=1.0)), NOW)
    for _ in range(3):
        fabric.on_frame("n1", udp_frame(), NOW)
    fabric.on_time(NOW + 1.0)
    assert len(wires.take()) == 2
    assert fabric.counts.overflowed == 1


def test_reset_of_an_idle_connection(fabric: Fabric, wires: Wires) -> None:
    """Nobody says a word any more: both ends get RSTs nevertheless, and only they."""
    _talk(fabric)
    fabric.on_frame("n1", tcp_frame(N1, N3), NOW)
    wires.take()
    counts = fabric.on_command(Reset("n2", "n1", 0.3), NOW)
    assert wires.take_resets() == {"n1", "n2"}
    assert counts.resets == 2


def test_segments_are_refused_for_a_while(fabric: Fabric, wires: Wires) -> None:
    """During a reset: a segment does not arrive, both ends get RSTs; afterwards it passes."""
    fabric.on_command(Reset("n1", "n2", 0.3), NOW)
    fabric.on_frame("n2", answer_frame(), NOW + 0.1)
    assert wires.take_resets() == {"n1", "n2"}
    fabric.on_frame("n2", answer_frame(), NOW + 0.3)
    assert wires.take() == [("n1", answer_frame())]
    assert fabric.counts.refused == 1


def test_reset_lets_the_rest_pass(fabric: Fabric, wires: Wires) -> None:
    """During a reset: datagrams, RSTs of the hosts, and TCP with others pass."""
    frames = [udp_frame(), tcp_frame(flags=RST), tcp_frame(N1, N3)]
    fabric.on_command(Reset("n1", "n2", 0.3), NOW)
    for frame in frames:
        fabric.on_frame("n1", frame, NOW)
    assert [frame for _, frame in wires.take()] == frames


def test_cut_comes_before_reset(fabric: Fabric, wires: Wires) -> None:
    """A link is cut and refuses: silence."""
    fabric.on_command(Reset("n1", "n2", 0.3), NOW)
    fabric.on_command(Cut("n1", "n2"), NOW)
    fabric.on_frame("n1", tcp_frame(), NOW)
    assert wires.take() == []
    assert (fabric.counts.cut, fabric.counts.refused) == (1, 0)


def test_lost_segment_is_not_taken_for_delivered(fabric: Fabric, wires: Wires) -> None:
    """What a link loses teaches nothing about what its receiver expects."""
    fabric.on_command(ShapeLink("n1", "n2", Shape(loss=1.0)), NOW)
    fabric.on_frame("n1", tcp_frame(), NOW)
    fabric.on_command(Reset("n1", "n2", 0.3), NOW)
    assert wires.take() == []


def test_question_changes_nothing(fabric: Fabric, wires: Wires) -> None:
    """Asking for the counts of a network that is cut: it stays cut."""
    fabric.on_command(Cut("n1", "n2"), NOW)
    fabric.on_command(Ask(), NOW)
    fabric.on_frame("n1", udp_frame(), NOW)
    assert fabric.on_command(Ask(), NOW).cut == 1
    assert wires.take() == []


def _talk(fabric: Fabric) -> None:
    fabric.on_frame("n1", tcp_frame(sequence=1000, acknowledged=5000, payload=b"12345"), NOW)
    fabric.on_frame("n2", answer_frame(sequence=5000, acknowledged=1005), NOW)
