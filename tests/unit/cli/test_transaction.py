"""`raftmq transaction`: rows, and what is refused before anything is ended (A11.3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from raftmq.cli.main import main
from raftmq.wire.messages.transactions import (
    DescribeTransactions,
    DescribeTransactionsReply,
    ListTransactions,
    ListTransactionsReply,
    TransactionDescribed,
)
from tests.unit.client.administration.served import serve_bureau

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.client.administration.bureau import Bureau

ROW = TransactionDescribed(
    "etl",
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    last_producer_id=7,
    last_epoch=2,
    last_is_committed=True,
    last_version=17,
    last_count=1,
    changed_at_ms=0,
)
OPENED = TransactionDescribed("new", producer_id=8, producer_epoch=0, changed_at_ms=0)


class Here(NamedTuple):
    bureau: Bureau
    bootstrap: str

    def run(self, line: str) -> Result:
        return CliRunner().invoke(main, ["transaction", *line.split(), "-b", self.bootstrap])


@pytest.fixture
def here() -> Iterator[Here]:
    with serve_bureau() as (bureau, address):
        yield Here(bureau, str(address))


def test_a_list(here: Here) -> None:
    """Of an id under which nothing has ended there is no end."""
    empty = here.run("list")
    assert (empty.exit_code, "no transactions yet" in empty.stderr) == (0, True)
    here.bureau.lie(ListTransactions, ListTransactionsReply((ROW, OPENED)))
    titles, first, second = here.run("list").stdout.splitlines()
    assert titles.split() == ["transaction", "last", "version", "unsettled", "ended"]
    assert first.split()[:4] == ["etl", "committed", "17", "0"]
    assert second.split() == ["new", "-", "-", "0", "-"]
    told = [json.loads(line) for line in here.run("list -o json").stdout.splitlines()]
    assert [one["transaction_id"] for one in told] == ["etl", "new"]
    assert (told[0]["last_version"], told[1]["last_outcome"]) == (17, None)


def test_an_id(here: Here) -> None:
    here.bureau.lie(DescribeTransactions, DescribeTransactionsReply((ROW,)))
    lines = here.run("describe etl").stdout.splitlines()
    assert lines[0] == "transaction etl"
    assert lines[1:4] == [
        "  next: epoch 3 of producer 7, timeout 60000 ms",
        "  last: committed",
        "  version: 17, 1 row",
    ]


def test_a_shared_id(here: Here) -> None:
    """A14.3"""
    row = replace(
        ROW, lineage="checkpoint 1", open_version=18, joined=3, producer_id=8_192, producer_epoch=0
    )
    here.bureau.lie(DescribeTransactions, DescribeTransactionsReply((row,)))
    assert here.run("describe etl").stdout.splitlines()[1] == (
        "  shared: lineage checkpoint 1, version 18 is open, 3 members from producer 8192 on,"
        " timeout 60000 ms"
    )
    told = json.loads(here.run("describe etl -o json").stdout)
    assert (told["lineage"], told["open_version"], told["members"]) == ("checkpoint 1", 18, 3)
    idle = replace(row, lineage="", open_version=-1, joined=0, producer_id=-1, producer_epoch=-1)
    here.bureau.lie(DescribeTransactions, DescribeTransactionsReply((idle,)))
    assert "lineage (empty), no version is open" in here.run("describe etl").stdout
    assert here.run("abort etl --yes").stdout == "transaction etl: aborted\n"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("describe nope", 3, "no nope"),
        ("abort nope --yes", 3, "no nope"),
        ("forget nope --yes", 3, "no nope"),
        ("abort etl", 2, "--yes"),
        ("forget etl", 2, "--yes"),
        ("list --idle soon", 2, "expected a duration"),
    ],
)
def test_what_is_refused(here: Here, line: str, code: int, words: str) -> None:
    """Unknown ids, nobody to ask, and what is no duration."""
    result = here.run(line)
    assert result.exit_code == code, result.output
    assert words in result.stderr
