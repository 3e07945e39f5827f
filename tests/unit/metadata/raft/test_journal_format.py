"""The bytes of the journal: what is written is read, and what is not whole is not taken."""

from __future__ import annotations

import pytest

from raftmq.errors import CorruptRecord
from raftmq.metadata.raft.journal import format as form
from raftmq.metadata.raft.journal.format import BatchBuilder, JournalBounds, VoterIdentity
from raftmq.metadata.raft.net.messages import Standing

DISK_ID = b"0123456789abcdef"
IDENTITY = VoterIdentity(DISK_ID, "über", 7, Standing.ESTABLISHED, 41, 3)


def built(sequence: int = 9, disk_id: bytes = DISK_ID) -> bytes:
    builder = BatchBuilder()
    builder.add_identity(IDENTITY)
    builder.add_vote(4, 0)
    builder.add_vote(5, None)
    builder.add_bounds(JournalBounds(10, 2, 20, 3))
    builder.add_entry((b"command", 21, 5))
    builder.add_entry((b"", 1 << 60, 1 << 50))
    builder.add_commit(17)
    return builder.build(sequence, disk_id)


def test_every_record_is_read_as_it_was_written() -> None:
    """One batch with a record of each kind, read back."""
    data = built()
    header = form.find_batch(data, 0)
    assert header is not None
    assert (header.sequence, header.record_count, header.end) == (9, 7, len(data))
    identity, vote, no_vote, bounds, entry, empty, commit = form.records(data, header)
    assert form.read_identity(identity) == IDENTITY
    assert form.read_vote(vote) == (4, 0)
    assert form.read_vote(no_vote) == (5, None)
    assert form.read_bounds(bounds) == JournalBounds(10, 2, 20, 3)
    assert entry == (form.ENTRY, 21, 5, b"command")
    assert empty == (form.ENTRY, 1 << 60, 1 << 50, b"")
    assert commit == (form.COMMIT, 17, 0, b"")


def test_every_turned_bit_is_noticed() -> None:
    """No bit of a batch is outside of its CRC, but for the CRC itself and the magic."""
    data = bytearray(built())
    for position in range(len(data) * 8):
        data[position // 8] ^= 1 << position % 8
        assert form.find_batch(bytes(data), 0) is None, f"bit {position}"
        data[position // 8] ^= 1 << position % 8


def test_no_prefix_is_a_batch() -> None:
    """A write that was cut off anywhere."""
    data = built()
    assert all(form.find_batch(data[:length], 0) is None for length in range(len(data)))
    assert form.find_batch(data + b"more", 0) is not None


@pytest.mark.parametrize("before", [b"", b"x", form.MAGIC, form.MAGIC[:5], built()[:50], b"x" * 99])
def test_a_later_batch_is_found_at_any_byte(before: bytes) -> None:
    """Whatever precedes it, half a batch included."""
    data = before + built(10)
    [found] = form.later_batches(data, 0, DISK_ID[:8])
    assert (found.position, found.sequence) == (len(before), 10)
    assert list(form.later_batches(data, len(before) + 1, DISK_ID[:8])) == []


def test_a_batch_of_another_disk_is_none_of_ours() -> None:
    """Somebody stored a piece of a journal in a command: it proves nothing about this file."""
    other = built(10, disk_id=b"somebody else's!")
    assert list(form.later_batches(other, 0, DISK_ID[:8])) == []


def test_many_hostile_magics_cost_little() -> None:
    """Each claims a payload up to the end; only those with our disk's id are looked at."""
    data = (form.MAGIC + bytes(30)) * 2_000
    assert list(form.later_batches(data, 0, DISK_ID[:8])) == []


@pytest.mark.parametrize("count", [6, 8])
def test_a_batch_must_hold_the_records_that_it_claims(count: int) -> None:
    """A whole batch that was built wrongly is an error, and not fewer records."""
    data = built()
    header = form.find_batch(data, 0)
    assert header is not None
    with pytest.raises(CorruptRecord, match=f"batch 9 does not hold the {count} records"):
        list(form.records(data, header._replace(record_count=count)))
    with pytest.raises(CorruptRecord):
        list(form.records(data, header._replace(payload_bytes=header.payload_bytes - 1)))


def test_an_identity_only_rises() -> None:
    """Another disk, cluster or node is another journal's; standing and counts never fall."""
    assert IDENTITY.may_become(IDENTITY)
    assert IDENTITY.may_become(IDENTITY._replace(start_count=4, enrolled_index=50))
    for wrong in (
        IDENTITY._replace(disk_id=bytes(16)),
        IDENTITY._replace(cluster_id="other"),
        IDENTITY._replace(node_id=8),
        IDENTITY._replace(standing=Standing.BLANK),
        IDENTITY._replace(start_count=2),
        IDENTITY._replace(enrolled_index=40),
    ):
        assert not IDENTITY.may_become(wrong)
