"""The metadata as a state machine: total, and the same after a picture as before."""

from __future__ import annotations

import logging

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from raftmq.errors import CorruptJournal, ErrorCode, NewerCommand
from raftmq.metadata import machine as module
from raftmq.metadata.commands import (
    FORMAT_VERSION,
    SUPPORTED_LEVEL,
    BrokerRegistered,
    CommandId,
    Envelope,
    ProducerIdBlock,
    Refused,
    SetFeatureLevel,
    encode_command,
)
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.snapshot import encode_image
from tests.unit.metadata.quorum_harness import BROKER, allocation, registration


def registered() -> tuple[MetadataMachine, int]:
    machine = MetadataMachine()
    result = machine.apply(5, encode_command(registration(), None))
    assert isinstance(result, BrokerRegistered)
    return machine, result.broker_epoch


def test_a_command_is_applied() -> None:
    """The answer, the next image, and what changed since the one before."""
    machine, epoch = registered()
    seen = machine.image.version
    result = machine.apply(8, encode_command(allocation(epoch), None))
    assert result == ProducerIdBlock(0, 10)
    assert machine.image.version == 8
    assert machine.changes.since(seen, machine.image).is_complete


def test_bytes_that_are_no_command_are_an_answer() -> None:
    """Rot that no checksum saw: refused, and nothing raises."""
    machine, _ = registered()
    before = machine.image
    result = machine.apply(8, b"\xc1 nonsense")
    assert isinstance(result, Refused)
    assert machine.image.brokers == before.brokers
    assert machine.image.version == 8


def test_a_bug_is_an_answer_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule raises: every node refuses alike, logs it, and goes on with the same version."""
    machine, epoch = registered()
    before = machine.image

    def broken(*_: object) -> object:
        raise ZeroDivisionError("a rule's bug")

    monkeypatch.setattr(module, "apply_bytes", broken)
    with caplog.at_level(logging.ERROR):
        result = machine.apply(8, encode_command(allocation(epoch), None))
    assert isinstance(result, Refused)
    assert result.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "ZeroDivisionError" in str(result)
    assert "index=8 event=apply_failed" in caplog.text
    assert machine.image == before._replace(version=8, changes=())
    assert machine.changes.since(before.version, machine.image).changes == frozenset()


def test_a_newer_command_ends_the_node() -> None:
    """It stops in front of the entry, and applies it once it was upgraded."""
    machine, _ = registered()
    before = machine.image
    with pytest.raises(NewerCommand):
        machine.apply(8, b"\x92\x01\x91\x7f")
    assert machine.image is before


def test_a_feature_level_that_is_not_known_ends_the_node() -> None:
    """All brokers support it, and so it is raised; this voter does not, and must not go on."""
    machine = MetadataMachine()
    level = SUPPORTED_LEVEL + 1
    command = replace(registration(), feature_level_max=level)
    machine.apply(5, encode_command(command))
    before = machine.image
    raising = msgpack.encode(Envelope(FORMAT_VERSION, SetFeatureLevel(before.feature_level, level)))
    with pytest.raises(NewerCommand, match=f"feature level {level}"):
        machine.apply(8, raising)
    assert machine.image is before
    slices = encode_image(before._replace(feature_level=level))
    with pytest.raises(
        CorruptJournal, match=f"level {level}, this node knows levels up to {level - 1}"
    ):
        machine.read_picture(slices)


def test_no_memory_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node may have had enough: this one must stop, and apply it at its next start."""
    machine, epoch = registered()
    before = machine.image

    def exhausted(*_: object) -> object:
        raise MemoryError

    monkeypatch.setattr(module, "apply_bytes", exhausted)
    with pytest.raises(MemoryError):
        machine.apply(8, encode_command(allocation(epoch), None))
    assert machine.image is before


def test_a_picture_is_of_its_moment() -> None:
    """Taken before a command and written after it; what is installed answers as the original."""
    machine, epoch = registered()
    command = encode_command(allocation(epoch), CommandId(BROKER, epoch, 0))
    first = machine.apply(8, command)
    slices, image = machine.picture(), machine.image
    machine.apply(9, encode_command(allocation(epoch), None))
    other = MetadataMachine()
    other.install(8, other.read_picture(slices()))
    assert other.image._replace(changes=()) == image._replace(changes=())
    assert other.apply(10, command) == first, "the memory of command ids is in the picture"


def test_an_installation_hides_what_changed() -> None:
    """Who has seen an older version is told that everything may be different."""
    machine, _ = registered()
    other = MetadataMachine()
    other.install(9, machine.image)
    assert not other.changes.since(0, other.image).is_complete
    assert other.changes.since(machine.image.version, other.image).is_complete


@pytest.mark.parametrize("decoded", [None, EMPTY_IMAGE._replace(version=10)])
def test_what_is_no_picture_is_not_installed(decoded: object) -> None:
    """Something else, or an image of a later index than the snapshot's."""
    machine = MetadataMachine()
    with pytest.raises(CorruptJournal, match="index 9 holds something else"):
        machine.install(9, decoded)
    assert machine.image is EMPTY_IMAGE


def test_noise_is_not_read() -> None:
    """Slices that no image makes."""
    with pytest.raises(CorruptJournal):
        MetadataMachine().read_picture([b"\xc1noise"])
