"""The judges of tasks complain: of logs that break a rule of fences, of rows, of steps too far."""

from __future__ import annotations

import re
from random import Random

import pytest

from raftmq.model import RecordFormat
from raftmq.wire.batch.header import Account, named_producer_id
from raftmq.wire.batch.records import encode_batch, encode_fence
from tests.simulation.brokers.ledger import Spot, end_of, records_in
from tests.simulation.brokers.task_ledger import Generation, Row, TaskLedger
from tests.simulation.brokers.task_logs import judge_log
from tests.simulation.brokers.test_histories import TOPIC, make_world
from tests.simulation.raft.checks import Violation

SPOT = Spot(TOPIC, 0)
PRODUCER = named_producer_id("t0")
ROWS = {
    (PRODUCER, generation): [f"{generation}/{number}".encode() for number in range(4)]
    for generation in (1, 2)
}


class Log:
    """Batches of one name, one behind the other."""

    def __init__(self) -> None:
        self.data, self.end = b"", 0

    def fence(self, generation: int, epoch: int, count: int) -> Log:
        return self._take(
            encode_fence(
                Account(generation, 0),
                producer_id=PRODUCER,
                producer_epoch=epoch,
                next_sequence=count,
                timestamp=1,
                base_offset=self.end,
            ),
            1,
        )

    def rows(
        self, generation: int, epoch: int, first: int, count: int = 1, *, of: int | None = None
    ) -> Log:
        """`of`: another first row than its number says."""
        start = first if of is None else of
        return self._take(
            encode_batch(
                values=ROWS[PRODUCER, generation][start : start + count],
                timestamp=1,
                base_offset=self.end,
                record_format=RecordFormat.COLUMNS,
                producer_id=PRODUCER,
                producer_epoch=epoch,
                base_sequence=first,
                account=Account(generation, 0),
            ),
            count,
        )

    def _take(self, batch: bytearray, count: int) -> Log:
        self.data, self.end = self.data + bytes(batch), self.end + count
        return self

    def complaint(self) -> str:
        try:
            judge_log(SPOT, self.data, ROWS)
        except Violation as found:
            return str(found)
        return ""


def test_a_log_as_it_should_be() -> None:
    """One generation in two epochs, then a higher one; an epoch may wrap."""
    log = Log().fence(1, 32767, 0).rows(1, 32767, 0, 2).fence(1, 0, 2).rows(1, 0, 2, 2)
    log.fence(2, 1, 0).fence(2, 2, 0).rows(2, 2, 0)
    assert log.complaint() == ""


@pytest.mark.parametrize(
    ("log", "what"),
    [
        (Log().fence(1, 0, 0).fence(1, 1, 0).rows(1, 0, 0), "topic-0-0 2: rows of"),
        (Log().fence(1, 0, 0).fence(2, 1, 0).rows(1, 0, 0), "topic-0-0 2: rows of"),
        (Log().rows(1, 0, 0), "topic-0-0 0: rows of .* where None is fenced"),
        (Log().fence(1, 0, 0).rows(1, 0, 1), "topic-0-0 1: rows of"),
        (Log().fence(1, 0, 0).rows(1, 0, 0, of=1), "are not rows 0 to 1"),
        (Log().fence(1, 0, 0).rows(1, 0, 0, 2).fence(1, 1, 0), "topic-0-0 3: the fence"),
        (Log().fence(1, 0, 0).rows(1, 0, 0, 2).fence(2, 1, 2), "topic-0-0 3: the fence"),
        (Log().fence(1, 0, 0).fence(1, 0, 0), "topic-0-0 1: the fence"),
        (Log().fence(2, 0, 0).fence(1, 1, 0), "topic-0-0 1: the fence"),
    ],
)
def test_a_log_that_breaks_a_rule(log: Log, what: str) -> None:
    """An old epoch, an old generation, no fence, a hole, other rows, a wrong count, and so on."""
    assert re.search(what, log.complaint())


async def test_fences_are_no_records() -> None:
    """They have a place, which is behind all there is to read."""
    log = Log().fence(1, 0, 0).rows(1, 0, 0, 2).fence(1, 1, 2)
    assert [found.value for found in records_in(log.data)] == ROWS[PRODUCER, 1][:2]
    assert (end_of(log.data, 0), end_of(b"", 7)) == (4, 7)


# -- what clients saw --------------------------------------------------------------------------


def make_ledger() -> tuple[TaskLedger, Generation]:
    """One generation with three rows in one partition."""
    ledger = TaskLedger(make_world(), "t0")
    generation = ledger.draw(Random(1), TOPIC, 1)
    generation.rows[:] = [Row(SPOT, index, b"%d" % index) for index in range(3)]
    for row in generation.rows:
        ledger._world.ledger.on_row(row.spot, row.value)
    return ledger, generation


def judged(task: TaskLedger, offsets: dict[int, int]) -> str:
    """With rows at these offsets."""
    ledger = task._world.ledger
    try:
        for index, offset in offsets.items():
            ledger.of(SPOT).see(offset, b"%d" % index, "log")
        task._judge_spot(SPOT)
    except Violation as found:
        return str(found)
    return ""


async def test_rows_of_a_generation_that_goes_on() -> None:
    """Some of them, from the first one on."""
    assert judged(make_ledger()[0], {}) == ""
    assert judged(make_ledger()[0], {0: 3, 1: 5}) == ""
    assert judged(make_ledger()[0], {0: 3, 2: 5}).endswith("of its 3 rows only 2 stand there")
    assert "stands at 5, and" in judged(make_ledger()[0], {0: 5, 1: 3})


async def test_rows_of_a_generation_that_is_finished() -> None:
    """All of them, each once."""
    ledger, generation = make_ledger()
    generation.is_finished = True
    assert judged(ledger, {0: 3, 1: 5}).endswith("[b'2'] are missing")
    assert judged(ledger, {2: 6}) == ""
    assert "b'2' stands at topic-0-0 [6, 7]" in judged(ledger, {2: 7})


async def test_what_somebody_has_stepped_over() -> None:
    """It must be no client's record, as is known then or in the end."""
    ledger = make_ledger()[0]._world.ledger.of(SPOT)
    ledger.skip(2, 4, "c")
    assert ledger.empty == {2: "c", 3: "c"}
    ledger.see(4, b"0", "d")
    with pytest.raises(Violation, match=r"c: steps over b'0' at topic-0-0 4"):
        ledger.skip(4, 5, "c")
    ledger = make_ledger()[0]._world.ledger
    ledger.of(SPOT).skip(1, 2, "c")
    found = list(records_in(Log().fence(1, 0, 0).rows(1, 0, 0).data))
    ledger.on_row(SPOT, found[0].value)
    with pytest.raises(Violation, match=r"\[\(1, 'c'\)\] have stepped over \[b'1/0'\]"):
        ledger.judge_log(SPOT, found, start=0, latest_epoch=0)
