"""Up to the ends of what can be read: partitions whose leaders are dead are left out, and named."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.cli.data.consume_run import Range, RemainingRecords, write_all
from raftmq.cli.data.log_bounds import (
    ALL_SECONDS_MAX,
    LEADER_SECONDS_MAX,
    STUCK_SECONDS,
    LogBounds,
    check_all_read,
    find_bounds,
    give_up_silent,
)
from raftmq.cli.data.record_format import write_values
from raftmq.cli.main import main
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.client.consumer.consumer import Consumer
from raftmq.wire.batch.control import ControlType
from raftmq.wire.messages.configs import DescribeConfigs
from raftmq.wire.messages.offsets import ListOffsets
from tests.unit.client.administration.bureau import open_bureau
from tests.unit.client.administration.served import serve_bureau
from tests.unit.client.transactions_in_logs import in_transaction, marker
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trio.testing import MockClock

    from raftmq.cli.data.log_bounds import Key
    from tests.unit.client.administration.bureau import Bureau

FIRST, SECOND = ("a", 0), ("a", 1)


def prepare(bureau: Bureau) -> None:
    """Topic "a" has three partitions with a record each; the second one has no leader."""
    for partition in bureau.world.add_topic("a", 1, -1, 1).partitions:
        partition.append(batch("x"))


# -- bounds ------------------------------------------------------------------------------------


async def test_a_partition_without_a_leader(autojump_clock: MockClock) -> None:
    """It is waited for during some seconds; the bounds of the others are found."""
    async with open_bureau(prepare) as (_, admin):
        begin = trio.current_time()
        found = await find_bounds(admin, {"a": ()})
        assert LEADER_SECONDS_MAX <= trio.current_time() - begin < LEADER_SECONDS_MAX + 2
        assert found.bounds == {FIRST: LogBounds(0, 1), ("a", 2): LogBounds(0, 1)}
        assert found.silent == {SECOND: "no leader"}


async def test_leaders_of_other_partitions(autojump_clock: MockClock) -> None:
    """They may be dead: nobody asks them, nor waits for them; nor for the configuration."""
    async with open_bureau(prepare) as (bureau, admin):
        assert await find_bounds(admin, {"a": [2]}) == ({("a", 2): LogBounds(0, 1)}, {})
        asked = [one.partition for body in bureau.asked(ListOffsets) for one in body.partitions]
        assert asked == [2, 2]  # start and end
        assert not bureau.count(DescribeConfigs)


async def test_records_that_come_while_a_leader_is_waited_for(autojump_clock: MockClock) -> None:
    """The ends are as they were when the command was called, and what is known is not asked
    again: that leader may die meanwhile, and its partition is not left out."""
    async with open_bureau(prepare) as (bureau, admin), trio.open_nursery() as nursery:

        async def change() -> None:
            await trio.sleep(1.0)
            bureau.world.topics["a"].partitions[0].append(batch("new"))
            bureau.world.lead("a", 0, -1)
            bureau.world.lead("a", 1, 2)

        nursery.start_soon(change)
        found = await find_bounds(admin, {"a": ()})
        assert found == ({(("a", n)): LogBounds(0, 1) for n in range(3)}, {})


async def test_a_leader_that_is_dead(autojump_clock: MockClock) -> None:
    """The cluster has not noticed it yet: the reason names the broker."""
    async with open_bureau(prepare) as (bureau, admin):
        bureau.world.lead("a", 1, 2)
        bureau.world.network.cut_both("client", "b2")
        found = await find_bounds(admin, {"a": ()})
        assert found.silent == {SECOND: "broker 2, the leader, does not answer"}
        assert len(found.bounds) == 2


@pytest.mark.parametrize("is_patient", [False, True])
async def test_a_leader_that_is_elected_meanwhile(
    is_patient: bool, autojump_clock: MockClock
) -> None:
    """A failover is waited for, and a longer one where no partition can be done without."""
    seconds_max = ALL_SECONDS_MAX if is_patient else LEADER_SECONDS_MAX
    async with open_bureau(prepare) as (bureau, admin), trio.open_nursery() as nursery:

        async def elect() -> None:
            await trio.sleep(seconds_max - 1)
            bureau.world.lead("a", 1, 2)

        nursery.start_soon(elect)
        found = await find_bounds(admin, {"a": ()}, is_patient=is_patient)
        assert found.silent == {}


# -- while it is read --------------------------------------------------------------------------


async def test_a_leader_that_dies_while_it_is_read(autojump_clock: MockClock) -> None:
    """What can be read is written, and it ends; a slow reader of stdout loses no partition."""
    lines: list[bytes] = []

    async def write(data: bytes) -> None:
        await trio.sleep(60)  # a slow reader
        lines.extend(data.splitlines())

    async with open_bureau(prepare) as (_, admin):
        extent = RemainingRecords({FIRST: Range(0, 1), SECOND: Range(0, 1)})
        options = {"assign": [FIRST, SECOND], "start": "earliest"}
        async with (
            Consumer(admin._cluster, (), options, random=Random(2)) as c,
            trio.open_nursery() as nursery,
        ):

            def positions() -> dict[Key, int | None]:
                return {key: c.position(*key) for key in extent.unread}

            nursery.start_soon(give_up_silent, admin, positions, extent.give_up)
            with trio.fail_after(120):
                await write_all(c, extent, write_values, write)
            nursery.cancel_scope.cancel()
        assert lines == [b"x"]
        assert extent.missed == {SECOND: "no leader"}


@pytest.mark.parametrize("is_reached", [False, True])
async def test_brokers_that_are_gone_while_it_is_read(
    is_reached: bool, autojump_clock: MockClock
) -> None:
    """No broker answers: what is not read by then is given up, in place of a raw error."""
    given: dict[Key, str] = {}
    async with open_bureau(prepare) as (bureau, admin), trio.open_nursery() as nursery:
        bureau.world.network.cut_both("client", "b1")
        bureau.world.network.cut_both("client", "b2")
        begin = trio.current_time()

        def positions() -> dict[Key, int | None]:
            is_late = trio.current_time() - begin > STUCK_SECONDS + 1
            return {FIRST: None} if is_reached and is_late else {FIRST: None, SECOND: 0}

        nursery.start_soon(give_up_silent, admin, positions, given.__setitem__)
        await trio.sleep(STUCK_SECONDS + ALL_SECONDS_MAX + 10)
        nursery.cancel_scope.cancel()
    why = "no broker answers"
    assert given == ({FIRST: why} if is_reached else {FIRST: why, SECOND: why})


def test_what_was_given_up() -> None:
    """It ends the extent; what comes nevertheless, or was not wanted any more, is not missed."""
    extent = RemainingRecords({FIRST: Range(0, 2)}, 3, {SECOND: "no leader"})
    assert not extent.is_over
    extent.give_up(FIRST, "dead")
    assert extent.is_over
    assert extent.missed == {FIRST: "dead", SECOND: "no leader"}
    extent.take(FIRST, [0, 1], 2)
    assert extent.missed == {SECOND: "no leader"}
    extent.take(("a", 2), [0], 1)
    assert extent.missed == {}
    assert RemainingRecords({}, None, {FIRST: "dead"}).is_over


def test_the_line_about_them() -> None:
    """Partitions of one reason stand together."""
    check_all_read({})
    with pytest.raises(CommandError) as caught:
        check_all_read(
            {SECOND: "no leader", ("b", 7): "dead", FIRST: "no leader", ("c", 0): "no leader"}
        )
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert str(caught.value) == (
        "not read to the end: dead (b 7); no leader (a 0-1; c 0);"
        " `raftmq cluster health` shows how the cluster is"
    )


def test_a_line_about_many() -> None:
    """Ten topics of a reason are named, the others counted; and it says what failed."""
    with pytest.raises(CommandError) as caught:
        check_all_read({(f"t{n:02}", 0): "dead" for n in range(13)}, "their ends are not known")
    assert str(caught.value).startswith("their ends are not known: dead (t00 0; t01 0; ")
    assert "; t09 0; and 3 more partitions); `raftmq" in str(caught.value)


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the one broker listens; nobody waits for the leader that is missing."""
    monkeypatch.setattr("raftmq.cli.data.log_bounds.LEADER_SECONDS_MAX", 0.0)
    monkeypatch.setattr("raftmq.cli.data.log_bounds.ALL_SECONDS_MAX", 0.0)
    # Also on a machine that stands still for a while, there is no line of its own about the wait.
    monkeypatch.setattr("raftmq.cli.clusters.wait_reason.FIRST_SECONDS", 600.0)
    with serve_bureau(prepare) as (_, address):
        yield str(address)


WHY = ": no leader (a 1); `raftmq cluster health` shows how"
NOT_READ = f"raftmq: not read to the end{WHY}"
NOT_KNOWN = f"raftmq: their ends are not known{WHY}"


@pytest.mark.parametrize(
    ("line", "lines", "said"),
    [
        ("a -e", 2, NOT_READ),
        ("a -e -o @0", 2, NOT_READ),
        ("a -e -p 1", 0, NOT_READ),
        ("a -e -p 0", 1, ""),
        ("a -e -n 2", 2, ""),
        ("a -o -1", 0, NOT_KNOWN),
    ],
)
def test_consume_until_the_end(
    line: str, lines: int, said: str, bootstrap: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What can be read is printed; then stderr names the partition and the reason."""
    with pytest.raises(SystemExit) as ended:
        main(["-b", bootstrap, "consume", *line.split()])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (5 if said else 0, "x\n" * lines)
    assert err.startswith(said)
    assert err.count("\n") == bool(said)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("", "a d"),
        ("-o -2", "d"),
        ("-o @0", "a d"),
        ("--isolation-level read_uncommitted", "a x d y"),
        ("--isolation-level read_uncommitted -o -1", "y"),
    ],
)
def test_up_to_an_open_transaction(
    line: str, printed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With -e a reader of committed records ends where a transaction is open, and does not print
    what was aborted (A11.3)."""

    def transact(bureau: Bureau) -> None:
        [log] = bureau.world.add_topic("a", 1).partitions
        for data in (
            batch("a"),
            in_transaction(7, "x"),
            marker(7, ControlType.ABORT),
            batch("d"),
            in_transaction(7, "y"),
        ):
            log.place(data)

    with serve_bureau(transact) as (_, address), pytest.raises(SystemExit) as ended:
        main(["-b", str(address), "consume", "a", "-e", *line.split()])
    assert (ended.value.code, capfd.readouterr().out.split()) == (0, printed.split())
