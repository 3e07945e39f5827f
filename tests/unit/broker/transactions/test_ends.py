"""Transaction ids at their coordinator: opened, ended, taken over, forgotten, listed.

A11.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.transactions import requests, slots
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import EndTransactions, FeatureLevel, OpenTransaction
from raftmq.metadata.image import slot_of
from raftmq.model import AbortReason
from raftmq.wire.messages.group_offsets import OffsetToCommit
from raftmq.wire.messages.producers import InitProducerId
from raftmq.wire.messages.transactions import (
    DescribeTransactions,
    ForgetTransaction,
    GroupOffsets,
    ListTransactions,
)
from tests.unit.broker.asking import ORDERS
from tests.unit.broker.groups.coordinating import ELSEWHERE, GROUP, NOW_MS, settle, stable
from tests.unit.broker.transactions.transacting import (
    ID,
    OTHER_ID,
    OTHER_OWNER,
    TIMEOUT_MS_MAX,
    end_of,
    open_of,
    transacting,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.groups.coordinating import Asked


def offsets_of(offset: int, *, group: str = GROUP, **more: object) -> GroupOffsets:
    return GroupOffsets(group, offsets=(OffsetToCommit(ORDERS, 0, offset),), **more)  # type: ignore[arg-type]


def many_offsets(count: int, metadata: str = "") -> tuple[OffsetToCommit, ...]:
    return tuple(OffsetToCommit(ORDERS, each, 1, metadata=metadata) for each in range(count))


# -- Opening --------------------------------------------------------------------------------------


async def test_an_id_is_opened(autojump_clock: MockClock) -> None:
    """A producer id and epoch 0; the same again gets the same; with another opening the next."""
    async with transacting() as here:
        first = await here.opened(transaction_timeout_ms=5_000)
        assert (first.producer_epoch, first.transaction_timeout_ms) == (0, 5_000)
        assert (first.last_version, first.last_count) == (-1, -1)
        assert await here.opened() == first
        again = await here.opened(opening=2)
        assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)
        late = await here.open(opening=1)
        assert late.error == ErrorCode.INVALID_PRODUCER_EPOCH
        row = here.row()
        assert row is not None
        assert row.changed_at_ms == NOW_MS


async def test_a_producer_without_an_id_is_no_matter_of_the_coordinator(
    autojump_clock: MockClock,
) -> None:
    """It gets an id of a block."""
    async with transacting() as here:
        assert (await here.ask(InitProducerId())).producer_id == 77
        assert not here.log(OpenTransaction)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"owner": b"short"}, ErrorCode.INVALID_REQUEST, "owner of 5 bytes"),
        (
            {"transaction_timeout_ms": 999},
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            "999 ms, allowed are 1000 to 900000",
        ),
        (
            {"transaction_timeout_ms": TIMEOUT_MS_MAX + 1},
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            "(transactions.timeout_ms_max of the brokers)",
        ),
        ({"name": OTHER_ID}, ErrorCode.NOT_COORDINATOR, f"transaction {OTHER_ID}: broker 2"),
    ],
)
async def test_what_cannot_be_opened(
    more: dict[str, object], code: ErrorCode, words: str, autojump_clock: MockClock
) -> None:
    """Refused with what is wrong and allowed, and nothing is asked of the quorum."""
    async with transacting() as here:
        reply = await here.open(**more)  # type: ignore[arg-type]
        assert reply.error == code
        assert words in reply.message
        assert not here.log(OpenTransaction)


async def test_new_ids_are_refused_before_there_are_too_many(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are known are still opened."""
    async with transacting() as here:
        await here.opened()
        monkeypatch.setattr(slots, "NEW_IDS_MAX", 1)
        await here.opened(opening=2)
        await here.give(2, OTHER_ID)
        await settle()
        reply = await here.open(OTHER_ID)
        assert reply.error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert "forget ids that nobody needs" in reply.message


async def test_an_older_node_is_in_the_way(autojump_clock: MockClock) -> None:
    """Below its feature level nothing is begun, and the refusal says what to do."""
    async with transacting(level=FeatureLevel.LOG_STARTS) as here:
        for request in (
            open_of(),
            end_of(await here.ask(InitProducerId())),
            ForgetTransaction(ID),
        ):
            reply = await here.ask(request)
            assert reply.error == ErrorCode.UNSUPPORTED_VERSION
            assert "upgrade brokers [1, 2, 3]" in reply.message


# -- Ending ---------------------------------------------------------------------------------------


async def test_a_commit_is_decided_with_its_offsets(autojump_clock: MockClock) -> None:
    """One command decides it, moves the offsets, and begins the next epoch; the time of the
    offsets is the coordinator's."""
    async with transacting() as here:
        opened = await here.opened()
        reply = await here.end(opened, partitions=[0, 1], groups=(offsets_of(7),))
        assert (reply.error, reply.is_committed, reply.is_repeated) == (0, True, False)
        assert (reply.producer_id, reply.producer_epoch) == (opened.producer_id, 1)
        (command,) = here.log(EndTransactions)
        assert len(command.ends) == 1
        found = here.cluster.leader.image.offsets[GROUP][ORDERS, 0]
        assert (found.offset, found.committed_at_ms) == (7, NOW_MS)


async def test_ends_gather_while_one_is_under_way(autojump_clock: MockClock) -> None:
    """Five ids of one slot: one command, then one for the rest. A group's commits are in the other
    line, and wait for neither."""
    numbered = (f"id-{number}" for number in range(2_000))
    names = [name for name in numbered if slot_of(name) == slot_of(ID)][:5]
    async with transacting(*names) as here:
        opened = {name: await here.opened(name) for name in names}
        here.cluster.delay_seconds = 1.0
        asked: list[Asked] = []
        async with trio.open_nursery() as nursery:
            for name in names:
                one = here.begin(end_of(opened[name], name=name))
                asked.append(one)
                nursery.start_soon(one.answer)
                await settle()
        assert [len(command.ends) for command in here.log(EndTransactions)] == [1, 4]
        assert all(one.body.is_committed for one in asked)


async def test_a_large_end_goes_alone(autojump_clock: MockClock) -> None:
    """As large as the limits allow: in one command, and others of the line before and after it."""
    numbered = (f"id-{number}" for number in range(5_000))
    names = [name for name in numbered if slot_of(name) == slot_of(ID)][:4]
    async with transacting(*names, partition_count=300) as here:
        opened = {name: await here.opened(name) for name in names}
        here.cluster.delay_seconds = 1.0
        async with trio.open_nursery() as nursery:
            for name in names:
                is_large = name == names[2]
                groups = (GroupOffsets(GROUP, offsets=many_offsets(5_000)),) if is_large else ()
                partitions = range(2_000) if is_large else range(1)
                request = end_of(opened[name], name=name, partitions=partitions, groups=groups)
                nursery.start_soon(here.begin(request).answer)
                await settle()
        assert [len(command.ends) for command in here.log(EndTransactions)] == [1, 1, 1, 1]
        replies = [await here.end(opened[name], name=name) for name in names]
        assert [one.is_committed for one in replies] == [True] * 4


async def test_a_retry_is_told_the_same(autojump_clock: MockClock) -> None:
    """Also of another coordinator: what was decided is in the metadata."""
    async with transacting() as here:
        opened = await here.opened()
        first = await here.end(opened)
        second = await here.end(opened)
        assert (second.is_committed, second.is_repeated) == (True, True)
        assert second.producer_epoch == first.producer_epoch == 1
        await here.give(ELSEWHERE)
        await here.give(2, ID)
        await settle()
        assert (await here.end(opened)).is_committed


async def test_a_commit_that_finds_an_abort_is_told_so(autojump_clock: MockClock) -> None:
    """The leader was first: the commit hears that nothing counts, and why (retry_hears_done)."""
    async with transacting() as here:
        opened = await here.opened()
        leader = end_of(opened, owner=b"", is_commit=False, reason=AbortReason.TIMEOUT)
        assert not (await here.ask(leader)).is_committed
        reply = await here.end(opened, partitions=[0])
        assert (reply.error, reply.is_committed) == (ErrorCode.NONE, False)
        assert reply.reason == AbortReason.TIMEOUT
        assert (reply.is_repeated, reply.producer_epoch) == (True, 1)
        row = here.row()
        assert row is not None
        assert not row.settling


async def test_the_owner_before_is_fenced(autojump_clock: MockClock) -> None:
    """Another producer has opened the id: the one before commits nothing."""
    async with transacting() as here:
        before = await here.opened()
        after = await here.opened(owner=OTHER_OWNER)
        forged = end_of(after)
        assert (await here.ask(forged)).error == ErrorCode.PRODUCER_FENCED
        assert not (await here.end(before)).is_committed
        assert (await here.end(after, owner=OTHER_OWNER)).is_committed


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({"owner": b""}, ErrorCode.INVALID_REQUEST, "only the producer that opened it"),
        ({"partitions": [0, 0]}, ErrorCode.INVALID_REQUEST, "a partition is named twice"),
        ({"groups": (offsets_of(1), offsets_of(2))}, ErrorCode.INVALID_REQUEST, "a group is named"),
        ({"is_commit": False, "partitions": [0]}, ErrorCode.INVALID_REQUEST, "an abort names"),
        ({"groups": (offsets_of(1, group=""),)}, ErrorCode.INVALID_GROUP_ID, "1 to 200"),
        (
            {"groups": (GroupOffsets(GROUP, offsets=(OffsetToCommit(ORDERS, 0, 1, expected=0),)),)},
            ErrorCode.INVALID_REQUEST,
            "expect none",
        ),
        (
            {
                "groups": (
                    GroupOffsets(
                        GROUP, offsets=(OffsetToCommit(ORDERS, 0, 1, metadata="é" * 4_000),)
                    ),
                )
            },
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            "more than 4096 bytes",
        ),
        (
            {
                "groups": (
                    GroupOffsets(GROUP, offsets=many_offsets(5_000)),
                    offsets_of(1, group="b"),
                )
            },
            ErrorCode.INVALID_REQUEST,
            "5001 offsets, at most 5000: commit more often",
        ),
        (
            {"groups": (GroupOffsets(GROUP, offsets=many_offsets(300, metadata="m" * 4_000)),)},
            ErrorCode.INVALID_REQUEST,
            "or with less metadata",
        ),
    ],
)
async def test_what_no_end_may_ask(
    more: dict[str, object], code: ErrorCode, words: str, autojump_clock: MockClock
) -> None:
    """Refused on arrival; the transaction stays open, and is committed then."""
    async with transacting() as here:
        opened = await here.opened()
        reply = await here.end(opened, **more)
        assert reply.error == code, reply.message
        assert words in reply.message
        assert not here.log(EndTransactions)
        assert (await here.end(opened)).is_committed


async def test_a_member_of_before_commits_no_offsets(autojump_clock: MockClock) -> None:
    """The group's generation is compared when the command is applied; the transaction stays
    open, and its program may abort it."""
    async with transacting(ID, GROUP) as here:
        (member,) = await stable(here, 1)
        opened = await here.opened()
        old = offsets_of(3, generation=member.generation - 1, member_id=member.member_id)
        reply = await here.end(opened, groups=(old,))
        assert reply.error == ErrorCode.ILLEGAL_GENERATION
        now = offsets_of(3, generation=member.generation, member_id=member.member_id)
        assert (await here.end(opened, groups=(now,))).is_committed


async def test_an_outcome_that_does_not_come_in_time(autojump_clock: MockClock) -> None:
    """The quorum takes it after the client's time: the client hears that it is not known, and asks
    again."""
    async with transacting() as here:
        opened = await here.opened()
        here.cluster.delay_seconds = 2.0
        reply = await here.end(opened, timeout_ms=1_000)
        assert reply.error == ErrorCode.REQUEST_TIMED_OUT
        again = await here.end(opened, timeout_ms=10_000)
        assert (again.is_committed, again.is_repeated) == (True, True)


async def test_a_lost_answer_of_the_quorum(autojump_clock: MockClock) -> None:
    """The command is asked again under its id, and told what became of it."""
    async with transacting() as here:
        opened = await here.opened()
        here.cluster.lose_answers(1, applied=True)
        reply = await here.end(opened)
        assert (reply.is_committed, reply.producer_epoch) == (True, 1)


async def test_a_slot_that_is_lost(autojump_clock: MockClock) -> None:
    """An end that was not sent is refused for certain."""
    async with transacting() as here:
        opened = await here.opened()
        here.link.is_cut = True
        asked = here.begin(end_of(opened))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.answer)
            await settle()
            await here.give(ELSEWHERE, ID)
        assert asked.body.error in (ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT)
        assert (await here.end(opened)).error == ErrorCode.NOT_COORDINATOR


async def test_the_log_counts_what_was_decided(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One line a minute, with what is not settled; none while nothing happens."""
    caplog.set_level("INFO", "raftmq.broker")
    async with transacting() as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.transactions.requests.run)
        here.leaders.unsettled.add((ORDERS, 0))
        reply = await here.end(await here.opened(), partitions=[0])
        reply = await here.end(reply)
        await here.end(reply, is_commit=False)
        await here.end(reply, is_commit=False)
        await trio.sleep(requests.SUMMARY_SECONDS + 1)
        here.leaders.unsettled.clear()
        await trio.sleep(5 * requests.SUMMARY_SECONDS)
        lines = [each.message for each in caplog.records if "transactions:" in each.message]
        # Seen by a round of questions, half a second after it was decided.
        assert lines == [
            "transactions: aborted_program=1 committed=2 unsettled=1 oldest_seconds=59.5"
        ]
        nursery.cancel_scope.cancel()


# -- Forget, describe, list -----------------------------------------------------------------------


async def test_an_id_is_forgotten(autojump_clock: MockClock) -> None:
    """By hand; its producer has to open it again."""
    async with transacting() as here:
        opened = await here.opened()
        assert (await here.ask(ForgetTransaction(ID))).error == ErrorCode.NONE
        assert here.row() is None
        told = await here.ask(ForgetTransaction(ID))
        assert told.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await here.end(opened)).error != ErrorCode.NONE


async def test_an_unsettled_id_is_forgotten_only_by_force(autojump_clock: MockClock) -> None:
    """Readers would see a part of the commit: refused, unless the operator says so."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 0))
        await here.end(await here.opened(), partitions=[0, 1])
        reply = await here.ask(ForgetTransaction(ID, timeout_ms=4_000))
        assert reply.error == ErrorCode.INVALID_TXN_STATE
        assert "1 commits are not settled yet" in reply.message
        reply = await here.ask(ForgetTransaction(ID, with_unsettled=True))
        assert reply.error == ErrorCode.NONE
        assert here.row() is None


async def test_a_settled_id_is_forgotten_though_the_metadata_list_its_commit(
    autojump_clock: MockClock,
) -> None:
    """Its leaders have called it settled a moment ago."""
    async with transacting() as here:
        await here.end(await here.opened(), partitions=[0, 1])
        assert (await here.ask(ForgetTransaction(ID))).error == ErrorCode.NONE
        assert here.row() is None


async def test_ids_are_described(autojump_clock: MockClock) -> None:
    """With the newest decision and what is not settled; one that nobody knows is told so."""
    async with transacting() as here:
        here.leaders.unsettled.add((ORDERS, 1))
        opened = await here.opened(transaction_timeout_ms=7_000)
        await here.end(opened, partitions=[1], transaction_version=4, count=9)
        found, unknown = (await here.ask(DescribeTransactions((ID, "nobody")))).transactions
        assert (found.producer_id, found.producer_epoch) == (opened.producer_id, 1)
        assert (found.timeout_ms, found.last_is_committed, found.last_epoch) == (7_000, True, 0)
        assert (found.last_version, found.last_count, found.unsettled) == (4, 9, 1)
        assert [one.partition for one in found.unsettled_partitions] == [1]
        assert unknown.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_ids_are_listed_in_pages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, by any broker, a page after the other; or those with something unsettled."""
    monkeypatch.setattr(requests, "DESCRIBED_MAX", 2)
    monkeypatch.setattr(requests, "SLICE", 2)
    names = ["a", "b", "c", "d", "e"]
    async with transacting(*names) as here:
        here.leaders.unsettled.add((ORDERS, 0))
        for name in reversed(names):
            opened = await here.opened(name)
            if name in "bd":
                await here.end(opened, name=name, partitions=[0])
        assert await listed(here) == names
        assert await listed(here, only_unsettled=True) == ["b", "d"]


async def listed(here: object, **more: bool) -> list[str]:
    found: list[str] = []
    after = ""
    while True:
        page = await here.ask(ListTransactions(after, **more))  # type: ignore[attr-defined]
        found += [one.transaction_id for one in page.transactions]
        after = page.next_after
        if not after:
            return found
