"""A snapshot's content: the quorum's own state in front, the machine's behind it."""

from __future__ import annotations

import msgspec
import pytest

from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.engine.voter_disks import Enrolment
from raftmq.metadata.raft.snapshot.contents import FORMAT_VERSION, read_picture, take_picture
from tests.simulation.raft.lockstep import ListMachine

ENROLLED = {1: Enrolment(b"a" * 16, 3), 2: Enrolment(b"b" * 16, 9)}


def test_a_picture_comes_back() -> None:
    """Who is enrolled and what the machine holds."""
    machine = ListMachine()
    machine.apply(2, b"one")
    picture = read_picture(ListMachine(), take_picture(machine, ENROLLED)())
    assert picture.enrolled == ENROLLED
    assert picture.decoded == [b"one"]


def test_a_picture_shows_its_moment() -> None:
    """The machine and the enrolments go on; what was taken is written later, as it was."""
    machine, enrolled = ListMachine(), dict(ENROLLED)
    slices = take_picture(machine, enrolled)
    enrolled[3] = Enrolment(b"c" * 16, 11)
    machine.apply(2, b"later")
    picture = read_picture(ListMachine(), slices())
    assert picture.enrolled == ENROLLED
    assert picture.decoded == []


def test_a_field_of_a_newer_version_is_skipped() -> None:
    """Own state may grow at its end within a format."""
    own = msgspec.msgpack.encode([FORMAT_VERSION, {}, b"", "new"])
    assert read_picture(ListMachine(), [own, msgspec.msgpack.encode([])]).enrolled == {}


@pytest.mark.parametrize(
    "first", [b"", b"\xc1", msgspec.msgpack.encode(["x"]), msgspec.msgpack.encode([1, {1: "x"}])]
)
def test_something_else_is_not_read(first: bytes) -> None:
    """Nothing, noise and other shapes are told from a snapshot."""
    with pytest.raises(CorruptJournal, match="does not begin with the quorum's state"):
        read_picture(ListMachine(), [first])


def test_nothing_at_all_is_not_read() -> None:
    """A snapshot without slices is none."""
    with pytest.raises(CorruptJournal, match="does not begin with"):
        read_picture(ListMachine(), [])


def test_a_newer_format_asks_for_an_upgrade() -> None:
    """The machine's slices are not even looked at."""
    own = msgspec.msgpack.encode([FORMAT_VERSION + 1, {}])
    with pytest.raises(CorruptJournal, match="upgrade this node"):
        read_picture(ListMachine(), [own, b"\xc1"])
