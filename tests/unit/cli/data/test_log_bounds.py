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
    LogBounds,
    check_all_read,
    find_bounds,
    give_up_silent,
)
from raftmq.cli.data.record_format import write_values
from raftmq.cli.main import main
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.client.consumer.consumer import Consumer
from tests.unit.client.administration.bureau import open_bureau
from tests.unit.client.administration.served import serve_bureau
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
        found = await find_bounds(admin, ["a"])
        assert LEADER_SECONDS_MAX <= trio.current_time() - begin < LEADER_SECONDS_MAX + 2
        assert found.bounds == {FIRST: LogBounds(0, 1), ("a", 2): LogBounds(0, 1)}
        assert found.silent == {SECOND: "no leader"}
        assert (await find_bounds(admin, ["a"], [2])).silent == {}


async def test_a_leader_that_is_dead(autojump_clock: MockClock) -> None:
    """The cluster has not noticed it yet: the reason names the broker."""
    async with open_bureau(prepare) as (bureau, admin):
        bureau.world.lead("a", 1, 2)
        bureau.world.network.cut_both("client", "b2")
        found = await find_bounds(admin.with_timeout(30), ["a"])
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
        found = await find_bounds(admin, ["a"], is_patient=is_patient)
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
        check_all_read({SECOND: "no leader", ("b", 7): "dead", FIRST: "no leader"})
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert str(caught.value) == (
        "not read to the end: b 7 (dead); a 0-1 (no leader);"
        " `raftmq cluster health` shows how the cluster is"
    )


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the one broker listens; nobody waits for the leader that is missing."""
    monkeypatch.setattr("raftmq.cli.data.log_bounds.LEADER_SECONDS_MAX", 0.0)
    monkeypatch.setattr("raftmq.cli.data.log_bounds.ALL_SECONDS_MAX", 0.0)
    with serve_bureau(prepare) as (_, address):
        yield str(address)


NOT_READ = "raftmq: not read to the end: a 1 (no leader); `raftmq cluster health` shows how"


@pytest.mark.parametrize(
    ("line", "lines", "exit_code"),
    [
        ("a -e", 2, 5),
        ("a -e -o @0", 2, 5),
        ("a -e -p 1", 0, 5),
        ("a -e -p 0", 1, 0),
        ("a -e -n 2", 2, 0),
        ("a -o -1", 0, 5),
    ],
)
def test_consume_until_the_end(
    line: str, lines: int, exit_code: int, bootstrap: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What can be read is printed; then stderr names the partition and the reason."""
    with pytest.raises(SystemExit) as ended:
        main(["-b", bootstrap, "consume", *line.split()])
    out, err = capfd.readouterr()
    assert (ended.value.code, out) == (exit_code, "x\n" * lines)
    assert err.startswith(NOT_READ if exit_code else "")
    assert err.count("\n") == (exit_code > 0)
