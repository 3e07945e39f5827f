"""`raftmq produce --transaction`: all of the input, or so many records, count together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.cli.data.produce_run import ProduceOrder, ProduceRun, order_of
from raftmq.errors import ErrorCode, TransactionAborted
from tests.unit.client.producer.shell import NOW_MS, in_log, open_stage
from tests.unit.client.scheduling.due import batches_in, due_in
from tests.unit.client.transactions.coordinator import committed_in, open_transactions
from tests.unit.client.world import refused

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from raftmq.client.client import Client

LINES = [f"{number:03}" for number in range(250)]


def order(path: Path, **given: Any) -> ProduceOrder:
    # Each line ends: one without an end is a record only when the file's end was read, in a thread,
    # which may come after a transaction has failed.
    path.write_text("".join(f"{line}\n" for line in LINES))
    plain: dict[str, Any] = {
        "key": None,
        "key_delimiter": None,
        "headers": (),
        "tags": (),
        "partition": None,
        "delay": None,
        "deliver_at": None,
        "files": (str(path),),
        "delimiter": r"\n",
        "is_null": False,
        "acks": "all",
        "compression": None,
        "preset": None,
        "max_request_size": None,
        "transaction": None,
        "transaction_records": None,
        "transaction_timeout": 60.0,
    }
    return order_of("t", 120.0, **{**plain, **given})


async def send(client: Client, run: ProduceRun, wanted: ProduceOrder) -> None:
    async with client.producer(**wanted.options) as producer, trio.open_nursery() as nursery:
        run._statistics = producer.statistics
        nursery.start_soon(run._feed.run)
        await run._send_in_transactions(producer)


@pytest.mark.parametrize(
    ("given", "commits"),
    [
        ({"transaction": ""}, 1),
        ({"transaction": "etl"}, 1),
        ({"transaction_records": 100}, 3),
        ({"transaction": "etl", "transaction_records": 1}, 250),
        ({"transaction_records": 1000}, 1),
        ({"transaction_records": 100, "delay": "30m"}, 3),
        ({"transaction": "", "deliver_at": "2026-12-24T18:00Z"}, 1),
    ],
)
async def test_how_many_transactions(
    autojump_clock: MockClock, tmp_path: Path, given: dict[str, Any], commits: int
) -> None:
    """All records in their order, in as many transactions as were asked for."""
    wanted = order(tmp_path / "lines", **given)
    run = ProduceRun(wanted, quiet=True)
    async with open_transactions() as (coordinator, stage):
        await send(stage.client, run, wanted)
        assert committed_in(coordinator, stage.world) == LINES
        assert len(coordinator.commits) == commits
        assert ("etl" in coordinator.rows) == (
            "transaction" in given and bool(given["transaction"])
        )
        assert run.fate() == "250 records committed, 0 read and not committed"


async def test_one_fails(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Those before it stay; of its own nothing counts, and the summary says so."""
    wanted = order(tmp_path / "lines", transaction_records=100)
    run = ProduceRun(wanted, quiet=True)
    async with open_transactions() as (coordinator, stage):
        leader = stage.world.brokers[1]
        leader.produces += [lambda turn: turn.carry_out(), refused(ErrorCode.INVALID_RECORD)]
        with pytest.RaisesGroup(TransactionAborted, flatten_subgroups=True, allow_unwrapped=True):
            await send(stage.client, run, wanted)
        assert committed_in(coordinator, stage.world) == LINES[:100]
        assert run.fate() == "100 records committed, 150 read and not committed"


@pytest.mark.parametrize(
    ("given", "due_ms"),
    [({"delay": "30m"}, NOW_MS + 1_800_000), ({"deliver_at": f"@{NOW_MS}"}, NOW_MS)],
)
async def test_records_for_later(
    autojump_clock: MockClock, tmp_path: Path, given: dict[str, Any], due_ms: int
) -> None:
    """All of the input is scheduled, with what else was asked for (A12.2)."""
    wanted = order(tmp_path / "lines", tags=("x",), headers=("a=b",), **given)
    run = ProduceRun(wanted, quiet=True)
    async with (
        open_stage() as stage,
        stage.client.producer(**wanted.options) as producer,
        trio.open_nursery() as nursery,
    ):
        run._statistics = producer.statistics
        nursery.start_soon(run._feed.run)
        await run._send_all(producer)
        assert in_log(stage.world) == LINES
        assert due_in(stage.world) == [due_ms] * len(LINES)
        batch = batches_in(stage.world)[0]
        assert (batch.tags[0], batch.headers[0]) == (("x",), (("a", b"b"),))
        assert run._by_partition == {0: len(LINES)}
        assert run.fate() == "250 records delivered"
