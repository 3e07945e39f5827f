"""Commands find their rule, retries their answer, and nothing that stands in the log raises."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, get_args

import pytest
from msgspec.msgpack import encode

from raftmq.errors import ErrorCode, InvalidCommand, NewerCommand
from raftmq.metadata.apply import apply, apply_bytes
from raftmq.metadata.apply.dispatch import MESSAGE_CHARS_MAX, RULES
from raftmq.metadata.commands import (
    FORMAT_VERSION,
    SUPPORTED_LEVEL,
    AllocateProducerIds,
    AnyCommand,
    AnyResult,
    AssignSlot,
    BrokerRegistered,
    CommandId,
    DeleteTopic,
    Done,
    Envelope,
    FenceBroker,
    ProducerIdBlock,
    Refused,
    RegisterBroker,
    SetFeatureLevel,
    UnfenceBroker,
    UnregisterBroker,
    encode_command,
)
from raftmq.metadata.image import EMPTY_IMAGE, RECENT_COMMANDS_MAX
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.random_commands import CLASSES, RandomCommands
from tests.unit.metadata.states import (
    ORDERS,
    after,
    apply_next,
    cluster,
    create,
    epoch_of,
    refusal,
    topic_id_of,
)

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage

ALLOCATE = AllocateProducerIds(0, epoch_of(0), 10)


def numbered(sequence: int, *, origin: int = 0, epoch: int = epoch_of(0)) -> CommandId:
    return CommandId(origin, epoch, sequence)


def sent(
    image: MetadataImage, *sequences: int, command: AnyCommand = ALLOCATE
) -> tuple[MetadataImage, list[AnyResult]]:
    """One command after another under these numbers, with the answers."""
    results = []
    for sequence in sequences:
        image, result = apply_next(image, command, numbered(sequence))
        results.append(result)
    return image, results


def populated() -> MetadataImage:
    """Something of everything, so that random commands find things to change."""
    slots = [AssignSlot(number, 0, 0) for number in range(64)]
    return after(
        cluster(), create((0, 1, 2), (1, 2)), create((2, 0), name="a", topic_id=topic_id_of(2)),
        *slots,
    )  # fmt: skip


# Dispatch


def test_every_command_has_a_rule() -> None:
    """The table is complete: one that is in the union only would fail on every node at once."""
    assert set(RULES) == set(get_args(AnyCommand))


def test_a_refused_command_moves_the_version_only() -> None:
    """Whoever waits for a version gets there; nobody is told of a change."""
    before = after(cluster(), create())
    assert before.changes
    image, result = apply_next(before, DeleteTopic(topic_id_of(9)))
    assert isinstance(result, Refused)
    assert image == before._replace(version=before.version + 1, changes=())


def test_versions_may_skip() -> None:
    """The log holds entries that are no commands; only going back is a broken invariant."""
    image, _ = apply(cluster(), 500, Envelope(FORMAT_VERSION, create()))
    assert image.version == 500
    with pytest.raises(AssertionError, match="applied already"):
        apply(image, 500, Envelope(FORMAT_VERSION, DeleteTopic(ORDERS)))


def test_a_long_refusal_is_cut() -> None:
    """It quotes what it refuses, and may be remembered a thousand times."""
    found = refusal(cluster(), create(**{"x" * 5000: "1"}))
    assert len(found.message) < MESSAGE_CHARS_MAX + 10


# Retries


def test_a_retry_is_answered_and_not_applied() -> None:
    """The answer to the first one was lost: the second gets the same ids."""
    image, results = sent(cluster(), 0, 0, 1, 0, 1)
    first, second = ProducerIdBlock(0, 10), ProducerIdBlock(10, 10)
    assert results == [first, first, second, first, second]
    assert (image.next_producer_id, image.version, image.changes) == (20, 105, ())


def test_a_refusal_is_remembered_too() -> None:
    """The first attempt came too early and was refused: its retry must not succeed later."""
    image, [first] = sent(cluster(), 3, command=DeleteTopic(ORDERS))
    image, [second] = sent(after(image, create()), 3, command=DeleteTopic(ORDERS))
    assert first == second
    assert isinstance(second, Refused)
    assert ORDERS in image.topics


def test_commands_may_overtake_each_other() -> None:
    """Numbers arrive as 5, 2, 9: each one is new, and is remembered."""
    image, results = sent(cluster(), 5, 2, 9, 5, 2, 9)
    assert results[:3] == results[3:]
    assert image.next_producer_id == 30


def test_the_memory_is_bounded() -> None:
    """After 1024 more, the oldest is forgotten; its retry is refused, not applied again."""
    window = RECENT_COMMANDS_MAX
    image, _ = sent(cluster(), *range(window))
    assert len(image.origins[0].results) == window
    image, _ = sent(image, window)
    assert min(image.origins[0].results) == 1
    assert len(image.origins[0].results) == window
    image, [result] = sent(image, 0)
    assert isinstance(result, Refused)
    assert (result.code, "too old" in result.message) == (ErrorCode.INVALID_REQUEST, True)
    assert image.next_producer_id == (window + 1) * 10


@pytest.mark.parametrize("jump", [1, 500, 1023, 1024, 1025, 1 << 62])
def test_a_jump_of_the_numbers_forgets_what_falls_out(jump: int) -> None:
    """Numbers 0 to 9, then a gap: exactly the last 1024 numbers are remembered."""
    image, _ = sent(cluster(), *range(10), 9 + jump)
    kept = {n for n in (*range(10), 9 + jump) if n > 9 + jump - RECENT_COMMANDS_MAX}
    assert set(image.origins[0].results) == kept
    assert image.origins[0].highest == 9 + jump


@pytest.mark.parametrize(
    ("command_id", "code"),
    [
        (numbered(0, origin=7), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (numbered(0, epoch=9), ErrorCode.STALE_BROKER_EPOCH),
        (numbered(-1), ErrorCode.INVALID_REQUEST),
    ],
    ids=["unknown", "old epoch", "negative"],
)
def test_a_wrong_id_is_refused_and_not_remembered(command_id: CommandId, code: ErrorCode) -> None:
    """A process that was replaced must not find, or fill, the memory of its successor."""
    image, result = apply_next(cluster(), create(), command_id)
    assert isinstance(result, Refused)
    assert result.code is code
    assert (len(image.topics), len(image.origins)) == (0, 0)


def test_a_fenced_broker_still_gets_its_answers() -> None:
    """Being fenced says nothing about commands that were sent before."""
    image, [first] = sent(cluster(), 0)
    _, [second] = sent(after(image, FenceBroker(0, epoch_of(0))), 0)
    assert first == second


def test_a_new_incarnation_starts_its_numbers_anew() -> None:
    """The process restarts and counts from 0 again: its number 0 is another command."""
    image, _ = sent(cluster(), 0, 1)
    image, result = apply_next(image, RegisterBroker(0, b"new".ljust(16), bytes(16)))
    assert isinstance(result, BrokerRegistered)
    assert len(image.origins) == 0
    command = AllocateProducerIds(0, result.broker_epoch, 1)
    image, result = apply_next(image, command, numbered(0, epoch=result.broker_epoch))
    assert result == ProducerIdBlock(20, 1)


@pytest.mark.parametrize("rest", [(), (0,)], ids=["first", "later"])
def test_a_broker_that_leaves_takes_its_memory_along(rest: tuple[int, ...]) -> None:
    """It unregisters itself under a number: there is nobody left to remember it for."""
    image, _ = sent(cluster(), *rest)
    image, result = apply_next(image, UnregisterBroker(0, epoch_of(0)), numbered(5))
    assert result == Done()
    assert len(image.origins) == 0


# Whatever stands in the log


def test_bytes_and_commands_are_applied_alike() -> None:
    """What is encoded here is decoded and applied there."""
    data = encode_command(create(), numbered(0))
    expected = apply_next(cluster(), create(), numbered(0))
    assert apply_bytes(cluster(), 101, data) == expected


def test_a_level_that_this_node_does_not_know_is_not_proposed() -> None:
    """Every node that does not know it would stop: this one at least knows that of itself."""
    encode_command(SetFeatureLevel(1, SUPPORTED_LEVEL))
    with pytest.raises(InvalidCommand, match="knows levels up to"):
        encode_command(SetFeatureLevel(1, SUPPORTED_LEVEL + 1))


BAD_BYTES = {
    "empty": b"",
    "no array": b"\x01",
    "short": b"\x92\x01",
    "no such command": b"\x92\x01\x91\x00",
    "negative command": b"\x92\x01\x91\xff",
    "no number": b"\x92\x01\x91\xa1a",
    "no command": b"\x91\x01",
    "bad text": b"\x92\x01\x94\x14\x01\xa1\xff\x90",
    "surrogate": b"\x92\x01\x94\x14\x01\xa3\xed\xa0\x80\x90",
    "deeply nested": b"\x94\x01\x92\x09\xc4\x01a\xc0" + b"\x91" * 100_000,
    "a long way to go": b"\x92\x01\x94\x14\x01\xa1a\xdd\xff\xff\xff\xff",
    "trailing": encode_command(DeleteTopic(ORDERS)) + b"\x00",
}


@pytest.mark.parametrize("data", BAD_BYTES.values(), ids=BAD_BYTES)
def test_bytes_that_are_no_command_are_refused(data: bytes) -> None:
    """They stand in the log for ever: every node must get past them in the same way."""
    image, result = apply_bytes(cluster(), 101, data)
    assert isinstance(result, Refused)
    assert result.code is ErrorCode.INVALID_REQUEST
    assert image == cluster()._replace(version=101)


NEWER_BYTES = {
    "newer format": b"\x92\x02\x92\x09\xc4\x01a",
    "newer format, other shape": b"\x92\x02\xa3new",
    "newer format alone": b"\x91\x02",
    "newer command": b"\x92\x01\x91\x7f",
    "newer command with fields": b"\x93\x01\x93\x7f\x01\xc0\xc0",
}


@pytest.mark.parametrize("data", NEWER_BYTES.values(), ids=NEWER_BYTES)
def test_what_only_a_newer_version_knows_is_not_passed_over(data: bytes) -> None:
    """Other nodes apply it: whoever refused it would have another image from then on."""
    with pytest.raises(NewerCommand, match="upgrade it"):
        apply_bytes(cluster(), 101, data)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_never_raise(seed: int) -> None:
    """Noise, with a beginning that looks like a command for half of it."""
    random, image = Random(seed), populated()
    for _ in range(200):
        start = b"\x92\x01" if random.random() < 0.5 else b""
        with suppress(NewerCommand):
            image, _ = apply_bytes(image, image.version + 1, start + random.randbytes(20))


@pytest.mark.parametrize("seed", range(5))
def test_mutated_commands_never_raise(seed: int) -> None:
    """Commands with one to three bytes changed, cut or put in: many still decode."""
    random, image = Random(seed), populated()
    draw, accepted = RandomCommands(random, image), 0
    for _ in range(600):
        data = bytearray(encode(Envelope(FORMAT_VERSION, draw.any(), draw.command_id())))
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(data))
            data[at : at + random.randint(0, 2)] = random.randbytes(random.randint(0, 2))
            data = data or bytearray(1)
        with suppress(NewerCommand):
            image, result = apply_bytes(image, image.version + 1, bytes(data))
            accepted += not isinstance(result, Refused)
    assert accepted, "mutations that nothing survives test the decoder only"
    check(image)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_any_fields_whatsoever_never_raise(kind: type) -> None:
    """Each command a hundred times with random fields; the answer can be encoded and kept."""
    image = populated()
    draw = RandomCommands(Random(kind.__name__), image)
    for _ in range(100):
        changed, result = apply_next(image, draw.of(kind))
        assert changed.version == image.version + 1
        if isinstance(result, Refused):
            assert changed == image._replace(version=changed.version, changes=())


@pytest.mark.parametrize("seed", range(5))
def test_a_random_history_keeps_the_invariants(seed: int) -> None:
    """Two hundred random commands one after the other, with ids and without."""
    random, image = Random(seed), populated()
    for _ in range(200):
        draw = RandomCommands(random, image)
        before = image
        image, _ = apply_next(image, draw.any(), draw.command_id())
        check_step(before, image)
    check(image)


def test_the_first_command_of_all() -> None:
    """An empty image takes every command; a broker can register and be unfenced."""
    draw = RandomCommands(Random(1), EMPTY_IMAGE)
    for kind in CLASSES:
        apply_next(EMPTY_IMAGE, draw.of(kind))
    image, result = apply_next(EMPTY_IMAGE, RegisterBroker(0, bytes(16), bytes(16)))
    assert result == BrokerRegistered(1)
    assert after(image, UnfenceBroker(0, 1)).is_active(0)
