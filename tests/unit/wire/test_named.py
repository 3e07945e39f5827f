"""Ids of names, and what their batches say."""

from __future__ import annotations

import pytest

from raftmq.errors import CorruptRecord
from raftmq.model import Compression, RecordFormat
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.fixed_keys import ACCOUNT_END
from raftmq.wire.batch.head import renumbered
from raftmq.wire.batch.header import (
    CONTROL_BIT,
    NAMED_FIRST,
    Account,
    check_batch,
    is_named,
    named_producer_id,
    seal,
)
from raftmq.wire.batch.records import (
    account_length,
    account_of,
    encode_batch,
    encode_control_batch,
    encode_fence,
)

NAMED = named_producer_id("etl/3")
ACCOUNT = Account(17, 0xDEADBEEF)


@pytest.mark.parametrize(
    ("name", "producer_id"),
    [
        ("", 0x47534565AF268602),
        ("etl", 0x6D98EF1742822F8F),
        ("größe", 0x4BF4AB4B597D5848),
    ],
)
def test_a_name_stands_for_one_id(name: str, producer_id: int) -> None:
    """For all times: the number is in logs."""
    assert named_producer_id(name) == producer_id
    assert is_named(producer_id)


def test_ids_of_names_are_apart_from_all_others() -> None:
    """Positive numbers of 64 bits, none of which is ever given out otherwise."""
    ids = [named_producer_id(f"name {number}") for number in range(1000)]
    assert len(set(ids)) == 1000
    assert all(NAMED_FIRST <= each < 1 << 63 for each in ids)
    assert not any(map(is_named, (-1, 0, NAMED_FIRST - 1)))


def fence(**changes: int) -> bytes:
    numbers = {"producer_id": NAMED, "producer_epoch": 0, "next_sequence": 0} | changes
    return bytes(encode_fence(ACCOUNT, timestamp=0, **numbers))


def test_fences_and_batches_say_the_same() -> None:
    """Wherever they stand in a buffer; a batch need not be there whole, a fence must be."""
    batch = bytes(encode_batch(values=[b"x" * 99], timestamp=0, producer_id=NAMED, account=ACCOUNT))
    for data, length in ((batch, ACCOUNT_END), (fence(), len(fence()))):
        header = check_batch(data)
        assert account_length(header) == length
        assert account_of(data[:length], 0, header) == ACCOUNT
        assert account_of(b"before" + data, 6, header) == ACCOUNT


@pytest.mark.parametrize(
    "batch",
    [
        encode_batch(values=[b"x"], timestamp=0, producer_id=5, account=ACCOUNT),
        encode_batch(values=[b"x"], timestamp=0, producer_id=NAMED),
        encode_batch(
            values=[b"x"], timestamp=0, producer_id=NAMED, record_format=RecordFormat.KAFKA
        ),
        encode_control_batch(
            kind=ControlType.COMMIT,
            coordinator_epoch=0,
            producer_id=NAMED,
            producer_epoch=0,
            timestamp=0,
        ),
        fence(producer_id=5),
        fence(producer_epoch=-1),
        fence(next_sequence=-1),
    ],
    ids=["no name", "silent", "kafka", "commit", "no id", "no epoch", "no sequence"],
)
def test_others_say_nothing(batch: bytes) -> None:
    """Other producers, other formats, other markers."""
    assert account_of(batch, 0, check_batch(batch)) is None


def test_what_cannot_be_a_fence_is_not_opened() -> None:
    """One that is compressed, or far too long: nothing of it is read."""
    for odd in (bytearray(fence()), bytearray(fence()) + bytes(2000)):
        if len(odd) == len(fence()):
            odd[22] = CONTROL_BIT | Compression.GZIP
        seal(odd)
        assert account_length(check_batch(odd)) == 0


def test_a_fence_that_is_not_sound() -> None:
    """Its CRC, and then its content, do not fit."""
    torn = bytearray(fence())
    torn[-3] ^= 1
    header = check_batch(fence())
    with pytest.raises(CorruptRecord, match="CRC"):
        account_of(torn, 0, header)
    short = seal(bytearray(fence()[:70]))
    with pytest.raises(CorruptRecord):
        account_of(short, 0, check_batch(short))


def test_numbers_can_be_changed_around_an_account() -> None:
    """It stands behind the header, which says another epoch now."""
    batch = encode_batch(values=[b"x"], timestamp=0, producer_id=NAMED, account=ACCOUNT)
    changed = renumbered(batch, producer_id=NAMED, producer_epoch=4, base_sequence=9)
    assert account_of(changed, 0, check_batch(changed)) == ACCOUNT
