"""`Admin`: what groups have committed is told, set from outside, and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from raftmq.client.administration.groups import committed
from raftmq.client.administration.results import GroupOffset
from raftmq.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidUpdateVersion,
    NonEmptyGroup,
    OutcomeUnknown,
    RaftmqError,
    ServerError,
    UnknownTopicOrPartition,
)
from raftmq.wire.messages.group_offsets import (
    OffsetCommit,
    OffsetCommitReply,
    OffsetDelete,
    OffsetFetch,
    OffsetFetchReply,
)
from raftmq.wire.messages.groups import DeleteGroups
from tests.unit.client.administration.bureau import LOST
from tests.unit.client.administration.groups.registry import member, open_registry

if TYPE_CHECKING:
    from trio.testing import MockClock


# -- reads -------------------------------------------------------------------------------------


async def test_offsets_with_all_that_belongs_to_them(autojump_clock: MockClock) -> None:
    """By topic and partition, in order; a deleted topic by its id."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {("u", 1): 4, ("t", 0): 7}, metadata="here")
        gone = registry.world.topics["t"].topic_id.hex()
        assert list(await admin.group_offsets("g")) == [("t", 0), ("u", 1)]
        del registry.world.topics["t"]
        registry.world.version += 1
        assert await admin.group_offsets("g") == {
            (gone, 0): GroupOffset(7, 0, "here", 1000),
            ("u", 1): GroupOffset(4, 0, "here", 1000),
        }


async def test_a_group_that_has_committed_nothing(autojump_clock: MockClock) -> None:
    """It is there, and that is no error."""
    async with open_registry() as (registry, admin):
        registry.add("g")
        assert await admin.group_offsets("g") == {}


async def test_more_offsets_than_an_answer_holds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for by name, so many at once."""
    monkeypatch.setattr(committed, "PARTITIONS_MAX", 3)
    async with open_registry() as (registry, admin):
        registry.fetched_max = 3
        registry.world.add_topic("v", *[1] * 5)
        registry.commit("g", {("v", number): number for number in range(5)})
        found = await admin.group_offsets("g")
        assert [(key[1], one.offset) for key, one in found.items()] == [(n, n) for n in range(5)]


# -- set from outside --------------------------------------------------------------------------


async def test_offsets_are_set(autojump_clock: MockClock) -> None:
    """Without a look at the log; of a group that is not there as well; once more if the answer
    is lost.
    """
    async with open_registry() as (registry, admin):
        registry.errors = [ErrorCode.NOT_COORDINATOR, LOST]
        await admin.alter_group_offsets("g", {("u", 0): 500, ("t", 0): 0})
        assert registry.committed("g") == {("t", 0): 0, ("u", 0): 500}
        bodies = registry.bureau.asked(OffsetCommit)
        assert {(body.generation, body.member_id) for body in bodies} == {(-1, "")}
        assert [body.number for body in bodies] == [1, 2, 3], "so the first one may come late"
        assert len({body.sender for body in bodies}) == 1
        assert bodies[0].sender


async def test_what_is_expected(autojump_clock: MockClock) -> None:
    """A number, or nothing at all; partitions of which nothing is expected are just set."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {("u", 0): 5, ("t", 0): 1})
        wanted = {("u", 0): 6, ("u", 1): 7, ("t", 0): 8}
        await admin.alter_group_offsets("g", wanted, expected={("u", 0): 5, ("u", 1): None})
        assert registry.committed("g") == wanted


async def test_something_else_is_there(autojump_clock: MockClock) -> None:
    """The error says what, and nothing was changed; it is not asked for again."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {("u", 0): 5})
        with pytest.raises(InvalidUpdateVersion) as caught:
            await admin.alter_group_offsets("g", {("u", 0): 6}, expected={("u", 0): 4})
        assert "group g: u-0 has 5 committed now, expected was 4" in str(caught.value)
        with pytest.raises(InvalidUpdateVersion, match=r"u-1 has nothing committed now, .* was 4"):
            await admin.alter_group_offsets("g", {("u", 1): 6}, expected={("u", 1): 4})
        with pytest.raises(InvalidUpdateVersion, match=r"has 5 committed now, .* was nothing"):
            await admin.alter_group_offsets("g", {("u", 0): 6}, expected={("u", 0): None})
        assert registry.committed("g") == {("u", 0): 5}
        assert registry.bureau.count(OffsetCommit) == 3


async def test_some_are_as_expected(autojump_clock: MockClock) -> None:
    """Those were changed: nobody may read that nothing was."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {("u", 0): 5, ("u", 1): 5})
        expected = {("u", 0): 5, ("u", 1): 4}
        with pytest.raises(OutcomeUnknown, match=r"1 partition was changed.*u-1 has 5") as caught:
            await admin.alter_group_offsets("g", {("u", 0): 6, ("u", 1): 6}, expected=expected)
        assert isinstance(caught.value.__cause__, InvalidUpdateVersion)


async def test_a_comparison_whose_answer_is_lost(autojump_clock: MockClock) -> None:
    """It is asked for once: the second time it would compare with what it has set itself."""
    async with open_registry() as (registry, admin):
        registry.errors = [LOST]
        with pytest.raises(OutcomeUnknown):
            await admin.alter_group_offsets("g", {("u", 0): 6}, expected={("u", 0): None})
        assert registry.bureau.count(OffsetCommit) == 1


async def test_a_search_whose_answer_is_lost(autojump_clock: MockClock) -> None:
    """Nothing was changed by asking who coordinates the group: it is asked for again."""
    async with open_registry() as (registry, admin):
        registry.finds = [LOST, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        await admin.alter_group_offsets("g", {("u", 0): 6}, expected={("u", 0): None})
        assert registry.committed("g") == {("u", 0): 6}


async def test_a_group_with_members(autojump_clock: MockClock) -> None:
    """Only they commit."""
    async with open_registry() as (registry, admin):
        registry.add("g", member("m1"))
        with pytest.raises(NonEmptyGroup, match=r"group g has members.*stop them first"):
            await admin.alter_group_offsets("g", {("u", 0): 6})


async def test_many_partitions(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go in several requests; what was changed before one fails is told."""
    monkeypatch.setattr(committed, "COMMITS_MAX", 2)
    async with open_registry() as (registry, admin):
        registry.world.add_topic("v", *[1] * 5)
        wanted = {("v", number): number for number in range(5)}
        await admin.alter_group_offsets("g", wanted)
        assert registry.committed("g") == wanted
        assert [len(one.partitions) for one in registry.bureau.asked(OffsetCommit)] == [2, 2, 1]
        registry.errors = [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        with pytest.raises(OutcomeUnknown, match=r"2 partitions were changed.*has members"):
            await admin.alter_group_offsets("g", dict.fromkeys(wanted, 9))
        assert list(registry.committed("g").values()) == [9, 9, 2, 3, 4]


async def test_a_refusal_of_one_partition(autojump_clock: MockClock) -> None:
    """Whatever a coordinator has against it."""
    async with open_registry() as (registry, admin):
        key = (registry.world.topics["u"].topic_id, 0)
        told = OffsetCommitReply(
            partitions=(registry.refused(key, ErrorCode.OFFSET_METADATA_TOO_LARGE),)
        )
        registry.bureau.lie(OffsetCommit, told)
        with pytest.raises(RaftmqError, match="u-0 was refused, error 12") as caught:
            await admin.alter_group_offsets("g", {("u", 0): 6})
        assert caught.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE


async def test_an_answer_about_other_partitions(autojump_clock: MockClock) -> None:
    """Nobody knows what was done."""
    async with open_registry() as (registry, admin):
        registry.bureau.lie(OffsetCommit, OffsetCommitReply())
        with pytest.raises(OutcomeUnknown, match="answered for others"):
            await admin.alter_group_offsets("g", {("u", 0): 6})


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"offsets": {}}, InvalidRequest, "no partition given"),
    ({"offsets": [("u", 0)]}, TypeError, "expected a mapping"),
    ({"offsets": {"u": 0}}, InvalidRequest, "expected a pair like"),
    ({"offsets": {("u", 0): "5"}}, TypeError, "expected int"),
    ({"offsets": {("u", 0): -1}}, InvalidRequest, "offsets begin at 0"),
    ({"offsets": {("u", -1): 1}}, InvalidRequest, "counted from 0"),
    ({"offsets": {("u", 2): 1}}, UnknownTopicOrPartition, "has 2 partitions.*there is no 2"),
    ({"offsets": {("no", 0): 1}}, UnknownTopicOrPartition, "there is no topic 'no'"),
    ({"offsets": {("u", 0): 1}, "expected": {("u", 1): 1}}, InvalidRequest, "expected names"),
    ({"offsets": {("u", 0): 1}, "expected": {("u", 0): "x"}}, TypeError, "expected int"),
]


@pytest.mark.parametrize(("arguments", "error", "told"), WRONG)
async def test_what_is_refused_here(
    arguments: dict[str, Any], error: type[Exception], told: str, autojump_clock: MockClock
) -> None:
    """Nothing is sent to a coordinator."""
    async with open_registry() as (registry, admin):
        with pytest.raises(error, match=told):
            await admin.alter_group_offsets("g", **arguments)
        assert registry.bureau.count(OffsetCommit) == 0


# -- forgotten ---------------------------------------------------------------------------------


async def test_offsets_are_forgotten(autojump_clock: MockClock) -> None:
    """Also those of a topic that was deleted; what is not there is gone."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {("u", 0): 5, ("u", 1): 6, ("t", 0): 7})
        gone = registry.world.topics.pop("t").topic_id.hex()
        registry.world.version += 1
        await admin.delete_group_offsets("g", [("u", 0), (gone, 0), (gone, 5)])
        assert registry.committed("g") == {("u", 1): 6}


async def test_a_deletion_bears_what_was_seen(autojump_clock: MockClock) -> None:
    """It looks anew before each attempt, and says under which epoch it saw which change last. If
    the group has changed since, nothing is deleted, and nobody asks again by himself."""
    async with open_registry() as (registry, admin):
        registry.add("g")
        registry.commit("g", {("u", 0): 5})
        registry.seen = iter([(7, 30), (8, 2), (8, 5)])
        registry.errors = [ErrorCode.NOT_COORDINATOR]
        await admin.delete_group_offsets("g", [("u", 0)])
        asked = registry.bureau.asked(OffsetDelete)
        assert [(one.slot_epoch, one.last_change) for one in asked] == [(7, 30), (8, 2)]
        registry.errors = [ErrorCode.INVALID_UPDATE_VERSION]
        with pytest.raises(InvalidUpdateVersion):
            await admin.delete_group("g")
        (one,) = registry.bureau.asked(DeleteGroups)
        assert (one.slot_epoch, one.last_change) == (8, 5)


async def test_a_deletion_that_cannot_look(autojump_clock: MockClock) -> None:
    """Then certainly nothing was deleted."""
    async with open_registry() as (registry, admin):
        registry.bureau.instead[1, OffsetFetch] = OffsetFetchReply(
            ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        with pytest.raises(RaftmqError) as caught:
            await admin.delete_group_offsets("g", [("u", 0)])
        assert caught.value.definite
        assert registry.bureau.count(OffsetDelete) == 0


async def test_offsets_of_a_topic_that_never_was(autojump_clock: MockClock) -> None:
    """A name that was mistyped is no id, even where it looks like one."""
    async with open_registry() as (registry, admin):
        for name in ("no", "abcd"):
            with pytest.raises(UnknownTopicOrPartition, match=f"there is no topic '{name}'"):
                await admin.delete_group_offsets("g", [(name, 0)])
        assert registry.bureau.count(OffsetDelete) == 0


async def test_offsets_that_stay(autojump_clock: MockClock) -> None:
    """All of them, or some: then the others are gone, and the error says so."""
    async with open_registry() as (registry, admin):
        registry.commit("g", {("u", 0): 5, ("u", 1): 6})
        refused = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        registry.errors = [refused, refused]
        with pytest.raises(RaftmqError, match="group g: u-0; group g: u-1") as caught:
            await admin.delete_group_offsets("g", [("u", 0), ("u", 1)])
        assert (caught.value.code, caught.value.definite) == (refused, True)
        registry.errors = [ErrorCode.NONE, refused]
        with pytest.raises(OutcomeUnknown, match=r"1 partition was changed, others.*u-1"):
            await admin.delete_group_offsets("g", [("u", 0), ("u", 1)])
        assert registry.committed("g") == {("u", 1): 6}


async def test_an_answer_about_the_offsets_of_others(autojump_clock: MockClock) -> None:
    """It says nothing of ours."""
    async with open_registry() as (registry, admin):
        registry.bureau.lie(OffsetDelete, OffsetCommitReply())
        with pytest.raises((OutcomeUnknown, ServerError), match="answered for others"):
            await admin.delete_group_offsets("g", [("u", 0)])


# -- beyond the end ----------------------------------------------------------------------------


async def test_offsets_beyond_the_end(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They are committed as they are, and a warning names each of them."""
    async with open_registry() as (registry, admin):
        await admin.alter_group_offsets("g", {("u", 0): 11, ("u", 1): 5})
        assert registry.committed("g") == {("u", 0): 11, ("u", 1): 5}
        (warning,) = [one for one in caplog.records if one.levelname == "WARNING"]
        told = "group g: u-0: offset 11 is committed, beyond the end of the log, 10: a consumer"
        assert warning.getMessage().startswith(told)


async def test_an_end_that_nobody_knows(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it for long."""
    async with open_registry() as (registry, admin):
        registry.world.lead("u", 0, -1)
        begin = anyio.current_time()
        await admin.alter_group_offsets("g", {("u", 0): 11})
        assert anyio.current_time() - begin < 3
        assert registry.committed("g") == {("u", 0): 11}
    assert "beyond" not in caplog.text
