"""Coordinator slots, groups and offsets: compare-and-set on the slot's epoch, one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply import limits
from raftmq.metadata.commands import (
    NO_BROKER,
    AnyCommand,
    AssignSlot,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Done,
    GroupCommits,
    GroupMemberRecord,
    OffsetRefused,
    OffsetsCommitted,
    PartitionId,
    SaveGroup,
    SeenOffset,
    StoredOffset,
)
from raftmq.metadata.image import (
    SLOT_COUNT,
    ChangeKind,
    CommittedOffset,
    GroupState,
    MetadataImage,
    SlotState,
    TouchedKey,
    slot_of,
)
from raftmq.wire.bodies import NUMBER_MAX
from tests.unit.metadata.states import ORDERS, after, answer, apply_next, cluster, refusal

GROUP = "billing"
SLOT = slot_of(GROUP)
NEIGHBOUR = next(f"g{n}" for n in range(10_000) if slot_of(f"g{n}") == SLOT)
STRANGER = next(f"g{n}" for n in range(10_000) if slot_of(f"g{n}") != SLOT)
FIRST, SECOND = PartitionId(ORDERS, 0), PartitionId(ORDERS, 1)
SAVE = SaveGroup(
    1,
    GROUP,
    1,
    leader="a",
    members=(GroupMemberRecord("a"), GroupMemberRecord("b")),
    changed_at_ms=9,
)


def coordinated() -> MetadataImage:
    """Broker 0 coordinates the slot of GROUP, under epoch 1."""
    return after(cluster(), AssignSlot(SLOT, 0, 0))


def commit(*commits: StoredOffset, group: str = GROUP, slot_epoch: int = 1) -> CommitOffsets:
    return CommitOffsets(SLOT, slot_epoch, (GroupCommits(group, commits),))


def offset(value: int, partition: int = 0, *, expected: int | None = None) -> StoredOffset:
    return StoredOffset(ORDERS, partition, value, expected=expected)


# Slots


def test_a_slot_goes_from_broker_to_broker() -> None:
    """Each assignment raises the epoch, even to the same broker: it may have restarted."""
    image = after(cluster(), AssignSlot(5, 0, 1), AssignSlot(5, 1, 1), AssignSlot(5, 2, 0))
    assert image.slots[5] == SlotState(0, 3)
    assert set(image.slots[:5] + image.slots[6:]) == {SlotState(NO_BROKER, 0)}
    assert image.changes == (TouchedKey(ChangeKind.SLOT, 5),)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (AssignSlot(-1, 0, 0), ErrorCode.INVALID_REQUEST),
        (AssignSlot(SLOT_COUNT, 0, 0), ErrorCode.INVALID_REQUEST),
        (AssignSlot(SLOT, 0, 0), ErrorCode.INVALID_UPDATE_VERSION),
        (AssignSlot(SLOT, 2, 0), ErrorCode.INVALID_UPDATE_VERSION),
        (AssignSlot(SLOT, 1, 7), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (AssignSlot(SLOT, 1, NO_BROKER), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (AssignSlot(SLOT, 1, 1), ErrorCode.BROKER_NOT_AVAILABLE),
        (AssignSlot(SLOT, 1, 2), ErrorCode.BROKER_NOT_AVAILABLE),
    ],
    ids=["below", "above", "old", "new", "unknown", "nobody", "fenced", "stopping"],
)
def test_a_slot_goes_only_to_an_active_broker(command: AssignSlot, code: ErrorCode) -> None:
    """Slots that do not exist, epochs of before, brokers that cannot coordinate."""
    image = after(cluster(fenced={1}, stopping={2}), AssignSlot(SLOT, 0, 0))
    assert refusal(image, command).code is code


WRITES = [
    SAVE,
    commit(offset(5)),
    DeleteGroup(1, GROUP),
    DeleteOffsets(1, GROUP, ((ORDERS, 0),)),
]


@pytest.mark.parametrize("command", WRITES, ids=lambda command: type(command).__name__)
def test_a_replaced_coordinator_changes_nothing(command: AnyCommand) -> None:
    """The slot was assigned again: whatever the old coordinator still sends is refused."""
    image = after(coordinated(), commit(offset(1)), AssignSlot(SLOT, 1, 1))
    found = refusal(image, command)
    assert found.code is ErrorCode.NOT_COORDINATOR
    assert f"slot {SLOT} has epoch 2, not 1" in found.message


@pytest.mark.parametrize("command", WRITES, ids=lambda command: type(command).__name__)
def test_nobody_coordinates_a_slot_that_was_never_assigned(command: AnyCommand) -> None:
    """Epoch 0 is nobody's, so that it cannot be guessed."""
    assert refusal(cluster(), replace(command, slot_epoch=0)).code is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("name", ["", "x" * 201])
@pytest.mark.parametrize("command", WRITES, ids=lambda command: type(command).__name__)
def test_a_group_has_a_name_of_sensible_length(command: AnyCommand, name: str) -> None:
    """Names are keys of the image: 1 to 200 characters."""
    if isinstance(command, CommitOffsets):
        command = commit(offset(5), group=name)
    else:
        command = replace(command, group=name)
    assert refusal(coordinated(), command).code is ErrorCode.INVALID_GROUP_ID


# Groups


def test_a_rebalance_is_saved_once() -> None:
    """A retry is done already; the next generation replaces the group."""
    image = after(coordinated(), SAVE)
    group = GroupState(1, leader="a", members=SAVE.members, changed_at_ms=9)
    assert image.groups[GROUP] == group
    assert image.changes == (TouchedKey(ChangeKind.GROUP, GROUP),)
    image, result = apply_next(image, SAVE)
    assert (result, image.changes) == (Done(), ())
    image = after(image, replace(SAVE, generation=4, members=(), leader=""))
    assert image.groups[GROUP].generation == 4


@pytest.mark.parametrize(
    "command",
    [replace(SAVE, generation=0), replace(SAVE, changed_at_ms=10), replace(SAVE, generation=-1)],
    ids=["older", "other content", "negative"],
)
def test_a_generation_does_not_come_again(command: SaveGroup) -> None:
    """Two members must never hold different assignments of one generation."""
    found = refusal(after(coordinated(), SAVE), command)
    assert found.code is ErrorCode.ILLEGAL_GENERATION
    assert "the next is 2" in found.message


RETURN = replace(
    SAVE, members=(GroupMemberRecord("a"), GroupMemberRecord("b", instance_id="i", assignment=b"0"))
)


def test_a_static_member_comes_back_under_another_id() -> None:
    """The plan is the same, and so is the generation: nobody else has to hear of it."""
    members = (
        GroupMemberRecord("c", instance_id="i", host="other", assignment=b"0"),
        GroupMemberRecord("a"),
    )
    image = after(coordinated(), RETURN, replace(RETURN, members=members, changed_at_ms=10))
    assert image.groups[GROUP].members == members


@pytest.mark.parametrize(
    "members",
    [
        (GroupMemberRecord("c"), RETURN.members[1]),
        (GroupMemberRecord("a"), GroupMemberRecord("c", instance_id="i", assignment=b"1")),
        (GroupMemberRecord("a"), GroupMemberRecord("c", instance_id="j", assignment=b"0")),
        (GroupMemberRecord("a"),),
    ],
    ids=["not static", "another part", "another instance", "one less"],
)
def test_nothing_else_changes_within_a_generation(members: tuple[GroupMemberRecord, ...]) -> None:
    """Whoever holds a part of the plan could not know."""
    command = replace(RETURN, members=members, leader=members[0].member_id)
    found = refusal(after(coordinated(), RETURN), command)
    assert found.code is ErrorCode.ILLEGAL_GENERATION


def test_a_group_is_saved_with_its_filter() -> None:
    """A12.1: the next coordinator knows it; within a generation it stays, also where a static
    member is back; without members there is none.
    """
    saved = replace(RETURN, tags="eu & !test")
    image = after(coordinated(), saved)
    assert image.groups[GROUP].tags == "eu & !test"
    back = (RETURN.members[0], replace(RETURN.members[1], member_id="c"))
    found = refusal(image, replace(saved, members=back, tags="eu"))
    assert found.code is ErrorCode.ILLEGAL_GENERATION
    image = after(image, replace(saved, members=back))
    assert image.groups[GROUP].tags == "eu & !test"
    image = after(image, SaveGroup(1, GROUP, 2))
    assert image.groups[GROUP].tags == ""


def test_a_group_of_before_filters_has_none() -> None:
    """A12.1: as logs and snapshots of an earlier version have it."""
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(SAVE))
    assert fields[-2:] == ["", []]
    before = msgspec.msgpack.encode(fields[:-2])
    assert msgspec.msgpack.decode(before, type=SaveGroup) == SAVE
    state = GroupState(3, members=SAVE.members, tags="eu")
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(state))
    before = msgspec.msgpack.encode(told[:-1])
    assert msgspec.msgpack.decode(before, type=GroupState) == replace(state, tags="")


def test_members_are_distinct_and_the_leader_is_one() -> None:
    """What could not be resumed from is not saved."""
    twice = replace(SAVE, members=(GroupMemberRecord("a"), GroupMemberRecord("a")))
    assert refusal(coordinated(), twice).code is ErrorCode.INVALID_REQUEST
    found = refusal(coordinated(), replace(SAVE, leader="z"))
    assert found.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_is_deleted_with_its_offsets() -> None:
    """Members keep a group; without them it goes, and so do its offsets."""
    image = after(coordinated(), SAVE, commit(offset(5)))
    assert refusal(image, DeleteGroup(1, GROUP)).code is ErrorCode.NON_EMPTY_GROUP
    image = after(image, SaveGroup(1, GROUP, 2), DeleteGroup(1, GROUP))
    assert (GROUP in image.groups, GROUP in image.offsets) == (False, False)
    assert image.changes == (
        TouchedKey(ChangeKind.GROUP, GROUP),
        TouchedKey(ChangeKind.OFFSETS, GROUP),
    )
    assert refusal(image, DeleteGroup(1, GROUP)).code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("command", "kind"),
    [(commit(offset(5)), ChangeKind.OFFSETS), (SaveGroup(1, GROUP, 1), ChangeKind.GROUP)],
    ids=["offsets only", "group only"],
)
def test_half_a_group_can_be_deleted(command: AnyCommand, kind: ChangeKind) -> None:
    """Clients that assign themselves leave offsets without a group; others never commit."""
    image = after(coordinated(), command, DeleteGroup(1, GROUP))
    assert image.changes == (TouchedKey(kind, GROUP),)


# Offsets


def test_offsets_of_several_groups_are_committed_at_once() -> None:
    """One command of a tick: each group gets its own offsets, one change for each group."""
    full = StoredOffset(ORDERS, 1, 8, leader_epoch=3, metadata="m", committed_at_ms=7)
    groups = (
        GroupCommits(GROUP, (offset(5), full)),
        GroupCommits(NEIGHBOUR, (offset(6), offset(7))),
    )
    image, result = apply_next(coordinated(), CommitOffsets(SLOT, 1, groups))
    assert result == OffsetsCommitted()
    assert dict(image.offsets[GROUP]) == {
        FIRST: CommittedOffset(5),
        SECOND: CommittedOffset(8, 3, "m", 7),
    }
    assert dict(image.offsets[NEIGHBOUR]) == {FIRST: CommittedOffset(7)}
    assert image.changes == (
        TouchedKey(ChangeKind.OFFSETS, GROUP),
        TouchedKey(ChangeKind.OFFSETS, NEIGHBOUR),
    )


def test_offsets_may_go_back() -> None:
    """A consumer that reads again commits less than before."""
    image = after(coordinated(), commit(offset(9)), commit(offset(2)))
    assert image.offsets[GROUP][FIRST].offset == 2


def test_a_commit_that_expects_something_else_is_refused_alone() -> None:
    """Of four commits two find what they expect (one of them: nothing); the answer names others."""
    image = after(coordinated(), commit(offset(5)))
    image, result = apply_next(
        image,
        commit(
            offset(6, expected=5),
            offset(7, expected=5),
            offset(1, partition=1, expected=-1),
            offset(2, partition=2, expected=0),
        ),
    )
    assert result == OffsetsCommitted(
        (OffsetRefused(GROUP, ORDERS, 0, 6), OffsetRefused(GROUP, ORDERS, 2, -1))
    )
    assert [image.offsets[GROUP][key].offset for key in (FIRST, SECOND)] == [6, 1]


def test_nothing_written_is_no_change() -> None:
    """All commits refused, or none sent: nobody is woken, and no empty group appears."""
    for command in (commit(offset(6, expected=5)), commit(), CommitOffsets(SLOT, 1, ())):
        image, result = apply_next(coordinated(), command)
        assert isinstance(result, OffsetsCommitted)
        assert (image.changes, len(image.offsets)) == ((), 0)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (commit(offset(-1)), ErrorCode.INVALID_REQUEST),
        (commit(offset(NUMBER_MAX + 1)), ErrorCode.INVALID_REQUEST),
        (
            commit(StoredOffset(ORDERS, 0, 1, metadata="ä" * 2049)),
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ),
        (commit(offset(1), group=STRANGER), ErrorCode.NOT_COORDINATOR),
    ],
    ids=["negative", "too high", "metadata", "other slot"],
)
def test_one_bad_commit_refuses_the_command(command: CommitOffsets, code: ErrorCode) -> None:
    """The good commits before it are not written either: nothing is half done."""
    good = GroupCommits(NEIGHBOUR, (offset(3),))
    image = after(coordinated(), AssignSlot(slot_of(STRANGER), 0, 0))
    both = replace(command, groups=(good, *command.groups))
    assert refusal(image, both).code is code


def test_metadata_up_to_its_bound_is_kept() -> None:
    """4096 bytes, counted as UTF-8."""
    text = "ä" * 2048
    image = after(coordinated(), commit(StoredOffset(ORDERS, 0, 1, metadata=text)))
    assert image.offsets[GROUP][FIRST].metadata == text


def test_single_offsets_are_deleted() -> None:
    """What is there goes, what is not there is gone already; the last one takes the map along."""
    image = after(coordinated(), commit(offset(1), offset(2, partition=1)))
    image = after(image, DeleteOffsets(1, GROUP, ((ORDERS, 0), (ORDERS, 9))))
    assert dict(image.offsets[GROUP]) == {SECOND: CommittedOffset(2)}
    image, result = apply_next(image, DeleteOffsets(1, GROUP, ((ORDERS, 0),)))
    assert (result, image.changes) == (Done(), ())
    image = after(image, DeleteOffsets(1, GROUP, ((ORDERS, 1),)))
    assert GROUP not in image.offsets
    assert answer(image, DeleteOffsets(1, GROUP, ((ORDERS, 1),))) == Done()


# Bounds


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"protocol": "p" * 256}, "protocol of 256 characters, at most 255"),
        ({"protocol_type": "p" * 256}, "protocol type of 256"),
        ({"members": (GroupMemberRecord("m" * 256),), "leader": ""}, "member id of 256"),
        ({"members": (GroupMemberRecord("a", "c" * 256),)}, "client id of 256"),
        ({"members": (GroupMemberRecord("a", "", "h" * 256),)}, "host of 256"),
        ({"members": (GroupMemberRecord("a", "", "", "i" * 256),)}, "instance id of 256"),
        ({"tags": "t" * 8193}, "filter of 8193 characters, at most 8192"),
        (
            {"members": tuple(GroupMemberRecord(f"{n}") for n in range(1001)), "leader": ""},
            "1001 members",
        ),
    ],
)
def test_what_is_kept_of_a_group_is_bounded(more: dict[str, Any], message: str) -> None:
    """Every node holds it, whether or not the group still lives."""
    assert message in refusal(coordinated(), replace(SAVE, **more)).message


def test_groups_have_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is refused once there are so many, with members or without; those that are there
    go on, and make room when they are deleted."""
    monkeypatch.setattr(limits, "GROUPS_MAX", 1)
    image = after(coordinated(), SAVE)
    refused = refusal(image, replace(SAVE, group=NEIGHBOUR))
    assert refused.code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "delete groups" in refused.message
    image = after(image, replace(SAVE, generation=2, leader="", members=()))
    assert refusal(image, replace(SAVE, group=NEIGHBOUR, leader="", members=()))
    image = after(image, DeleteGroup(1, GROUP))
    assert NEIGHBOUR in after(image, replace(SAVE, group=NEIGHBOUR)).groups


def test_offsets_are_of_partitions_that_could_be() -> None:
    """They need not exist, but their names are kept."""
    for topic_id, number in ((b"short", 0), (ORDERS, -1), (ORDERS, 1 << 31)):
        wrong = StoredOffset(topic_id, number, 5)
        assert refusal(coordinated(), commit(wrong)).code == ErrorCode.INVALID_REQUEST


def test_so_many_commits_may_expect_an_offset() -> None:
    """Each of them may come back in the answer, which is remembered; others are not bounded."""
    many = [offset(7, number, expected=-1) for number in range(1001)]
    assert "at most 1000" in refusal(coordinated(), commit(*many)).message
    many[0] = offset(7, 0)
    assert len(after(coordinated(), commit(*many)).offsets[GROUP]) == 1001


# Expiry


def seen_of(value: int, *, at_ms: int = 0, partition: int = 0) -> SeenOffset:
    return SeenOffset(ORDERS, partition, value, at_ms)


@pytest.mark.parametrize(
    ("seen", "is_removed"),
    [
        (seen_of(5, at_ms=9), True), (seen_of(4, at_ms=9), False), (seen_of(5, at_ms=8), False),
        (seen_of(5, at_ms=9, partition=1), False),
    ],
)  # fmt: skip
def test_expiry_removes_only_what_it_saw(seen: SeenOffset, is_removed: bool) -> None:
    """`expiry_overtakes_commit`: a transaction has moved the offset, by another clock, maybe to
    where it was before: it stays, and so does the group.
    """
    image = after(coordinated(), commit(StoredOffset(ORDERS, 0, 5, committed_at_ms=9)))
    rest = after(image, DeleteOffsets(1, GROUP, (), (seen,)))
    assert (GROUP not in rest.offsets) == is_removed
    whole = DeleteGroup(1, GROUP, (seen,))
    if is_removed:
        assert GROUP not in after(image, whole).offsets
    else:
        assert refusal(image, whole).code is ErrorCode.INVALID_UPDATE_VERSION


def test_a_group_with_more_than_expiry_saw_stays() -> None:
    """An offset of another partition was committed since."""
    image = after(coordinated(), commit(offset(5)), commit(offset(6, 1)))
    whole = DeleteGroup(1, GROUP, (seen_of(5),))
    assert refusal(image, whole).code is ErrorCode.INVALID_UPDATE_VERSION
    assert GROUP not in after(image, replace(whole, seen=None)).offsets
