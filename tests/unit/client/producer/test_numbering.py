"""Numbers: which one a batch gets, and which ids and epochs follow each other."""

from __future__ import annotations

import pytest

from raftmq.client.producer.batch import SEQUENCE_COUNT, Number, ProducerBatch
from raftmq.client.producer.numbering import Numbering, ProducerIdentity
from raftmq.errors import MessageTooLarge, RaftmqError
from raftmq.model import Compression
from raftmq.wire.batch.head import renumbered
from raftmq.wire.batch.header import check_batch
from raftmq.wire.batch.records import RecordBatch, encode_batch
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX


def batch(count: int, value: bytes = b"x") -> ProducerBatch:
    made = ProducerBatch("t", 0, 0.0)
    for _ in range(count):
        made.add(value, None, 0, 300)
    return made


def begun(producer_id: int = 7) -> tuple[ProducerIdentity, Numbering]:
    ids = ProducerIdentity()
    ids.on_id(producer_id)
    numbering = Numbering(ids)
    assert numbering.may_begin()
    return ids, numbering


def number_of(numbering: Numbering, count: int = 1) -> Number:
    made = batch(count)
    header = check_batch(numbering.encode(made, Compression.NONE))
    found = Number(header.producer_id, header.producer_epoch, header.base_sequence)
    assert made.number == found
    return found


def test_an_id_is_wanted_and_comes() -> None:
    """Before it nothing may begin; whoever only will need one says so as well."""
    ids = ProducerIdentity()
    numbering = Numbering(ids)
    assert not ids.is_wanted
    ids.want_first()
    assert ids.is_wanted
    assert not numbering.may_begin()
    ids.on_id(7)
    ids.want_first()
    assert not ids.is_wanted
    assert numbering.may_begin()
    assert number_of(numbering) == (7, 0, 0)


def test_sequences_go_around() -> None:
    """After the highest comes 0, also within a batch."""
    _, numbering = begun()
    numbering._next_sequence = SEQUENCE_COUNT - 3
    assert number_of(numbering, 2).base_sequence == SEQUENCE_COUNT - 3
    assert number_of(numbering, 5).base_sequence == SEQUENCE_COUNT - 1
    assert number_of(numbering).base_sequence == 4


def test_the_number_of_what_cannot_be_encoded() -> None:
    """It has not left, so the next one gets it: no hole."""
    _, numbering = begun()

    class TooLarge(ProducerBatch):
        def encode(self, compression: Compression, number: Number | None = None) -> bytearray:
            raise MessageTooLarge("too large")

    with pytest.raises(RaftmqError):
        numbering.encode(TooLarge("t", 0, 0.0), Compression.NONE)
    assert number_of(numbering) == (7, 0, 0)


def test_the_same_again() -> None:
    """The same bytes, and no number is used up."""
    _, numbering = begun()
    made = batch(2)
    first = bytes(numbering.encode(made, Compression.NONE))
    assert bytes(numbering.encode(made, Compression.NONE)) == first
    assert number_of(numbering) == (7, 0, 2)


def test_another_number_in_another_epoch() -> None:
    """The records are the same, and the bytes that were handed out before do not change."""
    _, numbering = begun()
    assert number_of(numbering) == (7, 0, 0)
    made = batch(2, b"value")
    before = numbering.encode(made, Compression.NONE)
    kept = bytes(before)
    numbering.end_epoch()
    assert numbering.may_begin()
    after = numbering.encode(made, Compression.NONE)
    assert bytes(before) == kept
    assert made.number == (7, 1, 0)
    assert [*RecordBatch.decode(after).values] == [b"value"] * 2


def test_what_may_have_happened_keeps_its_number() -> None:
    """In an epoch that is over, too; and another number for it is a broken invariant."""
    _, numbering = begun()
    made = batch(1)
    first = bytes(numbering.encode(made, Compression.NONE))
    made.may_have_happened = True
    numbering.end_epoch()
    assert bytes(numbering.encode(made, Compression.NONE)) == first
    assert numbering.may_begin()
    with pytest.raises(AssertionError, match="may stand in the log under another number"):
        numbering.encode(made, Compression.NONE)


def test_nothing_new_in_an_epoch_that_is_over() -> None:
    """A broken invariant."""
    _, numbering = begun()
    numbering.end_epoch()
    with pytest.raises(AssertionError, match="under numbers that are over"):
        number_of(numbering)


def test_epochs_to_the_last_one() -> None:
    """Then another id, of which each partition uses every epoch, too."""
    ids, numbering = begun()
    for _ in range(PRODUCER_EPOCH_MAX):
        numbering.end_epoch()
        assert numbering.may_begin()
    assert number_of(numbering) == (7, PRODUCER_EPOCH_MAX, 0)
    assert not ids.is_wanted
    numbering.end_epoch()
    assert numbering.lacks_id
    assert not numbering.may_begin()
    assert ids.is_wanted
    ids.on_id(7)  # no broker of ours does that
    assert not numbering.may_begin()
    assert ids.is_wanted
    ids.on_id(3)
    assert not ids.is_wanted
    assert numbering.may_begin()
    assert number_of(numbering) == (3, 0, 0)


def test_partitions_share_ids() -> None:
    """Whoever uses one up later takes the one that is there by then, and asks for none."""
    ids, first = begun()
    second = Numbering(ids)
    assert second.may_begin()
    for numbering in (first, second):
        numbering._epoch = PRODUCER_EPOCH_MAX
        numbering.end_epoch()
    assert not first.may_begin()
    ids.on_id(8)
    assert first.may_begin()
    assert second.may_begin()
    assert [number_of(first), number_of(second)] == [(8, 0, 0), (8, 0, 0)]
    assert not ids.is_wanted


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_bytes_with_another_number(compression: Compression) -> None:
    """As if they had been encoded with it."""
    arguments = {"values": [b"a", b"b"], "timestamp": 5, "compression": compression}
    numbers = {"producer_id": 1 << 62, "producer_epoch": 32767, "base_sequence": (1 << 31) - 1}
    plain = encode_batch(**arguments)  # type: ignore[arg-type]
    assert renumbered(plain, **numbers) == encode_batch(**arguments, **numbers)  # type: ignore[arg-type]
