"""Fetches of records that lie on a slow disk: answered in time, and nothing stays behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.wire.messages.fetch import NEW_SESSION, WITHOUT_SESSION, Fetch
from tests.unit.broker.consuming import Parked, ask, leading, values_in
from tests.unit.broker.copying import CLIENT, alone, body_of, want
from tests.unit.partition.replica_world import settle
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.broker.copying import Copier


def make_cold(broker: Copier, replica: Replica, seconds: float) -> None:
    """Each look at the records waits so long for the disk."""
    replica.log.active._known.clear()
    broker.files.cold, broker.disk.seconds = True, seconds


async def append_for_ever(replica: Replica, pause_seconds: float) -> NoReturn:
    """Where each one lies has to be looked up in the file."""
    while True:
        replica.append(batch(b"n"), acks=1)
        replica.log.active._known.clear()
        await trio.sleep(pause_seconds)


def ask_late(broker: Copier, session_id: int, number: int, wait_ms: int = 9000) -> None:
    """One request of a session, whose answer nobody looks at."""
    wanted = (want(1),) if number != WITHOUT_SESSION else ()
    request = Fetch(wait_ms, 1, 1 << 20, session_id, number, partitions=wanted)
    broker.fetching.fetch(CLIENT, request, b"")


async def test_a_slow_first_look_keeps_the_deadline(autojump_clock: MockClock) -> None:
    """The disk has answered, there is too little, and nothing more is ever appended."""
    async with alone() as broker:
        replica = await leading(broker, b"a", b"b")
        make_cold(broker, replica, 0.1)
        parked = Parked()
        with trio.fail_after(100):
            await parked.run(ask(broker, want(1), wait_ms=500, bytes_min=9999))
        assert parked.ended_at == pytest.approx(0.5)
        assert values_in(parked.replies[0]) == [b"b"]


async def test_records_that_come_while_the_disk_is_read_put_nothing_off(
    autojump_clock: MockClock,
) -> None:
    """A consumer that lags, of a partition to which somebody appends faster than the disk reads."""
    async with alone() as broker, trio.open_nursery() as nursery:
        replica = await leading(broker, b"a", b"b")
        make_cold(broker, replica, 0.01)
        nursery.start_soon(append_for_ever, replica, 0.005)
        with trio.fail_after(30):
            reply = await ask(broker, want(0, bytes_max=100), wait_ms=500)
        assert values_in(reply) == [b"a"]
        nursery.cancel_scope.cancel()


async def test_looks_that_nobody_waits_for_do_not_pile_up(autojump_clock: MockClock) -> None:
    """The disk hangs, and each request ends the one before it."""
    async with alone() as broker:
        replica = await leading(broker, b"a", b"b")
        session_id = body_of(await ask(broker, session=(0, NEW_SESSION))).session_id
        make_cold(broker, replica, 60.0)
        before = trio.lowlevel.current_statistics().tasks_living
        for number in range(1, 21):
            ask_late(broker, session_id, number)
            await wait_all_tasks_blocked()
        assert broker.disk.calls > 20, "nobody asked the disk"
        assert trio.lowlevel.current_statistics().tasks_living - before == 1


async def test_a_session_that_has_ended_watches_nothing(autojump_clock: MockClock) -> None:
    """Of two requests at once the first has to wait for the disk, the second leaves the session."""
    async with alone() as broker:
        replica = await leading(broker, b"a", b"b")
        session_id = body_of(await ask(broker, want(1), session=(0, NEW_SESSION))).session_id
        make_cold(broker, replica, 1.0)
        ask_late(broker, session_id, 1)
        ask_late(broker, session_id, WITHOUT_SESSION, wait_ms=0)
        await settle(2)
        assert len(broker.fetching.sessions) == 0
        assert len(replica.watchers) == 0
