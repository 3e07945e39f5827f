"""Whose command an entry is: the state machine's, the quorum's own, or nobody's."""

from __future__ import annotations

import pytest

from raftmq.metadata.raft.engine.replication import (
    Enrol,
    apply_entry,
    machine_entry,
    own_entry,
    quorum_entry,
)
from raftmq.metadata.raft.journal.format import BASE_COMMAND
from tests.simulation.raft.lockstep import ListMachine

ENROL = Enrol(3, b"d" * 16)


@pytest.mark.parametrize("command", [b"", b"\x00", b"\x00\x01", b"x" * 1000])
def test_commands_come_back(command: bytes) -> None:
    """Whatever a command begins with, the machine gets it whole, and its answer is the entry's."""
    machine = ListMachine()
    assert apply_entry(machine, 7, machine_entry(command)) == 1
    assert machine.items == [command]
    assert own_entry(machine_entry(command)) is None


def test_the_quorums_own_entries() -> None:
    """An enrolment comes back as it was; the machine hears nothing of it."""
    machine = ListMachine()
    assert own_entry(quorum_entry(ENROL)) == ENROL
    assert apply_entry(machine, 7, quorum_entry(ENROL)) is None
    assert machine.items == []


def test_the_entry_of_a_new_leader() -> None:
    """It belongs to nobody and changes nothing."""
    machine = ListMachine()
    assert own_entry(BASE_COMMAND) is None
    assert apply_entry(machine, 7, BASE_COMMAND) is None
    assert machine.items == []


def test_what_is_on_disk_does_not_change() -> None:
    """The bytes of version 1: PySyncObj's command byte, whose command it is, the rest."""
    assert machine_entry(b"abc") == b"\x00\x00abc"
    assert quorum_entry(Enrol(3, b"d")) == b"\x00\x01\x93\x01\x03\xc4\x01d"
    assert BASE_COMMAND == b"\x01"
