"""Which transaction ids are forgotten: for their age, or as there are too many.

A11.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from msgspec.structs import replace

from raftmq.broker.transactions import expiry
from raftmq.broker.transactions.expiry import (
    CROWDED_SECONDS,
    DAY_MS,
    EPHEMERAL_MS,
    HOUR_MS,
    IDLE_MS,
    LOOK_SECONDS,
    NAMED_MS,
    VERSIONS_MS,
    is_left_open,
    is_old,
    makes_room,
)
from raftmq.metadata.commands import DeleteTransactions
from raftmq.metadata.image import SharedVersions, TransactionState, UnsettledCommit
from raftmq.model import AbortReason
from raftmq.wire.messages.transactions import JoinTransaction
from tests.unit.broker.asking import ORDERS
from tests.unit.broker.groups.coordinating import ELSEWHERE, NOW_MS, settle
from tests.unit.broker.transactions.transacting import ID, OTHER_ID, end_of, transacting

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.transactions.transacting import Transacting

UNSETTLED = (UnsettledCommit(1, 1, ((ORDERS, 0),), 1),)


def state(**more: object) -> TransactionState:
    return TransactionState(1, 2, b"w" * 16, 1, 60_000, changed_at_ms=NOW_MS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "age_ms"),
    [
        (state(), 7 * DAY_MS),
        (state(is_ephemeral=True), HOUR_MS),
        (state(last_version=0), 90 * DAY_MS),
        (state(last_version=0, is_ephemeral=True), 90 * DAY_MS),
        (state(last_version=0, shared=SharedVersions("")), 90 * DAY_MS),
        (state(last_version=0, is_ephemeral=True, shared=SharedVersions("")), HOUR_MS),
    ],
)
def test_ids_have_an_age(row: TransactionState, age_ms: int) -> None:
    """A week; an hour if nobody opens it again; ninety days if it has committed versions."""
    assert is_old(row, NOW_MS + age_ms)
    assert not is_old(row, NOW_MS + age_ms - 1)


def test_an_unsettled_id_stays() -> None:
    """However old it is, and however crowded: its commits would be torn."""
    row = state(settling=UNSETTLED)
    assert not is_old(row, NOW_MS + 1_000 * DAY_MS)
    assert not makes_room(row, NOW_MS + 1_000 * DAY_MS)


def test_only_idle_ids_make_room() -> None:
    """Idle beyond the timeout: then nothing is open under it. Versions are never lost for room."""
    assert makes_room(state(), NOW_MS + 60_000 + IDLE_MS)
    assert not makes_room(state(), NOW_MS + 60_000 + IDLE_MS - 1)
    assert not makes_room(state(last_version=3), NOW_MS + DAY_MS)


def test_a_version_that_is_open_is_not_forgotten() -> None:
    """It is aborted first, an hour after its time, however long that is."""
    open_one = SharedVersions("", 0, 8_192, 1)
    row = replace(state(is_ephemeral=True, shared=open_one), timeout_ms=4 * HOUR_MS)
    for age_ms in (HOUR_MS, 5 * HOUR_MS - 1):
        assert not is_old(row, NOW_MS + age_ms)
        assert not makes_room(row, NOW_MS + age_ms)
        assert not is_left_open(row, NOW_MS + age_ms)
    assert is_left_open(row, NOW_MS + 5 * HOUR_MS)


async def known(here: Transacting) -> set[str]:
    await settle()
    return set(here.cluster.leader.image.transactions)


async def test_old_ids_are_forgotten(autojump_clock: MockClock) -> None:
    """One that has changed since it was seen stays, as the command says what was seen."""
    async with transacting(ID, OTHER_ID) as here:
        await here.opened()
        await here.opened(OTHER_ID, is_ephemeral=True)
        here.now_ms += EPHEMERAL_MS
        await here.transactions.expiry.look()
        assert await known(here) == {ID}
        here.now_ms = NOW_MS + NAMED_MS
        here.cluster.delay_seconds = 1.0
        asked = here.begin(end_of(await here.opened()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.answer)
            await settle()
            await here.transactions.expiry.look()
        await trio.sleep(2)
        assert len(here.log(DeleteTransactions)) == 2
        assert await known(here) == {ID}


async def test_a_clock_that_nobody_confirms(autojump_clock: MockClock) -> None:
    """Nothing is forgotten by it."""
    async with transacting() as here:
        await here.opened()
        here.now_ms += VERSIONS_MS
        here.is_clock_confirmed = False
        await here.transactions.expiry.look()
        assert await known(here) == {ID}


async def test_ids_of_other_coordinators_are_their_matter(autojump_clock: MockClock) -> None:
    """This broker asks for those of its slots only."""
    async with transacting(ID, OTHER_ID) as here:
        await here.opened()
        await here.opened(OTHER_ID)
        await here.give(ELSEWHERE, OTHER_ID)
        await settle()
        here.now_ms += NAMED_MS
        await here.transactions.expiry.look()
        assert await known(here) == {OTHER_ID}


async def test_idle_ids_make_room_for_new_ones(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ephemeral ones before others, the oldest first, and no more than needed."""
    monkeypatch.setattr(expiry, "CROWDED", 4)
    names = ["old", "new", "old-named", "new-named", "versions", "busy"]
    async with transacting(*names) as here:
        for at, name in enumerate(names):
            here.now_ms = NOW_MS + at
            is_ephemeral = not name.endswith("named")
            opened = await here.opened(name, is_ephemeral=is_ephemeral)
            if name == "versions":
                await here.end(opened, name=name, transaction_version=1)
        here.now_ms = NOW_MS + 10 * IDLE_MS
        await here.end(await here.opened("busy", opening=2), name="busy")
        await here.transactions.expiry.look()
        assert await known(here) == {"old-named", "new-named", "versions", "busy"}
        await here.opened("old")
        monkeypatch.setattr(expiry, "CROWDED", 3)
        await here.transactions.expiry.look()
        assert await known(here) == {"versions", "busy", "old"}


async def test_when_ids_are_looked_at(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every ten minutes for their age; where there are too many, every ten seconds."""
    async with transacting() as here, trio.open_nursery() as nursery:
        nursery.start_soon(here.transactions.expiry.run)
        await here.opened()
        here.now_ms += NAMED_MS
        await trio.sleep(LOOK_SECONDS - 1)
        assert await known(here) == {ID}
        await trio.sleep(CROWDED_SECONDS + 1)
        assert await known(here) == set()
        await here.opened(opening=2)
        monkeypatch.setattr(expiry, "CROWDED", 0)
        here.now_ms += HOUR_MS
        await trio.sleep(CROWDED_SECONDS + 1)
        assert await known(here) == set()
        nursery.cancel_scope.cancel()


async def test_a_version_that_nobody_writes_is_aborted(autojump_clock: MockClock) -> None:
    """A14.3: no leader is held up by members that never wrote; lower versions would be refused."""
    async with transacting(ID, OTHER_ID) as here:
        for name in (ID, OTHER_ID):
            await here.ask(JoinTransaction(name, "", 7, 60_000))
        here.now_ms += 60_000 + HOUR_MS - 1
        await here.ask(JoinTransaction(OTHER_ID, "", 7, 60_000))
        here.now_ms += 1
        await here.transactions.expiry.look()
        await settle()
        row, other = here.row(), here.row(OTHER_ID)
        assert row is not None
        assert row.shared == SharedVersions("")
        assert row.last is not None
        assert row.last.reason == AbortReason.TIMEOUT
        assert other is not None
        assert other.shared is not None
        assert other.shared.open_version == 7
        reply = await here.ask(JoinTransaction(ID, "", 6, 60_000))
        assert not reply.error
