"""Crashes beside committed offsets: for what they count, up to which number, until when (A12.5)."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply import limits
from raftmq.metadata.commands import (
    NO_OFFSET,
    AssignSlot,
    CommitOffsets,
    CrashedMember,
    DeleteOffsets,
    GroupCommits,
    PartitionId,
    PartitionsHeld,
    SaveGroup,
    StoredOffset,
)
from raftmq.metadata.image import CommittedOffset, Crashes, MetadataImage, slot_of
from raftmq.metadata.snapshot import decode_image, encode_image
from tests.unit.metadata.states import ORDERS, after, cluster, refusal

GROUP = "billing"
SLOT = slot_of(GROUP)


class Ledger:
    """A group whose members crash and commit, one command after the other."""

    def __init__(self) -> None:
        self.image: MetadataImage = after(cluster(), AssignSlot(SLOT, 0, 0))
        self._generation = 0

    def crash(self, *partitions: int, member: str = "m", repeats: int = 1) -> None:
        for _ in range(repeats):
            self._generation += 1
            crashed = CrashedMember(member, (PartitionsHeld(ORDERS, partitions),))
            save = SaveGroup(1, GROUP, self._generation, changed_at_ms=9, crashed=(crashed,))
            self.image = after(self.image, save)

    def commit(self, offset: int, partition: int = 0, *, alone_by: str = "") -> None:
        commit = StoredOffset(ORDERS, partition, offset, alone_by=alone_by)
        commits = (GroupCommits(GROUP, (commit,)),)
        self.image = after(self.image, CommitOffsets(SLOT, 1, commits))

    def at(self, partition: int = 0) -> CommittedOffset:
        return self.image.offsets[GROUP][PartitionId(ORDERS, partition)]

    def count(self, partition: int = 0) -> int:
        crashes = self.at(partition).crashes
        return 0 if crashes is None else crashes.count


def test_crashes_count_for_all_that_was_held() -> None:
    """Of what the member did not hold, nothing is said."""
    ledger = Ledger()
    for partition in range(3):
        ledger.commit(5, partition)
    ledger.crash(0, 2)
    assert [ledger.count(partition) for partition in range(3)] == [1, 0, 1]
    assert ledger.at(0).offset == 5


def test_accidents_are_two_at_the_most() -> None:
    """Any record in hand may have been it: more of them prove nothing of the first."""
    ledger = Ledger()
    ledger.commit(5)
    ledger.crash(0, repeats=5)
    assert ledger.count() == 2


def test_a_record_that_was_alone_is_blamed_for_each_crash() -> None:
    """And nothing else that the member held."""
    ledger = Ledger()
    ledger.commit(5)
    ledger.commit(8, 1)
    ledger.crash(0, 1, repeats=2)
    for count in (3, 4, 5):
        ledger.commit(5, alone_by="m")
        assert ledger.at().crashes == Crashes(count - 1, "m")
        ledger.crash(0, 1)
        assert (ledger.at().crashes, ledger.count(1)) == (Crashes(count), 2)


def test_alone_counts_from_the_first_on() -> None:
    """The committed offset has moved to it while records were handled alone."""
    ledger = Ledger()
    ledger.commit(5, alone_by="m")
    ledger.commit(6, alone_by="m")
    ledger.crash(0)
    assert ledger.at() == CommittedOffset(6, crashes=Crashes(1))


def test_a_note_is_its_members() -> None:
    """Who had the partition before was alone at it, and is another."""
    ledger = Ledger()
    ledger.commit(5, alone_by="before")
    ledger.crash(0, repeats=4)
    assert ledger.count() == 2


@pytest.mark.parametrize("to", [6, 4])
def test_the_count_is_gone_when_the_offset_moves(to: int) -> None:
    """Forward, or back: another record is the first one."""
    ledger = Ledger()
    ledger.commit(5)
    ledger.crash(0)
    ledger.commit(5)
    assert ledger.count() == 1
    ledger.commit(to)
    assert ledger.at() == CommittedOffset(to)
    ledger.commit(5)
    assert ledger.count() == 0


def test_a_commit_takes_the_note_back() -> None:
    """The count stays where the offset does."""
    ledger = Ledger()
    ledger.commit(5)
    ledger.crash(0)
    ledger.commit(5, alone_by="m")
    ledger.commit(5)
    assert ledger.at().crashes == Crashes(1)


def test_without_a_committed_offset_it_counts_for_the_beginning() -> None:
    """Of the first record that is handled alone the count goes on; behind what was handled beside
    others it is gone."""
    ledger = Ledger()
    ledger.crash(0, 1, repeats=2)
    assert ledger.at() == CommittedOffset(NO_OFFSET, committed_at_ms=9, crashes=Crashes(2))
    ledger.commit(7, alone_by="m")
    assert ledger.at().crashes == Crashes(2, "m")
    ledger.commit(7, 1)
    assert ledger.at(1) == CommittedOffset(7)
    ledger.image = after(ledger.image, DeleteOffsets(1, GROUP, ((ORDERS, 0),)))
    ledger.crash(0)
    assert ledger.count() == 1


def test_a_commit_that_expects_nothing_succeeds_where_only_crashes_are_known() -> None:
    """A12.5: nothing is committed there."""
    ledger = Ledger()
    ledger.crash(0)
    commit = StoredOffset(ORDERS, 0, 3, expected=-1)
    ledger.image = after(ledger.image, CommitOffsets(SLOT, 1, (GroupCommits(GROUP, (commit,)),)))
    assert ledger.at().offset == 3


def test_a_save_that_comes_again_counts_nothing() -> None:
    """Its sender does not know that it was applied."""
    ledger = Ledger()
    ledger.commit(5)
    crashed = (CrashedMember("m", (PartitionsHeld(ORDERS, (0,)),)),)
    save = SaveGroup(1, GROUP, 1, crashed=crashed)
    ledger.image = after(ledger.image, save, save)
    assert ledger.count() == 1


def test_snapshots_keep_crashes() -> None:
    """Also where nothing is committed."""
    ledger = Ledger()
    ledger.commit(5, alone_by="m")
    ledger.crash(1)
    image = decode_image(encode_image(ledger.image))
    assert image.offsets == ledger.image.offsets


def test_offsets_of_before_have_no_crashes() -> None:
    """As logs and snapshots of an earlier version have them."""
    for value in (StoredOffset(ORDERS, 0, 5), CommittedOffset(5)):
        fields = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
        before = msgspec.msgpack.encode(fields[:-1])
        assert msgspec.msgpack.decode(before, type=type(value)) == value


def test_what_a_crash_names_is_bounded() -> None:
    """All nodes keep a count for each partition."""
    image = after(cluster(), AssignSlot(SLOT, 0, 0))
    save = SaveGroup(1, GROUP, 1)
    for topic_id, partitions in (
        (b"short", (0,)),
        (ORDERS, (-1,)),
        (ORDERS, tuple(range(limits.CRASHED_PARTITIONS_MAX + 1))),
    ):
        crashed = (CrashedMember("m", (PartitionsHeld(topic_id, partitions),)),)
        found = refusal(image, replace(save, crashed=crashed))
        assert found.code is ErrorCode.INVALID_REQUEST
